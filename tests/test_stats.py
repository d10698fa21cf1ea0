"""Intervals: dumb cases, pairing, and what a ratio must not do."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_records import NGRAM, cell, record

from lib import figures, stats
from lib.records import Provenance


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


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 9))
def test_bootstrap_draws_groups_then_rows_within_them(sizes, seed):
    """The definition, one draw after the other, for groups of one size and of several."""
    values = np.random.default_rng(seed).random(sum(sizes))
    for groups in (np.split(values, np.cumsum(sizes)[:-1]), [values[:2]] * len(sizes)):
        rng, means = np.random.default_rng(seed), []
        for _ in range(30):
            chosen = [groups[j] for j in rng.integers(len(groups), size=len(groups))]
            means.append(np.concatenate([g[rng.integers(len(g), size=len(g))] for g in chosen]).mean())
        e = stats.bootstrap(columns(*groups), mean, resamples=30, seed=seed)
        assert (e.low, e.high) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])))
        assert (e.value, e.n) == (pytest.approx(np.concatenate(groups).mean()), sum(map(len, groups)))


def test_many_draws_at_once_are_those_of_one_after_the_other(monkeypatch):
    groups = columns(*np.random.default_rng(1).random((3, 50)))
    whole = stats.bootstrap(groups, mean, resamples=40)
    monkeypatch.setattr(stats, "_DRAWS_AT_ONCE", 400)  # two or three resamples a call
    assert stats.bootstrap(groups, mean, resamples=40) == whole


def test_a_resample_without_a_denominator_counts_as_none():
    rows = np.array([[1.0, 0.0], [2.0, 4.0]])
    e = stats.bootstrap([rows], stats._ratio_of_sums)
    assert (e.value, e.low, e.high) == (0.75, 0.5, 0.75)  # (1 + 2) / 4, or 2 of 2 rows (2, 4); never 2 of (1, 0)


def test_more_spread_between_groups_widens_the_interval():
    near = stats.bootstrap(columns(np.array([1.0, 2, 3]), np.array([1.0, 2, 3])), mean, resamples=500)
    far = stats.bootstrap(columns(np.array([1.0, 1, 1]), np.array([3.0, 3, 3])), mean, resamples=500)
    assert far.high - far.low > near.high - near.low


def test_speedup_of_a_record_with_itself_is_one():
    r = record(cell())
    e = stats.speedup([r], [r])
    assert e.value == e.low == e.high == 1


def test_speedup_is_the_throughput_ratio_and_pairs_prompts():
    base = [record(cell(seed=s), wall_s=2.0, tpot_s=0.2) for s in (0, 1)]
    test = [record(cell("ngram", seed=s, speculative=NGRAM), wall_s=1.0, tpot_s=0.1) for s in (1, 0)]
    e = stats.speedup(test, base)
    assert e.value == pytest.approx(2) and e.low == pytest.approx(2) and e.high == pytest.approx(2)
    assert [t.cell.workload.seed == b.cell.workload.seed for t, b in stats.pair(test, base)] == [True, True]
    with pytest.raises(ValueError, match="share no prompts"):
        stats.speedup([record(cell(seed=9))], base)


def test_speedup_is_over_the_mean_of_the_base_arms():
    again = cell().model_copy(update={"engine": cell().engine.model_copy(update={"repeat": 1})})
    arms = [record(cell(), wall_s=2.0), record(again, wall_s=4.0)]
    test = record(cell("ngram", speculative=NGRAM), wall_s=1.5)
    assert stats.speedup([test], arms).value == pytest.approx(2.0)
    assert stats.pair([test], arms[::-1]) == [(test, arms[0])]
    # a repeat of the base itself is compared with its own kind only
    assert stats.speedup([arms[1]], arms).value == pytest.approx(1.0)


def test_a_round_is_compared_with_its_own_vanilla():
    later = Provenance(measured="2026-01-02T00:00:00Z", commit="abcdef0", cpu="a CPU")
    again = cell().model_copy(update={"engine": cell().engine.model_copy(update={"repeat": 1})})
    bases = [record(cell(), wall_s=2.0), record(again, wall_s=3.0, provenance=later)]
    assert stats.speedup([record(cell("ngram", speculative=NGRAM), wall_s=1.0)], bases).value == pytest.approx(2.0)
    test = record(cell("ngram", speculative=NGRAM), wall_s=1.0, provenance=later)
    assert stats.speedup([test], bases).value == pytest.approx(3.0) and stats.pair([test], bases) == [(test, bases[1])]
    # a round without a vanilla of its own falls back on what there is; arms of two rounds make no noise floor
    assert stats.speedup([test], bases[:1]).value == pytest.approx(2.0)
    assert stats.beside([test], bases) == [test] and stats.beside([test], bases[:1]) == []
    with pytest.raises(ValueError, match="identical cells"):
        stats.noise_floor([bases[:1], bases[1:]])
    # another number of GPUs is another machine of the same kind, so another round
    # and so are other GPUs of that number, where the records tell
    for told in ({"num_gpus": later.num_gpus + 1}, {"machine": "0123abcd"}):
        elsewhere = later.model_copy(update=told)
        assert len(stats.rounds([test, record(cell(), provenance=elsewhere)])) == 2
    # another number of cores is another kind of machine: nothing to compare with
    wider = record(cell("ngram", speculative=NGRAM), provenance=later.model_copy(update={"num_cpus": 32}))
    assert stats.pair([wider], bases) == []


def test_rounds_are_told_by_time_and_machine():
    def at(hour, cpu="a CPU"):
        return record(cell(), provenance=Provenance(measured=f"2026-01-01T{hour:02d}:00:00Z", cpu=cpu))

    early, soon, late, elsewhere = at(1), at(2), at(9), at(9, "another CPU")
    rounds = stats.rounds([late, soon, elsewhere, early])
    assert rounds == [[early, soon], [late], [elsewhere]]
    assert figures.round_mark([soon], rounds) == ""
    assert figures.round_mark([late, soon, elsewhere], rounds) == "²³"
    assert figures.round_mark([at(20)], rounds) == "°"
    assert stats.rounds([]) == []
    chain = [at(1), at(3), at(5)]  # each within two hours of the next: one long round
    assert stats.rounds(chain) == [chain] and figures.round_mark([at(7)], [chain]) == ""
    many = stats.rounds([at(h) for h in (0, 4, 8, 12, 16, 20)])
    assert figures.round_mark([many[-1][0]], many) == "⁶"


def test_few_seeds_widen_the_interval_as_student_says():
    walls = (1.0, 1.2, 1.5)
    base = [record(cell(seed=s)) for s in range(3)]
    test = [record(cell("ngram", seed=s, speculative=NGRAM), wall_s=w) for s, w in enumerate(walls)]
    e = stats.speedup(test, base)
    spread = np.log(walls).std(ddof=1) / math.sqrt(3)
    assert math.log(e.high / e.value) == pytest.approx(4.302653 * spread, rel=1e-5)
    two = stats.speedup(test[:2], base[:2])
    spread = np.log(walls[:2]).std(ddof=1) / math.sqrt(2)
    assert math.log(two.high / two.value) == pytest.approx(4.302653 * spread, rel=1e-5)


@settings(max_examples=25)
@given(st.floats(0.2, 5), st.floats(0.01, 1))
def test_speedup_scales_with_wall_time(factor, tpot):
    base, test = record(cell(), tpot_s=tpot), record(cell(), wall_s=2.0 * factor, tpot_s=tpot * factor)
    assert stats.speedup([test], [base]).value == pytest.approx(1 / factor)


def test_failed_cells_do_not_pair():
    good, bad = record(cell()), record(cell("x", speculative=NGRAM), status="oom", counters=None)
    assert stats.pair([bad], [good]) == []


def test_noise_floor_is_the_largest_log_ratio():
    arms = [[record(cell(), wall_s=w)] for w in (2.0, 2.2)]
    assert stats.noise_floor(arms) == pytest.approx(math.log(1.1))
    with pytest.raises(ValueError, match="two repeats"):
        stats.noise_floor(arms[:1])
    assert stats.noise_floor(arms[:1], otherwise=0.5) == 0.5
    # two workloads of two seeds: 2 s each in the first arm
    asked = [cell(workload=name, seed=seed) for name in ("sonnet", "code") for seed in (0, 1)]
    arms = [[record(c, wall_s=w) for c, w in zip(asked, walls, strict=True)] for walls in ((2, 2, 2, 2), (1, 4, 3, 4))]
    other = [record(cell(batch_size=8))]  # another batch size, in one arm only
    assert stats.noise_floors([[*arms[0], *other], arms[1]]) == {2: pytest.approx(math.log(7 / 4))}
    found = [stats.noise_floor(arms, over=what) for what in ("cell", "workload", "batch")]
    assert found == pytest.approx([math.log(2), math.log(7 / 4), math.log(12 / 8)])


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("", "1.23 [1.10, 1.40]"),
        (".1f", "1.2 [1.1, 1.4]"),
        ("20", "1.23 [1.10, 1.40]   "),
        (">16.1f", "  1.2 [1.1, 1.4]"),
    ],
)
def test_an_estimate_formats_with_its_interval(spec, text):
    assert format(stats.Estimate(1.234, 1.1, 1.4, 5), spec) == text


def test_an_estimate_without_interval_says_its_n():
    assert f"{stats.Estimate(2, math.nan, math.nan, 3):.1f}" == "2.0 (n=3)"
