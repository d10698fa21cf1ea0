"""Published tables: nothing is lost, runs merge by their id, and what cannot be read is named and left alone."""

import json
import warnings

import made_up_records as made_up
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_records import NGRAM, record, run, trace

from lib import results
from lib.results import records, table
from lib.results.records import Counters, Monitor, Record, Store, Trace
from lib.results.run import Run

FILES = {"runs.parquet", "requests.parquet", "steps.parquet"}


def full(**changes) -> tuple[Record, Trace]:
    """A record that uses every kind of field, and a trace."""
    asked = run("ngram", speculative=NGRAM, suffix_cache="cold", **changes)
    held = record(asked, drafts=5, drafted=15, accepted=(3, 2, 0), order=3, engine_start_s=1 / 3, session="s")
    first = held.requests[0].model_copy(update={"drafted_per_step": (3, 0), "output_hash": "00ff" * 4})
    resolved = held.resolved.model_copy(update={"speculative": {"method": "ngram", "sizes": [1]}, "block_size": 2**40})
    monitor = Monitor(window_s=1.5, num_samples=3, cpu_pct=0.1)
    changes = {"requests": (first, *held.requests[1:]), "resolved": resolved, "monitor": monitor, "has_trace": True}
    return held.model_copy(update=changes), trace([1.25, 2.5], [2, 2], graph_mode=["", "FULL", "NONE"])


def failure(seed=1) -> tuple[Record, None]:
    changes = {"counters": None, "wall_s": None, "requests": (), "resolved": None}
    return record(run(seed=seed), status="oom", reason="out of memory", stderr_tail=("a", "b"), **changes), None


@pytest.fixture
def home(tmp_path, monkeypatch):
    """(the folder of profile x's run, of its published tables)."""
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setenv("SPECULATION_RUNS", str(tmp_path / "runs"))
    return Store(tmp_path / "runs" / "x" / "records"), tmp_path / "figures" / "data" / "x"


def publish(home, *held) -> table.Tables:
    for r, t in held:
        home[0].save(r, t)
    table.publish("x")
    return table.read("x")


def forget(home) -> None:
    """Another machine publishes next: nothing of the earlier runs is in its folder."""
    for path in home[0].folder.iterdir():
        path.unlink()
    home[0].refresh()


def content(folder) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir()}


def same(a: table.Tables, b: table.Tables) -> None:
    for one, other in zip(a, b, strict=True):
        key = [c for c in ("run_id", "request", "t_s") if c in one]
        one, other = (t.sort_values(key).reset_index(drop=True) for t in (one, other))
        pd.testing.assert_frame_equal(one, other, check_dtype=False, check_like=True)


# ---- what comes back ----


def test_what_is_published_is_what_was_measured(home):
    held = [full(), failure(), (record(run(seed=2)), trace([1 / 3], [7])), (record(run(seed=3)), None)]
    got = publish(home, *held)
    assert set(content(home[1])) == FILES
    same(got, table.frames(table.all_of(home[0])))
    row = got.runs[got.runs.status == "oom"].iloc[0]
    assert row[["wall_s", "num_output_tokens", "tok_s", "resolved_runner", "window_s"]].isna().all()
    assert list(row.stderr_tail) == ["a", "b"] and row.reason == "out of memory"


def test_columns_have_their_kinds(home):
    got = publish(home, full(), failure())
    row = got.runs.set_index("status").loc["ok"]
    assert (row.num_output_tokens, row.tok_s, row.concurrency, row.acceptance_rate) == (20, 10, 2, 5 / 15)
    assert list(row.num_accepted_tokens_per_pos) == [3, 2, 0] and row.resolved_block_size == 2**40
    assert json.loads(row.resolved_speculative) == {"method": "ngram", "sizes": [1]}
    assert set(Counters.model_fields) | set(Monitor.model_fields) <= set(got.runs)
    assert got.runs.num_prompts.dtype == got.steps.running.dtype == "int64"  # narrow ones overflow
    assert list(got.steps.t_s) == [0.0, 0.00125, 0.00375] and list(got.steps.graph_mode) == ["", "FULL", "NONE"]
    assert list(got.requests.output_hash) == ["00ff" * 4, f"{1:016x}"]
    assert list(got.requests.drafted_per_step)[0] == [3, 0] and got.requests.drafted_per_step[1] is None
    assert list(got.requests.request) == [0, 1]


def test_a_run_can_be_asked_for_again_from_its_row(home):
    asked = full()[0].run
    (row,) = publish(home, full()).runs.itertuples()
    again = Run.model_validate_json(row.run)
    assert again == asked and again.plan_id == row.plan_id == asked.plan_id


def test_no_two_fields_share_a_column():
    parts = [prefix + name for model, prefix in table.PARTS.values() for name in model.model_fields]
    own = [name for name in Record.model_fields if name not in (*table.PARTS, "requests")]
    row = table.flat(full()[0])
    asked = [name for name in row if name not in (*parts, *own)]
    assert len(row) == len(parts) + len(own) + len(asked)  # `session` is of the provenance, too, and the same
    assert row["session"] == "s"


@given(
    times=st.lists(st.floats(0, 1e5) | st.integers(0, 10**11).map(lambda us: us / 1e6), min_size=1, max_size=20),
    hashes=st.lists(st.just("") | st.binary(min_size=8, max_size=8).map(bytes.hex), min_size=1, max_size=5),
    first=st.none() | st.floats(0, 1e5),
)
def test_packing_loses_nothing(tmp_path_factory, times, hashes, first):
    folder = tmp_path_factory.mktemp("packed")
    held = record(run())
    requests = tuple(
        held.requests[0].model_copy(update={"output_hash": h, "first_token_s": first, "last_token_s": times[0]})
        for h in hashes
    )
    steps = trace(range(len(times) - 1), [1] * (len(times) - 1)).steps | {"t_s": times}
    table.write(folder, table._arrow([(held.model_copy(update={"requests": requests}), Trace(steps=steps))]))
    got = {name: table._read(folder, name) for name in table.NAMES}
    assert got["steps"]["t_s"].to_pylist() == times
    for name in ("output_hash", "first_token_s", "last_token_s"):
        assert got["requests"][name].to_pylist() == [getattr(r, name) for r in requests]


# ---- publishing ----


def test_publish_merges_by_run(home):
    store = home[0]
    publish(home, full(), (record(run(seed=5)), None), failure(1))
    forget(home)
    store.save(record(run("new", seed=5)), trace([2], [1]))  # of the same second, under another name
    store.save(record(run(seed=1)))  # what failed is good now
    store.save(failure(7)[0])
    store.save(full()[0].model_copy(update={"status": "crashed", "has_trace": False}))  # what was good stays
    got = publish(home)
    named = {(r.setting, r.seed, r.status, r.has_trace) for r in got.runs.itertuples()}
    assert named == {
        ("ngram", 0, "ok", True), ("new", 5, "ok", True), ("vanilla", 1, "ok", False), ("vanilla", 7, "oom", False),
    }  # fmt: skip
    assert got.runs.run_id.is_unique
    assert sorted(got.steps.groupby("run_id").size()) == [2, 3]
    assert set(got.requests.groupby("run_id").size()) == {2}


def test_two_sessions_of_one_plan_both_stay(home):
    publish(home, (record(run(), session="a", wall_s=1.0), None))
    forget(home)
    got = publish(home, (record(run(), session="b", wall_s=4.0), None)).runs
    assert sorted(got.session) == ["a", "b"] and got.plan_id.nunique() == 1
    assert results.variability(got).empty  # of two sessions: no repeat


def test_publishing_again_changes_no_byte(home):
    publish(home, full(), failure())
    before = content(home[1])
    publish(home)
    assert content(home[1]) == before


def test_a_full_disk_leaves_the_earlier_tables(home, monkeypatch):
    publish(home, full())
    before = content(home[1])
    home[0].save(record(run(seed=1)))

    def disk_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        table.publish("x")
    assert content(home[1]) == before


# ---- what cannot be read ----


def later(data: bytes, path) -> None:
    rows = pq.read_table(path)
    pq.write_table(rows.replace_schema_metadata({"schema_version": "3"}), path)


DAMAGE = {
    "half": lambda data, path: path.write_bytes(data[: len(data) // 2]),
    "empty": lambda data, path: path.write_bytes(b""),
    "a byte": lambda data, path: path.write_bytes(data[:60] + b"?" * 8 + data[68:]),
    "newer": later,
}


@pytest.mark.parametrize("name", table.NAMES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_newer_file_is_named_and_left_alone(home, name, damage):
    publish(home, full())
    path = home[1] / f"{name}.parquet"
    DAMAGE[damage](path.read_bytes(), path)
    before = content(home[1])
    words = "must be of schema_version 2, got 3" if damage == "newer" else "must be a whole Parquet file, got"
    with pytest.warns(table.Unreadable, match=rf"figures/data/x/{name}\.parquet is skipped: it {words}") as said:
        got = table.read("x")
    assert len(said) == 1
    assert [len(t) > 0 for t in got] == [name != n for n in table.NAMES]
    assert set(table.frames([]).runs) <= set(got.runs)  # columns are there all the same
    home[0].save(record(run(seed=1)))
    with pytest.raises(table.Unreadable, match=f"{name}.parquet is skipped"):
        table.publish("x")
    assert content(home[1]) == before


def test_older_columns_may_lack_and_later_ones_come_along(home):
    publish(home, full())
    path = home[1] / "requests.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.drop_columns(["finish_reason"]).append_column("later", pa.array(["x"] * len(rows))), path)
    forget(home)
    got = publish(home, (record(run(seed=1)), None)).requests
    assert got.later.notna().sum() == 2 and got.finish_reason.notna().sum() == 2


def test_nothing_measured_is_empty_without_a_warning(home):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = table.read("nowhere")
        assert [len(t) for t in got] == [0, 0, 0] and {"tok_s", "setting"} <= set(got.runs)
        assert not table.is_published("nowhere") and table.publish("nowhere") == 0


def test_steps_of_a_run_without_a_trace_are_no_rows(home):
    got = publish(home, (made_up.record(run()), None))
    assert len(got.steps) == 0 and set(records.STEP_COLUMNS) <= set(got.steps)
