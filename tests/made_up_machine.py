"""A made-up machine whose step times are known, and runs on it, for tests of predictions; they claim no measurement."""

from __future__ import annotations

import random

import numpy as np

from lib.answer.replay import Simulation, Stream, stream
from lib.results import table
from lib.results.records import Provenance, Record, Request, Resolved, Trace
from lib.results.run import Engine, Model, Run, Workload
from lib.results.table import Tables

MODEL = Model(source="dummy", name="opt-125m")
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
SETTINGS = {"vanilla": None, "ngram": NGRAM}
PROMPT_MS = 0.5
PERIODS = {"sonnet": 4, "chat": 9, "code": 3}


def true_ms(drafting: bool, batch, verified):
    """The made-up machine: ms of a step that decodes `batch` requests and verifies `verified` tokens."""
    return 14 + 0.5 * verified + 0.25 * batch if drafting else 10 + 1.0 * verified


def run(setting: str, workload: str = "chat", concurrency: int = 8, num_prompts: int = 12, repeat: int = 0) -> Run:
    arguments = {"max_num_seqs": 8, "max_model_len": 512, "max_num_batched_tokens": 4096, "enforce_eager": True}
    if SETTINGS[setting]:
        arguments["speculative_config"] = SETTINGS[setting]
    return Run(
        setting=setting, engine=Engine(model=MODEL, arguments=arguments, repeat=repeat), concurrency=concurrency,
        workload=Workload(name=workload, num_prompts=num_prompts, input_tokens=20), output_tokens=40,
    )  # fmt: skip


def requests_of(seed: int, period: int, number: int = 12) -> list[Stream]:
    """Requests whose outputs repeat themselves every `period` tokens, with a random token now and then."""
    rng = random.Random(seed)
    made = []
    for _ in range(number):
        prompt = [rng.randrange(1000) for _ in range(20)]
        made.append(
            stream(prompt, [prompt[i % period] if rng.random() < 0.9 else rng.randrange(1000) for i in range(40)])
        )
    return made


def simulation(asked: Run) -> Simulation:
    return Simulation(
        asked.engine.speculative, max_num_seqs=asked.concurrency, max_model_len=512, max_num_batched_tokens=4096
    )


def trace_of(steps: dict[str, np.ndarray], drafting: bool, extra_ms: float = 0.0) -> Trace:
    """The trace of replayed steps on the made-up machine; a request costs `extra_ms` a step more."""
    decoding = steps["running"] - steps["prefills"]
    ms = true_ms(drafting, np.maximum(decoding, 1), np.maximum(decoding + steps["draft_tokens"], 1))
    ms = ms + PROMPT_MS * steps["prompt_tokens"] + extra_ms * steps["running"]
    names = ("running", "prefills", "output_tokens", "drafts", "draft_tokens", "accepted_tokens")
    columns = {name: steps[name].tolist() for name in names}
    count = len(ms)
    columns |= {"t_s": (np.cumsum(ms) / 1000).tolist(), "waiting": [0] * count, "graph_mode": [""] * count}
    return Trace(steps=columns | {"padded_tokens": [0] * count})


def measured(asked: Run, streams: list[Stream], extra_ms: float = 0.0, session: str = "s") -> tuple[Record, Trace]:
    """A run of these requests on the made-up machine."""
    done = simulation(asked).run(streams, detailed=True)
    trace = trace_of(done.steps, asked.engine.speculative is not None, extra_ms)
    times, order = trace.steps["t_s"], np.argsort(done.requests["number"])
    requests = tuple(
        Request(
            num_prompt_tokens=len(s.prompt_token_ids), num_output_tokens=s.num_output_tokens, finish_reason="length",
            first_token_s=times[done.requests["first_step"][i]], last_token_s=times[done.requests["last_step"][i]],
        )
        for s, i in zip(streams, order, strict=True)
    )  # fmt: skip
    resolved = Resolved(
        vllm_version="0.33.0", runner="V1", async_scheduling=False, cudagraph_mode="NONE", enforce_eager=True,
        max_num_batched_tokens=4096, num_parameters=125_000_000,
    )  # fmt: skip
    record = Record(
        run=asked, status="ok", wall_s=times[-1], counters=done.counters, requests=requests, resolved=resolved,
        provenance=Provenance(measured="2026-01-01T00:00:00Z", cpu="made-up CPU", num_cpus=2, session=session),
    )  # fmt: skip
    return record, trace


def machine(concurrencies=(1, 2, 4, 8), extra_ms: float = 0.0) -> Tables:
    """Vanilla and ngram on three texts at each concurrency; a draft costs `extra_ms` a request and step more."""
    return table.frames(
        measured(run(setting, name, concurrency), requests_of(seed, period), extra_ms if SETTINGS[setting] else 0.0)
        for seed, (name, period) in enumerate(PERIODS.items())
        for concurrency in concurrencies
        for setting in SETTINGS
    )
