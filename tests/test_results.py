"""Ratios of runs: hand-computed cases, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from lib import results, table

QUESTION = {
    "model": "m",
    "dtype": "bfloat16",
    "form": "chat",
    "workload": "chat",
    "seed": 0,
    "concurrency": 8,
    "num_prompts": 2,
    "input_tokens": 10,
    "output_tokens": 10,
}


def runs(*rows: dict) -> pd.DataFrame:
    """Runs of 100 tokens; a row names what differs."""
    whole = {"status": "ok", "session": "a", "machine": None, "repeat": 0, "num_output_tokens": 100, **QUESTION}
    return pd.DataFrame([{"cell_id": f"c{i}", **whole, **row} for i, row in enumerate(rows)])


def test_the_ratio_is_throughput_over_the_mean_of_the_bases():
    held = runs(
        {"setting": "vanilla", "wall_s": 9.0},
        {"setting": "vanilla", "wall_s": 11.0},
        {"setting": "ngram", "wall_s": 5.0},
    )
    (row,) = results.compare(held, "ngram").itertuples()
    assert (row.workload, row.concurrency, row.n_runs, row.n_requests) == ("chat", 8, 1, 2)
    assert row.ratio == pytest.approx(2.0)
    assert row.aa == pytest.approx(11 / 9 - 1)
    assert not row.across_sessions and np.isnan(row.low)


def test_a_base_of_another_session_is_used_only_where_there_is_no_own_and_marked():
    own = runs(
        {"setting": "vanilla", "wall_s": 10.0}, {"setting": "vanilla", "wall_s": 40.0, "session": "b"},
        {"setting": "ngram", "wall_s": 5.0},
    )  # fmt: skip
    (row,) = results.compare(own, "ngram").itertuples()
    assert row.ratio == pytest.approx(2.0) and not row.across_sessions
    (row,) = results.compare(own.assign(session=["b", "b", "a"]), "ngram").itertuples()
    assert row.ratio == pytest.approx(5.0) and row.across_sessions


def test_other_requests_are_no_base():
    held = runs({"setting": "vanilla", "wall_s": 10.0, "num_prompts": 3}, {"setting": "ngram", "wall_s": 5.0})
    assert len(results.compare(held, "ngram")) == 0


def test_failed_runs_do_not_count():
    held = runs(
        {"setting": "vanilla", "wall_s": 10.0}, {"setting": "ngram", "wall_s": 5.0},
        {"setting": "ngram", "wall_s": 1.0, "status": "invalid", "repeat": 1},
    )  # fmt: skip
    assert results.compare(held, "ngram").ratio.tolist() == [2.0]


def test_a_run_of_no_known_session_is_of_its_own():
    walls = (("vanilla", 10.0), ("vanilla", 9.0), ("ngram", 5.0))
    held = runs(*({"setting": name, "wall_s": wall} for name, wall in walls))
    for unknown in (held.assign(session=None), held.drop(columns="session")):
        (row,) = results.compare(unknown, "ngram", by="workload").itertuples()
        assert row.across_sessions and np.isnan(row.aa)


def test_no_run_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="runs must hold at least one run, got none"):
        results.compare(results.frame([]), "ngram")


@pytest.mark.parametrize("profile", ["cpu", "h200", "h200-8b"])
def test_every_profile_compares(profile):
    assert len(results.compare(results.load(profile), "ngram"))


def test_a_run_counted_twice_is_refused():
    held = runs({"setting": "vanilla", "wall_s": 10.0}, {"setting": "ngram", "wall_s": 5.0})
    with pytest.raises(ValueError, match="must hold each run once, got c0 2 times"):
        results.compare(pd.concat([held, held]), "ngram")


def test_an_unknown_setting_is_refused():
    held = runs({"setting": "vanilla", "wall_s": 10.0})
    with pytest.raises(ValueError, match="setting must be one of vanilla, got 'ngrm'"):
        results.compare(held, "ngrm")


def test_equal_requests_have_an_interval_of_no_width():
    held = runs({"setting": "vanilla", "wall_s": 10.0}, {"setting": "ngram", "wall_s": 5.0})
    requests = pd.DataFrame(
        [
            {"cell_id": c, "request": i, "first_token_s": 0.0, "last_token_s": t, "num_output_tokens": 11}
            for c, t in (("c0", 2.0), ("c1", 1.0)) for i in range(4)
        ]
    )  # fmt: skip
    (row,) = results.compare(held, "ngram", requests=requests).itertuples()
    assert (row.low, row.high) == pytest.approx((2.0, 2.0))


def test_repeats_on_the_same_requests_do_not_narrow_the_interval():
    rows = [("vanilla", 0), ("ngram", 0), ("ngram", 1)]
    held = runs(*({"setting": name, "repeat": repeat, "wall_s": 5.0} for name, repeat in rows))
    requests = pd.DataFrame(
        [
            {"cell_id": f"c{c}", "request": i, "first_token_s": 0.0, "last_token_s": 1.0 + i, "num_output_tokens": 11}
            for c in range(3) for i in range(8)
        ]
    )  # fmt: skip
    both = results.compare(held, "ngram", requests=requests)
    once = results.compare(held[held.repeat == 0], "ngram", requests=requests)
    assert both[["low", "high", "n_requests"]].equals(once[["low", "high", "n_requests"]])
    assert both.n_runs.tolist() == [2]


def test_the_committed_runs_load_and_compare():
    held = results.load("h200-8b")
    found = results.compare(held, "ngram", requests=results.requests("h200-8b"))
    assert (found.low <= found.ratio).all() and (found.ratio <= found.high).all()
    assert not found.across_sessions.any()
    assert held.verbatim.all()


def test_results_need_neither_torch_nor_vllm():
    import subprocess
    import sys

    code = "import sys; from lib import results; sys.exit(any(m in sys.modules for m in ('torch', 'vllm', 'numba')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=table.records.ROOT).returncode == 0
