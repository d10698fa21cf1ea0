"""Published tables: everything comes back, from files of any age; what cannot be read is named; pandas reads rows."""

import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_up_records import NGRAM, cell, record, trace

from lib import __main__ as cli
from lib import prediction, records, table
from lib.records import Counters, Monitor, Record, Store, Trace
from lib.table import Published


def full() -> tuple[Record, Trace]:
    """A record that uses every kind of field, and a trace with token ids."""
    asked = cell(speculative=NGRAM, memory="cold", draft_tokens=0, keep_tokens=True)
    held = record(asked, drafts=5, drafted=15, accepted=(3, 2, 0), order=3, engine_start_s=1 / 3)
    first = held.requests[0].model_copy(update={"drafted_per_step": (3, 0), "output_hash": "00ff" * 4})
    resolved = held.resolved.model_copy(
        update={"speculative": {"method": "ngram", "sizes": [1, 2]}, "block_size": 2**40}
    )
    monitor = Monitor(window_s=1.5, num_samples=3, cpu_pct=0.1)
    changes = {"requests": (first, *held.requests[1:]), "resolved": resolved, "monitor": monitor, "has_trace": True}
    ids = {"prompt_token_ids": [[1, 70000], []], "output_token_ids": [[2], [3, 4, 5]]}
    steps = trace([1.25, 2.5], [2, 2], graph_mode=["", "FULL", "NONE"]).steps
    return held.model_copy(update=changes), Trace(steps=steps, **ids)


def failure(seed=1) -> tuple[Record, None]:
    changes = {"counters": None, "wall_s": None, "requests": (), "resolved": None}
    return record(cell(seed=seed), status="oom", reason="out of memory", stderr_tail=("a", "b"), **changes), None


def equal(folder, runs) -> None:
    store = Published(folder)
    held = {r.cell_id: r for r in store.all()}
    assert len(held) == len(runs)
    for asked, kept in runs:
        assert held[asked.cell_id] == asked and repr(held[asked.cell_id]) == repr(asked)
        if kept is None:
            with pytest.raises(KeyError, match="no trace"):
                store.trace(asked)
        else:
            assert store.trace(asked) == kept


def test_everything_comes_back(tmp_path):
    plain = record(cell(seed=2), has_trace=True), trace([1 / 3], [7])  # times that are no whole microseconds
    runs = [full(), failure(), plain, (record(cell(seed=3)), None)]
    table.write(tmp_path, runs)
    equal(tmp_path, runs)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    table.write(tmp_path, reversed(runs))
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before
    assert set(before) == {"runs.parquet", "requests.parquet", "steps.parquet", "tokens.parquet"}
    table.write(tmp_path, [failure()])
    equal(tmp_path, [failure()])
    assert {f.name for f in tmp_path.iterdir()} == {"runs.parquet"}


def test_what_is_no_hash_stays_as_it_is(tmp_path):
    held = full()[0]
    for text in ("00FF" * 4, "no hash, 16 long", "00ff 00ff 00ff 0"):
        changed = held.requests[0].model_copy(update={"output_hash": text})
        table.write(tmp_path, runs := [(held.model_copy(update={"requests": (changed,), "has_trace": False}), None)])
        equal(tmp_path, runs)


def test_no_two_fields_share_a_column():
    parts = [prefix + name for model, prefix in table.PARTS.values() for name in model.model_fields]
    own = [name for name in Record.model_fields if name not in (*table.PARTS, "requests")]
    row = table.flat(full()[0])
    asked = [name for name in row if name not in (*parts, *own)]
    assert len(row) == len(parts) + len(own) + len(asked) == len({*parts, *own, *asked})
    assert len(asked) == 15


def test_an_older_file_lacks_columns_and_a_later_one_has_more(tmp_path):
    held, kept = full()
    table.write(tmp_path, [(held, kept)])
    for name, gone in (
        ("runs", ["num_preemptions", "resolved_num_parameters"]),
        ("requests", ["finish_reason"]),
    ):
        path = tmp_path / f"{name}.parquet"
        rows = pq.read_table(path)
        rows = rows.drop_columns(gone).append_column("later", pa.array(["x"] * len(rows)))
        pq.write_table(rows, path)
    (again,) = Published(tmp_path).all()
    requests = tuple(r.model_copy(update={"finish_reason": None}) for r in held.requests)
    assert again == held.model_copy(update={"requests": requests})


def test_steps_of_runs_with_other_columns(tmp_path):
    columns = {"kv_share": [0.5, 0.25], "drafted": [[1, 2], []]}
    runs = [(record(cell(seed=i), has_trace=True), trace([1], [1], **own)) for i, own in enumerate(({}, columns, {}))]
    table.write(tmp_path, runs)
    equal(tmp_path, runs)


@pytest.mark.parametrize("name", ["runs", "requests", "steps", "tokens"])
@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:60] + b"?" * 8 + b[68:]])
def test_a_damaged_file_is_named_and_left_alone(tmp_path, name, damage):
    table.write(tmp_path, [full()])
    path = tmp_path / f"{name}.parquet"
    path.write_bytes(damaged := damage(path.read_bytes()))
    with pytest.warns(
        table.Unreadable, match=rf"{name}\.parquet is skipped: it must be a whole Parquet file, got"
    ) as said:
        store = Published(tmp_path)
        held = store.all()
        assert len(held) == (name in ("steps", "tokens"))
        if name == "tokens":
            assert store.trace(held[0]) == Trace(steps=full()[1].steps)
        elif held:
            assert not held[0].has_trace
    assert len(said) == 1 and path.read_bytes() == damaged


@pytest.mark.parametrize("name", ["requests", "steps", "tokens"])
def test_a_missing_file_is_named(tmp_path, name):
    table.write(tmp_path, [full()])
    (tmp_path / f"{name}.parquet").unlink()
    with pytest.warns(table.Unreadable, match=rf"{name}\.parquet is skipped: it must lie beside runs\.parquet") as said:
        store = Published(tmp_path)
        held = store.all()
        assert len(held) == (name != "requests")
        if held and held[0].has_trace:
            assert store.trace(held[0]).output_token_ids is None
    assert len(said) == 1


def test_a_row_that_is_no_record_is_left_out(tmp_path):
    runs = [full(), (record(cell(seed=1)), None), (record(cell(seed=2)), None)]
    table.write(tmp_path, runs)
    path = tmp_path / "runs.parquet"
    rows = pq.read_table(path)
    states = pa.array(["fine" if seed == 1 else "ok" for seed in rows["seed"].to_pylist()])
    cells = pa.array([c.replace('"seed":2', '"seed":3') for c in rows["cell"].to_pylist()])
    place = rows.schema.get_field_index
    rows = rows.set_column(place("status"), "status", states).set_column(place("cell"), rows.field("cell"), cells)
    pq.write_table(rows, path)
    with pytest.warns(
        table.Unreadable, match=r"runs.parquet is skipped in part: it must hold whole records, got 2 that"
    ):
        assert Published(tmp_path).all() == [full()[0]]


def test_a_later_schema_and_files_of_two_writes_are_named(tmp_path, monkeypatch):
    table.write(tmp_path, [full()])
    steps = (tmp_path / "steps.parquet").read_bytes()
    with monkeypatch.context() as later:
        later.setattr(records, "SCHEMA_VERSION", 2)
        table.write(tmp_path, [full(), failure()])
    with pytest.warns(table.Unreadable, match=r"runs\.parquet is skipped: it must be of schema_version 1, got 2$"):
        assert Published(tmp_path).all() == []
    table.write(tmp_path, [full(), failure()])
    (tmp_path / "steps.parquet").write_bytes(steps)
    with pytest.warns(
        table.Unreadable, match=r"steps\.parquet is skipped: it must be of the same runs as runs\.parquet"
    ):
        assert [r.has_trace for r in Published(tmp_path).all()] == [False, False]


# ---- publishing ------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    """(the folder of profile x's run, of its published tables)."""
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setenv("SPECULATION_RUNS", str(tmp_path / "runs"))
    return Store(tmp_path / "runs" / "x" / "records"), tmp_path / "figures" / "data" / "x"


def test_publish_merges(home):
    store, folder = home
    held, kept = full()
    table.write(folder, [(held, kept), (record(cell(seed=5)), None), failure(1)])
    store.save(record(cell(setting="new", seed=5)), trace([2], [1]))  # of the same second, under another name
    store.save(record(cell(seed=1)))
    store.save(failure(7)[0])
    lost = held.model_copy(update={"status": "crashed", "has_trace": False})
    store.save(lost)
    assert table.publish("x") == 2
    got = {r.cell_id: r for r in Published(folder).all()}
    assert len(got) == 4 and got[held.cell_id] == held and Published(folder).trace(held) == kept
    named = {(r.cell.setting, r.cell.workload.seed, r.status, r.has_trace) for r in got.values() if r != held}
    assert named == {("new", 5, "ok", True), ("vanilla", 1, "ok", False), ("vanilla", 7, "oom", False)}


def test_publish_changes_nothing_over_a_damaged_table(home, capsys, monkeypatch):
    store, folder = home
    table.write(folder, [full()])
    (folder / "steps.parquet").write_bytes(b"PAR1")
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    store.save(record(cell(seed=1)))
    monkeypatch.setattr(cli.params, "load", lambda _: type("P", (), {"profile": "x"}))
    assert cli.main(["publish", "x"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "figures/data/x/steps.parquet is skipped: it must be a whole Parquet file" in said
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before


def test_a_full_disk_leaves_the_earlier_tables(home, monkeypatch):
    store, folder = home
    table.write(folder, [full()])
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    store.save(record(cell(seed=1)))

    def disk_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        table.publish("x")
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before


# ---- reading -----------------------------------------------------------------------------------------------


def test_a_law_is_read_from_tables_and_from_a_run(home):
    store, folder = home
    for seed in range(2):
        store.save(record(cell(seed=seed)), trace([1, 2, 3], [2, 2, 2]))
    table.publish("x")
    assert isinstance(table.open_folder(folder), Published) and isinstance(table.open_folder(store.folder), Store)
    own, published = prediction.survey_folder(store.folder), prediction.survey_folder(folder)
    assert repr(own) == repr(published)


def test_frames_have_a_row_a_run_request_and_step(home):
    store, folder = home
    runs = [full(), failure()]
    table.write(folder, runs)
    frame = table.load("x")
    assert frame.equals(table.frame(Published(folder).all()))
    row = frame.set_index("status").loc["ok"]
    assert (
        row["num_output_tokens"] == 20 and row["num_accepted_tokens_per_pos"] == [3, 2, 0] and row["concurrency"] == 2
    )
    assert set(Counters.model_fields) | set(Monitor.model_fields) <= set(frame) and "cell" not in frame
    assert frame["num_prompts"].dtype == frame["seed"].dtype == "int64"  # narrow ones overflow
    steps, requests = table.steps("x"), table.requests("x")
    assert list(steps["t_s"]) == runs[0][1].steps["t_s"] and steps["running"].dtype == "int64"
    assert [list(requests[c]) for c in ("request", "output_hash")] == [[0, 1], ["00ff" * 4, "h1"]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(table.load("nowhere")) == len(table.steps("nowhere")) == 0


def test_snapshot_is_the_same_table(home, tmp_path, capsys, monkeypatch):
    table.write(home[1], [full(), failure()])
    monkeypatch.setattr(cli.params, "load", lambda _: type("P", (), {"profile": "x"}))
    assert cli.main(["snapshot", "x", "--out", str(tmp_path / "x.csv")]) == 0
    assert (tmp_path / "x.csv").read_text() == table.load("x").to_csv(index=False)
