"""Runs runs: groups them by engine, one engine process a group, records stored as each run ends.

The caller (a notebook's kernel, papermill, the command line) never imports vLLM. Each runs in a process group of
its own, which is ended as a whole on exit, error, time limit or interrupt, and which ends itself when the caller dies.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from lib.measure import forkserver, machine, plan, weights, worker
from lib.measure.profiles import Profile
from lib.results import records
from lib.results.records import Provenance, Record, Store
from lib.results.run import Run

WARM_UP_TOKENS = 24
_CORES_TO_SPARE = 8  # from here on the next engine's imports do not disturb the one that starts


class StoreBusy(RuntimeError):
    """Another run holds the store."""


def _preloads() -> list[str]:
    """Shared libraries worth preloading into a CPU engine: OpenMP and a fast malloc, where they are found."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    malloc = ctypes.util.find_library("tcmalloc_minimal")
    return ([str(openmp)] if openmp.exists() else []) + ([malloc] if malloc else [])


def environment(run: Run, profile: Profile) -> dict[str, str]:
    """What an engine process starts with; set before vLLM is imported."""
    env = dict(os.environ)
    env |= {
        "PYTHONPATH": os.pathsep.join([str(records.ROOT), *filter(None, [env.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
        "VLLM_PLUGINS": "",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if run.engine.model.source != "hub":
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if machine.count_gpus() == 0:
        preload = [*_preloads(), *filter(None, [env.get("LD_PRELOAD")])]
        if preload:
            env["LD_PRELOAD"] = ":".join(preload)
        env["OMP_NUM_THREADS"] = str(profile.threads or machine.count_cpus())
        # vLLM's ngram drafter restores numba's number of threads, which is torch's too and which numba would count
        # after vLLM has bound the process to one core
        env["NUMBA_NUM_THREADS"] = env["OMP_NUM_THREADS"]
    return env | run.engine.env


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """One sweep a store: a lock file; a dead holder's lock is free. Raises StoreBusy."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "lock", timeout=0):
            yield
    except Timeout:
        raise StoreBusy(f"the store {folder.name} must be free, another process measures into it") from None


class Process:
    """One engine process and its event stream; it imports vLLM at once and builds its engine after `go`."""

    def __init__(self, runs: list[Run], profile: Profile, folder: Path, made: Provenance):
        self.runs, self.limit_s = runs, profile.time_limit_s
        name = f"{runs[0].setting or 'engine'}-{int(time.time() * 1000) % 10**9}"
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}.log"
        (folder / "scratch").mkdir(exist_ok=True)
        self.scratch = tempfile.TemporaryDirectory(dir=folder / "scratch", prefix="engine-")
        scratch = Path(self.scratch.name)
        env = environment(runs[0], profile)
        plan = {
            "runs": [c.model_dump(mode="json", exclude_defaults=True) for c in runs],
            "model_path": weights.locate(runs[0].engine.model),
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

    def _launch(
        self, plan: Path, env: dict[str, str], log: BinaryIO, events: int
    ) -> subprocess.Popen | forkserver.Forked:
        """The process, in a group of its own: forked from a fork server where there is one for it, else started."""
        if self.runs[0].engine.in_process and (where := forkserver.address()):
            return forkserver.Forked(where, plan, env, log.fileno(), events)
        return subprocess.Popen(
            [sys.executable, "-m", "lib.measure.worker", str(plan)],
            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, pass_fds=(events,), cwd=records.ROOT,
            env=env | {worker.EVENTS_VARIABLE: str(events)}, start_new_session=True,
        )  # fmt: skip

    def go(self) -> None:
        """Let the process build its engine."""
        with contextlib.suppress(BrokenPipeError):  # it died, `events` says so
            self.child.stdin.write(worker.GO)
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

    def __init__(self, groups: list[list[Run]], make: Callable[[list[Run]], Process]):
        self._following = dict(zip(map(_ids, groups), groups[1:], strict=False))
        self._make = make
        self._ahead: Process | None = None
        self._early = machine.count_gpus() > 0 and machine.count_cpus() >= _CORES_TO_SPARE

    def __call__(self, runs: list[Run]) -> Process:
        ahead = self._ahead
        if ahead is not None and ahead.runs == runs:
            process, self._ahead = ahead, None
        else:
            process = self._make(runs)
        process.go()
        following = self._following.get(_ids(runs))
        if self._early and following is not None and self._ahead is None:
            self._ahead = self._make(following)
        return process

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.end()


def _ids(runs: list[Run]) -> tuple[str, ...]:
    return tuple(c.plan_id for c in runs)


def _without_paths(line: str) -> str:
    import re

    return re.sub(r"(?:/[\w.+-]+){2,}/", "…/", line)


def run(
    runs: Iterable[Run],
    profile: Profile,
    *,
    retry: Iterable[str] = ("interrupted",),
    progress: bool = True,
    folder: Path | None = None,
) -> Store:
    """Measure what `runs/<profile>/records` lacks of `runs`. Every run ends as exactly one record.

    A run that fails is recorded with its reason and the run goes on. KeyboardInterrupt ends the engine at once, records
    the running run as interrupted and is raised again. Raises StoreBusy, and what `machine.check` raises.
    """
    folder = folder or records.runs_folder(profile.profile)
    store = Store(folder / "records", owner=True)
    groups = plan.missing(runs, store, retry)
    if not groups:
        return store
    machine.check(r for group in groups for r in group)
    announce(groups)
    made = machine.provenance()
    total = sum(map(len, groups))
    with (
        held(folder),
        contextlib.closing(Starter(groups, lambda left: Process(left, profile, folder, made))) as start,
        tqdm(total=total, unit="run", disable=not progress, file=sys.stderr) as bar,
    ):
        shutil.rmtree(folder / "scratch", ignore_errors=True)  # of runs that were killed; the lock says none is alive
        for index, group in enumerate(groups):
            bar.set_description(f"engine {index + 1}/{len(groups)}")
            with contextlib.closing(run_group(group, start, store, made, bar.refresh)) as events:
                for what, run in events:
                    if what == "ended":
                        bar.update()
                    else:
                        bar.set_postfix_str(f"{what} {run.setting} {run.workload.name} c={run.concurrency}")
    store.refresh()
    return store


def announce(groups: list[list[Run]]) -> None:
    """Name on stderr what a reader may not expect: variables that engines inherit, steps larger than the largest graph, and
    models whose own code runs."""
    if inherited := machine.inherited_env():
        print(f"engines inherit {' '.join(f'{k}={v}' for k, v in inherited.items())}", file=sys.stderr)
    for run in (max(group, key=lambda r: r.concurrency) for group in groups):
        size, drafts = run.engine.arguments.get("max_cudagraph_capture_size"), run.engine.speculative
        if size and drafts and (tokens := run.concurrency * (1 + drafts.num_speculative_tokens)) > size:
            print(
                f"settings.{run.setting}: a step of {run.concurrency} requests verifies up to {tokens} tokens, more than "
                f"max_cudagraph_capture_size ({size}, in tokens): it runs without a graph",
                file=sys.stderr,
            )
    for name in sorted({g[0].engine.model.name for g in groups if g[0].engine.model.trust_remote_code}):
        print(f"model.trust_remote_code is true: engines run code that {name} brings along", file=sys.stderr)


def run_group(
    group: list[Run],
    start: Callable[[list[Run]], Process],
    store: Store,
    made: Provenance,
    tick: Callable[[], None],
) -> Iterator[tuple[str, Run]]:
    """All runs of one engine, in a process from `start`; after a failure the rest goes through a fresh one.

    Yields ("starting" | "ready" | "running" | "ended", run); an ended run's record is in the store. Close the iterator to end
    the engine; the running run is then recorded as interrupted. `tick` is called every few seconds.
    """
    left = list(group)
    while left:
        process = start(left)
        current, ready, failure = left[0], False, None
        by_id = {c.plan_id: c for c in left}
        try:
            yield "starting", current
            for event in process.events(tick):
                match event["event"]:
                    case "ready":
                        ready = True
                        yield "ready", current
                    case "running":
                        current = by_id[event["plan_id"]]
                        yield "running", current
                    case "done":
                        left = [c for c in left if c.plan_id != event["plan_id"]]
                        current = left[0] if left else current  # what happens from now on is the next run's
                        yield "ended", by_id[event["plan_id"]]
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
        # an engine that never became ready will not become ready for the next run either
        lost = [current] if ready else left
        for run in lost:
            _store_failure(store, run, *failure, process, made)
            yield "ended", run
        left = [c for c in left if c not in lost]


def _store_failure(store: Store, run: Run, status: str, reason: str, process: Process, made: Provenance) -> None:
    store.refresh()
    held = store.get(run)
    if held is not None and held.status == "ok":  # the engine ended between storing the run and saying so
        return
    tail = process.tail()
    if status == "crashed" and any("out of memory" in line.lower() for line in tail):
        status = "oom"
    store.save(
        Record(
            run=run,
            status=status,
            reason=_without_paths(reason),
            stderr_tail=tail,
            provenance=made.model_copy(update={"measured": machine.now()}),
        )  # fmt: skip
    )
