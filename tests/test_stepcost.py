"""The step cost: features counted by hand, a fit that finds what made its data, texts held out."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import results
from lib.answer import stepcost

STEPS = {
    # one step that reads two prompts, one plain decode step, one that verifies 2 x 40 drafts
    "running": np.array([2, 2, 2]), "prompt_tokens": np.array([30, 0, 0]), "draft_tokens": np.array([0, 0, 80]),
    "context_tokens": np.array([0, 40, 60]),
}  # fmt: skip


def test_features_counted_by_hand():
    found = dict(zip(stepcost.NAMES, stepcost.features(STEPS), strict=True))
    assert found == {
        "steps": 2, "drafting steps": 1, "verified": 2 + 82, "verified above 64": 18, "verified above 256": 0,
        "verified above 512": 0, "context": 0.1, "mixed steps": 1, "mixed tokens": 32, "running": 6,
    }  # fmt: skip


def runs_of(seconds: np.ndarray, seed: int = 0, settings=("vanilla", "ngram"), texts=("a", "b", "c")) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [
        {"setting": s, "workload": t, "concurrency": c, "features": rng.integers(1, 1000, (4, len(stepcost.NAMES))).astype(float)}
        for s in settings for t in texts for c in (1, 8, 64)
    ]  # fmt: skip
    made = pd.DataFrame(rows)
    return made.assign(seconds=[f @ seconds for f in made.features])


@given(st.lists(st.floats(0.001, 1), min_size=len(stepcost.NAMES), max_size=len(stepcost.NAMES)))
def test_a_fit_finds_the_costs_that_made_the_times(seconds):
    runs = runs_of(np.array(seconds))
    found = stepcost.predicted(runs, stepcost.solve(runs))
    assert found.predicted.to_numpy() == pytest.approx(found.measured.to_numpy(), rel=1e-6)


def test_few_runs_bear_only_the_plain_terms():
    seconds = stepcost.solve(runs_of(np.ones(len(stepcost.NAMES)), texts=("a",)))
    assert {name for name, s in zip(stepcost.NAMES, seconds, strict=True) if s} <= set(stepcost._PLAIN)


def test_every_text_and_inner_concurrency_is_predicted_by_the_others():
    runs = runs_of(np.linspace(0.1, 1, len(stepcost.NAMES)))
    for by, cells in (("workload", 9), ("concurrency", 3)):
        found = stepcost.held_out(runs, by)
        assert len(found) == cells and set(found.setting) == {"ngram"}
        assert found.predicted.to_numpy() == pytest.approx(found.measured.to_numpy(), rel=0.05)
    assert len(stepcost.held_out(runs[runs.workload == "a"])) == 0


def test_measured_steps_counted_by_hand():
    """Two requests of 20 and 40 prompt tokens, answers of 3 and 2; the second starts with the second step."""
    requests = pd.DataFrame({
        "first_token_s": [1.0, 2.0], "last_token_s": [3.0, 3.0], "num_prompt_tokens": [20, 40],
        "num_output_tokens": [3, 2],
    })  # fmt: skip
    steps = pd.DataFrame(
        {"t_s": [1.0, 2.0, 3.0], "running": [1, 2, 2], "draft_tokens": [0, 0, 5], "output_tokens": [1, 2, 2]}
    )
    found = {name: list(values) for name, values in stepcost.measured_steps(requests, steps, cached=True).items()}
    assert found == {
        "seconds": [1, 1, 1], "running": [1, 2, 2], "draft_tokens": [0, 0, 5],
        "prompt_tokens": [4, 24, 0],  # less the 16 of the cipher
        "context_tokens": [20, 61, 63],
    }  # fmt: skip
    assert list(stepcost.measured_steps(requests, steps, cached=False)["prompt_tokens"]) == [20, 40, 0]


@pytest.mark.parametrize("profile", stepcost.PROFILES)
def test_the_prompt_tokens_of_all_steps_are_those_that_the_engine_computed(profile):
    tables = results.read(profile)
    requests, steps = (dict(tuple(t.groupby("run_id"))) for t in tables[1:])
    for run in tables.runs[(tables.runs.status == "ok") & tables.runs.verbatim.eq(True)].itertuples():
        made = stepcost.measured_steps(requests[run.run_id], steps[run.run_id], cached=True)
        assert made["prompt_tokens"].sum() == run.num_prompt_tokens - run.num_cached_prompt_tokens
        assert made["seconds"].sum() == pytest.approx(run.wall_s, rel=0.02)


def test_windows_add_up_to_the_run():
    tables = results.read("h200")
    one, many = (stepcost.windowed(tables._replace(runs=tables.runs[:3]), number) for number in (1, 20))
    for whole, parts in zip(one.itertuples(), many.itertuples(), strict=True):
        assert parts.features.shape == (20, len(stepcost.NAMES))
        assert parts.features.sum(axis=0) == pytest.approx(whole.features[0])
        assert parts.seconds.sum() == pytest.approx(whole.seconds[0])


def test_the_measured_models_price_a_longer_run_higher():
    cost = stepcost.cost("Llama-3.1-8B")
    assert cost.wall_s(STEPS) > cost.wall_s({name: values[:2] for name, values in STEPS.items()}) > 0
    assert stepcost.cost("Qwen2.5-14B", "V1") is None  # never measured with a drafter of runner V1


def test_a_text_or_concurrency_unseen_by_the_fit_is_predicted_where_the_gpu_sets_the_pace():
    for model, billions in stepcost.models().items():
        for by in ("workload", "concurrency"):
            found = stepcost.held_out(stepcost.measured(model), by)
            assert billions < 4 or (found.predicted / found.measured - 1).abs().mean() < 0.05


def test_a_size_between_two_costs_something_between_and_is_less_certain():
    small, middle, large = (stepcost.cost(m) for m in ("Qwen2.5-14B", 20.0, "Qwen2.5-32B"))
    assert small.wall_s(STEPS) < middle.wall_s(STEPS) < large.wall_s(STEPS)
    assert middle.error > min(small.error, large.error)
    assert stepcost.cost(small.billions).wall_s(STEPS) == pytest.approx(small.wall_s(STEPS))
    assert stepcost.cost(70.0) is None and stepcost.cost(0.1) is None


def test_a_measured_size_is_predicted_from_its_neighbours():
    low, own, high = (stepcost.cost(m) for m in ("Llama-3.1-8B", "Qwen2.5-14B", "Qwen2.5-32B"))
    found = stepcost.speedups(stepcost.measured(own.model), stepcost.mixed(low, high, own.billions)[0])
    assert stepcost.worst(found) < 0.05


def test_the_variability_of_the_nearest_concurrency_is_what_remains_open():
    cost = stepcost.cost("Llama-3.1-8B")._replace(error=0.02, aa={8: 0.05, 64: 0.11})
    assert [cost.open(n) for n in (1, 8, 32, 256)] == [0.05, 0.05, 0.11, 0.11]
    assert cost._replace(error=0.2).open(8) == 0.2 and cost._replace(error=float("nan"), aa={}).open(8) == 0
