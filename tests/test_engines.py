"""Real engines on the CPU: what is true of their records, and what is left after a failure of the engine itself.

What every engine's caller must survive is tested with a stand-in engine in test_faults.py.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lib.measure import engines, forkserver, machine, plan, profiles
from lib.results import records
from lib.results.run import Run

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[1]
SMALL = {"num_prompts": 2, "output_tokens": 32, "input_tokens": 96, "seeds": [0], "workloads": ["code"],
         "concurrency": [2], "repeats": {"vanilla": 1}}  # fmt: skip
SPECULATIVE = ("ngram", "suffix", "suffix_cold", "suffix_warm")


def small(**changes) -> profiles.Profile:
    return profiles.load("cpu", SMALL | changes)


# in the environment of every engine that this test run starts: other runs on the machine are not ours to count
MARK = os.environ.setdefault("SPECULATION_TEST_RUN", f"test-{os.getpid()}")


def workers() -> list[psutil.Process]:
    """Engine processes of this test run that are alive, forked ones included."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        with contextlib.suppress(psutil.Error):
            line, server = process.info["cmdline"] or [], "lib.measure.forkserver"
            engine = "lib.measure.worker" in line or server in line and server in process.parent().cmdline()
            if engine and process.info["status"] != psutil.STATUS_ZOMBIE:
                found += [process] if process.environ().get("SPECULATION_TEST_RUN") == MARK else []
    return found


def wait_until(condition, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False


@pytest.fixture(scope="module", autouse=True)
def one_import_of_vllm():
    """Engines are forked, as `reproduce` does it; test_faults.py has engines that are processes of their own."""
    with forkserver.open_fork_server(engines.environment(plan.runs(small())[0], small())):
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> records.Store:
    """Vanilla, ngram, and suffix with its cache off, cold and warm, on the same two prompts."""
    p = small()
    # the same prompts again in the same engine: a concurrency of 3 changes nothing for two prompts but the plan_id
    runs = [*plan.runs(p, ["vanilla", *SPECULATIVE]), *plan.runs(small(concurrency=[3]), ["suffix"])]
    return engines.run(runs, p, progress=False, folder=tmp_path_factory.mktemp("runs"))


def one(store, setting, concurrency=2) -> records.Record:
    (found,) = [r for r in store.all() if r.run.setting == setting and r.run.concurrency == concurrency]
    assert found.status == "ok", found.reason
    return found


@pytest.mark.parametrize("setting", SPECULATIVE)
def test_float32_speculation_is_lossless(store, setting):
    speculative, vanilla = one(store, setting), one(store, "vanilla")
    assert [q.output_hash for q in speculative.requests] == [q.output_hash for q in vanilla.requests]
    assert speculative.output_hash == vanilla.output_hash != ""


@pytest.mark.parametrize("setting", ["vanilla", *SPECULATIVE])
def test_counters_agree_with_steps_and_requests(store, setting):
    r = one(store, setting)
    c, steps = r.counters, store.trace(r).steps
    assert r.resolved.vllm_version and r.resolved.runner == "V1" and r.provenance.versions["python"]
    caches = {"suffix": "off", "suffix_cold": "cold", "suffix_warm": "warm"}
    assert r.provenance.session and r.run.suffix_cache == caches.get(setting)
    assert c.num_accepted_tokens <= c.num_draft_tokens and (c.num_drafts > 0) == (setting != "vanilla")
    assert sum(c.num_accepted_tokens_per_pos) == c.num_accepted_tokens
    # three sources of the same counts: vLLM's counters, the step stream, the requests
    assert c.num_output_tokens == sum(steps["output_tokens"]) == sum(q.num_output_tokens for q in r.requests)
    assert c.num_request_steps == sum(steps["running"])
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert sum(steps[name]) == getattr(c, f"num_{name}")
    if c.num_drafts:
        assert c.num_drafts == sum(len(q.drafted_per_step) for q in r.requests)
        assert c.num_draft_tokens == sum(sum(q.drafted_per_step) for q in r.requests)
        assert c.num_accepted_tokens == sum(sum(q.accepted_per_step) for q in r.requests)
        # a step emits its accepted tokens and one more, but for what is cut at a request's end
        cut = c.num_request_steps + c.num_accepted_tokens - c.num_output_tokens
        assert 0 <= cut <= r.run.engine.speculative.num_speculative_tokens * len(r.requests)


def test_a_warm_suffix_cache_drafts_better_and_a_cache_that_is_off_remembers_nothing(store):
    accepted = {name: one(store, name).counters.num_accepted_tokens for name in SPECULATIVE}
    assert accepted["suffix_warm"] > accepted["suffix_cold"]
    assert one(store, "suffix").counters == one(store, "suffix", concurrency=3).counters


def test_ngram_leaves_torch_its_threads(monkeypatch):
    """numba's number of threads is torch's in one process; left to itself it counts the one core vLLM binds it to."""
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    for threads in (1, 2):
        env = engines.environment(plan.runs(small(), ["ngram"])[0], small(threads=threads))
        assert env["NUMBA_NUM_THREADS"] == env["OMP_NUM_THREADS"] == str(threads)


def test_an_engine_gets_this_tree_s_library():
    assert engines.environment(plan.runs(small())[0], small())["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_what_is_stored_is_not_measured_again(store, monkeypatch):
    def no_engine(*_, **__):
        raise AssertionError("an engine was started")

    monkeypatch.setattr(engines, "Process", no_engine)
    again = engines.run([r.run for r in store.all()], small(), progress=False, folder=store.folder.parent)
    assert len(again) == len(store) == 6


def test_records_carry_no_path_of_the_machine(store):
    for file in store.folder.glob("*.json"):
        text = file.read_text()
        assert [w for w in (str(Path.home()), str(ROOT), os.uname().nodename) if len(w) > 3 and w in text] == []


def test_papermill_measures_a_notebook(tmp_path):
    """A notebook through papermill against real engines, from the top folder, no path set by hand."""
    values = SMALL | {"mode": "measure", "settings": ["vanilla", "ngram"]}
    out = tmp_path / "04.ipynb"
    command = [sys.executable, "-m", "papermill", "notebooks/04_piecewise.ipynb", str(out), "-f", "params/cpu.yaml"]
    run = subprocess.run(
        [*command, "-y", json.dumps(values)], cwd=ROOT, env=os.environ | {"SPECULATION_RUNS": str(tmp_path / "runs")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    held = records.Store(tmp_path / "runs" / "cpu" / "records").all()
    assert sorted((r.run.setting, r.status) for r in held) == [("ngram", "ok"), ("vanilla", "ok")]
    assert len({r.output_hash for r in held}) == 1
    assert not workers()


# ---- failures --------------------------------------------------------------------------------------------


def two_runs(**engine) -> list[Run]:
    """Two runs of one vanilla engine with changed `arguments` or `env`."""
    asked = plan.runs(small(workloads=["code", "sonnet"]), ["vanilla"])
    held = asked[0].engine
    changed = held.model_copy(update={name: getattr(held, name) | value for name, value in engine.items()})
    return [r.model_copy(update={"engine": changed}) for r in asked]


def test_a_killed_engine_costs_one_run(tmp_path, monkeypatch):
    p, killed = small(), []
    original = engines.Process.events

    def events(self, *args):
        for event in original(self, *args):
            if event["event"] == "running" and not killed:
                assert [p.pid for p in workers()] == [self.child.pid]
                killed.append(event["plan_id"])
                os.kill(self.child.pid, signal.SIGKILL)
            yield event

    monkeypatch.setattr(engines.Process, "events", events)
    runs = two_runs()
    store = engines.run(runs, p, progress=False, folder=tmp_path)
    assert [store.get(r).status for r in runs] == ["crashed", "ok"]
    assert "ended with code -9" in store.get(runs[0]).reason and store.get(runs[0]).stderr_tail
    assert not workers()


def test_a_killed_parent_leaves_no_engine_and_loses_nothing(tmp_path):
    script = (
        "from pathlib import Path\nimport sys\nsys.path.insert(0, 'tests')\n"
        "from test_engines import small, two_runs\nfrom lib.measure import engines\n"
        f"engines.run(two_runs(), small(), progress=False, folder=Path({str(tmp_path)!r}))\n"
    )
    # this engine is a process of its own
    env = {k: v for k, v in os.environ.items() if k != forkserver.SOCKET_VARIABLE}
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env=env)
    assert wait_until(lambda: list((tmp_path / "records").glob("*.json")))
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not workers(), 20), "an engine outlived its parent"
    before = {f.name: f.read_bytes() for f in (tmp_path / "records").glob("*.json")}
    store = engines.run(two_runs(), small(), progress=False, folder=tmp_path)
    assert [store.get(r).status for r in two_runs()] == ["ok", "ok"]
    assert all((tmp_path / "records" / name).read_bytes() == data for name, data in before.items())


def test_an_engine_that_refuses_its_settings_says_so_for_every_run(tmp_path):
    runs = two_runs(arguments={"max_model_len": 100_000})
    store = engines.run(runs, small(), progress=False, folder=tmp_path)
    assert [store.get(r).status for r in runs] == ["invalid", "invalid"]
    assert "max_model_len" in store.get(runs[0]).reason


def test_memory_that_does_not_suffice_is_oom(tmp_path):
    run = two_runs(env={"VLLM_CPU_KVCACHE_SPACE": "1000000"})[0]
    held = engines.run([run], small(), progress=False, folder=tmp_path).get(run)
    assert held.status == "oom" and "memory" in held.reason.lower()
