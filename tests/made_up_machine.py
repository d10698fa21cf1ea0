"""A made-up machine whose step times are known, and records of it, for tests of predictions."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from lib import prediction, replay
from lib.cells import Cell, Engine, Model, Speculative, Workload
from lib.prediction import Costs
from lib.records import Counters, Provenance, Record, Request, Resolved, Store, Trace
from lib.steptime import Grid, Law, Regime

MODEL = Model(source="shape", name="opt-125m")
PROVENANCE = Provenance(measured="2026-01-01T00:00:00Z", cpu="made-up CPU", num_cpus=2)
NGRAM = Speculative(method="ngram", num_speculative_tokens=3, prompt_lookup_min=2, prompt_lookup_max=5)
WALK = Speculative(method="custom_class", drafter="WalkingDrafter", num_speculative_tokens=7)
PROMPT_MS = 0.5


def true_ms(speculative, batch, verified):
    """The made-up machine: ms of a step that decodes."""
    return 10 + 1.0 * verified if speculative is None else 14 + 0.5 * verified + 0.25 * batch


def engine(speculative=None, repeat=0) -> Engine:
    return Engine(
        model=MODEL,
        max_num_seqs=8,
        max_model_len=512,
        enforce_eager=True,
        speculative=speculative,
        repeat=repeat,
    )


def resolved() -> Resolved:
    return Resolved(
        vllm_version="0.32.0", runner="V1", async_scheduling=False, cudagraph_mode="NONE", enforce_eager=True,
        max_num_batched_tokens=4096,
    )  # fmt: skip


def trace_of(steps: dict[str, np.ndarray], speculative, extra_ms: float = 0.0, **kept) -> Trace:
    """The trace of a run on the made-up machine."""
    decoding = steps["running"] - steps["prefills"]
    ms = true_ms(speculative, np.maximum(decoding, 1), np.maximum(decoding + steps["draft_tokens"], 1))
    ms = ms + PROMPT_MS * steps["prompt_tokens"] + extra_ms * steps["running"]
    names = ("running", "prefills", "output_tokens", "drafts", "draft_tokens", "accepted_tokens")
    columns = {name: steps[name].tolist() for name in names}
    count = len(ms)
    columns |= {"t_s": (np.cumsum(ms) / 1000).tolist(), "waiting": [0] * count, "graph_mode": [""] * count}
    return Trace(steps=columns | {"padded_tokens": [0] * count}, **kept)


def grid_record(batch: int, gamma: int | None) -> tuple[Record, Trace]:
    """A cell of the step-time grid."""
    speculative, count = (None, 14) if gamma is None else (WALK, 14)
    steps = {
        "running": np.full(count, batch), "prefills": np.array([batch] + [0] * (count - 1)),
        "prompt_tokens": np.array([batch * 16] + [0] * (count - 1)), "output_tokens": np.full(count, batch),
        "drafts": np.full(count, batch if gamma else 0), "accepted_tokens": np.zeros(count, int),
        "draft_tokens": np.array([0] + [batch * (gamma or 0)] * (count - 1)),
    }  # fmt: skip
    cell = Cell(
        engine=engine(speculative), workload=Workload(name="random", form="raw", num_prompts=batch, input_tokens=16),
        output_tokens=count, ignore_eos=True, batch_size=batch, draft_tokens=gamma,
        setting="vanilla" if gamma is None else "walking",
    )  # fmt: skip
    trace = trace_of(steps, speculative)
    counters = Counters(
        num_output_tokens=count * batch, num_prompt_tokens=16 * batch, num_engine_steps=count,
        num_request_steps=count * batch, request_steps_source="engine",
    )  # fmt: skip
    record = Record(
        cell=cell,
        status="ok",
        wall_s=trace.steps["t_s"][-1],
        counters=counters,
        resolved=resolved(),
        provenance=PROVENANCE,
    )
    return record, trace


def requests_of(seed: int, period: int) -> list[replay.Stream]:
    """Twelve requests whose outputs repeat themselves every `period` tokens, with a random token now and then."""
    rng = random.Random(seed)
    made = []
    for _ in range(12):
        prompt = [rng.randrange(1000) for _ in range(20)]
        output = [prompt[i % period] if rng.random() < 0.9 else rng.randrange(1000) for i in range(40)]
        made.append(replay.stream(prompt, output))
    return made


def workload_record(name: str, speculative, streams, repeat=0, extra_ms=0.0, batch=8) -> tuple[Record, Trace]:
    """A run with real prompts on the made-up machine."""
    cell = Cell(
        engine=engine(speculative, repeat), batch_size=batch, output_tokens=40,
        workload=Workload(name=name, num_prompts=len(streams), input_tokens=20),
        setting="vanilla" if speculative is None else "ngram", keep_tokens=speculative is None,
    )  # fmt: skip
    done = replay.Simulation.of_cell(cell, resolved()).run(streams, detailed=True)
    kept = {}
    if speculative is None:
        kept = {
            "prompt_token_ids": [s.prompt_token_ids.tolist() for s in streams],
            "output_token_ids": [s.output_token_ids.tolist() for s in streams],
        }
    trace = trace_of(done.steps, speculative, extra_ms, **kept)
    times = trace.steps["t_s"]
    order = np.argsort(done.requests["number"])
    first, last = done.requests["first_step"][order], done.requests["last_step"][order]
    requests = tuple(
        Request(num_prompt_tokens=20, num_output_tokens=40, first_token_s=times[a], last_token_s=times[b])
        for a, b in zip(first, last, strict=True)
    )
    record = Record(
        cell=cell, status="ok", wall_s=times[-1], counters=done.counters, requests=requests, resolved=resolved(),
        provenance=PROVENANCE,
    )  # fmt: skip
    return record, trace


def machine(path: Path) -> Store:
    """A folder of records: the step-time grid, and three workloads plain and with ngram."""
    store = Store(path)
    for batch in (1, 2, 4, 8):
        for gamma in (None, 0, 3, 7):
            store.save(*grid_record(batch, gamma))
    for seed, (name, period) in enumerate({"sonnet": 4, "chat": 9, "code": 3}.items()):
        streams = requests_of(seed, period)
        store.save(*workload_record(name, None, streams))
        store.save(*workload_record(name, NGRAM, streams, extra_ms=0.2))
    return store


def hand_made(vanilla_ms=(10.0, 0.0), drafter_ms=(12.0, 0.0), error: float | None = 0.0, **changes) -> Costs:
    """Costs with `fixed` and `token` terms and a wide grid."""
    grid = Grid(batch=(1, 64), verified=(1, 2048), per_request=(1, 33), context=(0, 9999))

    def law(setting, fixed, token):
        regime = Regime(
            mode="NONE", fixed=fixed, token=token, identified=("fixed", "token"), grid=grid, num_rows=9,
            held_out_error=error,
        )  # fmt: skip
        return Law(model="made-up 1B", hardware="made-up CPU (2 cores)", setting=setting, regimes=(regime,))

    return Costs(law("vanilla", *vanilla_ms), law("walking", *drafter_ms), 0.0, **changes)


PERIODIC = [replay.stream([7, 8, 9, 7, 8], [9, 7, 8, 9, 7, 8, 9, 7, 8], cap=5)] * 2


def rank_one(costs, streams=PERIODIC, batch=2):
    found = prediction.rank(streams, costs, batch_sizes=[batch], settings={"vanilla": None, "ngram": NGRAM})
    return {p.setting: p for p in found}
