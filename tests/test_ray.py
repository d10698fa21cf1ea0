"""Engines over a Ray cluster: nothing lost with a node, nothing left behind."""

import contextlib
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import standin_sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from lib import __main__ as cli
from lib.measure import engines, machine, plan, profiles
from lib.measure import ray as fanout
from lib.results import records
from lib.results.records import Provenance, Record
from lib.results.run import Run

# ---- without Ray, and with too small a cluster -----------------------------------------------------------


def test_without_ray_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("SPECULATION_RUNS", str(tmp_path))
    done = CliRunner().invoke(cli.app, ["sweep", "cpu", "--settings", "vanilla", "--ray", "local"])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1 and "--ray" in done.stderr and "make ray-env" in done.stderr


@pytest.mark.parametrize("address", ["nowhere", "ray://somewhere:10001", "127.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_where_no_cluster_answers_is_one_sentence_at_once(address):
    with pytest.raises(fanout.FanoutError, match="--ray must be local, auto or HOST:PORT") as caught:
        fanout._knock(address)
    assert "\n" not in str(caught.value)


def test_the_cluster_is_asked_for_what_an_engine_takes():
    p = standin_sweep.profile()
    nodes = [{"Resources": {"CPU": 16.0, "GPU": 4.0, "accelerator_type:H100": 1.0}}, {"Resources": {"CPU": 8.0}}]

    def wanted(**changes):
        run = standin_sweep.runs(1, 1)[0]
        made = run.engine.model_copy(update={"arguments": run.engine.arguments | changes})
        return fanout._Engine([run.model_copy(update={"engine": made})])

    large = wanted(tensor_parallel_size=4, pipeline_parallel_size=2)
    assert large.name == "arm0 opt-125m"
    assert large.needs(True, p, nodes) == {"num_cpus": 1, "num_gpus": 8}
    with pytest.raises(fanout.FanoutError, match="at most the GPUs of one node .*4.* got 8"):
        fanout._check(large, large.needs(True, p, nodes), nodes)
    fanout._check(large, wanted(tensor_parallel_size=4).needs(True, p, nodes), nodes)
    # vLLM's own executor finds the GPUs of an engine that spans hosts
    spanning = wanted(tensor_parallel_size=4, pipeline_parallel_size=2, distributed_executor_backend="ray")
    assert spanning.needs(True, p, nodes) == {
        "num_cpus": 1, "num_gpus": 0, "resources": {"accelerator_type:H100": 0.001},
    }  # fmt: skip
    assert large.needs(False, p, nodes) == {"num_cpus": p.threads}
    assert large.needs(False, p.model_copy(update={"threads": None}), nodes) == {"num_cpus": 8}


# ---- the driver alone: a made-up Ray whose tasks run here and are lost on demand ---------------------------


class Lost(Exception):
    """Stands for ray.exceptions.RayError."""


class TaskError(Lost):
    """Stands for ray.exceptions.RayTaskError: our own code raised `cause` on a node."""

    def __init__(self, cause):
        self.cause = cause


class MadeUpRay(SimpleNamespace):
    """Just what the driver calls. `lose_after` holds, submission by submission, how many events come before the loss."""

    exceptions = SimpleNamespace(RayError=Lost, RayTaskError=TaskError)

    def __init__(self, lose_after=(), cause=None):
        super().__init__(lose_after=list(lose_after), cause=cause, asked=[], cancelled=[])

    def remote(self, function):
        return self

    def options(self, **options):
        self.asked.append(options)
        return SimpleNamespace(remote=self._start)

    def _start(self, runs, *_):
        return iter(self._events(runs, self.lose_after.pop(0) if self.lose_after else None))

    def _events(self, runs, limit):
        events = []
        for run in map(Run.model_validate, runs):
            with tempfile.TemporaryDirectory() as folder:
                made = Provenance(measured="2026-01-01T00:00:00Z")
                records.Store(folder).save(Record(run=run, status="ok", provenance=made))
                files = {f.name: f.read_bytes() for f in Path(folder).iterdir()}
            events += [("running", run.plan_id, {}), ("ended", run.plan_id, files)]
        yield from events[:limit]
        if limit is not None:
            yield Lost("a node went away") if self.cause is None else TaskError(self.cause)

    @staticmethod
    def wait(tasks, num_returns, timeout):
        return tasks[:1], tasks[1:]

    @staticmethod
    def get(item, timeout=None):
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self, task, force):
        self.cancelled.append(task)

    @staticmethod
    def nodes():
        return [{"Alive": True, "Resources": {"CPU": 2.0}}]

    @staticmethod
    def cluster_resources():
        return {"CPU": 2.0}

    @staticmethod
    def get_runtime_context():
        return SimpleNamespace(gcs_address="nowhere:1")


def fan_out(monkeypatch, ray, runs, folder):
    monkeypatch.setattr(fanout, "_import_ray", lambda address: ray)
    monkeypatch.setattr(fanout, "_connected", lambda *_: contextlib.nullcontext())
    return fanout.run(runs, standin_sweep.profile(), address="local", progress=False, folder=folder)


def test_tasks_have_readable_names_and_the_driver_repeats_them_itself(monkeypatch, tmp_path):
    ray = MadeUpRay()
    store = fan_out(monkeypatch, ray, standin_sweep.runs(2, 2), tmp_path)
    assert len(store) == 4 and [o["name"] for o in ray.asked] == ["arm0 opt-125m", "arm1 opt-125m"]
    assert {(o["max_retries"], o["num_cpus"]) for o in ray.asked} == {(0, 1)}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 6), max_size=3))
def test_losses_cost_no_run(lose_after):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        store = fan_out(patch, MadeUpRay(lose_after), standin_sweep.runs(1, 3), Path(folder))
        assert len(store) == 3 and {r.status for r in store.all()} == {"ok"}


def test_a_node_lost_again_and_again_is_a_crash_of_what_is_left(monkeypatch, tmp_path):
    runs = standin_sweep.runs(1, 3)
    ray = MadeUpRay([2, 1, 1, 1, 1])
    store = fan_out(monkeypatch, ray, runs, tmp_path)
    assert [store.get(c).status for c in runs] == ["ok", "crashed", "crashed"]
    assert "the node was lost 4 times" in store.get(runs[1]).reason and len(ray.asked) == 1 + fanout.MAX_LOSSES


def test_an_error_of_ours_on_a_node_is_raised_as_itself(monkeypatch, tmp_path):
    ray = MadeUpRay([1, 1], cause=machine.MachineError("a field must be another"))
    with pytest.raises(machine.MachineError, match="a field must be another"):
        fan_out(monkeypatch, ray, standin_sweep.runs(1, 2), tmp_path)


@pytest.mark.parametrize("events", [1, 2, 3])
def test_an_interrupt_keeps_what_came_back_and_records_the_running_run(events, monkeypatch, tmp_path):
    taken = []

    class Interrupted(fanout._Sweep):
        def take(self, *event):
            super().take(*event)
            taken.append(event)
            if len(taken) == events:
                raise KeyboardInterrupt

    runs = standin_sweep.runs(1, 2)
    ray = MadeUpRay([events])
    monkeypatch.setattr(fanout, "_Sweep", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        fan_out(monkeypatch, ray, runs, tmp_path)
    assert len(ray.cancelled) == 1
    held = records.Store(tmp_path / "records")
    statuses = [r and r.status for r in map(held.get, runs)]
    assert statuses == {1: ["interrupted", None], 2: ["ok", None], 3: ["ok", "interrupted"]}[events]


def test_only_the_driver_holds_the_store(monkeypatch, tmp_path):
    with engines.held(tmp_path), pytest.raises(engines.StoreBusy):
        fan_out(monkeypatch, MadeUpRay(), standin_sweep.runs(1, 1), tmp_path)


# ---- a real Ray cluster ----------------------------------------------------------------------------------


def workers() -> list[psutil.Process]:
    found = [p for p in psutil.process_iter(["cmdline", "status"]) if "lib.measure.worker" in (p.info["cmdline"] or [])]
    return [p for p in found if p.info["status"] != psutil.STATUS_ZOMBIE]


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.2)
    return condition()


def ports() -> dict[str, int]:
    """Free ports for a node's agents: a node that need not ask them for theirs also starts on a busy machine."""
    names = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for one in sockets:
            one.bind(("", 0))
        return {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}


@pytest.fixture
def cluster():
    """A head and one more node on this machine, one core each; the settings of the test are the nodes' too."""
    pytest.importorskip("ray", reason="Ray is not installed (make ray-env)")
    from ray.cluster_utils import Cluster

    made = []

    def start():
        options = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 * 2**20}
        try:
            made.append(Cluster(initialize_head=True, head_node_args=options | ports() | {"include_dashboard": False}))
            second = made[0].add_node(**options, **ports())
        except Exception as error:  # Ray gives its own processes 15 s to start, whatever else the machine does
            if "timed out during startup" not in str(error):
                raise
            pytest.skip(f"this machine is too busy for Ray to start: {error}")
        made[0].wait_for_nodes()
        return made[0], second

    yield start
    for one in made:
        one.shutdown()


@pytest.mark.parametrize(
    ("held", "gave", "seen"), [("0,1,2,3", [2], "2"), (None, [0, 1], "0,1"), ("", [], None), ("1", [], "1")]
)
def test_an_engine_sees_the_gpus_that_ray_gave_it(held, gave, seen, monkeypatch):
    """RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES leaves the host's own value there."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", held or "")
    if held is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    fanout._see_own_gpus(gave)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen


class Watched(fanout._Sweep):
    """Notes which runs each submission holds and calls `hook(self)` after each event."""

    submitted: list[tuple[str, list[str]]]
    hook = staticmethod(lambda sweep: None)

    def submit(self, engine):
        type(self).submitted.append((engine.name, list(engine.left)))
        super().submit(engine)

    def receive(self, task, engine):
        more = super().receive(task, engine)
        type(self).hook(self)
        return more

    def at_work(self) -> list[fanout._Engine]:
        """Engines with a run under way. The nodes have one core each: two engines are on two nodes."""
        return [engine for engine in self.running.values() if engine.current is not None]


@pytest.fixture
def watched(monkeypatch):
    Watched.submitted = []
    monkeypatch.setattr(fanout, "_Sweep", Watched)
    yield Watched
    Watched.hook = staticmethod(lambda sweep: None)


def test_a_lost_node_costs_nothing(cluster, watched, tmp_path, monkeypatch, capsys):
    standin_sweep.use(monkeypatch, tmp_path / "cache", step_s=0.03)
    p, runs = standin_sweep.profile(), standin_sweep.runs(3, 4)
    alone = engines.run(runs, p, progress=False, folder=tmp_path / "alone")
    nodes, second = cluster()
    back, removed = [], []

    def hook(sweep):
        if not removed and len(sweep.at_work()) == 2 and all(len(e.left) < 4 for e in sweep.at_work()):
            removed.append(second)
            back.extend(r.run.plan_id for r in records.Store(tmp_path / "ray" / "records").all())
            nodes.remove_node(second, allow_graceful=False)

    watched.hook = staticmethod(hook)
    store = fanout.run(runs, p, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert standin_sweep.facts(store) == standin_sweep.facts(alone) and len(store) == 12
    again = watched.submitted[3:]
    assert removed and again, "the lost engine was not submitted again"
    assert {len(left) for _, left in again} <= {1, 2, 3}
    assert not {plan_id for _, left in again for plan_id in left} & set(back), "what had come back was measured again"
    assert "its node was lost" in capsys.readouterr().err
    assert wait_until(lambda: not workers()), "an engine outlived its node"
    # all is stored: a second sweep asks no cluster for anything
    assert len(fanout.run(runs, p, address="nowhere:1", progress=False, folder=tmp_path / "ray")) == 12


def test_an_interrupt_ends_the_engines_and_a_failing_engine_is_recorded(cluster, watched, tmp_path, monkeypatch):
    standin_sweep.use(monkeypatch, tmp_path / "cache", step_s=0.05)
    p, runs = standin_sweep.profile(), standin_sweep.runs(2, 3)
    nodes, _ = cluster()

    def hook(sweep):
        if sum(len(engine.left) for engine in sweep.running.values()) == 5:
            raise KeyboardInterrupt

    watched.hook = staticmethod(hook)
    with pytest.raises(KeyboardInterrupt):
        fanout.run(runs, p, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert wait_until(lambda: not workers(), 20), "an engine outlived the interrupt"
    held = records.Store(tmp_path / "ray" / "records").all()
    statuses = sorted(r.status for r in held)
    assert statuses.count("ok") == 1 and set(statuses) == {"ok", "interrupted"}
    # the same store goes on; an engine that says no gives a record of its own, not an end of the sweep
    watched.hook = staticmethod(lambda sweep: None)
    slow = standin_sweep.profile(time_limit_s=0.2)
    store = fanout.run(runs[:3], p, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert [store.get(c).status for c in runs[:3]] == ["ok"] * 3
    (other,) = standin_sweep.runs(3, 1)[2:]
    store = fanout.run([other], slow, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert store.get(other).status == "timeout" and "time_limit_s" in store.get(other).reason


@pytest.mark.engine
def test_real_engines_on_two_nodes_equal_the_sequential_run(cluster, watched, tmp_path):
    changes = {"num_prompts": 2, "output_tokens": 32, "input_tokens": 96, "seeds": [0], "threads": 1}
    changes |= {"workloads": ["code", "sonnet"], "concurrency": [2], "repeats": {"vanilla": 1}}
    p = profiles.load("cpu", changes)
    runs = plan.runs(p, ["vanilla", "ngram"])
    alone = engines.run(runs, p, progress=False, folder=tmp_path / "alone")
    nodes, second = cluster()
    removed = []

    def hook(sweep):
        if not removed and len(sweep.at_work()) == 2:
            removed.append(second)
            nodes.remove_node(second, allow_graceful=False)

    watched.hook = staticmethod(hook)
    store = fanout.run(runs, p, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert removed and len(watched.submitted) > 2
    assert {r.status for r in store.all()} == {"ok"}
    assert standin_sweep.facts(store) == standin_sweep.facts(alone)
    provenance = {(r.provenance.commit, r.provenance.dirty) for r in store.all()}  # the driver's, on every node
    assert len(provenance) == 1 and os.uname().nodename not in str(provenance)
    assert wait_until(lambda: not workers())
