"""The seeded bootstrap over clusters: seeds are resampled first, requests within them second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

NUM_RESAMPLES = 2000


class Estimate(NamedTuple):
    """A value with its 95 % interval and the number of independent units behind it."""

    value: float
    low: float
    high: float
    n: int


def bootstrap(
    groups: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Percentile interval of a function of the rows' sums, resampling groups (seeds), then rows (requests) within them.

    groups: one array a seed, each of shape [requests, columns]; statistic: of sums [..., columns], gives [...]. Raises
    ValueError without data.
    """
    groups = [np.asarray(g, dtype=float) for g in groups if len(g)]
    if not groups:
        raise ValueError("groups must hold at least one that is not empty, got none")
    rng = np.random.default_rng(seed)
    drawn = _sums(groups, resamples, rng)
    rows = np.concatenate(groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanpercentile(statistic(drawn), [2.5, 97.5])
        value = statistic(rows.sum(axis=0))
    return Estimate(float(value), float(low), float(high), len(rows))


def _sums(groups: Sequence[np.ndarray], resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Column sums [resamples, columns] of groups drawn with replacement, and of rows drawn within each: how often each is
    drawn is multinomial."""
    often = rng.multinomial(len(groups), np.full(len(groups), 1 / len(groups)), resamples)
    return sum(
        rng.multinomial(often[:, j] * len(rows), np.full(len(rows), 1 / len(rows))) @ rows
        for j, rows in enumerate(groups)
    )
