"""Derived quantities on hand-computed cases, and the identities that hold for any counters."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_records import NGRAM, cell, record, trace

from lib import metrics
from lib.records import Counters


def counters(drafts, steps, per_position, extra_drafted=0, filling=0):
    accepted = sum(per_position)
    return Counters(
        num_output_tokens=steps + accepted, num_prompt_tokens=1, num_drafts=drafts,
        num_draft_tokens=accepted + extra_drafted + filling, num_accepted_tokens=accepted,
        num_accepted_tokens_per_pos=tuple(per_position), num_filling_tokens=filling, num_engine_steps=steps,
        num_request_steps=steps, request_steps_source="engine",
    )  # fmt: skip


def test_hand_computed():
    # 10 request-steps, 4 with a draft; 3, 2, 1 accepted at the three positions; 12 drafted
    c = counters(4, 10, [3, 2, 1], extra_drafted=6)
    assert metrics.mean_acceptance_length(c) == 2.5
    assert metrics.acceptance_rate(c) == 0.5
    assert metrics.draft_coverage(c) == 0.4
    assert metrics.tokens_per_step(c) == 1.6
    assert metrics.acceptance_per_position(c) == [0.75, 0.5, 0.25]
    assert metrics.conditional_acceptance(c) == [0.75, pytest.approx(2 / 3), 0.5]


def test_filling_is_not_counted_as_drafted():
    c = counters(4, 10, [2], extra_drafted=2, filling=8)
    assert metrics.acceptance_rate(c) == 0.5


def test_no_draft_at_all():
    c = counters(0, 5, [])
    assert math.isnan(metrics.mean_acceptance_length(c)) and math.isnan(metrics.acceptance_rate(c))
    assert metrics.tokens_per_step(c) == metrics.emitted_tokens_per_step(c) == 1


@st.composite
def any_counters(draw):
    steps = draw(st.integers(1, 200))
    drafts = draw(st.integers(0, steps))
    positions, last = [], drafts
    for _ in range(draw(st.integers(0, 6)) if drafts else 0):
        last = draw(st.integers(0, last))
        positions.append(last)
    return counters(drafts, steps, positions, extra_drafted=draw(st.integers(0, 50)))


@given(any_counters())
def test_tau_is_one_plus_c_times_k_minus_one(c):
    assert metrics.tokens_per_step(c) == pytest.approx(metrics.emitted_tokens_per_step(c))
    if c.num_drafts:
        assert 1 <= metrics.mean_acceptance_length(c) <= 1 + len(c.num_accepted_tokens_per_pos)
        assert sum(metrics.acceptance_per_position(c)) == pytest.approx(metrics.mean_acceptance_length(c) - 1)


@given(st.lists(any_counters(), min_size=1, max_size=4))
def test_pooling_sums_counts(parts):
    records = [record(cell(seed=i), counters=c) for i, c in enumerate(parts)]
    total = metrics.pooled(records)
    assert total.num_drafts == sum(c.num_drafts for c in parts)
    assert sum(total.num_accepted_tokens_per_pos) == total.num_accepted_tokens


def test_tpot_and_cap_share():
    r = record(cell(), tpot_s=0.05)
    assert metrics.tpot_ms(r) == pytest.approx([50, 50])
    assert metrics.cap_share(r) == 0.5
    assert metrics.throughput_tok_s(r) == 10
    one = record(cell(), tokens=1)
    assert all(math.isnan(t) for t in metrics.tpot_ms(one))


def test_decode_steps_leave_prefills_out():
    t = trace([10, 20, 30], [2, 2, 1])
    assert list(metrics.decode_steps(t)["step_ms"]) == pytest.approx([10, 20, 30])
    assert metrics.mean_step_ms(t) == pytest.approx(20)
    assert metrics.mean_step_ms(t, running=2) == pytest.approx(15)
    busy = trace([10, 20], [2, 2], prefills=-1)
    assert math.isnan(metrics.mean_step_ms(busy))


def test_steps_that_read_a_prompt():
    assert metrics.prompt_steps(trace([10, 20, 30], [2, 2, 1], prefills=-1)) == pytest.approx(
        (15, 1)
    )  # the first at t = 0
    mixed = trace([10, 30, 20], [2, 2, 2])
    mixed.steps["prefills"] = [0, 0, 1, 0]
    assert metrics.prompt_steps(mixed) == pytest.approx((30, 0.5))
    mixed.steps["prefills"] = [0] * 4
    assert math.isnan(metrics.prompt_steps(mixed)[0]) and metrics.prompt_steps(mixed)[1] == 0


def test_step_time_ratio_matches_running_requests():
    base = trace([10, 10, 4, 4], [2, 2, 1, 1])
    test = trace([20, 6], [2, 1])  # twice as long at 2 requests, 1.5 times at 1
    assert metrics.step_time_ratio(test, base) == pytest.approx((20 + 6) / (10 + 4))
    assert math.isnan(metrics.step_time_ratio(trace([5], [7]), base))
    assert metrics.step_time_ratio(base, base) == pytest.approx(1)


def test_graph_modes_and_steady_share():
    t = trace([1, 1, 2], [4, 4, 1], graph_mode=["NONE", "FULL", "FULL", "PIECEWISE"])
    assert metrics.graph_mode_shares(t) == {"FULL": pytest.approx(2 / 3), "PIECEWISE": pytest.approx(1 / 3)}
    assert metrics.steady_share(t, 4) == pytest.approx(0.5)


def test_divergence_and_identity():
    assert metrics.first_divergence([1, 2, 3], [1, 2, 3]) is None
    assert metrics.first_divergence([1, 2, 3], [1, 5, 3]) == 1
    assert metrics.first_divergence([1, 2], [1, 2, 3]) == 2
    a = record(cell())
    assert metrics.identical_outputs(a, record(cell(speculative=NGRAM))) == 1
    with pytest.raises(ValueError, match="same prompts"):
        metrics.identical_outputs(a, record(cell(), requests=()))
