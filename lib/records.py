"""Measurement records: raw counters, timings, settings as resolved, provenance. One JSON file an engine cell while a
run measures; committed ones are tables (`lib.table`).

Derived numbers are never stored; `metrics` recomputes them. A record is written whole or not at all. Beside it may lie a
*trace* (`<stem>.trace.json.gz`): one row an engine step and, where asked for, the token ids, written before the record.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from lib.cells import Cell, Frozen

SCHEMA_VERSION = 1
ROOT = Path(__file__).resolve().parent.parent
Status = Literal["ok", "oom", "timeout", "crashed", "invalid", "interrupted"]


class Counters(Frozen):
    """Differences of vLLM's counters over the whole run of the cell (never one log interval)."""

    num_output_tokens: int
    num_prompt_tokens: int
    num_drafts: int = 0  # request-steps that carried a draft
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    num_filling_tokens: int = 0  # padded drafters only: tokens drafted to fill up, part of num_draft_tokens
    num_engine_steps: int  # scheduler iterations, prefill included
    num_request_steps: int  # request-steps that produced tokens
    request_steps_source: Literal["engine", "output_minus_accepted"]
    num_preemptions: int = 0


class Request(Frozen):
    """One request: token counts, seconds since the cell's start, and why it stopped."""

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
    """One engine cell's measurement, or the reason why there is none."""

    schema_version: int = SCHEMA_VERSION
    cell: Cell
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
    order: int = 0  # place of the cell in its engine process: 0 ran first
    has_trace: bool = False

    @property
    def cell_id(self) -> str:
        return self.cell.cell_id


class Trace(Frozen):
    """One row an engine step (columns of equal length), and token ids where the cell kept them.

    Columns: `t_s` end of the step since the cell's start; `running` requests that got tokens in
    the step, `waiting` ones; `prefills` prompts that ended in the step, -1 where one was still on its way;
    `output_tokens`; `drafts`, `draft_tokens`, `accepted_tokens`; `graph_mode` as dispatched (FULL,
    PIECEWISE, NONE, or empty where the engine does not tell); `padded_tokens` the graph's size.
    """

    steps: dict[str, list] = Field(default_factory=dict)
    prompt_token_ids: list[list[int]] | None = None
    output_token_ids: list[list[int]] | None = None


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
    """Of two records of one cell the one that ranks higher stands: an ok one, then the later one."""
    return record.status == "ok", record.provenance.measured


class Reader:
    """Records of a folder by cell, whatever they are stored in: a run's `Store`, or `table.Published`."""

    _by_id: Mapping[str, Record]

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)

    def get(self, cell: Cell) -> Record | None:
        """The record of `cell` under the cell's own display name, or None."""
        held = self._by_id.get(cell.cell_id)
        return held.model_copy(update={"cell": cell}) if held else None

    def all(self) -> list[Record]:
        return list(self._by_id.values())

    def trace(self, record: Record) -> Trace:
        """The trace of `record`; KeyError if it kept none."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._by_id)


class Store(Reader):
    """A run's own folder, one JSON file a record. Reads lazily; damaged files are left out with a warning.

    Whoever measures into it is its `owner`, and moves a damaged file out of the way; all others change nothing.
    """

    def __init__(self, folder: Path | str, *, owner: bool = False):
        super().__init__(folder)
        self.owner = owner

    def save(self, record: Record, trace: Trace | None = None) -> Path:
        """Write `record` (and its `trace` first); a later record of the same cell replaces the earlier one."""
        stem = record.cell.file_stem
        if trace is not None:
            packed = gzip.compress(trace.model_dump_json(exclude_none=True).encode(), mtime=0)
            write_atomically(self.folder / f"{stem}.trace.json.gz", packed)
            record = record.model_copy(update={"has_trace": True})
        path = self.folder / f"{stem}.json"
        write_atomically(path, (record.model_dump_json(exclude_defaults=True, indent=1) + "\n").encode())
        self.refresh()
        return path

    @cached_property
    def _held(self) -> dict[str, tuple[Path, Record]]:
        found: dict[str, tuple[Path, Record]] = {}
        for path in sorted(self.folder.glob("*.json")):
            record = self._read(path)
            if record is None:
                continue
            held = found.get(record.cell_id)
            if held is None or rank(record) > rank(held[1]):
                found[record.cell_id] = (path, record)
        return found

    @cached_property
    def _by_id(self) -> dict[str, Record]:
        return {cell_id: record for cell_id, (_, record) in self._held.items()}

    def _read(self, path: Path) -> Record | None:
        try:
            record = Record.model_validate_json(path.read_bytes())
        except (ValidationError, OSError) as error:
            aside, done = path.with_suffix(".damaged"), "left out"
            if self.owner and os.access(path.parent, os.W_OK):
                path.rename(aside)
                done = f"set aside as {aside.name}"
            why = str(error).splitlines()[0]
            warnings.warn(f"{path.name} must be a whole record and is {done}, got: {why}", stacklevel=3)
            return None
        if record.schema_version != SCHEMA_VERSION:
            raise ValueError(
                f"{path.name}: schema_version is {record.schema_version}, allowed: {SCHEMA_VERSION} (measure again)"
            )
        if path.stem.rsplit(".", 1)[-1] != record.cell_id:
            warnings.warn(f"{path.name} holds cell {record.cell_id}: it was edited or renamed; not used", stacklevel=3)
            return None
        return record

    def refresh(self) -> None:
        """Forget what was read, e.g. after another process wrote records."""
        for read in ("_held", "_by_id"):
            self.__dict__.pop(read, None)

    def trace(self, record: Record) -> Trace:
        held = self._held.get(record.cell_id)
        if held is None or not held[1].has_trace:
            raise KeyError(f"no trace is stored for engine cell {record.cell.file_stem}")
        path = held[0].with_name(held[0].stem + ".trace.json.gz")
        return Trace.model_validate_json(gzip.decompress(path.read_bytes()))


def data_folder(profile: str) -> Path:
    """Where the committed records of a profile lie: figures/data/<profile>."""
    return ROOT / "figures" / "data" / profile


def runs_folder(profile: str) -> Path:
    """Where a measuring run keeps its records, logs and executed notebooks: runs/<profile> (ignored by git)."""
    return Path(os.environ.get("SPECULATION_RUNS", ROOT / "runs")) / profile


def select(store: Reader, cells: Iterable[Cell]) -> list[Record]:
    """The store's records of `cells`, in order; what is missing or failed is counted in a printed line, not raised."""
    found, missing = [], Counter()
    for cell in cells:
        record = store.get(cell)
        if record is None:
            missing[cell.setting] += 1
        else:
            found.append(record)
    if missing:
        named = ", ".join(f"{setting} {count}" for setting, count in sorted(missing.items()))
        print(f"no record of {sum(missing.values())} engine cells: {named}")
    failed = [f"{r.cell.setting} {r.cell.workload.name}: {r.status}, {r.reason}" for r in found if r.status != "ok"]
    if failed:
        print(f"{len(failed)} engine cells failed: {'; '.join(failed)}")
    return found
