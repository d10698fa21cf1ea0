"""Engines forked from one process: the same records, ends that are noticed, nothing left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import standin_sweep

from lib.measure import engines, forkserver

ROOT = Path(__file__).parents[1]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    standin_sweep.use(monkeypatch, tmp_path / "cache")
    p = standin_sweep.profile()
    with forkserver.open_fork_server(engines.environment(standin_sweep.runs(1, 1)[0], p)):
        yield p
    assert forkserver.address() is None and not psutil.Process().children(recursive=True)


def parents(monkeypatch) -> list[int]:
    """Parent process ids of the engines started from now on."""
    seen = []
    original = engines.Process.go

    def go(self):
        seen.append(psutil.Process(self.child.pid).ppid())
        original(self)

    monkeypatch.setattr(engines.Process, "go", go)
    return seen


def test_forked_engines_measure_what_started_ones_do(opened, tmp_path, monkeypatch):
    runs, seen = standin_sweep.runs(2, 2), parents(monkeypatch)
    forked = engines.run(runs, opened, progress=False, folder=tmp_path / "forked")
    assert len(set(seen)) == 1 and os.getpid() not in seen
    os.environ.pop(forkserver.SOCKET_VARIABLE)
    started = engines.run(runs, opened, progress=False, folder=tmp_path / "started")
    assert seen[2:] == [os.getpid()] * 2
    assert standin_sweep.facts(forked) == standin_sweep.facts(started)


def test_a_killed_engine_is_a_record_and_the_next_is_forked_again(opened, tmp_path, monkeypatch):
    original, killed = engines.Process.events, []

    def events(self, *args):
        for event in original(self, *args):
            yield event
            if event["event"] == "running" and not killed:
                killed.append(self.child.pid)
                os.kill(self.child.pid, signal.SIGKILL)

    monkeypatch.setattr(engines.Process, "events", events)
    store = engines.run(standin_sweep.runs(1, 3), opened, progress=False, folder=tmp_path / "runs")
    by_status = {r.status: r for r in store.all()}
    assert sorted(r.status for r in store.all()) == ["crashed", "ok", "ok"]
    assert "ended with code -9" in by_status["crashed"].reason


def test_an_interrupt_ends_the_forked_engine(opened, tmp_path, monkeypatch):
    pids = []

    def events(self, *args):
        pids.append(self.child.pid)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(engines.Process, "events", events)
    with pytest.raises(KeyboardInterrupt):
        engines.run(standin_sweep.runs(1, 2), opened, progress=False, folder=tmp_path / "runs")
    assert pids and not psutil.pid_exists(pids[0])


def test_a_killed_opener_leaves_nothing_however_long_the_temporary_folder_s_path(tmp_path, monkeypatch):
    standin_sweep.use(monkeypatch, tmp_path / "cache")
    temporary = tmp_path / ("long" * 30)  # a socket's own path may have 107 bytes
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    script = (
        "import os, time\nfrom lib.measure import forkserver\nwith forkserver.open_fork_server(dict(os.environ)):\n"
        "    print(forkserver.address(), flush=True)\n    time.sleep(60)\n"
    )
    opener = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    where = Path(opener.stdout.readline().strip())
    assert where.is_socket()
    (child,) = psutil.Process(opener.pid).children()
    opener.kill()
    opener.wait()
    opener.stdout.close()
    assert not psutil.wait_procs([child], timeout=20)[1]
    assert not where.parent.exists()


def test_without_vllm_engines_start_by_themselves(tmp_path):
    broken = tmp_path / "vllm"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with forkserver.open_fork_server(env):
        assert forkserver.address() is None
