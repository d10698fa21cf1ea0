"""The study's data: the figures that it prints, and those that its counters give, are recomputed."""

import pandas as pd
import pytest

from lib.ledger import published


def gain(workload, method):
    return 100 * (published.value(workload, method, "speedup").value - 1)


def test_holds_the_whole_study():
    cells = published.cells()
    assert cells.in_study.sum() == 156
    assert cells[cells.in_study].arrangement.value_counts().to_dict() == {"one-engine": 111, "two-engines-http": 45}
    assert len(published.drafting()) == 48 and len(published.main(None)) == 111 and len(published.main()) == 18
    assert (cells.num_accepted_tokens.dropna() <= cells.num_draft_tokens.dropna()).all()
    assert cells.throughput_tok_s.notna().equals(cells.status == "ok")


def test_carries_no_text_and_no_path():
    content = (published.FOLDER / "cells.csv").read_text()
    assert "/" not in content and "json" not in content
    assert max(len(field) for field in content.replace("\n", ",").split(",")) < 40


@pytest.mark.parametrize(
    ("workload", "method", "percent"),
    [("sonnet", "study", 52.1), ("chat", "study", 69.0), ("code", "suffix", 18.8), ("mix-sh", "suffix", 62.8),
     ("mix-bal", "suffix", 57.2), ("mix-ch", "suffix", 45.6), ("sonnet", "ngram", 40.1), ("code", "ngram", -20.2)],
)  # fmt: skip
def test_gains(workload, method, percent):
    assert gain(workload, method) == pytest.approx(percent, abs=0.06)


def test_six_workloads_together():
    whole = published.cells().query("workload == 'all six' and model == @published.MAIN_MODEL").set_index("setting")
    assert whole.wall_s_ratio["suffix"] == pytest.approx(1 - 0.307, abs=5e-4)
    assert whole.speedup["suffix"] == pytest.approx(1.453, abs=5e-4)
    assert whole.gpu_busy_process_pct[["vanilla", "suffix"]].tolist() == pytest.approx([93.85, 73.31], abs=0.01)


def test_a_campaign_without_a_vanilla_run_is_compared_with_another_ones():
    eager = published.cells().query("campaign == 'SUB_074' and workload == 'chat' and method == 'suffix'")
    assert eager.speedup.iloc[0] == pytest.approx(1.084, abs=5e-4)


@pytest.mark.parametrize(
    ("workload", "method", "k", "per_step"),
    [
        ("sonnet", "ngram", 6.62, 6.12),
        ("chat", "ngram", 2.87, 1.46),
        ("code", "ngram", 3.18, 2.50),
        ("sonnet", "suffix", 11.60, 11.53),
    ],
)
def test_drafting_over_whole_runs(workload, method, k, per_step):
    cell = published.main_cell(workload, method)
    assert (cell.mean_acceptance_length, cell.tokens_per_step) == pytest.approx((k, per_step), abs=0.01)


def test_r_is_no_constant():
    costs = published.drafting().step_cost
    assert len(costs) == 48 and costs.between(1.25, 1.40).sum() == 1
    assert (costs.min(), costs.max()) == pytest.approx((1.01, 7.58), abs=0.01)


@pytest.mark.parametrize(
    ("method", "mix", "ratio"), [("suffix", "mix-ch", 1.78), ("suffix", "mix-sh", 1.27), ("ngram", "mix-ch", 0.99)]
)
def test_mixes_against_their_parts(method, mix, ratio):
    assert published.memory_ratio(method, mix) == pytest.approx(ratio, abs=0.01)


def test_reference_says_where_it_comes_from():
    reference = published.value("sonnet", "suffix", "tokens_per_step")
    assert reference.text == "published: Llama-3.3-70B, 8 x H100, n = 1 run of 500 requests"
    assert published.value("sonnet", "vanilla", "mean_acceptance_length") is None
    assert published.value("sonnet", "no such method", "speedup") is None
    with pytest.raises(ValueError, match="quantity must be a column"):
        published.value("sonnet", "suffix", "speed")
    with pytest.raises(LookupError, match="must name a cell"):
        published.main_cell("sonnet", "no such method")


def test_real_models():
    models = published.real_models()
    assert models.model.nunique() == 23
    assert models[models.setting == "ngram"].tokens_per_step.between(1.08, 1.27).all()
    assert isinstance(models, pd.DataFrame)
