"""Measurement records: raw counters, timings, settings as resolved, provenance. One JSON file a run while it is measured;
committed ones are tables (`table`).

Derived numbers are never stored; `metrics` recomputes them. A record is written whole or not at all. Beside it may lie a
*trace* (`<stem>.trace.json.gz`): one row an engine step, written before the record.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lib.results.run import Frozen, Run

SCHEMA_VERSION = 2
ROOT = Path(__file__).resolve().parent.parent.parent
STEP_COLUMNS = (
    "t_s", "running", "waiting", "prefills", "output_tokens", "drafts", "draft_tokens", "accepted_tokens", "graph_mode",
    "padded_tokens",
)  # fmt: skip
Status = Literal["ok", "oom", "timeout", "crashed", "invalid", "interrupted"]


class Counters(Frozen):
    """Differences of vLLM's counters over the whole run (never one log interval)."""

    num_output_tokens: int
    num_prompt_tokens: int
    num_drafts: int = 0  # request-steps that carried a draft
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    num_engine_steps: int  # scheduler iterations, prefill included
    num_request_steps: int  # request-steps that produced tokens
    num_preemptions: int = 0


class Request(Frozen):
    """One request: token counts, seconds since the run's start, and why it stopped."""

    num_prompt_tokens: int
    num_output_tokens: int
    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_reason: str | None = None
    output_hash: str = ""  # of this request's output ids
    drafted_per_step: tuple[int, ...] | None = None  # where the engine tells (vLLM >= 0.27.2)
    accepted_per_step: tuple[int, ...] | None = None


class Resolved(Frozen):
    """What the engine made of what it was asked."""

    vllm_version: str
    runner: Literal["V1", "V2"]
    async_scheduling: bool
    cudagraph_mode: str
    cudagraph_capture_sizes: tuple[int, ...] = ()
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    attention_backend: str | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    dtype: str = ""
    enforce_eager: bool = False
    speculative: dict[str, Any] = Field(default_factory=dict)
    model_checksum: str | None = None
    num_parameters: int | None = None


class Provenance(Frozen):
    """Where, when and with what. No host name, user name or path."""

    measured: str  # UTC, seconds
    commit: str = "unknown"
    dirty: bool | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    inherited_env: dict[str, str] = Field(default_factory=dict)  # variables of the caller's that change what vLLM runs
    cpu: str = ""
    num_cpus: int | None = None
    gpu: str | None = None
    num_gpus: int = 0
    driver: str | None = None
    machine: str | None = None  # hash of the GPUs' UUIDs: tells two machines of one kind apart, and nothing else
    session: str | None = None  # hash of this boot of the host and its GPUs: ratios are formed within a session
    gpu_power_limit_w: float | None = None
    gpu_max_sm_clock_mhz: float | None = None


class Monitor(Frozen):
    """Means over the generation window only; absent instruments are None, never zero."""

    window_s: float
    num_samples: int
    cpu_pct: float | None = None  # of the engine's process tree; 100 is one core
    gpu_busy_pct: float | None = None  # NVML: share of time with at least one kernel resident
    gpu_power_w: float | None = None
    gpu_energy_j: float | None = None
    sm_clock_mhz: float | None = None
    gpu_memory_gib: float | None = None


class Record(Frozen):
    """One run's measurement, or the reason why there is none."""

    schema_version: int = SCHEMA_VERSION
    run: Run
    status: Status
    reason: str = ""
    stderr_tail: tuple[str, ...] = ()
    wall_s: float | None = None
    counters: Counters | None = None
    requests: tuple[Request, ...] = ()
    output_hash: str = ""  # of all output ids, in prompt order
    inputs_hash: str = ""  # of the prompts and answers that a parrot was given
    verbatim: bool | None = None  # whether a parrot said every answer token by token
    num_cached_prompt_tokens: int | None = None  # prompt tokens that the prefix cache spared, a parrot's ciphers mostly
    resolved: Resolved | None = None
    monitor: Monitor | None = None
    provenance: Provenance
    engine_start_s: float | None = None  # from the word to build it; importing vLLM counts where nothing did it ahead
    order: int = 0  # place of the run in its engine process: 0 ran first
    has_trace: bool = False

    @property
    def run_id(self) -> str:
        """What was asked and the session in which it was measured."""
        session = self.provenance.session
        return (
            hashlib.sha256(f"{self.run.plan_id} {session}".encode()).hexdigest()[:12] if session else self.run.plan_id
        )


class Trace(Frozen):
    """One row an engine step: columns of equal length.

    `t_s` end of the step since the run's start; `running` requests that got tokens in
    the step, `waiting` ones; `prefills` prompts that ended in the step, -1 where one was still on its way;
    `output_tokens`; `drafts`, `draft_tokens`, `accepted_tokens`; `graph_mode` as dispatched (FULL,
    PIECEWISE, NONE, or empty where the engine does not tell); `padded_tokens` the graph's size.
    """

    steps: dict[str, list] = Field(default_factory=dict)


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file, fsync, rename: after a power cut the file is whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def rank(record: Record) -> tuple[bool, str]:
    """Of two records of one run the one that ranks higher stands: an ok one, then the later one."""
    return record.status == "ok", record.provenance.measured


class Store:
    """A run's own folder, one JSON file a record, by what was asked. Damaged files are left out with a warning.

    Whoever measures into it is its `owner`, and moves a damaged file out of the way; all others change nothing.
    """

    def __init__(self, folder: Path | str, *, owner: bool = False):
        self.folder, self.owner = Path(folder), owner

    def save(self, record: Record, trace: Trace | None = None) -> Path:
        """Write `record` (and its `trace` first); a later record of the same run replaces the earlier one."""
        stem = record.run.file_stem
        if trace is not None:
            packed = gzip.compress(trace.model_dump_json(exclude_none=True).encode(), mtime=0)
            write_atomically(self.folder / f"{stem}.trace.json.gz", packed)
            record = record.model_copy(update={"has_trace": True})
        path = self.folder / f"{stem}.json"
        write_atomically(path, (record.model_dump_json(exclude_defaults=True, indent=1) + "\n").encode())
        self.refresh()
        return path

    def get(self, run: Run) -> Record | None:
        """The record of `run` under the run's own setting name, or None."""
        held = self._held.get(run.plan_id)
        return held[1].model_copy(update={"run": run}) if held else None

    def all(self) -> list[Record]:
        return [record for _, record in self._held.values()]

    def __len__(self) -> int:
        return len(self._held)

    def trace(self, record: Record) -> Trace | None:
        """The trace of `record`, None if it kept none."""
        held = self._held.get(record.run.plan_id)
        if held is None or not held[1].has_trace:
            return None
        path = held[0].with_name(held[0].stem + ".trace.json.gz")
        return Trace.model_validate_json(gzip.decompress(path.read_bytes()))

    @cached_property
    def _held(self) -> dict[str, tuple[Path, Record]]:
        found: dict[str, tuple[Path, Record]] = {}
        for path in sorted(self.folder.glob("*.json")):
            record = self._read(path)
            held = found.get(record.run.plan_id) if record else None
            if record and (held is None or rank(record) > rank(held[1])):
                found[record.run.plan_id] = (path, record)
        return found

    def _read(self, path: Path) -> Record | None:
        try:
            version = json.loads(path.read_bytes()).get("schema_version", 1)
            if version > SCHEMA_VERSION:
                return self._left_out(path, f"must be of schema_version {SCHEMA_VERSION} at most, got {version}", False)
            record = Record.model_validate_json(path.read_bytes())
        except (ValueError, AttributeError, OSError) as error:
            return self._left_out(path, f"must be a whole record, got: {str(error).splitlines()[0]}")
        if path.stem.rsplit(".", 1)[-1] != record.run.plan_id:
            return self._left_out(path, f"must be named by its run's plan_id, {record.run.plan_id}", False)
        return record

    def _left_out(self, path: Path, why: str, damaged: bool = True) -> None:
        done = "left out"
        if damaged and self.owner and os.access(path.parent, os.W_OK):
            path.rename(path.with_suffix(".damaged"))
            done = f"set aside as {path.stem}.damaged"
        warnings.warn(f"{path.name} is {done}: it {why}", stacklevel=3)

    def refresh(self) -> None:
        """Forget what was read, e.g. after another process wrote records."""
        self.__dict__.pop("_held", None)


def digest_of(path: Path) -> str:
    """First 12 hex digits of the SHA-256 of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def data_folder(profile: str) -> Path:
    """Where the committed records of a profile lie: figures/data/<profile>."""
    return ROOT / "figures" / "data" / profile


def runs_folder(profile: str) -> Path:
    """Where a measuring run keeps its records, logs and executed notebooks: runs/<profile> (ignored by git)."""
    return Path(os.environ.get("SPECULATION_RUNS", ROOT / "runs")) / profile
