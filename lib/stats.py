"""Paired ratios and seeded bootstrap intervals: seeds are resampled first, prompts within them second."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from lib import metrics
from lib.records import Record

NUM_RESAMPLES = 2000
ROUND_S = 2 * 3600  # records further apart in time are of two rounds: the machine may be another one
_DRAWS_AT_ONCE = 2**20  # rows gathered in one call: 8 MB a column
MIN_DEGREES = 2  # two cells alone have one, whose quantile of 12.7 says nothing about anything


class Estimate(NamedTuple):
    """A value with its 95 % interval and the number of independent units behind it."""

    value: float
    low: float
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        """`[fill][align][width][.precision type]`: the width is that of the whole text, the rest of each number."""
        width, number = re.fullmatch(r"((?:.?[<>^])?\d*)((?:\.\d+)?[a-z]?)", spec).groups()
        number = number or ".2f"
        interval = f" [{self.low:{number}}, {self.high:{number}}]" if np.isfinite(self.low) else f" (n={self.n})"
        return format(f"{self.value:{number}}{interval}", width)

    def __str__(self) -> str:
        return format(self, "")


def bootstrap(
    groups: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Percentile interval of a function of the rows' sums, resampling groups (seeds), then rows (prompts) within them.

    groups: one array a seed, each of shape [prompts, columns]; statistic: of sums [..., columns], gives [...]. Raises
    ValueError without data.
    """
    groups = [np.asarray(g, dtype=float) for g in groups if len(g)]
    if not groups:
        raise ValueError("groups holds no data, allowed: at least one non-empty group")
    rng = np.random.default_rng(seed)
    drawn = _alike_sums(groups, resamples, rng) if len({len(g) for g in groups}) == 1 else _sums(groups, resamples, rng)
    rows = np.concatenate(groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanpercentile(statistic(drawn), [2.5, 97.5])
        value = statistic(rows.sum(axis=0))
    return Estimate(float(value), float(low), float(high), len(rows))


def _sums(groups: Sequence[np.ndarray], resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Column sums [resamples, columns] of groups drawn with replacement, and of rows drawn within each."""
    found = np.empty((resamples, groups[0].shape[1]))
    for i in range(resamples):
        chosen = rng.integers(len(groups), size=len(groups))
        found[i] = sum(groups[j][rng.integers(len(groups[j]), size=len(groups[j]))].sum(axis=0) for j in chosen)
    return found


def _alike_sums(groups: Sequence[np.ndarray], resamples: int, rng: np.random.Generator) -> np.ndarray:
    """As `_sums`, for groups of one size: the same draws, many of them summed in one call."""
    columns, number, size = np.concatenate(groups).T.copy(), len(groups), len(groups[0])
    found = np.empty((resamples, len(columns)))
    highs = np.repeat([number, size], [number, number * size])  # of one resample: groups, then rows within each
    at_once = max(1, _DRAWS_AT_ONCE // len(highs))
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        drawn = rng.integers(np.broadcast_to(highs, (count, len(highs))))
        drawn = drawn[:, number:] + np.repeat(drawn[:, :number] * size, size, axis=1)
        found[start : start + count] = np.stack([column[drawn].sum(axis=1) for column in columns], axis=1)
    return found


def _ratio_of_sums(sums: np.ndarray) -> np.ndarray:
    """First column's sum over the second's; NaN where that is 0."""
    return np.where(sums[..., 1] == 0, np.nan, sums[..., 0] / sums[..., 1])


def same_machine(a: Record, b: Record) -> bool:
    """Whether two records name the same processor, number of cores and GPU."""
    return all(getattr(a.provenance, x) == getattr(b.provenance, x) for x in ("cpu", "num_cpus", "gpu"))


def same_round(a: Record, b: Record) -> bool:
    """Whether two records were measured within `ROUND_S` of each other on machines that cannot be told apart: the same
    kind, with as many GPUs, and the same GPUs where the records tell."""
    alike = all(getattr(a.provenance, x) == getattr(b.provenance, x) for x in ("num_gpus", "machine"))
    return alike and same_machine(a, b) and near(a.provenance.measured, b.provenance.measured)


def near(first: str, second: str) -> bool:
    """Whether two times of measurement (ISO) lie within `ROUND_S`."""
    apart = datetime.fromisoformat(first) - datetime.fromisoformat(second)
    return abs(apart.total_seconds()) <= ROUND_S


def rounds(records: Iterable[Record]) -> list[list[Record]]:
    """Records by round of measurement, the earliest first; a long round is a chain in which each record is near the next."""
    found: list[list[Record]] = []
    for r in sorted(records, key=lambda r: r.provenance.measured):
        own = round_of(r, found)
        found.append([r]) if own is None else found[own].append(r)
    return found


def round_of(record: Record, rounds: Sequence[Sequence[Record]]) -> int | None:
    """Which of `rounds` a record belongs to: the first that holds a record of the same round; None for none."""
    return next((i for i, members in enumerate(rounds) if any(same_round(m, record) for m in members)), None)


def bases_of(test: Record, bases: Sequence[Record]) -> list[Record]:
    """The bases with the prompts, batch and output rule of `test`, from the same kind of machine: of its own round where
    that has any, and of its own repeat where it is a repeat.
    """

    def key(r: Record) -> tuple:  # what is quick to compare and mostly differs comes first
        w = r.cell.workload
        return (r.cell.batch_size, w.seed, w.name, r.cell.output_tokens, r.cell.ignore_eos, w)

    found = [b for b in bases if test.status == b.status == "ok" and key(b) == key(test) and same_machine(test, b)]
    found = [b for b in found if same_round(test, b)] or found
    repeat = test.cell.engine.repeat
    return [b for b in found if b.cell.engine.repeat == repeat] or found if repeat else found


def beside(tests: Iterable[Record], bases: Sequence[Record]) -> list[Record]:
    """The tests whose prompts a base of their own round answered too."""
    return [t for t in tests if any(same_round(t, b) for b in bases_of(t, bases))]


def pair(tests: Sequence[Record], bases: Sequence[Record]) -> list[tuple[Record, Record]]:
    """(test, base) records of the same prompts, batch and output rule: the base's first repeat, a repeat's own."""
    return [(t, min(arms, key=lambda b: b.cell.engine.repeat)) for t in tests if (arms := bases_of(t, bases))]


def speedup(tests: Sequence[Record], bases: Sequence[Record], *, seed: int = 0) -> Estimate:
    """Throughput of `tests` over that of `bases` on the same prompts (ratio of pooled output tokens a second).

    Where a base was repeated (the A/A arms), a test is compared with the mean of its repeats of the test's own round.
    The interval comes from paired requests: base TPOT over test TPOT as a ratio of means, resampled over seeds, then
    prompts, and scaled to the throughput ratio. With several cells, the spread between the cells' own ratios widens it
    (Student's t, for two cells with the two degrees of freedom of three): the larger of the two relative half-widths is
    taken. A single cell's interval knows nothing of how identical engines differ. Raises ValueError if nothing pairs.
    """
    pairs = [(t, arms) for t in tests if (arms := bases_of(t, bases))]
    if not pairs:
        raise ValueError("tests and bases share no prompts, allowed: records of the same workload, seed and batch size")
    tokens = np.array(
        [[t.counters.num_output_tokens, np.mean([b.counters.num_output_tokens for b in arms])] for t, arms in pairs]
    )
    walls = np.array([[t.wall_s, np.mean([b.wall_s for b in arms])] for t, arms in pairs])
    value = float((tokens[:, 0].sum() / walls[:, 0].sum()) / (tokens[:, 1].sum() / walls[:, 1].sum()))
    groups = []
    for test, arms in pairs:
        rows = np.column_stack([np.mean([metrics.tpot_ms(b) for b in arms], axis=0), metrics.tpot_ms(test)])
        groups.append(rows[np.isfinite(rows).all(axis=1)])
    groups = [g for g in groups if len(g)]
    if not groups:
        return Estimate(value, float("nan"), float("nan"), len(pairs))
    requests = bootstrap(groups, _ratio_of_sums, seed=seed)
    low, high = np.log(requests.low / requests.value), np.log(requests.high / requests.value)
    if len(pairs) > 1:
        cells = np.log((tokens[:, 0] / walls[:, 0]) / (tokens[:, 1] / walls[:, 1]))
        half = stdtrit(max(len(cells) - 1, MIN_DEGREES), 0.975) * cells.std(ddof=1) / np.sqrt(len(cells))
        low, high = min(low, -half), max(high, half)
    return Estimate(value, float(value * np.exp(low)), float(value * np.exp(high)), requests.n)


def throughput(records: Sequence[Record]) -> Estimate:
    """Pooled output tokens a second; the interval spans the cells (normal on the log scale), NaN for one cell."""
    good = [r for r in records if r.status == "ok"]
    tokens = np.array([r.counters.num_output_tokens for r in good], float)
    walls = np.array([r.wall_s for r in good])
    value = float(tokens.sum() / walls.sum())
    if len(good) < 2:
        return Estimate(value, float("nan"), float("nan"), len(good))
    half = 1.96 * np.log(tokens / walls).std(ddof=1) / np.sqrt(len(good))
    return Estimate(value, float(value * np.exp(-half)), float(value * np.exp(half)), len(good))


def _per_request(records: Sequence[Record], rows: Callable[[Record], np.ndarray]) -> list[np.ndarray]:
    return [rows(r) for r in records if r.status == "ok" and r.requests and r.requests[0].accepted_per_step is not None]


def mean_acceptance_length(records: Sequence[Record], *, seed: int = 0) -> Estimate:
    """K with an interval over seeds, then prompts, where the engine tells per-request counts; else without one."""
    value = metrics.mean_acceptance_length(metrics.pooled(records))

    def rows(r: Record) -> np.ndarray:
        return np.array(
            [[sum(q.accepted_per_step) + len(q.drafted_per_step), len(q.drafted_per_step)] for q in r.requests]
        )

    groups = _per_request(records, rows)
    if not groups or not sum(g[:, 1].sum() for g in groups):
        return Estimate(value, float("nan"), float("nan"), sum(len(r.requests) for r in records))
    return bootstrap(groups, _ratio_of_sums, seed=seed)


def acceptance_rate(records: Sequence[Record], *, seed: int = 0) -> Estimate:
    """a with an interval over seeds, then prompts, where the engine tells per-request counts; else without one."""
    value = metrics.acceptance_rate(metrics.pooled(records))

    def rows(r: Record) -> np.ndarray:
        return np.array([[sum(q.accepted_per_step), sum(q.drafted_per_step)] for q in r.requests])

    groups = _per_request(records, rows)
    filled = any(r.counters and r.counters.num_filling_tokens for r in records)
    if filled or not groups or not sum(g[:, 1].sum() for g in groups):
        return Estimate(value, float("nan"), float("nan"), sum(len(r.requests) for r in records))
    return bootstrap(groups, _ratio_of_sums, seed=seed)


def noise_floor(
    arms: Sequence[Sequence[Record]],
    *,
    over: Literal["cell", "workload", "batch"] = "cell",
    otherwise: float | None = None,
) -> float:
    """Largest |log ratio| of the throughputs of identical cells in two arms (A/A): what a log speedup must exceed.

    Arms of two rounds are not compared, as `speedup` does not either.
    `over`: of single engine cells; of a workload's seeds at a batch size, or of everything at a batch size, for ratios
    that pool as much.
    Without two arms that share a cell it is `otherwise`, or ValueError where that is None.
    """
    logs = []
    for index, tests in enumerate(arms):
        for bases in arms[index + 1 :]:
            groups: dict[tuple, list[tuple[Record, Record]]] = {}
            for test, base in _identical(tests, bases):
                w = test.cell.workload
                name = {"cell": w, "workload": w.name, "batch": ""}[over]
                outputs = test.cell.output_tokens if over == "cell" else None
                groups.setdefault((name, test.cell.batch_size, outputs), []).append((test, base))
            logs += [np.log(_pooled_rate(t for t, _ in g) / _pooled_rate(b for _, b in g)) for g in groups.values()]
    if not logs and otherwise is None:
        raise ValueError("arms holds no pair of identical cells, allowed: at least two repeats of one cell")
    return float(np.max(np.abs(logs))) if logs else otherwise


def noise_floors(arms: Sequence[Sequence[Record]]) -> dict[int, float]:
    """The noise floor over a workload's seeds by batch size, where two arms share a cell."""
    found = {}
    for batch in sorted({r.cell.batch_size for arm in arms for r in arm}):
        there = [[r for r in arm if r.cell.batch_size == batch] for arm in arms]
        found[batch] = noise_floor(there, over="workload", otherwise=float("nan"))
    return {batch: floor for batch, floor in found.items() if np.isfinite(floor)}


def _pooled_rate(records: Iterable[Record]) -> float:
    records = list(records)
    return sum(r.counters.num_output_tokens for r in records) / sum(r.wall_s for r in records)


def _identical(tests: Sequence[Record], bases: Sequence[Record]) -> list[tuple[Record, Record]]:
    same = {(b.cell.workload, b.cell.batch_size, b.cell.output_tokens): b for b in bases if b.status == "ok"}
    found = (
        (t, same.get((t.cell.workload, t.cell.batch_size, t.cell.output_tokens))) for t in tests if t.status == "ok"
    )
    return [(t, b) for t, b in found if b is not None and same_round(t, b)]
