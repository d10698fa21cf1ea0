"""The GPU's busy share along the ladder, and what its drop consists of.

NVML's utilisation is the share of time in which at least one kernel was resident; how much of the chip that
kernel used it does not tell. With b ms of kernels and g ms of gap in a mean step it is s = b / (b + g): the
number of steps cancels, so fewer steps alone cannot lower it. A change of s between two rungs is split into
what longer gaps and what shorter kernels did (each one's mean effect over both orders of changing them; the
two add up exactly).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lib import metrics
from lib.records import Reader, Record

RUNGS = (
    "vanilla", "vanilla_v1", "vanilla_v1_sync", "null", "ngram", "padded_ngram", "suffix", "padded_suffix", "full",
)  # fmt: skip
# What changes from one rung to the next; the drafters are all compared with the null drafter.
LEVERS = {
    "vanilla_v1": ("vanilla", "the V1 runner"),
    "vanilla_v1_sync": ("vanilla_v1", "synchronous scheduling"),
    "null": ("vanilla_v1_sync", "speculation on, nothing drafted"),
    "ngram": ("null", "drafting and verifying, ngram"),
    "padded_ngram": ("null", "drafting and verifying, ngram, padded"),
    "suffix": ("null", "drafting and verifying, suffix"),
    "padded_suffix": ("null", "drafting and verifying, suffix, padded"),
    "full": ("null", "drafting and verifying, full configuration"),
}


class Rung(NamedTuple):
    """One setting over all its cells at one batch size; GPU fields are None where there is no GPU."""

    setting: str
    num_cells: int
    throughput_tok_s: float
    wall_s: float  # mean of a cell
    num_steps: float  # engine steps, mean of a cell
    step_ms: float  # wall over engine steps
    decode_ms: float  # mean decode step; NaN without traces
    tau: float
    cpu_pct: float | None  # of the engine's processes; 100 is one core
    busy_pct: float | None
    power_w: float | None
    joules_per_token: float | None
    single: tuple[Rung, ...] = ()  # the same of each cell alone

    @property
    def kernels_ms(self) -> float:
        """Time of a mean step with a kernel resident; NaN without a GPU."""
        return float("nan") if self.busy_pct is None else self.step_ms * self.busy_pct / 100

    @property
    def gap_ms(self) -> float:
        """Time of a mean step with none; NaN without a GPU."""
        return self.step_ms - self.kernels_ms


def _weighted(records: Sequence[Record], field: str) -> float | None:
    """Mean of a monitor field over the cells' time; None if any cell lacks it."""
    values = [getattr(r.monitor, field) if r.monitor is not None else None for r in records]
    if any(v is None for v in values):
        return None
    return float(np.average(values, weights=[r.wall_s for r in records]))


def _decode_ms(records: Sequence[Record], store: Reader) -> float:
    steps = [metrics.decode_steps(store.trace(r))["step_ms"] for r in records if r.has_trace]
    joined = np.concatenate(steps) if steps else np.zeros(0)
    return float(joined.mean()) if len(joined) else float("nan")


def _rung(setting: str, own: Sequence[Record], store: Reader) -> Rung:
    counters, wall = metrics.pooled(own), sum(r.wall_s for r in own)
    energy = [r.monitor.gpu_energy_j if r.monitor is not None else None for r in own]
    known = all(e is not None for e in energy)
    return Rung(
        setting=setting,
        num_cells=len(own),
        throughput_tok_s=counters.num_output_tokens / wall,
        wall_s=wall / len(own),
        num_steps=counters.num_engine_steps / len(own),
        step_ms=1000 * wall / counters.num_engine_steps,
        decode_ms=_decode_ms(own, store),
        tau=metrics.tokens_per_step(counters),
        cpu_pct=_weighted(own, "cpu_pct"),
        busy_pct=_weighted(own, "gpu_busy_pct"),
        power_w=_weighted(own, "gpu_power_w"),
        joules_per_token=sum(energy) / counters.num_output_tokens if known else None,
    )


def rungs(records: Iterable[Record], store: Reader, batch_size: int) -> dict[str, Rung]:
    """The ladder's rungs at one batch size, in the ladder's order; settings without a good record lack."""
    good = [r for r in records if r.status == "ok" and r.cell.batch_size == batch_size]
    found = {}
    for setting in RUNGS:
        own = [r for r in good if r.cell.setting == setting]
        if not own:
            continue
        single = tuple(_rung(setting, [r], store) for r in own)
        found[setting] = _rung(setting, own, store)._replace(single=single)
    return found


class Cause(NamedTuple):
    """Change of the busy share from one rung to the next, in percent points, and its two parts."""

    rung: str
    lever: str
    points: float
    from_gaps: float
    from_kernels: float


def split(before: tuple[float, float], after: tuple[float, float]) -> tuple[float, float]:
    """(points from gaps, points from kernels) of a change in busy share; arguments: (kernels, gap), ms."""

    def share(kernels: float, gap: float) -> float:
        return 100 * kernels / (kernels + gap)

    (b0, g0), (b1, g1) = before, after
    gaps = (share(b0, g1) - share(b0, g0) + share(b1, g1) - share(b1, g0)) / 2
    kernels = (share(b1, g0) - share(b0, g0) + share(b1, g1) - share(b0, g1)) / 2
    return gaps, kernels


def causes(found: Mapping[str, Rung]) -> list[Cause]:
    """The busy share's changes along the ladder; empty without a GPU. A missing rung is stepped over."""
    out = []
    for name, (previous, lever) in LEVERS.items():
        while previous not in found and previous in LEVERS:
            previous = LEVERS[previous][0]
        if name not in found or previous not in found:
            continue
        a, b = found[previous], found[name]
        if a.busy_pct is None or b.busy_pct is None:
            continue
        gaps, kernels = split((a.kernels_ms, a.gap_ms), (b.kernels_ms, b.gap_ms))
        out.append(Cause(name, lever, b.busy_pct - a.busy_pct, gaps, kernels))
    return out
