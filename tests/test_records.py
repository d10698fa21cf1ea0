"""Records: round trip, whole or not at all, damaged files set aside by their owner, identity by content."""

import json

import pytest
from made_up_records import NGRAM, cell, record, trace

from lib import engines, records
from lib.records import Store


def test_round_trip_with_trace(tmp_path):
    store, kept = Store(tmp_path), record(cell())
    steps = trace([1, 2], [2, 2])
    store.save(kept, steps)
    again = Store(tmp_path).get(kept.cell)
    assert again.model_copy(update={"has_trace": False}) == kept
    assert Store(tmp_path).trace(again) == steps


def test_a_changed_setting_is_a_new_cell_and_a_name_is_not():
    assert cell(setting="a").cell_id == cell(setting="b").cell_id
    assert cell().cell_id != cell(output_tokens=11).cell_id != cell(seed=1).cell_id
    assert cell().cell_id != cell(speculative=NGRAM).cell_id


def test_get_takes_the_asked_display_name(tmp_path):
    store = Store(tmp_path)
    store.save(record(cell(setting="first")))
    assert store.get(cell(setting="second")).cell.setting == "second"


def test_a_good_record_wins_over_a_later_failure(tmp_path):
    store = Store(tmp_path)
    store.save(record(cell(setting="a")))
    failed = record(cell(setting="b"), status="oom", reason="out of memory")
    store.save(failed.model_copy(update={"provenance": failed.provenance.model_copy(update={"measured": "2027"})}))
    assert Store(tmp_path).get(cell()).status == "ok"


@pytest.mark.parametrize("damage", [lambda t: t[: len(t) // 2], lambda t: "", lambda t: t.replace("ok", "fine")])
def test_damaged_records_are_set_aside_not_fatal(tmp_path, damage):
    store = Store(tmp_path)
    path, other = store.save(record(cell())), store.save(record(cell(seed=1)))
    path.write_text(damage(path.read_text()))
    with pytest.warns(UserWarning, match="must be a whole record and is left out"):
        held = Store(tmp_path).all()
    assert [r.cell.workload.seed for r in held] == [1]
    assert path.exists() and not list(tmp_path.glob("*.damaged"))  # it is another's run
    with pytest.warns(UserWarning, match="set aside"):
        assert Store(tmp_path, owner=True).all() == held
    assert not path.exists() and other.exists() and list(tmp_path.glob("*.damaged"))


def test_an_edited_setting_is_noticed(tmp_path):
    store = Store(tmp_path)
    path = store.save(record(cell()))
    data = json.loads(path.read_text())
    data["cell"]["output_tokens"] = 999
    path.write_text(json.dumps(data))
    with pytest.warns(UserWarning, match="edited or renamed"):
        assert len(Store(tmp_path)) == 0


def test_an_old_schema_is_refused(tmp_path):
    store = Store(tmp_path)
    path = store.save(record(cell()))
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"schema_version": 0}))
    with pytest.raises(ValueError, match=r"schema_version is 0, allowed: 1"):
        Store(tmp_path).all()


def test_a_full_disk_leaves_no_half_record(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        Store(tmp_path).save(record(cell()))
    assert list(tmp_path.iterdir()) == []


def test_a_machine_is_known_by_its_gpus_in_any_order(tmp_path, monkeypatch):
    def machine(*uuids):
        rows = "".join(f"NVIDIA X, 1.2, {uuid}, 700.00, 1980\\n" for uuid in uuids)
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
        tool.chmod(0o755)
        return engines.provenance()

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    one, other, swapped = machine("GPU-a", "GPU-b"), machine("GPU-a", "GPU-c"), machine("GPU-b", "GPU-a")
    assert one.machine == swapped.machine != other.machine and (one.gpu, one.driver) == ("NVIDIA X", "1.2")
    assert (one.gpu_power_limit_w, one.gpu_max_sm_clock_mhz) == (700, 1980) and one.session != other.session
    assert "GPU-a" not in one.model_dump_json() and machine().machine is None
