"""Records: round trip, whole or not at all, damaged files set aside by their owner, identity by content."""

import json

import pytest
from made_up_records import record, run, trace

from lib.measure import machine
from lib.results import records
from lib.results.records import Store


def test_round_trip_with_trace(tmp_path):
    store, kept = Store(tmp_path), record(run())
    steps = trace([1, 2], [2, 2])
    store.save(kept, steps)
    again = Store(tmp_path).get(kept.run)
    assert again == kept.model_copy(update={"has_trace": True})
    assert Store(tmp_path).trace(again) == steps


def test_get_takes_the_asked_display_name(tmp_path):
    store = Store(tmp_path)
    store.save(record(run(setting="first")))
    assert store.get(run(setting="second")).run.setting == "second"


def test_a_run_is_named_by_what_was_asked_and_its_session():
    asked = record(run())
    one, other = (record(run(), session=s) for s in "ab")
    assert asked.run_id == asked.run.plan_id == one.run.plan_id
    assert len({asked.run_id, one.run_id, other.run_id}) == 3


def test_a_good_record_wins_over_a_later_failure(tmp_path):
    store = Store(tmp_path)
    store.save(record(run(setting="a")))
    failed = record(run(setting="b"), status="oom", reason="out of memory")
    store.save(failed.model_copy(update={"provenance": failed.provenance.model_copy(update={"measured": "2027"})}))
    assert Store(tmp_path).get(run()).status == "ok"


@pytest.mark.parametrize("damage", [lambda t: t[: len(t) // 2], lambda t: "", lambda t: t.replace("ok", "fine")])
def test_damaged_records_are_set_aside_not_fatal(tmp_path, damage):
    store = Store(tmp_path)
    path, other = store.save(record(run())), store.save(record(run(seed=1)))
    path.write_text(damage(path.read_text()))
    with pytest.warns(UserWarning, match="is left out: it must be a whole record"):
        held = Store(tmp_path).all()
    assert [r.run.workload.seed for r in held] == [1]
    assert path.exists() and not list(tmp_path.glob("*.damaged"))  # it is another's run
    with pytest.warns(UserWarning, match="set aside"):
        assert Store(tmp_path, owner=True).all() == held
    assert not path.exists() and other.exists() and list(tmp_path.glob("*.damaged"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["run"].update(output_tokens=999), "must be named by its run's plan_id"),
        (lambda d: d.update(schema_version=99), "must be of schema_version 2 at most, got 99"),
    ],
)
def test_an_edited_or_newer_record_is_left_out_and_untouched(tmp_path, change, words):
    path = Store(tmp_path).save(record(run()))
    data = json.loads(path.read_text())
    change(data)
    path.write_text(text := json.dumps(data))
    with pytest.warns(UserWarning, match=words):
        assert len(Store(tmp_path, owner=True)) == 0
    assert path.read_text() == text


def test_a_full_disk_leaves_no_half_record(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        Store(tmp_path).save(record(run()))
    assert list(tmp_path.iterdir()) == []


def test_a_machine_is_known_by_its_gpus_in_any_order(tmp_path, monkeypatch):
    def made(*uuids):
        rows = "".join(f"NVIDIA X, 1.2, {uuid}, 700.00, 1980\\n" for uuid in uuids)
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
        tool.chmod(0o755)
        return machine.provenance()

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    one, other, swapped = made("GPU-a", "GPU-b"), made("GPU-a", "GPU-c"), made("GPU-b", "GPU-a")
    assert one.machine == swapped.machine != other.machine and (one.gpu, one.driver) == ("NVIDIA X", "1.2")
    assert (one.gpu_power_limit_w, one.gpu_max_sm_clock_mhz) == (700, 1980) and one.session != other.session
    assert "GPU-a" not in one.model_dump_json() and made().machine is None
