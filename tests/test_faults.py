"""Moments at which an engine or its caller can end, one by one, with the stand-in engine: nothing measured is lost."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import standin_sweep

from lib import engines, records

ROOT = Path(__file__).parents[1]


def run(cells, folder):
    return engines.run(cells, standin_sweep.profile(), progress=False, folder=folder)


@pytest.fixture
def standin(tmp_path, monkeypatch):
    standin_sweep.use(monkeypatch, tmp_path / "cache")
    return monkeypatch


def change_events(monkeypatch, change):
    original = engines.Process.events
    monkeypatch.setattr(engines.Process, "events", lambda self, *args: change(self, original(self, *args)))


def test_an_engine_that_ends_between_storing_a_cell_and_saying_so(standin, tmp_path):
    ended = []

    def change(process, events):
        for event in events:
            if event["event"] == "done" and not ended:
                ended.append(event["cell_id"])
                yield {"event": "died", "reason": "the engine process ended with code -9"}
                return
            yield event

    change_events(standin, change)
    cells = standin_sweep.cells(1, 3)
    store = run(cells, tmp_path)
    assert [store.get(c).status for c in cells] == ["ok"] * 3 and ended == [cells[0].cell_id]


@pytest.mark.parametrize("where", ["done", "end"])
def test_an_interrupt_or_a_death_between_two_cells_leaves_the_finished_one(where, standin, tmp_path):
    def change(process, events):
        for event in events:
            yield event
            if event["event"] == "done":
                if where == "done":
                    raise KeyboardInterrupt
                os.kill(process.child.pid, signal.SIGKILL)
                yield {"event": "died", "reason": "the engine process ended with code -9"}
                return

    change_events(standin, change)
    cells = standin_sweep.cells(1, 2)
    if where == "done":
        with pytest.raises(KeyboardInterrupt):
            run(cells, tmp_path)
    else:
        run(cells, tmp_path)
    held = records.Store(tmp_path / "records")
    assert held.get(cells[0]).status == "ok"
    assert held.get(cells[1]).status == ("interrupted" if where == "done" else "crashed")


def test_an_engine_that_dies_after_its_last_cell_has_failed_nothing(standin, tmp_path):
    def change(process, events):
        for event in events:
            if event["event"] == "end":
                event = {"event": "died", "reason": "the engine process ended with code -9"}
            yield event

    change_events(standin, change)
    store = run(standin_sweep.cells(1, 2), tmp_path)
    assert [r.status for r in store.all()] == ["ok", "ok"]


@pytest.fixture
def spare(standin):
    """A machine on which the next engine's process is started early."""
    standin.setattr(engines.params, "count_gpus", lambda: 1)
    standin.setattr(engines.params, "count_cpus", lambda: 16)
    return standin


def test_an_engine_started_early_measures_the_same(standin, tmp_path):
    alone = run(standin_sweep.cells(3, 2), tmp_path / "alone")
    standin.setattr(engines.params, "count_gpus", lambda: 1)
    standin.setattr(engines.params, "count_cpus", lambda: 16)
    store = run(standin_sweep.cells(3, 2), tmp_path / "early")
    assert standin_sweep.facts(store) == standin_sweep.facts(alone)


def test_the_next_engine_waits_for_its_word(spare, tmp_path):
    """While the first engine measures, the second's process is there and has started nothing."""
    started, seen = [], []

    def change(process, events):
        started.append(process)
        for event in events:
            if event["event"] == "running" and len(started) == 1:
                seen.append([c for c in psutil.Process().children() if c.pid != process.child.pid])
            yield event

    change_events(spare, change)
    store = run(standin_sweep.cells(2, 2), tmp_path)
    assert [r.status for r in store.all()] == ["ok"] * 4
    assert seen and all(len(others) == 1 for others in seen)
    assert started[1].child.pid == seen[0][0].pid


def test_an_interrupt_ends_the_engine_started_early_too(spare, tmp_path):
    def change(process, events):
        for event in events:
            yield event
            raise KeyboardInterrupt

    change_events(spare, change)
    with pytest.raises(KeyboardInterrupt):
        run(standin_sweep.cells(3, 2), tmp_path)
    assert not psutil.Process().children(recursive=True)


def test_random_kills_of_the_whole_sweep(standin, tmp_path):
    """SIGKILL to the caller, again and again: no engine outlives it, and the store ends as an undisturbed run's."""
    cells = standin_sweep.cells(3, 4)
    alone = run(cells, tmp_path / "alone")
    script = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, 'tests')\nimport standin_sweep\nfrom lib import engines\n"
        f"cells, p, folder = standin_sweep.cells(3, 4), standin_sweep.profile(), Path({str(tmp_path / 'killed')!r})\n"
        "print('ready', flush=True)\nengines.run(cells, p, progress=False, folder=folder)\n"
    )
    rng = random.Random(0)
    for _ in range(5):
        parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
        parent.stdout.readline()
        try:
            parent.wait(rng.uniform(0.2, 2))
        except subprocess.TimeoutExpired:
            children = psutil.Process(parent.pid).children(recursive=True)
            parent.kill()
            _, alive = psutil.wait_procs(children, timeout=20)
            assert not alive, "an engine outlived its caller"
        parent.wait()
        parent.stdout.close()
    store = run(cells, tmp_path / "killed")
    assert standin_sweep.facts(store) == standin_sweep.facts(alone)


IN_TURN = {"in_turn": [["arm0", "arm1:1"]]}


def in_turn(cells, folder):
    """Runs cells of the stand-in engines arm0 and arm1, which take turns; their settings by the time they ended."""
    store = engines.run(cells, standin_sweep.profile(**IN_TURN), progress=False, folder=folder)
    files = sorted(store.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [records.Record.model_validate_json(path.read_text()) for path in files]


def twins(num_cells):
    """The same questions to two engines, and one question more to the second."""
    first, second = ([c for c in standin_sweep.cells(2, num_cells + i) if c.setting == f"arm{i}"] for i in range(2))
    asked = [c.workload for c in first] + [second[-1].workload]
    return first + [c.model_copy(update={"workload": w}) for c, w in zip(second, asked, strict=True)]


def test_engines_that_take_turns_measure_what_they_share_in_pairs(standin, tmp_path):
    ended = in_turn(twins(6), tmp_path)
    assert [r.status for r in ended] == ["ok"] * 13
    for i in range(0, 12, 2):
        one, other = ended[i : i + 2]
        assert one.cell.workload == other.cell.workload and one.cell.setting != other.cell.setting
        assert (one.partner, other.partner) == (other.cell_id, one.cell_id)
    # chance decides who goes first; what only one of them measures comes last, in an engine of its own
    assert {ended[i].cell.setting for i in range(0, 12, 2)} == {"arm0", "arm1"}
    assert (ended[12].cell.setting, ended[12].order, ended[12].partner) == ("arm1", 0, None) and ended[11].order == 5


def test_the_engine_that_waits_does_nothing(standin, tmp_path):
    """However late its turn comes, no cell of one engine runs while the other one measures."""
    said, original = [], engines.Process.turn

    def turn(process):
        time.sleep(0.1)
        said.append(("turn", process.cells[0].setting))
        original(process)

    def change(process, events):
        for event in events:
            if event["event"] in ("ready", "running", "done"):
                said.append((event["event"], process.cells[0].setting))
            yield event

    standin.setattr(engines.Process, "turn", turn)
    change_events(standin, change)
    ended = in_turn(twins(3), tmp_path)
    first = [what for what, _ in said].index("turn")
    assert {name for what, name in said[:first] if what == "ready"} == {"arm0", "arm1"}
    turns = said[first : first + 18]
    for i in range(0, 18, 3):  # turn, running, done: of one engine
        assert [what for what, _ in turns[i : i + 3]] == ["turn", "running", "done"]
        assert len({name for _, name in turns[i : i + 3]}) == 1
    shared = [r for r in ended if r.partner]
    assert len(shared) == 6 and max(r.wall_s for r in shared) < 20 * min(r.wall_s for r in shared)


def test_a_killed_caller_leaves_no_waiting_engine_behind(standin, tmp_path):
    code = (
        "import sys; sys.path.insert(0, 'tests'); import standin_sweep; from pathlib import Path; from lib import engines\n"
        "from test_faults import IN_TURN, twins\n"
        "change, original = [], engines.Process.events\n"
        "def events(self, *args):\n"
        "    for event in original(self, *args):\n"
        "        if event['event'] == 'done': print(self.child.pid, flush=True)\n"
        "        yield event\n"
        "engines.Process.events = events\n"
        f"engines.run(twins(40), standin_sweep.profile(**IN_TURN), progress=False, folder=Path({str(tmp_path)!r}))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pids = {int(caller.stdout.readline()) for _ in range(4)}
    assert len(pids) == 2  # both have measured, so one of them waits now
    caller.kill()
    caller.wait()
    gone, alive = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_death_while_taking_turns_costs_one_cell_and_its_engine_goes_on(standin, tmp_path):
    killed = []

    def change(process, events):
        for event in events:
            yield event
            if event["event"] == "running" and process.cells[0].setting == "arm0" and not killed:
                killed.append(event["cell_id"])
                os.kill(process.child.pid, signal.SIGKILL)
                yield {"event": "died", "reason": "the engine process ended with code -9"}
                return

    change_events(standin, change)
    ended = in_turn(twins(3), tmp_path)
    assert {r.cell_id: r.status for r in ended if r.status != "ok"} == {killed[0]: "crashed"} and len(ended) == 7


def test_an_interrupt_while_taking_turns_ends_both_engines(standin, tmp_path):
    def change(process, events):
        for event in events:
            yield event
            if event["event"] == "done" and process.cells[0].setting == "arm1":
                raise KeyboardInterrupt

    change_events(standin, change)
    running, begin = [], engines.Process.go
    standin.setattr(engines.Process, "go", lambda process: (running.append(process), begin(process)))
    cells = twins(3)
    with pytest.raises(KeyboardInterrupt):
        in_turn(cells, tmp_path)
    assert len(running) == 2
    assert not any(psutil.pid_exists(p.child.pid) for p in running)
    held = records.Store(tmp_path / "records")
    assert [held.get(c).status for c in (cells[0], cells[3])] == ["ok", "ok"]


def test_too_few_gpus_for_both_engines_are_named(monkeypatch, capsys):
    cells = twins(2)
    groups, p = [cells[:2], cells[2:]], standin_sweep.profile(**IN_TURN)
    monkeypatch.setattr(engines.params, "count_gpus", lambda: 4)
    for visible, split in (
        ("3", None), ("3,2", (["3"], ["2"])), (" 1 , 0", (["1"], ["0"])), (None, (["0"], ["1"])), ("0,0", None),
        ("0,-1,1", None), ("0,7", None), ("", None), ("GPU-ab,GPU-cd", (["GPU-ab"], ["GPU-cd"])),
    ):  # fmt: skip
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        pairs, left = engines.pair_off(groups, p)
        assert [pair.gpus for pair in pairs] == [split] * bool(split)
        assert sum(map(len, left)) == (1 if split else 5)
        told = capsys.readouterr().err
        assert ("arm0 and arm1:1 take no turns: they need 2 GPUs" in told) == (split is None)
        assert ("gpu_memory_utilization at most 0.5" in told) == (split is None)
    large = [
        [c.model_copy(update={"engine": c.engine.model_copy(update={"tensor_parallel_size": 2})}) for c in cells[:2]]
    ]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (pair,), _ = engines.pair_off([*large, cells[2:]], p)
    assert pair.gpus == (["0", "1"], ["2"])
    monkeypatch.setattr(engines.params, "count_gpus", lambda: 0)
    assert engines.pair_off(groups, p)[0][0].gpus == (None, None)


def test_engines_that_leave_each_other_room_take_turns_on_one_gpu(monkeypatch):
    p = standin_sweep.profile(**IN_TURN)

    def places(*changes, visible="3"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        sides = [[c.model_copy(update={"engine": c.engine.model_copy(update=change)}) for c in side]
                 for side, change in zip((twins(2)[:2], twins(2)[2:]), changes, strict=True)]  # fmt: skip
        return [pair.gpus for pair in engines.pair_off(sides, p)[0]]

    monkeypatch.setattr(engines.params, "count_gpus", lambda: 4)
    small = {"gpu_memory_utilization": 0.4, "kv_cache_memory_gib": 8.0}
    assert places(small, small) == [(["3"], ["3"])]
    assert places(small, small | {"gpu_memory_utilization": 0.6}) == [(["3"], ["3"])]
    assert places(small, small, visible="3,1") == [(["3"], ["1"])]
    assert places(small, small, visible="") == []
    two = small | {"tensor_parallel_size": 2}
    assert places(two, two, visible="0,1") == [(["0", "1"], ["0", "1"])] and places(two, small, visible="0") == []
    for other in ({"gpu_memory_utilization": 0.61}, {"kv_cache_memory_gib": None}, {"gpu_memory_utilization": None}):
        assert places(small, small | other) == places(small | other, small) == []


def test_a_named_engine_without_its_partner_is_told_and_models_are_not_mixed(capsys):
    cells = twins(2)
    p = standin_sweep.profile(**IN_TURN)
    assert engines.pair_off([cells[:2]], p) == ([], [cells[:2]])
    assert "arm0 and arm1:1 take no turns" in capsys.readouterr().err
    assert engines.pair_off([], p) == ([], []) and not capsys.readouterr().err
    other = cells[0].engine.model.model_copy(update={"name": "Qwen2.5-0.5B"})
    second = [c.model_copy(update={"engine": c.engine.model_copy(update={"model": other})}) for c in cells]
    pairs, left = engines.pair_off([cells[:2], second[:2], cells[2:], second[2:]], p)
    assert [{c.engine.model.name for side in pair.cells for c in side} for pair in pairs] == [
        {"opt-125m"},
        {"Qwen2.5-0.5B"},
    ]
    assert sum(map(len, left)) == 2
    # two cells that ask the same are not both given the one that answers them
    twice = [cells[0], cells[0].model_copy(update={"draft_tokens": 1})]
    ((one, other), _), *_ = engines.pair_off([twice, cells[2:]], p)[0]
    assert (one, other) == ([cells[0]], [cells[2]])
