"""The committed records as tables: figures/data/<profile>/{runs,requests,steps,tokens}.parquet.

* `runs`: one row a run: what was asked, how it ended, raw counters, monitor, `resolved_*` and provenance. The column
  `cell` is the whole cell as JSON; every other field of a `Record` is a column of its own.
* `requests`: one row a request; `steps`: one row an engine step of a trace; `tokens`: token ids, where a run kept them.

Columns are made from the fields of `Record`, `Request` and `Trace`: a field that is added there becomes a column, and
where an older file lacks it, its default stands. Times in `requests` and `steps` are whole microseconds and hashes are
8 bytes; all that is read from here comes back as seconds and hexadecimal text.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError

from lib import records
from lib.records import Counters, Monitor, Provenance, Reader, Record, Request, Resolved, Store, Trace, data_folder

if TYPE_CHECKING:
    import pandas as pd

# Parts of a record that are spread over columns, and what their columns' names begin with.
PARTS: dict[str, tuple[type[BaseModel], str]] = {
    "counters": (Counters, ""), "monitor": (Monitor, ""), "resolved": (Resolved, "resolved_"),
    "provenance": (Provenance, ""),
}  # fmt: skip
IDS = [name for name in Trace.model_fields if name != "steps"]
_FORM = b"form"  # of a column, in its metadata: microseconds, hex or json; absent where values are stored as they are


class Unreadable(UserWarning):
    """A file of a profile cannot be used; its sentence names the file and what it must be."""


# ---- writing ----


def _json(value: Any) -> str | None:
    if isinstance(value, BaseModel):
        return value.model_dump_json(exclude_defaults=True)
    return None if value is None else json.dumps(value)


def _scalar(values: Sequence) -> pa.DataType | None:
    """A type for `values` that are all of one plain kind, else None."""
    kinds = set(map(type, values))
    if kinds <= {int}:
        fits = min(values, default=0) >= -(2**31) and max(values, default=0) < 2**31
        return pa.int32() if fits else pa.int64()
    return {bool: pa.bool_(), float: pa.float64(), str: pa.string()}.get(kinds.pop()) if len(kinds) == 1 else None


def _column(name: str, values: list, packed: bool) -> tuple[pa.Field, pa.Array]:
    """`values` in the type that fits them; `packed`: times as microseconds and hashes as bytes where nothing is lost."""
    held, form = [v for v in values if v is not None], None
    if held and packed and name.endswith("_s") and all(type(v) is float for v in held):
        whole = np.rint(1e6 * np.asarray(held))
        if (whole / 1e6 == held).all():
            name, form = f"{name.removesuffix('_s')}_us", "microseconds"
            values = [None if v is None else round(1e6 * v) for v in values]
            held = [v for v in values if v is not None]
    if (
        held == values
        and packed
        and name.endswith("_hash")
        and all(re.fullmatch(r"(?:[0-9a-f]{16})?", v) for v in held)
    ):
        form, values = "hex", [bytes.fromhex(v) if v else None for v in values]
        kind = pa.binary(8)
    elif not held:
        kind = pa.null()
    elif all(isinstance(v, list | tuple) for v in held):
        inner = _scalar([x for v in held for x in v])
        kind = inner and pa.list_(inner)
    else:
        kind = _scalar(held)
    if kind is None:
        form, kind, values = "json", pa.string(), [_json(v) for v in values]
    return pa.field(name, kind, metadata={_FORM: form} if form else None), pa.array(values, kind)


def _table(columns: dict[str, list], packed: bool = True) -> pa.Table:
    made = [_column(name, values, packed) for name, values in columns.items()]
    return pa.table([array for _, array in made], pa.schema([field for field, _ in made]))


def flat(record: Record) -> dict[str, Any]:
    """The record as one row without its requests: what was asked, then every field that is not a part of `cell`."""
    cell, engine, workload = record.cell, record.cell.engine, record.cell.workload
    row = {
        "cell_id": record.cell_id, "setting": cell.setting, "status": record.status, "reason": record.reason,
        "workload": workload.name, "form": workload.form, "seed": workload.seed, "concurrency": cell.batch_size,
        "num_prompts": workload.num_prompts, "input_tokens": workload.input_tokens, "output_tokens": cell.output_tokens,
        "memory": cell.memory, "draft_tokens": cell.draft_tokens, "uneven": cell.uneven,
        "model": engine.model.name, "dtype": engine.dtype, "repeat": engine.repeat,
    }  # fmt: skip
    row |= {name: getattr(record, name) for name in Record.model_fields if name not in (*PARTS, "cell", "requests")}
    for part, (model, prefix) in PARTS.items():
        row |= {prefix + name: getattr(getattr(record, part), name, None) for name in model.model_fields}
    return row | {"cell": cell}


def _runs(held: Iterable[Record]) -> pa.Table:
    rows = [flat(record) for record in held]
    return _table({name: [row[name] for row in rows] for name in rows[0]} if rows else {"cell_id": []}, packed=False)


def _extend(columns: dict[str, list], rows: dict[str, list], length: int) -> None:
    """Append `rows` to `columns`; None stands where one side lacks a column of the other."""
    for name in [name for name in rows if name not in columns]:
        columns[name] = [None] * len(columns["cell_id"])
    for name, values in columns.items():
        values.extend(rows.get(name, [None] * length))


def write(folder: Path, runs: Iterable[tuple[Record, Trace | None]]) -> None:
    """Write the tables of `runs` (records and their traces) into `folder`, in place of those there.

    Equal runs make equal bytes. `runs.parquet` comes last; the others name the runs that they belong to.
    """
    runs = sorted(runs, key=lambda run: run[0].cell.file_stem)
    kept: dict[str, dict[str, list]] = {name: {"cell_id": []} for name in ("tokens", "steps", "requests")}
    for record, trace in runs:
        rows = {
            "requests": {n: [getattr(r, n) for r in record.requests] for n in Request.model_fields},
            "steps": trace.steps if trace else {},
            "tokens": {n: getattr(trace, n) for n in IDS if getattr(trace, n, None) is not None},
        }
        for name, own in rows.items():
            length = max(map(len, own.values()), default=0)
            number = {} if name == "steps" else {"request": list(range(length))}
            _extend(kept[name], {"cell_id": [record.cell_id] * length, **number, **own}, length)
    tables = {name: _table(columns) for name, columns in kept.items() if columns["cell_id"]}
    told = "\n".join(f"{r.cell_id} {r.status} {r.provenance.measured}" for r, _ in runs)
    stamp = {
        "schema_version": str(records.SCHEMA_VERSION), "beside": " ".join(tables),
        "runs": hashlib.sha256(told.encode()).hexdigest()[:16],
    }  # fmt: skip
    for name, table in (tables | {"runs": _runs(r for r, _ in runs)}).items():
        records.write_atomically(folder / f"{name}.parquet", _packed(table.replace_schema_metadata(stamp)))
    for name in kept.keys() - tables.keys():
        (folder / f"{name}.parquet").unlink(missing_ok=True)


def _packed(table: pa.Table) -> bytes:
    """One row group: text and hashes by dictionary, step times by their differences, the rest as it is under zstd."""
    words = [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_fixed_size_binary(f.type)]
    file = io.BytesIO()
    pq.write_table(
        table, file, row_group_size=max(len(table), 1), compression="zstd", compression_level=19,
        use_dictionary=words, column_encoding={"t_us": "DELTA_BINARY_PACKED"} if "t_us" in table.column_names else None,
        dictionary_pagesize_limit=2**26, data_page_size=2**26, write_page_checksum=True, write_statistics=False,
    )  # fmt: skip
    return file.getvalue()


def publish(profile: str) -> int:
    """Merge the records of runs/<profile> into the committed tables; returns how many of them are ok.

    Rows of other cells stay; of two records of one cell the better stands (`rank`), of two equal ones the new one.
    Raises Unreadable, and changes nothing, where a committed table cannot be read whole.
    """
    new, old = Store(records.runs_folder(profile) / "records"), Published(data_folder(profile))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Unreadable)
        chosen: dict[str, tuple[Record, Reader]] = {record.cell_id: (record, old) for record in old.all()}
        for record in new.all():
            held = chosen.get(record.cell_id)
            if held is None or records.rank(record) >= records.rank(held[0]):
                chosen[record.cell_id] = (record, new)
        if len(new):
            write(old.folder, [(r, store.trace(r) if r.has_trace else None) for r, store in chosen.values()])
    return sum(record.status == "ok" for record in new.all())


# ---- reading ----


def _form_of(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(_FORM)


def _skip(path: Path, why: str, how: str = "") -> None:
    where = Path(*path.parts[-4:])  # figures/data/<profile>/<name>.parquet
    warnings.warn(f"{where} is skipped{how}: it {why}", Unreadable, stacklevel=2)


def _read(path: Path) -> pa.Table | None:
    """The file with times in seconds and hashes as text; None where there is none, with a warning if it is damaged."""
    try:
        table = pq.ParquetFile(path, page_checksum_verification=True).read().combine_chunks()
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError) as error:
        return _skip(path, f"must be a whole Parquet file, got: {str(error).splitlines()[0]}")
    version = (table.schema.metadata or {}).get(b"schema_version", b"none").decode()
    if version != str(records.SCHEMA_VERSION):
        return _skip(path, f"must be of schema_version {records.SCHEMA_VERSION}, got {version}")
    for place, field in enumerate(table.schema):
        if _form_of(field) == b"microseconds":
            seconds = pc.divide(table[place].cast(pa.float64()), 1e6)
            table = table.set_column(place, f"{field.name.removesuffix('_us')}_s", seconds)
        elif _form_of(field) == b"hex":
            text = pa.array([v.hex() if v else "" for v in table[place].to_pylist()], pa.string())
            table = table.set_column(place, field.name, text)
    return table


def _lists(table: pa.Table) -> dict[str, list]:
    """Columns as lists of Python values, None for a missing one."""
    found = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        plain = pa.types.is_primitive(field.type) and not column.null_count  # the fast way is for these
        found[field.name] = column.to_numpy().tolist() if plain else column.to_pylist()
        if _form_of(field) == b"json":
            found[field.name] = [v and json.loads(v) for v in found[field.name]]
    return found


class _Rows:
    """A table whose rows of one run stand one after the other."""

    def __init__(self, table: pa.Table):
        self.table = table.drop_columns(["cell_id"])
        runs = pc.run_end_encode(table["cell_id"].combine_chunks().cast(pa.string()))
        ends = runs.run_ends.to_pylist()
        self.spans = dict(zip(runs.values.to_pylist(), zip([0, *ends], ends, strict=False), strict=True))

    def of(self, cell_id: str) -> dict[str, list]:
        """The columns of one run; those that it lacks are left out."""
        start, end = self.spans.get(cell_id, (0, 0))
        rows = self.table.slice(start, end - start)
        return _lists(rows.select([n for n in rows.column_names if rows[n].null_count < len(rows)]))


def _record(row: dict[str, Any], requests: dict[str, list]) -> Record:
    """The record of a row of `runs` without its None, and of its requests' columns; columns of no field are left out."""
    own = {name: row[name] for name in Record.model_fields if name in row}
    for part, (model, prefix) in PARTS.items():
        held = {name: row[prefix + name] for name in model.model_fields if prefix + name in row}
        own |= {part: held} if held else {}
    known = [name for name in requests if name in Request.model_fields]
    columns = [requests[name] for name in known]
    own["requests"] = [dict(zip(known, values, strict=True)) for values in zip(*columns, strict=True)]
    return Record.model_validate(own)


class Published(Reader):
    """The tables in a folder, read when they are first asked for; nothing is changed there.

    A file that is damaged or of another version is skipped with a warning: without `runs` or `requests` there is no
    record, without `steps` no trace, without `tokens` no token ids.
    """

    @cached_property
    def _runs(self) -> pa.Table | None:
        return _read(self.folder / "runs.parquet")

    def _rows(self, name: str) -> _Rows | None:
        path = self.folder / f"{name}.parquet"
        if self._runs is None or name not in self._runs.schema.metadata[b"beside"].decode().split():
            return _Rows(pa.table({"cell_id": pa.array([], pa.string())}))
        if not path.exists():
            return _skip(path, "must lie beside runs.parquet, got no file")
        if (table := _read(path)) is None:
            return None
        if table.schema.metadata.get(b"runs") != self._runs.schema.metadata.get(b"runs"):
            return _skip(path, "must be of the same runs as runs.parquet beside it (publish them again)")
        return _Rows(table)

    @cached_property
    def _steps(self) -> _Rows | None:
        return self._rows("steps")

    @cached_property
    def _tokens(self) -> _Rows | None:
        return self._rows("tokens")

    @cached_property
    def _by_id(self) -> dict[str, Record]:
        requests, found, bad = self._rows("requests"), {}, []
        if self._runs is None or requests is None:
            return {}
        columns = _lists(self._runs)
        for values in zip(*columns.values(), strict=True):
            row = {name: value for name, value in zip(columns, values, strict=True) if value is not None}
            row["has_trace"] = row.get("has_trace", False) and self._steps is not None
            try:
                record = _record(row, requests.of(row["cell_id"]))
            except ValidationError as error:
                bad.append(" ".join(str(error).split()))
            else:
                if record.cell_id == row["cell_id"]:
                    found[record.cell_id] = record
                else:
                    bad.append(f"cell {row['cell_id']} was edited")
        if bad:
            _skip(
                self.folder / "runs.parquet",
                f"must hold whole records, got {len(bad)} that are none: {bad[0]}",
                " in part",
            )
        return found

    def trace(self, record: Record) -> Trace:
        held = self._by_id.get(record.cell_id)
        if held is None or not held.has_trace:
            raise KeyError(f"no trace is stored for engine cell {record.cell.file_stem}")
        ids = self._tokens.of(record.cell_id) if self._tokens else {}
        return Trace(steps=self._steps.of(record.cell_id), **{name: ids[name] for name in IDS if name in ids})


def open_folder(folder: Path | str) -> Reader:
    """The records in a folder: published tables, e.g. figures/data/h200, or a run's own, e.g. runs/h200/records."""
    return Published(folder) if (Path(folder) / "runs.parquet").exists() else Store(folder)


def is_published(profile: str) -> bool:
    return (data_folder(profile) / "runs.parquet").exists()


# ---- for pandas ----


def _frame(table: pa.Table | None) -> pd.DataFrame:
    """As a DataFrame, without the columns of JSON text."""
    table = pa.table({"cell_id": []}) if table is None else table
    kept = [f for f in table.schema if _form_of(f) != b"json"]
    wide = pa.schema([(f.name, pa.int64() if pa.types.is_integer(f.type) else f.type) for f in kept])
    table = table.select(wide.names).cast(wide)  # arithmetic on narrow integers would overflow
    nested = {f.name: table[f.name].to_pylist() for f in table.schema if pa.types.is_list(f.type)}
    return table.to_pandas().assign(**nested)


def frame(held: Iterable[Record]) -> pd.DataFrame:
    """One row a record: what was asked, how it ended, raw counters, monitor, resolved settings and provenance."""
    return _frame(_runs(held))


def load(profile: str) -> pd.DataFrame:
    """The committed runs of a profile, one row a run: as `frame`, without making records."""
    return _frame(_read(data_folder(profile) / "runs.parquet"))


def requests(profile: str) -> pd.DataFrame:
    """The committed runs' requests, one row each; `cell_id` leads to `load`."""
    return _frame(_read(data_folder(profile) / "requests.parquet"))


def steps(profile: str) -> pd.DataFrame:
    """The committed runs' engine steps, one row each; `cell_id` leads to `load`."""
    return _frame(_read(data_folder(profile) / "steps.parquet"))
