"""Results as tables for pandas, and the one place that forms ratios of them.

    from lib import results
    runs = results.load("h200")                          # one row a run
    results.compare(runs, "ngram", by=["workload", "concurrency"])

`requests` and `steps` give the rows of single requests and engine steps. Ratios are formed within a measuring session
(one boot of one host and its GPUs); where a session lacks the other side, the row says `across_sessions`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.results import settings, stats, table
from lib.results.records import ROOT
from lib.results.table import Tables

__all__ = [
    "ROOT",
    "Tables",
    "color",
    "compare",
    "label",
    "load",
    "read",
    "requests",
    "step_times",
    "steps",
    "variability",
]

# What makes two runs answer the same requests.
QUESTION = [
    "model", "quantization", "dtype", "answers", "workload", "form", "seed", "concurrency", "num_prompts",
    "input_tokens", "output_tokens", "temperature",
]  # fmt: skip
COLUMNS = ["ratio", "low", "high", "n_runs", "n_requests", "aa", "across_sessions"]


def _good(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs that ended well; ValueError if one is there twice, or none. A run that names no session is of one of its own."""
    if runs.empty:
        raise ValueError("runs must hold at least one run, got none (publish the profile first)")
    twice = runs.loc[runs.duplicated("run_id"), "run_id"]
    if len(twice):
        raise ValueError(
            f"runs must hold each run once, got {twice.iloc[0]} {(runs.run_id == twice.iloc[0]).sum()} times"
        )
    good = runs[runs.status == "ok"]
    session = good["session"] if "session" in good else pd.Series(None, good.index, dtype=object)
    return good.assign(session=session.fillna("unknown " + good.run_id)).fillna({"quantization": "", "dtype": ""})


def compare(
    runs: pd.DataFrame, test: str, base: str = "vanilla", by: Sequence[str] = ("workload", "concurrency"), *,
    requests: pd.DataFrame | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Throughput of setting `test` over setting `base` on the same requests, one row a group of `by`.

    ratio: output tokens a second, the base's as the mean of its repeats. low, high: 95 % interval over requests (their
    time per output token, as `stats.bootstrap` resamples it; what engines differ by is not in them), NaN without `requests`.
    n_requests: different ones. aa: how far repeated runs, of any setting, of the group's sessions, models and concurrencies
    differ at most (0.01: 1 %); of other concurrencies where none of these was repeated, NaN without any. Raises ValueError
    for an unknown setting or a run counted twice.
    """
    good, by = _good(runs), [by] if isinstance(by, str) else list(by)
    for name in (test, base):
        if name not in set(good.setting):
            raise ValueError(f"setting must be one of {', '.join(sorted(set(good.setting)))}, got {name!r}")
    floors = variability(runs)
    bases = dict(tuple(good[good.setting == base].groupby(QUESTION)))
    rows = []
    for key, group in good[good.setting == test].groupby(by):
        pairs = [(run, _bases(run, bases)) for _, run in group.iterrows()]
        pairs = [(run, held) for run, held in pairs if len(held)]
        if not pairs:
            continue
        ratio = _pooled([run for run, _ in pairs]) / _pooled([held.mean(numeric_only=True) for _, held in pairs])
        low, high = _interval(pairs, requests, ratio)
        near = floors[floors.session.isin(group.session) & floors.model.isin(group.model)]
        near = near if (own := near[near.concurrency.isin(group.concurrency)]).empty else own
        across = any(run.session not in set(held.session) for run, held in pairs)
        number = group.drop_duplicates(QUESTION).num_prompts.sum()
        values = (ratio, low, high, len(pairs), number, near.aa.max(), across)
        rows.append(dict(zip(by, key, strict=True)) | dict(zip(COLUMNS, values, strict=True)))
    return pd.DataFrame(rows, columns=[*by, *COLUMNS])


def _bases(run: pd.Series, bases: dict[tuple, pd.DataFrame]) -> pd.DataFrame:
    """The base's runs on the same requests: of the run's own session where it has any."""
    held = bases.get(tuple(run[QUESTION]), pd.DataFrame({"session": []}))
    own = held[held.session == run.session]
    return own if len(own) else held


def _pooled(runs: list[pd.Series]) -> float:
    """Output tokens a second over several runs."""
    return sum(r.num_output_tokens for r in runs) / sum(r.wall_s for r in runs)


def _interval(pairs: list, requests: pd.DataFrame | None, ratio: float) -> tuple[float, float]:
    if requests is None:
        return np.nan, np.nan
    ids: dict[tuple, tuple[list, list]] = {}  # repeats answer the same requests: their times are averaged
    for run, held in pairs:
        tests, bases = ids.setdefault(tuple(run[QUESTION]), ([], []))
        tests.append(run.run_id)
        bases += list(held.run_id)
    groups = [
        pd.concat([_tpot(requests, bases), _tpot(requests, tests)], axis=1).dropna().to_numpy()
        for tests, bases in ids.values()
    ]
    if not any(map(len, groups)):
        return np.nan, np.nan
    drawn = stats.bootstrap(groups, lambda sums: sums[..., 0] / sums[..., 1])
    return ratio * drawn.low / drawn.value, ratio * drawn.high / drawn.value


def _tpot(requests: pd.DataFrame, run_ids: Sequence[str]) -> pd.Series:
    """Seconds per output token of each request, the mean over runs; NaN for one token."""
    own = requests[requests.run_id.isin(list(run_ids))]
    spans = (own.last_token_s - own.first_token_s) / (own.num_output_tokens - 1).where(own.num_output_tokens > 1)
    return spans.groupby(own.request).mean()


def variability(runs: pd.DataFrame) -> pd.DataFrame:
    """A/A variability: how far repeats of one setting differ on the same requests within a session.

    One row a repeated run: `session`, `setting`, QUESTION, `n_runs`, `aa` = highest over lowest throughput less 1.
    """
    groups = _good(runs).groupby(["session", "setting", *QUESTION]).tok_s
    spread = pd.DataFrame({"n_runs": groups.size(), "aa": groups.max() / groups.min() - 1})
    return spread[spread.n_runs > 1].reset_index()


def step_times(steps: pd.DataFrame) -> pd.DataFrame:
    """One row a run: `decode_ms`, mean time of the steps that decode only; `mixed_ms`, of those that read a prompt, too;
    `num_mixed_steps` and `mixed_share` of the run's time."""
    ms = 1000 * steps.t_s.groupby(steps.run_id, sort=False).diff().fillna(steps.t_s)
    mixed = (steps.prefills != 0).rename("mixed")
    sums = ms.groupby([steps.run_id, mixed]).agg(["sum", "size"]).unstack(fill_value=0).reindex(
        columns=pd.MultiIndex.from_product([["sum", "size"], [False, True]]), fill_value=0
    )  # fmt: skip
    total, number = sums["sum"], sums["size"]
    return pd.DataFrame({
        "decode_ms": total[False] / number[False].where(number[False] > 0),
        "mixed_ms": total[True] / number[True].where(number[True] > 0),
        "num_mixed_steps": number[True], "mixed_share": total[True] / total.sum(axis=1),
    }).reset_index()  # fmt: skip


def read(profile: str) -> Tables:
    """The committed runs of a profile, their requests and their steps."""
    return table.read(profile)


def load(profile: str) -> pd.DataFrame:
    """The committed runs of a profile, one row a run, with derived columns (`metrics.derive`)."""
    return read(profile).runs


def requests(profile: str) -> pd.DataFrame:
    """The committed runs' requests, one row each; `run_id` leads to `load`."""
    return read(profile).requests


def steps(profile: str) -> pd.DataFrame:
    """The committed runs' engine steps, one row each; `run_id` leads to `load`."""
    return read(profile).steps


def label(setting: str) -> str:
    """The display name of a setting; its own name where neither the menu nor the notebook's profile has it."""
    return settings.named(setting).label


def color(setting: str) -> str:
    """The colour of a setting in every figure; grey where neither the menu nor the notebook's profile has it."""
    return settings.named(setting).color
