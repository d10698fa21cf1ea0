"""Moments at which an engine or its caller can end, one by one, with the stand-in engine: nothing measured is lost."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import standin_sweep

from lib.measure import engines, plan
from lib.results import records

ROOT = Path(__file__).parents[1]


def run(runs, folder):
    return engines.run(runs, standin_sweep.profile(), progress=False, folder=folder)


@pytest.fixture
def standin(tmp_path, monkeypatch):
    standin_sweep.use(monkeypatch, tmp_path / "cache")
    return monkeypatch


def change_events(monkeypatch, change):
    original = engines.Process.events
    monkeypatch.setattr(engines.Process, "events", lambda self, *args: change(self, original(self, *args)))


def test_an_engine_that_ends_between_storing_a_run_and_saying_so(standin, tmp_path):
    ended = []

    def change(process, events):
        for event in events:
            if event["event"] == "done" and not ended:
                ended.append(event["plan_id"])
                yield {"event": "died", "reason": "the engine process ended with code -9"}
                return
            yield event

    change_events(standin, change)
    runs = standin_sweep.runs(1, 3)
    store = run(runs, tmp_path)
    assert [store.get(c).status for c in runs] == ["ok"] * 3 and ended == [runs[0].plan_id]


@pytest.mark.parametrize("where", ["done", "end"])
def test_an_interrupt_or_a_death_between_two_runs_leaves_the_finished_one(where, standin, tmp_path):
    def change(process, events):
        for event in events:
            yield event
            if event["event"] == "done":
                if where == "done":
                    raise KeyboardInterrupt
                os.kill(process.child.pid, signal.SIGKILL)
                yield {"event": "died", "reason": "the engine process ended with code -9"}
                return

    runs, status = standin_sweep.runs(1, 2), "interrupted" if where == "done" else "crashed"
    with standin.context() as patch:
        change_events(patch, change)
        with pytest.raises(KeyboardInterrupt) if where == "done" else contextlib.nullcontext():
            run(runs, tmp_path)
    held = records.Store(tmp_path / "records")
    assert [held.get(r).status for r in runs] == ["ok", status]
    # asked for, the failed run is measured again and replaces the failure
    again = engines.run(runs, standin_sweep.profile(), progress=False, folder=tmp_path, retry=(status,))
    assert [again.get(r).status for r in runs] == ["ok", "ok"]


def test_an_engine_that_dies_after_its_last_run_has_failed_nothing(standin, tmp_path):
    def change(process, events):
        for event in events:
            if event["event"] == "end":
                event = {"event": "died", "reason": "the engine process ended with code -9"}
            yield event

    change_events(standin, change)
    store = run(standin_sweep.runs(1, 2), tmp_path)
    assert [r.status for r in store.all()] == ["ok", "ok"]


@pytest.fixture
def spare(standin):
    """A machine on which the next engine's process is started early."""
    standin.setattr(engines.machine, "count_gpus", lambda: 1)
    standin.setattr(engines.machine, "count_cpus", lambda: 16)
    return standin


def test_an_engine_started_early_measures_the_same(standin, tmp_path):
    alone = run(standin_sweep.runs(3, 2), tmp_path / "alone")
    standin.setattr(engines.machine, "count_gpus", lambda: 1)
    standin.setattr(engines.machine, "count_cpus", lambda: 16)
    store = run(standin_sweep.runs(3, 2), tmp_path / "early")
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
    store = run(standin_sweep.runs(2, 2), tmp_path)
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
        run(standin_sweep.runs(3, 2), tmp_path)
    assert not psutil.Process().children(recursive=True)


def test_random_kills_of_the_whole_sweep(standin, tmp_path):
    """SIGKILL to the caller, again and again: no engine outlives it, and the store ends as an undisturbed run's."""
    runs = standin_sweep.runs(3, 4)
    alone = run(runs, tmp_path / "alone")
    script = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, 'tests')\n"
        "import standin_sweep\nfrom lib.measure import engines\n"
        f"runs, p, folder = standin_sweep.runs(3, 4), standin_sweep.profile(), Path({str(tmp_path / 'killed')!r})\n"
        "print('ready', flush=True)\nengines.run(runs, p, progress=False, folder=folder)\n"
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
    store = run(runs, tmp_path / "killed")
    assert standin_sweep.facts(store) == standin_sweep.facts(alone)


def test_an_interrupt_before_the_first_run_is_recorded_and_measured_again_unasked(standin, tmp_path):
    def change(process, events):
        for event in events:
            yield event
            if event["event"] == "ready":
                raise KeyboardInterrupt

    runs = standin_sweep.runs(1, 2)
    with standin.context() as patch:
        change_events(patch, change)
        with pytest.raises(KeyboardInterrupt):
            run(runs, tmp_path)
    assert not psutil.Process().children(recursive=True)
    held = records.Store(tmp_path / "records")
    assert held.get(runs[0]).status == "interrupted" and held.get(runs[1]) is None
    assert len(plan.missing(runs, held)) == 1
    assert [r.status for r in run(runs, tmp_path).all()] == ["ok", "ok"]


def test_the_time_limit_ends_a_silent_engine(standin, tmp_path):
    standin.setenv("STANDIN_STEP_S", "5")
    asked, limited = standin_sweep.runs(1, 2), standin_sweep.profile(time_limit_s=1)
    store = engines.run(asked, limited, progress=False, folder=tmp_path)
    assert [store.get(r).status for r in asked] == ["timeout", "timeout"]
    assert "time_limit_s" in store.get(asked[0]).reason
    assert not psutil.Process().children(recursive=True)


def test_two_sweeps_into_one_store(tmp_path):
    with engines.held(tmp_path), pytest.raises(engines.StoreBusy, match="another process measures into it"):
        run(standin_sweep.runs(1, 1), tmp_path)


def test_a_dead_holder_s_lock_is_free(tmp_path):
    script = (
        "from pathlib import Path\nimport time\nfrom lib.measure import engines\n"
        f"with engines.held(Path({str(tmp_path)!r})):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(engines.StoreBusy), engines.held(tmp_path):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with engines.held(tmp_path):
        pass
