"""Many engine cells: the whole collection of a profile as one plan, run with one command.

`python -m lib sweep params/x.yaml` shows the plan first, measures what the store lacks and names what failed. The
notebooks measure the same cells through the same code, so a swept profile leaves them nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lib import engines, fanout, ladder, records, steptime
from lib.cells import Cell
from lib.params import ParamsError, Profile
from lib.records import Reader, Record
from lib.table import Published

PARTS = ("01", "02", "03", "04", "05", "08")  # 06 and 07 measure nothing of their own


class PlannedEngine(NamedTuple):
    """One engine process of a plan: its cells and, where earlier records tell, its estimated minutes."""

    setting: str
    model: str
    num_gpus: int
    num_cells: int
    minutes: float | None


def collection(p: Profile, parts: Iterable[str] = PARTS, held: Iterable[Record] = ()) -> dict[str, list[Cell]]:
    """The engine cells of the notebooks, by notebook number; a cell that several notebooks share is in each.

    `held`: records that tell how often drafts are accepted; without them the synthetic cells cannot be planned.
    """
    held = list(held)
    made = {}
    for part in parts:
        if part not in PARTS:
            raise ParamsError(f"--only is {part!r}, allowed: {', '.join(PARTS)}")
        made[part] = (
            steptime.cells(p) + ladder.synthetic_cells(p, held) if part == "05" else ladder.notebook_cells(p, part)
        )
    return made


def choose(cells: Mapping[str, list[Cell]], settings: Iterable[str] | None) -> list[Cell]:
    """The cells of all parts, each once, optionally of some settings only; ParamsError for a setting none has."""
    by_id = {c.cell_id: c for part in cells.values() for c in part}
    if settings is None:
        return list(by_id.values())
    known = {c.setting for c in by_id.values()}
    for name in settings:
        if name not in known:
            raise ParamsError(f"--settings holds {name!r}, allowed: {', '.join(sorted(known))}")
    order = list(settings)
    chosen = [c for c in by_id.values() if c.setting in order]
    # repeats last: the A/A arm then brackets the run and shows drift
    return sorted(chosen, key=lambda c: (c.engine.repeat, order.index(c.setting)))


def plan(
    cells: Iterable[Cell], store: Reader, retry: Iterable[str], history: Iterable[Reader] = ()
) -> list[PlannedEngine]:
    """What a run would start, one row an engine, with minutes estimated from records of the same model."""
    past = [r for s in (store, *history) for r in s.all() if r.status == "ok"]
    starts, walls = {}, {}
    for r in past:
        starts.setdefault(r.cell.engine.model.name, []).append(r.engine_start_s or 0)
        key = (r.cell.engine.model.name, r.cell.batch_size, r.cell.output_tokens)
        walls.setdefault(key, []).append(r.wall_s)
    planned = []
    for group in engines.plan(cells, store, retry):
        model, seconds = group[0].engine.model.name, None
        if model in starts:
            keys = [(model, c.batch_size, c.output_tokens) for c in group]
            if all(key in walls for key in keys):
                seconds = max(starts[model]) + sum(sum(walls[key]) / len(walls[key]) for key in keys)
        gpus = group[0].engine.tensor_parallel_size * group[0].engine.pipeline_parallel_size
        minutes = None if seconds is None else seconds / 60
        planned.append(PlannedEngine(group[0].setting, model, gpus, len(group), minutes))
    return planned


def describe(planned: list[PlannedEngine]) -> str:
    """The plan as a table with its totals."""
    lines = [f"{'engine':22} {'model':24} {'GPUs':>4} {'cells':>6} {'minutes':>8}"]
    for e in planned:
        minutes = "unknown" if e.minutes is None else f"{e.minutes:.1f}"
        lines.append(f"{e.setting:22} {e.model:24} {e.num_gpus:4d} {e.num_cells:6d} {minutes:>8}")
    known = sum(e.minutes or 0 for e in planned)
    unknown = sum(e.minutes is None for e in planned)
    cells = sum(e.num_cells for e in planned)
    told = f"{known:.0f} minutes estimated" if not unknown else (
        f"at least {known:.0f} minutes, {unknown} engines without an earlier record" if known
        else "minutes unknown: no earlier record")  # fmt: skip
    lines.append(f"{len(planned)} engines, {cells} engine cells, {told}")
    return "\n".join(lines)


def run(p: Profile, cells: list[Cell], retry: Iterable[str], ray: str | None = None) -> list[Record]:
    """Measure what is missing, here or over the Ray cluster `ray`; the records of all of `cells`."""
    store = engines.run(cells, p, retry=retry) if ray is None else fanout.run(cells, p, address=ray, retry=retry)
    return [r for r in (store.get(c) for c in cells) if r is not None]


def outcome(ended: Iterable[Record]) -> str:
    """Records by model and setting as a table: how many ended how, and what the good ones' engines produced."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for r in ended:
        groups.setdefault((r.cell.engine.model.name, r.cell.setting), []).append(r)
    lines = [f"{'setting':22} {'model':24} {'ok':>4} {'failed':>7} {'minutes':>8} {'tokens/s':>9}"]
    for (model, name), group in groups.items():
        good = [r for r in group if r.status == "ok"]
        seconds, tokens = sum(r.wall_s for r in good), sum(r.counters.num_output_tokens for r in good)
        rate = f"{tokens / seconds:.0f}" if seconds else ""
        lines.append(f"{name:22} {model:24} {len(good):4d} {len(group) - len(good):7d} {seconds / 60:8.1f} {rate:>9}")
    return "\n".join(lines)


def history(p: Profile) -> list[Reader]:
    """Readers whose records tell how long a cell takes: the committed ones of the profile."""
    return [Published(records.data_folder(p.profile))]
