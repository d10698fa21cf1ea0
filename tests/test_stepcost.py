"""The step cost: features counted by hand, a fit that finds what made its data, texts held out."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        {"setting": s, "workload": t, "concurrency": c, "features": rng.integers(1, 1000, len(stepcost.NAMES)).astype(float)}
        for s in settings for t in texts for c in (1, 8, 64)
    ]  # fmt: skip
    made = pd.DataFrame(rows)
    return made.assign(wall_s=np.stack(list(made.features)) @ seconds)


@given(st.lists(st.floats(0.001, 1), min_size=len(stepcost.NAMES), max_size=len(stepcost.NAMES)))
def test_a_fit_finds_the_costs_that_made_the_walls(seconds):
    runs = runs_of(np.array(seconds))
    assert np.stack(list(runs.features)) @ stepcost.solve(runs) == pytest.approx(runs.wall_s.to_numpy(), rel=1e-6)


def test_few_runs_bear_only_the_plain_terms():
    seconds = stepcost.solve(runs_of(np.ones(len(stepcost.NAMES)), texts=("a",)))
    assert {name for name, s in zip(stepcost.NAMES, seconds, strict=True) if s} <= set(stepcost._PLAIN)


def test_every_text_is_predicted_by_the_others():
    runs = runs_of(np.linspace(0.1, 1, len(stepcost.NAMES)))
    found = stepcost.held_out(runs)
    assert len(found) == 9 and set(found.setting) == {"ngram"}
    assert found.predicted.to_numpy() == pytest.approx(found.measured.to_numpy(), rel=0.05)
    assert len(stepcost.held_out(runs[runs.workload == "a"])) == 0


def test_the_measured_models_price_a_longer_run_higher():
    cost = stepcost.cost("Llama-3.1-8B")
    assert cost.wall_s(STEPS) > cost.wall_s({name: values[:2] for name, values in STEPS.items()}) > 0
    assert stepcost.cost("Qwen2.5-14B", "V1") is None  # never measured with a drafter of runner V1


def test_a_text_unseen_by_the_fit_is_predicted_where_the_gpu_sets_the_pace():
    for model, billions in stepcost.models().items():
        found = stepcost.held_out(stepcost.measured(model))
        assert billions < 4 or (found.predicted / found.measured - 1).abs().mean() < 0.05
