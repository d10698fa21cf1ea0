"""Many engines at once: a plan spread over many GPUs or hosts through Ray.

Each engine is one Ray task that asks for its GPUs and runs the same worker in a process group of its own. A finished
run's files travel to the driver, which alone holds the store. Ray is imported inside functions only.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tqdm.auto import tqdm

from lib.measure import engines, machine, plan
from lib.measure.profiles import Profile
from lib.results import records
from lib.results.records import Provenance, Record, Store
from lib.results.run import Run

MAX_LOSSES = 3  # of one engine's node, before its remaining runs are recorded as crashed


class FanoutError(RuntimeError):
    """One sentence: what Ray or its cluster lacks."""


# ---- on a node -------------------------------------------------------------------------------------------


def _see_own_gpus(gpus: list[int]) -> None:
    """An engine sees what Ray gave its task, also where Ray was told to leave CUDA_VISIBLE_DEVICES alone; one that spans
    hosts asks for no GPU itself, and Ray hides all from it."""
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    elif os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]


def _run_engine(
    runs: list[dict], profile: dict, commit: str, dirty: bool | None, ray_address: str
) -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """All runs of one engine on this node; yields (what, run id, files of the record if the run has ended)."""
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray's own choice for its task; `engines` makes the engine's
    os.environ["RAY_ADDRESS"] = ray_address  # an engine larger than this host finds the others through vLLM's executor
    _see_own_gpus(_import_ray("").get_gpu_ids())
    asked, group = Profile.model_validate(profile), [Run.model_validate(c) for c in runs]
    machine.check(group)
    made = machine.provenance().model_copy(update={"commit": commit, "dirty": dirty})
    with tempfile.TemporaryDirectory(prefix="speculation-node-") as scratch:
        store = Store(Path(scratch) / "records")
        start = engines.Starter([group], lambda left: engines.Process(left, asked, Path(scratch), made))
        with contextlib.closing(engines.run_group(group, start, store, made, lambda: None)) as events:
            for what, run in events:
                files = {}
                if what == "ended":
                    # the trace first: a record in the store is whole
                    names = (f"{run.file_stem}.trace.json.gz", f"{run.file_stem}.json")
                    files = {n: (store.folder / n).read_bytes() for n in names if (store.folder / n).exists()}
                yield what, run.plan_id, files


# ---- on the driver ---------------------------------------------------------------------------------------


def _import_ray(address: str) -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise FanoutError(
            f"--ray must be given with Ray installed (make ray-env), got {address!r} without it"
        ) from None
    return ray


def _knock(address: str) -> None:
    """FanoutError where nobody answers at HOST:PORT: Ray itself would try for many minutes."""
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not host or "/" in host:
        raise FanoutError(f"--ray must be local, auto or HOST:PORT of a running cluster's head, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise FanoutError(
            f"--ray must be local, auto or HOST:PORT where a cluster answers, got {address!r} ({error})"
        ) from None


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str) -> Iterator[None]:
    """A connection to the cluster at `address`, or to one of this machine's own (`local`); its tasks end with it."""
    _knock(address)
    # nodes bring the environment (make env or make gpu-env) and get this tree's library
    shipped = {"py_modules": [str(records.ROOT / "lib")], "excludes": ["__pycache__"]}
    try:
        ray.init(
            address=address, runtime_env=shipped, log_to_driver=False, logging_level="ERROR"
        )  # fmt: skip
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = "" if address == "local" else "; one that asks for a token wants RAY_AUTH_MODE=token here too"
        raise FanoutError(
            f"--ray must be local or a running cluster's address, got {address!r} ({why}{hint})"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


class _Engine:
    """One engine's runs that have not come back, and the task that runs them."""

    def __init__(self, runs: list[Run]):
        self.left = {c.plan_id: c for c in runs}
        self.current: Run | None = None
        self.losses = 0
        engine = runs[0].engine
        self.name = f"{runs[0].setting or 'engine'} {engine.model.name}"
        self.num_gpus = engine.num_gpus
        self.spans_hosts = engine.arguments.get("distributed_executor_backend") == "ray"

    def needs(self, gpus: bool, profile: Profile, nodes: list[dict]) -> dict[str, Any]:
        """What the task asks Ray for. A CPU engine gets the cores it uses: all of the smallest node if not said."""
        if not gpus:
            smallest = min((int(n["Resources"]["CPU"]) for n in nodes if n["Resources"].get("CPU")), default=1)
            return {"num_cpus": profile.threads or smallest}
        if not self.spans_hosts:
            return {"num_cpus": 1, "num_gpus": self.num_gpus}
        # vLLM's own executor asks for the GPUs, but starts from a host that has some
        kinds = sorted({r for n in nodes for r in n["Resources"] if r.startswith("accelerator_type:")})
        return {"num_cpus": 1, "num_gpus": 0, "resources": dict.fromkeys(kinds[:1], 0.001)}


def _alive(ray: ModuleType) -> list[dict]:
    return [node for node in ray.nodes() if node["Alive"]]


def _check(engine: _Engine, needs: dict[str, Any], nodes: list[dict]) -> None:
    """FanoutError where no node of the cluster can ever run `engine`."""
    for key, resource in (("num_gpus", "GPU"), ("num_cpus", "CPU")):
        most = max((n["Resources"].get(resource, 0) for n in nodes), default=0)
        if needs.get(key, 0) > most:
            raise FanoutError(
                f"{engine.name} must ask for at most the {resource}s of one node of the cluster ({most:g}), "
                f"got {needs[key]:g}"
            )


def run(
    runs: Iterable[Run],
    profile: Profile,
    *,
    address: str,
    retry: Iterable[str] = ("interrupted",),
    progress: bool = True,
    folder: Path | None = None,
) -> Store:
    """`engines.run` over the Ray cluster at `address` (`local`: one of this machine's own).

    A lost node's engine goes on elsewhere with the runs that have not come back. KeyboardInterrupt ends all engines,
    records their running runs as interrupted and is raised again. Raises FanoutError, StoreBusy, and what
    `machine.check` raises on a node.
    """
    ray = _import_ray(address)
    folder = folder or records.runs_folder(profile.profile)
    store = Store(folder / "records", owner=True)
    groups = plan.missing(runs, store, retry)
    if not groups:
        return store
    engines.announce(groups)
    total = sum(map(len, groups))
    with (
        engines.held(folder),
        tqdm(total=total, unit="run", disable=not progress, file=sys.stderr) as bar,
        _connected(ray, address),
    ):
        _Sweep(ray, profile, store, bar).run(groups)
    store.refresh()
    return store


class _Sweep:
    """The driver's side of one fan-out."""

    def __init__(self, ray: ModuleType, profile: Profile, store: Store, bar: Any):
        self.ray, self.profile, self.store, self.bar = ray, profile, store, bar
        self.made: Provenance = machine.provenance()
        self.running: dict[Any, _Engine] = {}

    def run(self, groups: list[list[Run]]) -> None:
        waiting = deque(_Engine(group) for group in groups)
        try:
            while waiting or self.running:
                while waiting and len(self.running) < self.width(waiting[0]):
                    self.submit(waiting.popleft())
                ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=2)
                for task in ready:
                    if not self.receive(task, self.running[task]):
                        engine = self.running.pop(task)
                        waiting.extendleft([engine] if engine.left else [])
                self.show()
        except BaseException as error:
            self.end(error)
            raise

    def width(self, engine: _Engine) -> float:
        """How many engines may be under way: Ray queues them by itself, vLLM's own executor would not."""
        if not engine.spans_hosts:
            return math.inf
        return max(self.ray.cluster_resources().get("GPU", 0) // engine.num_gpus, 1)

    def submit(self, engine: _Engine) -> None:
        nodes = _alive(self.ray)
        needs = engine.needs(self.ray.cluster_resources().get("GPU", 0) > 0, self.profile, nodes)
        _check(engine, needs, nodes)
        # Ray would repeat a lost generator from its first run; the driver submits again what has not come back
        task = self.ray.remote(_run_engine).options(
            name=engine.name, num_returns="streaming", max_retries=0, **needs
        )  # fmt: skip
        plain = [c.model_dump(mode="json", exclude_defaults=True) for c in engine.left.values()]
        made, address = self.made, self.ray.get_runtime_context().gcs_address
        asked = self.profile.model_dump(mode="json")
        self.running[task.remote(plain, asked, made.commit, made.dirty, address)] = engine

    def receive(self, task: Any, engine: _Engine) -> bool:
        """Take the next event of a task; False when there is no further one."""
        errors = self.ray.exceptions
        try:
            self.take(*self.ray.get(next(task)), engine)
        except StopIteration:
            if engine.left:
                self.lose(engine, "the task ended early")
            return False
        except errors.RayTaskError as error:
            raise error.cause from None  # raised by our own code over there, e.g. a MachineError
        except errors.RayError as error:
            self.lose(engine, f"{type(error).__name__}")
            return False
        return True

    def take(self, what: str, plan_id: str, files: dict[str, bytes], engine: _Engine) -> None:
        """One event of an engine; the files of an ended run go into the store."""
        engine.current = engine.left.get(plan_id)
        if what == "ended" and engine.current is not None:
            for name, data in files.items():
                records.write_atomically(self.store.folder / Path(name).name, data)
            del engine.left[plan_id]
            engine.current = None
            self.bar.update()

    def lose(self, engine: _Engine, why: str) -> None:
        """A node went away under `engine`: what is left of it is submitted again, or recorded as crashed."""
        engine.losses, engine.current = engine.losses + 1, None
        if not engine.left:  # all had come back
            return
        if engine.losses <= MAX_LOSSES:
            self.bar.write(f"{engine.name}: its node was lost ({why}), {len(engine.left)} runs go elsewhere",
                           file=sys.stderr)  # fmt: skip
            return
        for run in engine.left.values():
            self.fail(run, "crashed", f"the node was lost {engine.losses} times, lastly: {why}")
            self.bar.update()
        engine.left = {}

    def end(self, error: BaseException) -> None:
        """End the engines under way; their running runs are recorded as interrupted."""
        for task in self.running:
            with contextlib.suppress(self.ray.exceptions.RayError, ValueError, TypeError):
                self.ray.cancel(task, force=False)
        open_tasks, under_way = dict(self.running), [e.current for e in self.running.values() if e.current is not None]
        limit = time.monotonic() + 10  # then the nodes end what is left when the connection closes
        while open_tasks and time.monotonic() < limit:
            ready, _ = self.ray.wait(list(open_tasks), num_returns=1, timeout=max(limit - time.monotonic(), 0))
            for task in ready:  # what was measured meanwhile counts
                with contextlib.suppress(self.ray.exceptions.RayError, StopIteration):
                    self.take(*self.ray.get(next(task)), open_tasks[task])
                    continue
                del open_tasks[task]
        missing = {plan_id for engine in self.running.values() for plan_id in engine.left}
        for run in under_way:
            if run.plan_id in missing:
                self.fail(run, "interrupted", f"{type(error).__name__} in the caller")

    def fail(self, run: Run, status: str, reason: str) -> None:
        made = self.made.model_copy(update={"measured": machine.now()})
        self.store.save(Record(run=run, status=status, reason=reason, provenance=made))

    def show(self) -> None:
        busy = [e for e in self.running.values() if e.current is not None]
        names = ", ".join(f"{e.name} {e.current.workload.name}" for e in busy[:2])
        self.bar.set_postfix_str(f"{len(busy)} engines at work: {names}" if busy else "engines start")
