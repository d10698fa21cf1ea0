"""Engines over a Ray cluster: placed without over-committing, nothing lost with a node, nothing left behind."""

import contextlib
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import made_up_records
import psutil
import pytest
import standin_sweep
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import __main__ as cli
from lib import engines, fanout, ladder, params, records, sweep
from lib.cells import Cell
from lib.sweep import PlannedEngine

ROOT = Path(__file__).parents[1]


def engine(num_gpus: int, minutes: float | None, setting: str = "vanilla") -> PlannedEngine:
    return PlannedEngine(setting, "a model", num_gpus, 1, minutes)


# ---- placement -------------------------------------------------------------------------------------------


def test_four_engines_of_four_gpus_on_one_host():
    placed = fanout.place([engine(4, 30), engine(4, 60), engine(4, 30), engine(4, 15)], [8])
    assert [(s.host, s.gpus, s.start_min) for s in placed.slots] == [
        (0, (0, 1, 2, 3), 0), (0, (4, 5, 6, 7), 0), (0, (0, 1, 2, 3), 30), (0, (0, 1, 2, 3), 60),
    ]  # fmt: skip
    assert placed.hours == 75 / 60 and placed.gpu_hours == 4 * 135 / 60 and placed.num_assumed == 0


def test_a_small_engine_goes_beside_a_large_one():
    placed = fanout.place([engine(8, 10), engine(1, 5), engine(2, 5)], [2, 8])
    assert [(s.host, s.gpus, s.start_min) for s in placed.slots] == [
        (1, tuple(range(8)), 0),
        (0, (0,), 0),
        (0, (0, 1), 5),
    ]


def test_n_equal_hosts_take_an_nth_of_the_time():
    planned = [engine(8, 60) for _ in range(12)]
    assert [fanout.place(planned, [8] * n).hours for n in (1, 2, 3, 4, 6, 12)] == [12, 6, 4, 3, 2, 1]
    assert {fanout.place(planned, [8] * n).gpu_hours for n in (1, 5)} == {96}


def test_an_engine_without_a_record_counts_as_the_longest():
    placed = fanout.place([engine(1, 10), engine(1, None)], [1])
    assert placed.hours == 20 / 60 and placed.num_assumed == 1
    assert fanout.place([engine(1, 10), engine(1, None)], [1], assumed_minutes=50).hours == 1
    unknown = fanout.place([engine(1, None)], [1])
    assert unknown.hours is None and unknown.gpu_hours is None and "unknown" in fanout.describe(unknown)


def test_an_engine_larger_than_every_host_is_one_sentence():
    with pytest.raises(fanout.FanoutError, match="asks for 8 GPUs, allowed: at most those of one host \\(4\\)"):
        fanout.place([engine(8, 1)], [4, 2])


@given(
    st.lists(st.tuples(st.integers(1, 8), st.one_of(st.none(), st.floats(0.1, 100))), max_size=20),
    st.lists(st.integers(1, 8), max_size=4),
)
def test_no_host_is_over_committed_and_every_engine_has_its_gpus(wanted, hosts):
    hosts = [*hosts, 8]
    planned = [engine(gpus, minutes, f"s{i}") for i, (gpus, minutes) in enumerate(wanted)]
    placed = fanout.place(planned, hosts)
    assert [s.engine for s in placed.slots] == planned
    for s in placed.slots:
        assert len(set(s.gpus)) == s.engine.num_gpus and set(s.gpus) <= set(range(hosts[s.host]))
        # whoever is at work when this one starts holds other GPUs of that host
        others = [o for o in placed.slots if o is not s and o.host == s.host and o.start_min <= s.start_min]
        assert all(o.start_min + o.minutes <= s.start_min or not set(o.gpus) & set(s.gpus) for o in others)
    if placed.hours is not None:
        assert placed.gpu_hours <= placed.hours * sum(hosts) + 1e-9


def test_the_study_s_profile_on_one_host_of_eight_gpus(capsys):
    p = params.load("h100x8-llama70b")
    planned = sweep.plan(sweep.choose(sweep.collection(p), None), engines.store(p, "measure"), (), sweep.history(p))
    placed = fanout.place(planned, [8], assumed_minutes=60)
    # every engine takes the whole host: one after the other
    assert [s.start_min for s in placed.slots] == [60.0 * i for i in range(len(planned))]
    assert {s.gpus for s in placed.slots} == {tuple(range(8))} and placed.gpu_hours == 8 * len(planned)
    assert cli.main(["sweep", "h100x8-llama70b", "--dry-run", "--hosts", "8"]) == 0
    assert capsys.readouterr().out.count(" 0-7 ") == len(planned)
    assert cli.main(["sweep", "h100x8-llama70b", "--dry-run", "--hosts", "4,4"]) == 2
    assert "asks for 8 GPUs" in capsys.readouterr().err
    assert cli.main(["sweep", "cpu", "--dry-run", "--hosts", "eight"]) == 2
    assert "--hosts is 'eight'" in capsys.readouterr().err


# ---- without Ray, and with too small a cluster -----------------------------------------------------------


def test_without_ray_the_error_says_how_to_get_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("SPECULATION_RUNS", str(tmp_path))
    assert cli.main(["sweep", "cpu", "--only", "01", "--ray", "local"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "--ray is 'local'" in err and "make ray-env" in err


@pytest.mark.parametrize("address", ["nowhere", "ray://somewhere:10001", "127.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_where_no_cluster_answers_is_one_sentence_at_once(address):
    with pytest.raises(fanout.FanoutError, match="--ray is .* allowed: local, auto or HOST:PORT") as caught:
        fanout._knock(address)
    assert "\n" not in str(caught.value)


def test_the_cluster_is_asked_for_what_an_engine_takes():
    p = standin_sweep.profile()
    nodes = [{"Resources": {"CPU": 16.0, "GPU": 4.0, "accelerator_type:H100": 1.0}}, {"Resources": {"CPU": 8.0}}]

    def wanted(**changes):
        cell = standin_sweep.cells(1, 1)[0]
        return fanout._Engine([cell.model_copy(update={"engine": cell.engine.model_copy(update=changes)})])

    large = wanted(tensor_parallel_size=4, pipeline_parallel_size=2)
    assert large.name == "arm0 opt-125m"
    assert large.needs(True, p, nodes) == {"num_cpus": 1, "num_gpus": 8}
    with pytest.raises(fanout.FanoutError, match="asks for 8 GPUs, allowed: at most those of one node .*4"):
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

    def _start(self, cells, *_):
        return iter(self._events(cells, self.lose_after.pop(0) if self.lose_after else None))

    def _events(self, cells, limit):
        events = []
        for cell in map(Cell.model_validate, cells):
            with tempfile.TemporaryDirectory() as folder:
                records.Store(folder).save(made_up_records.record(cell))
                files = {f.name: f.read_bytes() for f in Path(folder).iterdir()}
            events += [("running", cell.cell_id, {}), ("ended", cell.cell_id, files)]
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


def fan_out(monkeypatch, ray, cells, folder):
    monkeypatch.setattr(fanout, "_import_ray", lambda address: ray)
    monkeypatch.setattr(fanout, "_connected", lambda *_: contextlib.nullcontext())
    return fanout.run(cells, standin_sweep.profile(), address="local", progress=False, folder=folder)


def test_tasks_have_readable_names_and_the_driver_repeats_them_itself(monkeypatch, tmp_path):
    ray = MadeUpRay()
    store = fan_out(monkeypatch, ray, standin_sweep.cells(2, 2), tmp_path)
    assert len(store) == 4 and [o["name"] for o in ray.asked] == ["arm0 opt-125m", "arm1 opt-125m"]
    assert {(o["max_retries"], o["num_cpus"]) for o in ray.asked} == {(0, 1)}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 6), max_size=3))
def test_losses_cost_no_cell(lose_after):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        store = fan_out(patch, MadeUpRay(lose_after), standin_sweep.cells(1, 3), Path(folder))
        assert len(store) == 3 and {r.status for r in store.all()} == {"ok"}


def test_a_node_lost_again_and_again_is_a_crash_of_what_is_left(monkeypatch, tmp_path):
    cells = standin_sweep.cells(1, 3)
    ray = MadeUpRay([2, 1, 1, 1, 1])
    store = fan_out(monkeypatch, ray, cells, tmp_path)
    assert [store.get(c).status for c in cells] == ["ok", "crashed", "crashed"]
    assert "the node was lost 4 times" in store.get(cells[1]).reason and len(ray.asked) == 1 + fanout.MAX_LOSSES


def test_an_error_of_ours_on_a_node_is_raised_as_itself(monkeypatch, tmp_path):
    ray = MadeUpRay([1, 1], cause=params.ParamsError("a field is wrong, allowed: another"))
    with pytest.raises(params.ParamsError, match="a field is wrong"):
        fan_out(monkeypatch, ray, standin_sweep.cells(1, 2), tmp_path)


@pytest.mark.parametrize("events", [1, 2, 3])
def test_an_interrupt_keeps_what_came_back_and_records_the_running_cell(events, monkeypatch, tmp_path):
    taken = []

    class Interrupted(fanout._Sweep):
        def take(self, *event):
            super().take(*event)
            taken.append(event)
            if len(taken) == events:
                raise KeyboardInterrupt

    cells = standin_sweep.cells(1, 2)
    ray = MadeUpRay([events])
    monkeypatch.setattr(fanout, "_Sweep", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        fan_out(monkeypatch, ray, cells, tmp_path)
    assert len(ray.cancelled) == 1
    held = records.Store(tmp_path / "records")
    statuses = [r and r.status for r in map(held.get, cells)]
    assert statuses == {1: ["interrupted", None], 2: ["ok", None], 3: ["ok", "interrupted"]}[events]


def test_only_the_driver_holds_the_store(monkeypatch, tmp_path):
    with engines._Lock(tmp_path), pytest.raises(engines.StoreBusy):
        fan_out(monkeypatch, MadeUpRay(), standin_sweep.cells(1, 1), tmp_path)


# ---- a real Ray cluster ----------------------------------------------------------------------------------


def workers() -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline", "status"])
    return [p for p in found if "lib.worker" in (p.info["cmdline"] or []) and p.info["status"] != psutil.STATUS_ZOMBIE]


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


class Watched(fanout._Sweep):
    """Notes which cells each submission holds and calls `hook(self)` after each event."""

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
        """Engines with a cell under way. The nodes have one core each: two engines are on two nodes."""
        return [engine for engine in self.running.values() if engine.current is not None]


@pytest.fixture
def watched(monkeypatch):
    Watched.submitted = []
    monkeypatch.setattr(fanout, "_Sweep", Watched)
    yield Watched
    Watched.hook = staticmethod(lambda sweep: None)


def test_a_lost_node_costs_nothing(cluster, watched, tmp_path, monkeypatch, capsys):
    standin_sweep.use(monkeypatch, tmp_path / "cache", step_s=0.03)
    p, cells = standin_sweep.profile(), standin_sweep.cells(3, 4)
    alone = engines.run(cells, p, progress=False, folder=tmp_path / "alone")
    nodes, second = cluster()
    back, removed = [], []

    def hook(sweep):
        if not removed and len(sweep.at_work()) == 2 and all(len(e.left) < 4 for e in sweep.at_work()):
            removed.append(second)
            back.extend(r.cell_id for r in records.Store(tmp_path / "ray" / "records").all())
            nodes.remove_node(second, allow_graceful=False)

    watched.hook = staticmethod(hook)
    store = fanout.run(cells, p, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert standin_sweep.facts(store) == standin_sweep.facts(alone) and len(store) == 12
    again = watched.submitted[3:]
    assert removed and again, "the lost engine was not submitted again"
    assert {len(left) for _, left in again} <= {1, 2, 3}
    assert not {cell for _, left in again for cell in left} & set(back), "a cell that had come back was measured again"
    assert "its node was lost" in capsys.readouterr().err
    assert wait_until(lambda: not workers()), "an engine outlived its node"
    # all is stored: a second sweep asks no cluster for anything
    assert len(fanout.run(cells, p, address="nowhere:1", progress=False, folder=tmp_path / "ray")) == 12


def test_an_interrupt_ends_the_engines_and_a_failing_engine_is_recorded(cluster, watched, tmp_path, monkeypatch):
    standin_sweep.use(monkeypatch, tmp_path / "cache", step_s=0.05)
    p, cells = standin_sweep.profile(), standin_sweep.cells(2, 3)
    nodes, _ = cluster()

    def hook(sweep):
        if sum(len(engine.left) for engine in sweep.running.values()) == 5:
            raise KeyboardInterrupt

    watched.hook = staticmethod(hook)
    with pytest.raises(KeyboardInterrupt):
        fanout.run(cells, p, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert wait_until(lambda: not workers(), 20), "an engine outlived the interrupt"
    held = records.Store(tmp_path / "ray" / "records").all()
    statuses = sorted(r.status for r in held)
    assert statuses.count("ok") == 1 and set(statuses) == {"ok", "interrupted"}
    # the same store goes on; an engine that says no gives a record of its own, not an end of the sweep
    watched.hook = staticmethod(lambda sweep: None)
    slow = params.load("cpu", p.model_dump(mode="json") | {"time_limit_s": 0.2})
    store = fanout.run(cells[:3], p, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert [store.get(c).status for c in cells[:3]] == ["ok"] * 3
    (other,) = standin_sweep.cells(3, 1)[2:]
    store = fanout.run([other], slow, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert store.get(other).status == "timeout" and "time_limit_s" in store.get(other).reason


@pytest.mark.engine
def test_real_engines_on_two_nodes_equal_the_sequential_run(cluster, watched, tmp_path):
    changes = {"num_prompts": 2, "output_tokens": 32, "input_tokens": 96, "seeds": [0], "threads": 1}
    p = params.load("cpu", changes)
    cells = ladder.cells(
        p, ["vanilla", "ngram", "suffix"], workloads=["code", "sonnet"], batch_sizes=[2], keep_tokens=True
    )
    alone = engines.run(cells, p, progress=False, folder=tmp_path / "alone")
    nodes, second = cluster()
    removed = []

    def hook(sweep):
        if not removed and len(sweep.at_work()) == 2:
            removed.append(second)
            nodes.remove_node(second, allow_graceful=False)

    watched.hook = staticmethod(hook)
    store = fanout.run(cells, p, address=nodes.address, progress=False, folder=tmp_path / "ray")
    assert removed and len(watched.submitted) > 3
    assert {r.status for r in store.all()} == {"ok"}
    assert standin_sweep.facts(store) == standin_sweep.facts(alone)
    provenance = {(r.provenance.commit, r.provenance.dirty) for r in (*alone.all(), *store.all())}
    assert len(provenance) == 1 and os.uname().nodename not in str(provenance)
    assert wait_until(lambda: not workers())
