"""The committed records as tables: figures/data/<profile>/{runs,requests,steps}.parquet, and as DataFrames.

* `runs`: one row a run: what was asked, how it ended, raw counters, monitor, `resolved_*` and provenance. The column
  `run` is all that was asked, as JSON; every other field of a `Record` is a column of its own.
* `requests`: one row a request; `steps`: one row an engine step.

Columns are made from the fields of `Record`, `Request` and `Trace`: a field that is added there becomes a column. In
the files times of `requests` and `steps` are whole microseconds and hashes 8 bytes; all that is read from here is in
seconds and hexadecimal text.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from lib.results import metrics, records
from lib.results.records import Counters, Monitor, Provenance, Record, Request, Resolved, Store, Trace, data_folder

# Parts of a record that are spread over columns, and what their columns' names begin with.
PARTS: dict[str, tuple[type[BaseModel], str]] = {
    "counters": (Counters, ""), "monitor": (Monitor, ""), "resolved": (Resolved, "resolved_"),
    "provenance": (Provenance, ""),
}  # fmt: skip
NAMES = ("runs", "requests", "steps")


class Unreadable(UserWarning):
    """A file of a profile cannot be used; its sentence names the file and what it must be."""


class Tables(NamedTuple):
    """Runs, their requests and their engine steps; `run_id` joins them."""

    runs: pd.DataFrame
    requests: pd.DataFrame
    steps: pd.DataFrame


def flat(record: Record) -> dict[str, Any]:
    """The record as one row without its requests: what was asked, then every field that is no part."""
    run, engine, workload = record.run, record.run.engine, record.run.workload
    row = {
        "run_id": record.run_id, "plan_id": run.plan_id, "session": record.provenance.session, "setting": run.setting,
        "model": engine.model.name, "quantization": engine.model.quantization, "dtype": engine.arguments.get("dtype"),
        "workload": workload.name, "answers": workload.answers, "form": workload.form, "seed": workload.seed,
        "concurrency": run.concurrency, "num_prompts": workload.num_prompts, "input_tokens": workload.input_tokens,
        "output_tokens": run.output_tokens, "temperature": run.temperature, "suffix_cache": run.suffix_cache,
        "repeat": engine.repeat,
    }  # fmt: skip
    row |= {name: getattr(record, name) for name in Record.model_fields if name not in (*PARTS, "run", "requests")}
    for part, (model, prefix) in PARTS.items():
        row |= {prefix + name: getattr(getattr(record, part), name, None) for name in model.model_fields}
    row["run"] = run.model_dump_json(exclude_defaults=True)
    return {name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()}


def _arrow(held: Iterable[tuple[Record, Trace | None]]) -> dict[str, pa.Table]:
    """The three tables of records and their traces, in reading form."""
    held = list(held)
    requests = [
        {"run_id": r.run_id, "request": i} | dict(q) for r, _ in held for i, q in enumerate(r.requests)
    ]  # fmt: skip
    of = [
        pa.table({"run_id": [r.run_id] * len(t.steps["t_s"]), **t.steps}) for r, t in held if t is not None and t.steps
    ]
    return {
        "runs": pa.Table.from_pylist([flat(r) for r, _ in held]),
        "requests": pa.Table.from_pylist(requests),
        "steps": pa.concat_tables(of, promote_options="permissive") if of else pa.table({}),
    }


# ---- writing ----


def _stored(table: pa.Table, packed: bool) -> pa.Table:
    """In the form of the files: `packed`, times as microseconds where nothing is lost, hashes as bytes."""
    for place, field in enumerate(table.schema) if packed else ():
        column = table[place]
        if field.name.endswith("_s") and pa.types.is_floating(field.type):
            whole = pc.round(pc.multiply(column, 1e6))
            if pc.all(pc.equal(pc.divide(whole, 1e6), column)).as_py() is not False:
                table = table.set_column(place, f"{field.name.removesuffix('_s')}_us", whole.cast(pa.int64()))
        elif field.name.endswith("_hash"):
            table = table.set_column(
                place, field.name, pa.array([bytes.fromhex(v) if v else None for v in column.to_pylist()], pa.binary(8))
            )
    return table


def _packed(table: pa.Table) -> bytes:
    """One row group: text and hashes by dictionary, step times by their differences, the rest as it is under zstd."""
    words = [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_fixed_size_binary(f.type)]
    file = io.BytesIO()
    pq.write_table(
        table, file, row_group_size=max(len(table), 1), compression="zstd", compression_level=19,
        use_dictionary=words, column_encoding={"t_us": "DELTA_BINARY_PACKED"} if "t_us" in table.column_names else None,
        dictionary_pagesize_limit=2**26, data_page_size=2**26, write_page_checksum=True, write_statistics=False,
        use_compliant_nested_type=False,  # a list's items are called the same when they are read
    )  # fmt: skip
    return file.getvalue()


def write(folder: Path, tables: dict[str, pa.Table]) -> None:
    """Write the three tables into `folder`, in place of those there; equal runs make equal bytes."""
    runs = tables["runs"].sort_by([("setting", "ascending"), ("workload", "ascending"), ("run_id", "ascending")])
    order = {run_id: i for i, run_id in enumerate(runs["run_id"].to_pylist())}
    told = "\n".join("{run_id} {status} {measured}".format(**r) for r in runs.to_pylist())
    stamp = {
        "schema_version": str(records.SCHEMA_VERSION), "runs": hashlib.sha256(told.encode()).hexdigest()[:16],
    }  # fmt: skip
    for name in ("requests", "steps", "runs"):  # runs last: the others are of no use without it
        table = runs if name == "runs" else tables[name]
        if name != "runs" and len(table):
            place = np.array([order[run_id] for run_id in table["run_id"].to_pylist()])
            table = table.take(np.argsort(place, kind="stable"))
        stored = _stored(table, packed=name != "runs").replace_schema_metadata(stamp)
        records.write_atomically(folder / f"{name}.parquet", _packed(stored))


def publish(profile: str) -> int:
    """Merge the records of runs/<profile> into the committed tables; returns how many of them are ok.

    Rows of other runs stay; of two records of one run the better stands (`rank`), of two equal ones the new one.
    Raises Unreadable, and changes nothing, where a committed table cannot be read whole.
    """
    store, folder = Store(records.runs_folder(profile) / "records"), data_folder(profile)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Unreadable)
        old = {name: _read(folder, name) for name in NAMES}
    ranks = {r["run_id"]: (r["status"] == "ok", r["measured"]) for r in old["runs"].to_pylist()} if old["runs"] else {}
    new = [r for r in store.all() if records.rank(r) >= ranks.get(r.run_id, (False, ""))]
    if new:
        made, ids = _arrow((r, store.trace(r)) for r in new), pa.array([r.run_id for r in new])
        for name, table in made.items():
            held = old[name]
            if held is not None and len(held):
                kept = held.filter(pc.invert(pc.is_in(held["run_id"], ids)))
                made[name] = pa.concat_tables([kept, table], promote_options="permissive")
        write(folder, made)
    return sum(record.status == "ok" for record in store.all())


# ---- reading ----


def _skip(path: Path, why: str) -> None:
    where = Path(*path.parts[-4:])  # figures/data/<profile>/<name>.parquet
    warnings.warn(f"{where} is skipped: it {why}", Unreadable, stacklevel=4)


def _read(folder: Path, name: str) -> pa.Table | None:
    """A file with times in seconds and hashes as text; None where there is none, with a warning if it is damaged."""
    path = folder / f"{name}.parquet"
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
        if field.name.endswith("_us"):
            seconds = pc.divide(table[place].cast(pa.float64()), 1e6)
            table = table.set_column(place, f"{field.name.removesuffix('_us')}_s", seconds)
        elif pa.types.is_fixed_size_binary(field.type):
            table = table.set_column(
                place, field.name, pa.array([v.hex() if v else "" for v in table[place].to_pylist()], pa.string())
            )
    return table


def _empty() -> Tables:
    """No runs, with all columns."""
    from lib.results.run import Engine, Run, Workload

    asked = Run(
        engine=Engine(), workload=Workload(name="chat", num_prompts=1, input_tokens=1), concurrency=1, output_tokens=1
    )
    names = list(flat(Record(run=asked, status="invalid", provenance=Provenance(measured=""))))
    columns = (names, ["run_id", "request", *Request.model_fields], ["run_id", *records.STEP_COLUMNS])
    return Tables(*(pd.DataFrame(columns=c) for c in columns))


def _frame(table: pa.Table | None, empty: pd.DataFrame) -> pd.DataFrame:
    if table is None or not table.column_names:
        return empty
    nested = {f.name: table[f.name].to_pylist() for f in table.schema if pa.types.is_list(f.type)}
    return table.to_pandas().assign(**nested)


def frames(held: Iterable[tuple[Record, Trace | None]]) -> Tables:
    """Records and their traces as DataFrames."""
    made = _arrow(held)
    return _derived(Tables(*(_frame(made[n], e) for n, e in zip(NAMES, _empty(), strict=True))))


def read(profile: str) -> Tables:
    """The committed tables of a profile as DataFrames; a file that is damaged or of another version is skipped with a warning."""
    folder = data_folder(profile)
    return _derived(Tables(*(_frame(_read(folder, n), e) for n, e in zip(NAMES, _empty(), strict=True))))


def _derived(tables: Tables) -> Tables:
    return tables._replace(runs=metrics.derive(tables.runs, tables.requests))


def is_published(profile: str) -> bool:
    return (data_folder(profile) / "runs.parquet").exists()


def all_of(store: Store) -> Iterable[tuple[Record, Trace | None]]:
    """Every record of a run's own folder, with its trace."""
    return [(record, store.trace(record)) for record in store.all()]
