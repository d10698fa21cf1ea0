"""Real engines on the CPU: what is true of their records, and what is left after every kind of failure."""

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

from lib import engines, ladder, metrics, params, records
from lib.cells import Cell

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[1]
SMALL = {"num_prompts": 2, "output_tokens": 32, "input_tokens": 96, "seeds": [0], "workloads": ["code"], "repeats": 1}


def small(**changes) -> params.Profile:
    return params.load("cpu", SMALL | changes)


# in the environment of every engine that this test run starts: other runs on the machine are not ours to count
MARK = os.environ.setdefault("SPECULATION_TEST_RUN", f"test-{os.getpid()}")


def workers() -> list[psutil.Process]:
    """Engine processes of this test run that are alive."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if "lib.worker" in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            with contextlib.suppress(psutil.Error):
                found += [process] if process.environ().get("SPECULATION_TEST_RUN") == MARK else []
    return found


def wait_until(condition, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> records.Store:
    """Vanilla, ngram, and suffix with its three memory arms, on the same two prompts."""
    p = small()
    cells = ladder.cells(
        p, ["vanilla", "ngram", "suffix", "suffix_cold", "suffix_warm"], batch_sizes=[2], keep_tokens=True
    )
    # the same prompts again in the same engine: a batch size of 3 changes nothing for two prompts but the id
    cells += ladder.cells(p, ["suffix"], batch_sizes=[3], keep_tokens=True)
    return engines.run(cells, p, progress=False, folder=tmp_path_factory.mktemp("runs"))


def one(store, setting, batch=2) -> records.Record:
    (found,) = [r for r in store.all() if r.cell.setting == setting and r.cell.batch_size == batch]
    assert found.status == "ok", found.reason
    return found


@pytest.mark.parametrize("setting", ["ngram", "suffix", "suffix_cold", "suffix_warm"])
def test_float32_speculation_is_lossless(store, setting):
    speculative, vanilla = store.trace(one(store, setting)), store.trace(one(store, "vanilla"))
    assert speculative.prompt_token_ids == vanilla.prompt_token_ids
    assert speculative.output_token_ids == vanilla.output_token_ids
    assert one(store, setting).output_hash == one(store, "vanilla").output_hash


@pytest.mark.parametrize("setting", ["vanilla", "ngram", "suffix", "suffix_cold", "suffix_warm"])
def test_counters_agree_with_steps_and_requests(store, setting):
    r = one(store, setting)
    c, steps = r.counters, store.trace(r).steps
    assert r.resolved.vllm_version and r.resolved.runner == "V1" and r.provenance.versions["python"]
    assert c.num_accepted_tokens <= c.num_draft_tokens
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
        cut = metrics.emitted_tokens_per_step(c) * c.num_request_steps - c.num_output_tokens
        assert -1e-6 <= cut <= r.cell.engine.speculative.num_speculative_tokens * len(r.requests)


def test_memory_raises_k_the_second_time_and_only_with_memory(store):
    k = {name: metrics.mean_acceptance_length(one(store, name).counters) for name in ("suffix_cold", "suffix_warm")}
    assert k["suffix_warm"] > k["suffix_cold"]
    assert one(store, "suffix", batch=2).counters == one(store, "suffix", batch=3).counters


def test_ngram_leaves_torch_its_threads(monkeypatch):
    """numba's number of threads is torch's in one process; left to itself it counts the one core vLLM binds it to."""
    monkeypatch.setattr(params, "count_gpus", lambda: 0)
    for threads in (1, 2):
        env = engines.environment(ladder.cells(small(), ["ngram"])[0], small(threads=threads))
        assert env["NUMBA_NUM_THREADS"] == env["OMP_NUM_THREADS"] == str(threads)


def test_what_is_stored_is_not_measured_again(store, monkeypatch):
    def no_engine(*_, **__):
        raise AssertionError("an engine was started")

    monkeypatch.setattr(engines, "Process", no_engine)
    again = engines.run([r.cell for r in store.all()], small(), progress=False, folder=store.folder.parent)
    assert len(again) == len(store)


def test_papermill_measures_a_notebook_and_replays_nothing(tmp_path):
    """Notebook 02 through papermill against real engines, from the top folder, no path set by hand."""
    # the notebook's workload and sweep are narrowed; everything else is its own code
    values = {k: v for k, v in SMALL.items() if k not in ("workloads",)}
    arguments = ["-p", "mode", "measure", "-y", json.dumps(
        {**values, "workloads": ["code"], "sweep_workloads": ["code"], "draft_lengths": [3, 7], "batch_sizes": [2]})]  # fmt: skip
    out = tmp_path / "02.ipynb"
    run = subprocess.run(
        [sys.executable, "-m", "papermill", "notebooks/02_ngram.ipynb", str(out), "-f", "params/cpu.yaml", *arguments],
        cwd=ROOT, env=os.environ | {"SPECULATION_RUNS": str(tmp_path / "runs")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    held = records.Store(tmp_path / "runs" / "cpu" / "records").all()
    assert {r.cell.setting for r in held} == {"vanilla", "ngram", "ngram_g3", "ngram_min1"}
    assert all(r.status == "ok" for r in held)
    assert len({r.output_hash for r in held}) == 1
    assert not workers()


# ---- failures --------------------------------------------------------------------------------------------


def two_cells(p: params.Profile) -> list[Cell]:
    return ladder.cells(p, ["vanilla"], workloads=["code", "sonnet"], batch_sizes=[2])


def test_a_killed_engine_costs_one_cell(tmp_path, monkeypatch):
    p, killed = small(), []
    original = engines.Process.events

    def events(self, *args):
        for event in original(self, *args):
            if event["event"] == "running" and not killed:
                killed.append(event["cell_id"])
                os.kill(self.child.pid, signal.SIGKILL)
            yield event

    monkeypatch.setattr(engines.Process, "events", events)
    cells = two_cells(p)
    store = engines.run(cells, p, progress=False, folder=tmp_path)
    assert [store.get(c).status for c in cells] == ["crashed", "ok"]
    assert "ended with code -9" in store.get(cells[0]).reason and store.get(cells[0]).stderr_tail
    assert not workers()
    # asked for, the failed cell is measured again and replaces the failure
    again = engines.run(cells, p, progress=False, folder=tmp_path, retry=("crashed",))
    assert [again.get(c).status for c in cells] == ["ok", "ok"]


def test_a_killed_parent_leaves_no_engine_and_loses_nothing(tmp_path):
    script = (
        "from pathlib import Path\nimport sys\nsys.path.insert(0, 'tests')\n"
        "from test_engines import small, two_cells\nfrom lib import engines\n"
        f"p = small()\nengines.run(two_cells(p), p, progress=False, folder=Path({str(tmp_path)!r}))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    assert wait_until(lambda: list((tmp_path / "records").glob("*.json")))
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not workers(), 20), "an engine outlived its parent"
    before = {f.name: f.read_bytes() for f in (tmp_path / "records").glob("*.json")}
    p = small()
    store = engines.run(two_cells(p), p, progress=False, folder=tmp_path)
    assert [store.get(c).status for c in two_cells(p)] == ["ok", "ok"]
    assert all((tmp_path / "records" / name).read_bytes() == data for name, data in before.items())


def test_the_time_limit_ends_a_silent_engine(tmp_path):
    p = small(time_limit_s=1)
    store = engines.run(two_cells(p), p, progress=False, folder=tmp_path)
    assert {r.status for r in store.all()} == {"timeout"} and len(store) == 2
    assert "time_limit_s" in store.all()[0].reason
    assert not workers()


def test_an_interrupt_ends_the_engine_and_is_recorded(tmp_path, monkeypatch):
    original = engines.Process.events

    def events(self, *args):
        for event in original(self, *args):
            yield event
            if event["event"] == "ready":
                raise KeyboardInterrupt

    monkeypatch.setattr(engines.Process, "events", events)
    p = small()
    cells = two_cells(p)
    with pytest.raises(KeyboardInterrupt):
        engines.run(cells, p, progress=False, folder=tmp_path)
    assert not workers()
    held = records.Store(tmp_path / "records")
    assert held.get(cells[0]).status == "interrupted" and held.get(cells[1]) is None
    assert len(engines.plan(cells, held)) == 1, "an interrupted cell is measured again unasked"


def test_an_engine_that_refuses_its_settings_says_so_for_every_cell(tmp_path):
    p = small()
    engine = p.base_engine.model_copy(update={"max_model_len": 100_000})
    cells = [c.model_copy(update={"engine": engine}) for c in two_cells(p)]
    store = engines.run(cells, p, progress=False, folder=tmp_path)
    assert [store.get(c).status for c in cells] == ["invalid", "invalid"]
    assert "max_model_len" in store.get(cells[0]).reason


def test_memory_that_does_not_suffice_is_oom(tmp_path):
    p = small()
    engine = p.base_engine.model_copy(update={"kv_cache_memory_gib": 1_000_000})
    cells = [c.model_copy(update={"engine": engine}) for c in two_cells(p)[:1]]
    store = engines.run(cells, p, progress=False, folder=tmp_path)
    assert store.get(cells[0]).status == "oom" and "memory" in store.get(cells[0]).reason.lower()


def test_two_runs_on_one_store(tmp_path):
    with engines._Lock(tmp_path), pytest.raises(engines.StoreBusy, match=f"process {os.getpid()}"):
        engines.run(two_cells(small()), small(), progress=False, folder=tmp_path)


def test_a_dead_holders_lock_is_free(tmp_path):
    script = f"from pathlib import Path\nfrom lib import engines\nimport time\nlock = engines._Lock(Path({str(tmp_path)!r}))\n"
    script += "lock.__enter__()\nprint('held', flush=True)\ntime.sleep(60)\n"
    holder = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.wait()
    with engines._Lock(tmp_path):
        pass


def test_records_and_logs_carry_no_path_of_the_machine(store):
    for file in store.folder.glob("*.json"):
        text = file.read_text()
        assert [w for w in (str(Path.home()), str(ROOT), os.uname().nodename) if len(w) > 3 and w in text] == []
