"""Ratios of runs: hand-computed cases, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from lib import results
from lib.results import table

QUESTION = {
    "model": "m", "quantization": None, "dtype": "bfloat16", "answers": "model", "workload": "chat", "form": "chat",
    "seed": 0, "concurrency": 8, "num_prompts": 2, "input_tokens": 10, "output_tokens": 10, "temperature": 0,
}  # fmt: skip


def runs(*rows: dict) -> pd.DataFrame:
    """Runs of 100 tokens; a row names what differs."""
    whole = {"status": "ok", "session": "a", "repeat": 0, "num_output_tokens": 100, **QUESTION}
    held = pd.DataFrame([{"run_id": f"c{i}", **whole, **row} for i, row in enumerate(rows)])
    return held.assign(tok_s=held.num_output_tokens / held.wall_s)


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
        results.compare(table.frames([]).runs, "ngram")


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
            {"run_id": c, "request": i, "first_token_s": 0.0, "last_token_s": t, "num_output_tokens": 11}
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
            {"run_id": f"c{c}", "request": i, "first_token_s": 0.0, "last_token_s": 1.0 + i, "num_output_tokens": 11}
            for c in range(3) for i in range(8)
        ]
    )  # fmt: skip
    both = results.compare(held, "ngram", requests=requests)
    once = results.compare(held[held.repeat == 0], "ngram", requests=requests)
    assert both[["low", "high", "n_requests"]].equals(once[["low", "high", "n_requests"]])
    assert both.n_runs.tolist() == [2]


def test_a_a_variability_is_that_of_the_same_session_model_and_concurrency():
    def pair(wall, **own):
        return [{"setting": "vanilla", "wall_s": w, **own} for w in (10.0, wall)]

    ngram = {"setting": "ngram", "wall_s": 5.0}
    held = runs(
        *pair(11.0), *pair(12.0, session="b"), *pair(13.0, model="n"), *pair(10.5, concurrency=1), ngram,
        {**ngram, "concurrency": 1}, {**ngram, "concurrency": 64}, {**ngram, "setting": "vanilla", "concurrency": 64},
    )  # fmt: skip
    found = results.compare(held, "ngram").set_index("concurrency").aa
    assert found.to_dict() == pytest.approx(
        {8: 0.1, 1: 0.05, 64: 0.1}
    )  # of other concurrencies where none was repeated
    told = results.variability(held).set_index(["session", "model", "concurrency"]).aa
    assert told.to_dict() == pytest.approx(
        {("a", "m", 8): 0.1, ("b", "m", 8): 0.2, ("a", "n", 8): 0.3, ("a", "m", 1): 0.05}
    )


def test_step_times_tell_decoding_steps_from_those_that_read_a_prompt():
    times, prefills = [0.01, 0.012, 0.016, 0.036, 0.5], [1, 0, 0, -1, 0]
    steps = pd.DataFrame({"run_id": list("aaaab"), "t_s": times, "prefills": prefills})
    made = results.step_times(steps).set_index("run_id")
    assert made.loc["a"].to_dict() == pytest.approx(
        {"decode_ms": 3.0, "mixed_ms": 15.0, "num_mixed_steps": 2, "mixed_share": 30 / 36}
    )
    assert (
        made.loc["b", "decode_ms"] == 500 and np.isnan(made.loc["b", "mixed_ms"]) and made.loc["b", "mixed_share"] == 0
    )


@pytest.mark.parametrize("profile", ["cpu", "h200", "h200-sizes"])
def test_the_committed_runs_load_and_compare(profile):
    tables = results.read(profile)
    found = results.compare(tables.runs, "ngram", by=["model", "workload", "concurrency"], requests=tables.requests)
    assert len(found) and (found.low <= found.ratio).all() and (found.ratio <= found.high).all()
    assert not found.across_sessions.any()
    good = tables.runs[tables.runs.status == "ok"]
    assert good.loc[good.answers == "recorded", "verbatim"].all()
    assert set(tables.requests.run_id) == set(good.run_id) and set(tables.steps.run_id) <= set(tables.runs.run_id)
    emitted = 1 + good.draft_coverage.fillna(0) * (good.mean_acceptance_length.fillna(1) - 1)
    assert (good.tokens_per_step <= emitted + 1e-9).all()
    assert not ((good.num_drafts > 0) & (good.mean_acceptance_length < 1)).any()
