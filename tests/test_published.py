"""The study's data: every figure that it prints is recomputed, and a broken row is refused by name."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import metrics, published
from lib.cells import WORKLOADS

MIXES = list(published.MIXES)


def percent(ratio: float) -> float:
    return 100 * (ratio - 1)


def write(tmp_path, rows):
    path = tmp_path / "cells.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def row():
    """A valid row, as text."""
    with published.PATH.open() as file:
        return next(r for r in csv.DictReader(file) if r["num_drafts"])


def test_holds_the_whole_study():
    study = published.select(in_study=True)
    assert len(study) == 156
    assert len(published.select(study, arrangement="one-engine")) == 111
    assert len(published.select(study, arrangement="two-engines-http")) == 45
    assert all(cell.throughput_tok_s for cell in study)
    assert len(published.speculative_cells()) == 48


def test_carries_no_text_and_no_path():
    content = published.PATH.read_text()
    assert "/" not in content and "json" not in content
    assert max(len(field) for field in content.replace("\n", ",").split(",")) < 40


@pytest.mark.parametrize(
    ("workload", "gain"),
    [("sonnet", 52.1), ("chat", 69.0), ("code", 18.8), ("mix-sh", 62.8), ("mix-bal", 57.2), ("mix-ch", 45.6)],
)
def test_gains_of_the_full_configuration(workload, gain):
    assert percent(published.value(workload, "full", "speedup").value) == pytest.approx(gain, abs=0.06)


@pytest.mark.parametrize(("workload", "gain"), [("sonnet", 40.1), ("chat", 43.1), ("code", -20.2)])
def test_gains_of_ngram(workload, gain):
    assert percent(published.value(workload, "ngram", "speedup").value) == pytest.approx(gain, abs=0.06)


def test_wall_time_and_throughput_of_six_workloads():
    assert percent(published.total_wall_s("suffix") / published.total_wall_s("vanilla")) == pytest.approx(
        -30.7, abs=0.05
    )
    total = published.total_throughput_tok_s
    assert percent(total("suffix") / total("vanilla")) == pytest.approx(45.3, abs=0.05)


def test_first_step_of_the_ladder():
    base = published.one(campaign="SUB_086", workload="sonnet", method="vanilla")
    test = max(published.select(campaign="SUB_044", num_speculative_tokens=7), key=lambda cell: cell.throughput_tok_s)
    assert percent(published.speedup(test, base)) == pytest.approx(39.8, abs=0.05)
    assert published.baseline(test) == base


def test_other_campaigns_find_their_baseline():
    eager = published.one(campaign="SUB_074", workload="chat", method="suffix")
    assert percent(published.speedup(eager)) == pytest.approx(8.4, abs=0.05)
    code = published.one(campaign="SUB_085v2", workload="code", method="suffix")
    assert percent(published.speedup(code)) == pytest.approx(18.9, abs=0.05)
    small = published.one(campaign="SUB_090", model="Qwen2.5-7B", method="ngram")
    assert percent(published.speedup(small)) == pytest.approx(-17.3, abs=0.05)
    with pytest.raises(LookupError, match="no vanilla run"):
        published.baseline(published.select(campaign="SUB_070")[0])


def test_whole_run_counters():
    code = published.main_cell("code", "ngram").counters
    assert (code.num_accepted_tokens, code.num_draft_tokens) == (2_346_249, 7_524_215)
    assert metrics.mean_acceptance_length(code) == pytest.approx(3.18, abs=0.005)
    assert metrics.acceptance_rate(code) == pytest.approx(0.312, abs=0.0005)
    assert metrics.tokens_per_step(code) == pytest.approx(2.50, abs=0.005)
    assert code.num_accepted_tokens / code.num_output_tokens == pytest.approx(0.60, abs=0.005)


def test_printed_values_are_one_interval():
    assert published.printed("code", "ngram", "mean_acceptance_length").value == 1.10
    assert published.printed("chat", "suffix", "acceptance_rate").value == 0.927
    assert published.printed("mix-sh", "ngram", "acceptance_rate") is None
    three = [c.printed_mean_acceptance_length for c in published.select(campaign="SUB_089")]
    assert three == [1.65, 7.92, 7.59]
    assert published.noise() == pytest.approx(0.002, abs=0.0001)


@pytest.mark.parametrize("cell", published.speculative_cells(), ids=lambda cell: cell.label)
def test_identities(cell):
    c = cell.counters
    k, a, tau = metrics.mean_acceptance_length(c), metrics.acceptance_rate(c), metrics.tokens_per_step(c)
    assert metrics.emitted_tokens_per_step(c) == pytest.approx(tau)
    assert published.step_cost(cell) == pytest.approx(tau / published.speedup(cell))
    assert cell.throughput_tok_s == pytest.approx(cell.num_output_tokens / cell.wall_s, rel=1e-4)
    if cell.method == "ngram":  # drafts of one fixed length: the linear rule is an identity there
        assert k == pytest.approx(1 + 7 * a, abs=0.013)


@pytest.mark.parametrize(("method", "ratios"), [("suffix", (1.27, 1.53, 1.78)), ("ngram", (0.99, 0.99, 0.99))])
def test_memory_ratios_of_the_mixes(method, ratios):
    found = [published.memory_ratio(published.MAIN_MODEL, method, mix) for mix in MIXES]
    assert found == pytest.approx(ratios, abs=0.005)


def test_predicted_mix_by_hand():
    sonnet, code = (published.main_cell(name, "ngram").counters for name in ("sonnet", "code"))
    steps = [c.num_output_tokens - c.num_accepted_tokens for c in (sonnet, code)]
    expected = (3 * sonnet.num_output_tokens + code.num_output_tokens) / (3 * steps[0] + steps[1])
    assert published.predicted_tau([(3, sonnet), (1, code)]) == pytest.approx(expected)


@given(st.integers(1, 9))
def test_a_mix_of_one_kind_is_that_kind(weight):
    c = published.main_cell("chat", "suffix").counters
    assert published.predicted_tau([(weight, c)]) == pytest.approx(metrics.tokens_per_step(c))


def test_sign_turns_with_the_output_cap():
    curves = published.speedups_by_output_cap()
    assert [cap for cap, _ in curves["sonnet"]] == [1024, 4096, 8192]
    assert [percent(s) for _, s in curves["sonnet"]] == pytest.approx([-27.4, 11.6, 40.1], abs=0.06)
    assert all(s < 1 for _, s in curves["code"])


def test_busy_shares_as_printed():
    shown = {
        m: sum(published.main_cell(w, m).gpu_busy_process_pct for w in WORKLOADS) / 6 for m in ("vanilla", "suffix")
    }
    assert shown == {"vanilla": pytest.approx(93.85, abs=0.01), "suffix": pytest.approx(73.31, abs=0.01)}


def test_r_is_no_constant():
    fits = published.step_cost_fits()
    assert sum(f.num_cells for f in fits.values()) == 48
    costs = [r for by_model in published.step_costs().values() for pairs in by_model.values() for _, r in pairs]
    assert sum(1.25 <= r <= 1.40 for r in costs) == 1
    assert all(f.r_squared > 0.9 and f.slope > 0.2 for f in fits.values())


def test_reference_says_where_it_comes_from():
    reference = published.value("sonnet", "suffix", "tokens_per_step")
    assert reference.value == pytest.approx(11.53, abs=0.005)
    assert reference.text == "published: Llama-3.3-70B, 8 x H100, n = 1 run of 500 requests"
    assert published.value("sonnet", "vanilla", "mean_acceptance_length") is None
    assert published.value("sonnet", "null", "speedup") is None
    with pytest.raises(ValueError, match=r"quantity is 'speed', allowed: throughput_tok_s"):
        published.value("sonnet", "suffix", "speed")


def test_select_refuses_an_unknown_field():
    with pytest.raises(ValueError, match="modell is no field"):
        published.select(modell="x")
    with pytest.raises(LookupError, match="exactly one"):
        published.one(model="Llama-3.3-70B")


def test_a_row_survives_the_round_trip(tmp_path, row):
    (cell,) = published.read(write(tmp_path, [row]))
    assert cell in published.cells()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("throughput_tok_s", "-1", "line 2: throughput_tok_s is '-1'"),
        ("method", "eagle", "line 2: method is 'eagle'"),
        ("num_drafts", "", "all or none"),
        ("num_accepted_tokens", "999999999", "at most num_draft_tokens"),
        ("throughput_tok_s", "", "throughput_tok_s is None"),
        ("gpu_memory_utilization", "1.2", "line 2: gpu_memory_utilization is '1.2'"),
    ],
)
def test_a_broken_row_is_refused_in_one_sentence(tmp_path, row, field, value, message):
    with pytest.raises(ValueError, match=message) as caught:
        published.read(write(tmp_path, [row | {field: value}]))
    assert "\n" not in str(caught.value) and "allowed" in str(caught.value)


def test_an_unknown_column_is_refused(tmp_path, row):
    with pytest.raises(ValueError, match="note"):
        published.read(write(tmp_path, [row | {"note": "text"}]))
