"""Derived quantities and intervals: hand-computed cases, and the identities that hold for any counters."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.results import metrics, stats


def run(drafts, steps, per_position, extra_drafted=0):
    accepted = sum(per_position)
    return {
        "run_id": "r", "wall_s": 2.0, "num_output_tokens": steps + accepted, "num_drafts": drafts,
        "num_draft_tokens": accepted + extra_drafted, "num_accepted_tokens": accepted,
        "num_accepted_tokens_per_pos": per_position, "num_request_steps": steps,
    }  # fmt: skip


def test_hand_computed():
    # 10 request-steps, 4 with a draft; 3, 2, 1 accepted at the three positions; 12 drafted
    made = metrics.derive(pd.DataFrame([run(4, 10, [3, 2, 1], extra_drafted=6)])).iloc[0]
    assert (made.mean_acceptance_length, made.acceptance_rate, made.draft_coverage) == (2.5, 0.5, 0.4)
    assert (made.tokens_per_step, made.tok_s) == (1.6, 8.0)
    assert metrics.per_position(made).tolist() == [0.75, 0.5, 0.25]


def test_a_run_without_a_draft_has_no_acceptance():
    made = metrics.derive(pd.DataFrame([run(0, 5, [])])).iloc[0]
    assert math.isnan(made.mean_acceptance_length) and math.isnan(made.acceptance_rate)
    assert (made.tokens_per_step, made.draft_coverage) == (1, 0)


def test_the_share_of_requests_cut_at_the_longest_answer():
    requests = pd.DataFrame({"run_id": ["r"] * 4, "finish_reason": ["length", "stop", "stop", "stop"]})
    assert metrics.derive(pd.DataFrame([run(0, 5, [])]), requests).cap_share.tolist() == [0.25]


@st.composite
def any_run(draw):
    steps = draw(st.integers(1, 200))
    drafts = draw(st.integers(0, steps))
    positions, last = [], drafts
    for _ in range(draw(st.integers(0, 6)) if drafts else 0):
        last = draw(st.integers(0, last))
        positions.append(last)
    return run(drafts, steps, positions, draw(st.integers(0, 50)))


@given(any_run())
def test_tokens_per_step_is_one_plus_coverage_times_accepted_per_draft(counted):
    made = metrics.derive(pd.DataFrame([counted])).iloc[0]
    if counted["num_drafts"]:
        k = made.mean_acceptance_length
        assert made.tokens_per_step == pytest.approx(1 + made.draft_coverage * (k - 1))
        assert 1 <= k <= 1 + len(counted["num_accepted_tokens_per_pos"])
        assert metrics.per_position(made).sum() == pytest.approx(k - 1)
    else:
        assert made.tokens_per_step == 1


def columns(*values):
    """Rows of a value and a one, whose ratio of sums is the mean."""
    return [np.column_stack([v, np.ones(len(v))]) for v in values]


def mean(sums):
    return sums[..., 0] / sums[..., 1]


def test_bootstrap_of_constants_is_the_constant():
    e = stats.bootstrap(columns(np.full(5, 3.0), np.full(4, 3.0)), mean, resamples=50)
    assert (e.value, e.low, e.high, e.n) == (3, 3, 3, 9)


def test_bootstrap_is_seeded_and_contains_its_value():
    groups = columns(np.arange(10.0), np.arange(5.0))
    a, b = (stats.bootstrap(groups, mean, resamples=200) for _ in range(2))
    assert a == b and a.low <= a.value <= a.high
    with pytest.raises(ValueError, match="groups"):
        stats.bootstrap([], mean)


def test_bootstrap_draws_groups_then_rows_within_them():
    """The definition, one draw after the other."""
    rng, means = np.random.default_rng(0), []
    groups = [rng.random(size) + shift for size, shift in ((6, 0.0), (9, 0.5), (4, 0.2))]
    for _ in range(8000):
        chosen = [groups[j] for j in rng.integers(len(groups), size=len(groups))]
        means.append(np.concatenate([g[rng.integers(len(g), size=len(g))] for g in chosen]).mean())
    e = stats.bootstrap(columns(*groups), mean, resamples=8000)
    assert (e.low, e.high) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])), abs=0.02)
    assert (e.value, e.n) == (pytest.approx(np.concatenate(groups).mean()), 19)


def test_a_resample_without_a_denominator_counts_as_none():
    e = stats.bootstrap([np.array([[0.0, 0.0], [2.0, 4.0]])], mean)
    assert (e.value, e.low, e.high) == (0.5, 0.5, 0.5)  # a quarter of the resamples are 0 / 0


def test_more_spread_between_groups_widens_the_interval():
    near = stats.bootstrap(columns(np.array([1.0, 2, 3]), np.array([1.0, 2, 3])), mean, resamples=500)
    far = stats.bootstrap(columns(np.array([1.0, 1, 1]), np.array([3.0, 3, 3])), mean, resamples=500)
    assert far.high - far.low > near.high - near.low
