"""What claims are judged by, each as a table that predicates read: the study's cells, 23 real models' answers, and this
collection's committed runs against a base, one row a model, setting, workload and concurrency.

Columns `<name>_low` and `<name>_high` hold a quantity's 95 % interval where it has one. Speedups and step costs are widened
by the A/A variability beside them: what identical engines differ by is no effect.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from lib import results
from lib.ledger import published
from lib.results import stats
from lib.results.table import Tables, is_published

PROFILES = ("h200", "h200-sizes", "cpu")
BY = ["model", "workload", "concurrency"]
RESOLVED = ["runner", "async_scheduling", "cudagraph_mode"]
COUNTS = ["output", "steps", "drafts", "drafted", "accepted"]
# From sums of COUNTS [..., 5].
DRAFTING = {
    "tokens_per_step": lambda s: s[..., 0] / s[..., 1],
    "mean_acceptance_length": lambda s: 1 + s[..., 4] / s[..., 2],
    "acceptance_rate": lambda s: s[..., 4] / s[..., 3],
}


@cache
def table(source: str, settings: tuple[str, ...] = (), base: str = "vanilla") -> pd.DataFrame:
    """The evidence of a source: `published`, `models`, or a profile (of `settings`, against `base`); empty where no run was
    measured. ValueError for an unknown source."""
    if source == "published":
        return published.cells()
    if source == "models":
        return published.real_models()
    if source not in PROFILES:
        raise ValueError(f"source must be one of published, models, {', '.join(PROFILES)}, got {source!r}")
    parts = [_measured(source, setting, base) for setting in settings if is_published(source)]
    return pd.concat(parts, ignore_index=True) if any(map(len, parts)) else pd.DataFrame()


@cache
def _measured(profile: str, setting: str, base: str) -> pd.DataFrame:
    return measured(_tables(profile), setting, base)


@cache
def _tables(profile: str) -> Tables:
    runs, requests, steps = results.read(profile)
    runs = runs[(runs.status == "ok") & (runs.workload != "random")]
    return Tables(runs, *(t[t.run_id.isin(runs.run_id)] for t in (requests, steps)))


def measured(tables: Tables, setting: str, base: str = "vanilla") -> pd.DataFrame:
    """Runs of a setting over those of `base`, one row a group of BY; empty where one of them was not measured."""
    runs, requests, steps = tables
    if not {setting, base} <= set(runs.setting):
        return pd.DataFrame()
    counts, times, rows = _counts(runs, requests), _step_times(runs, steps), []
    for ratio in results.compare(runs, setting, base, BY, requests=requests).to_dict("records"):
        near = (runs[BY] == [ratio[n] for n in BY]).all(axis=1)
        tests = runs[near & (runs.setting == setting)]
        bases = runs[near & (runs.setting == base) & runs.session.isin(tests.session)]
        bases = bases if len(bases) else runs[near & (runs.setting == base)]
        rows.append({"setting": setting, "base": base} | ratio | _row(ratio, tests, bases, counts, times))
    return pd.DataFrame(rows)


def _row(ratio: dict, tests: pd.DataFrame, bases: pd.DataFrame, counts: pd.DataFrame, times: pd.DataFrame) -> dict:
    apart = 1 + (0 if np.isnan(ratio["aa"]) else ratio["aa"])
    low, high = (ratio["ratio"] if np.isnan(ratio[n]) else ratio[n] for n in ("low", "high"))
    cost = times.ms.reindex(tests.run_id).mean() / times.ms.reindex(bases.run_id).mean()
    gain = ratio["ratio"]
    row = {
        "speedup": gain, "speedup_low": min(low, gain / apart), "speedup_high": max(high, gain * apart),
        "step_cost": cost, "step_cost_low": cost / apart, "step_cost_high": cost * apart,
        "params_b": tests.resolved_num_parameters.max() / 1e9, "num_drafts": tests.num_drafts.sum(),
        "gpu_busy_pct_ratio": tests.gpu_busy_pct.mean() / bases.gpu_busy_pct.mean(),
        "gpu_busy_fall": bases.gpu_busy_pct.mean() / tests.gpu_busy_pct.mean(),
        "joules_per_token_ratio": _joules(tests) / _joules(bases),
        "graph_full_share": times.full.reindex(tests.run_id).mean(), "vllm_version": tests.resolved_vllm_version.iloc[0],
    }  # fmt: skip
    for name in RESOLVED:
        row |= {name: tests[f"resolved_{name}"].iloc[0], f"base_{name}": bases[f"resolved_{name}"].iloc[0]}
    row |= _drafting(tests, bases, counts)
    row["step_over_k"] = row["tokens_per_step"] / row["mean_acceptance_length"]
    row["acceptance_rise"] = _rise(tests)
    return row | {"longest_draft": counts[counts.run_id.isin(tests.run_id)].longest.max()}


def _rise(runs: pd.DataFrame) -> float:
    """Acceptance at positions 2 and later given the one before, less that at position 1."""
    told = [p for p in runs.num_accepted_tokens_per_pos if p is not None and len(p)]
    if not told:
        return np.nan
    held = np.array([runs.num_drafts.sum(), *np.sum(told, axis=0)])
    return held[2:].sum() / held[1:-1].sum() - held[1] / held[0] if held[1:-1].sum() else np.nan


def _joules(runs: pd.DataFrame) -> float:
    return runs.gpu_energy_j.sum(min_count=1) / runs.num_output_tokens.sum()


def _drafting(tests: pd.DataFrame, bases: pd.DataFrame, counts: pd.DataFrame) -> dict[str, float]:
    """DRAFTING of the tests and its ratio to the bases', with intervals over requests where the engine tells their steps."""
    groups = []
    for seed in tests.seed.unique():
        sides = [
            counts[counts.run_id.isin(side[side.seed == seed].run_id)].groupby("request")[COUNTS].mean()
            for side in (tests, bases)
        ]
        groups.append(np.hstack([side.reindex(sides[0].index).to_numpy() for side in sides]))
    told, against = np.isfinite(np.vstack(groups)).all(), bases.num_drafts.sum() > 0
    row = {name: tests[name].mean() for name in DRAFTING}
    for name, of in DRAFTING.items() if told else ():
        own = {name: lambda s, of=of: of(s[..., :5])}
        both = {f"{name}_ratio": lambda s, of=of: of(s[..., :5]) / of(s[..., 5:])} if against else {}
        for column, statistic in (own | both).items():
            e = stats.bootstrap(groups, statistic, resamples=300)
            row |= {column: e.value, f"{column}_low": e.low, f"{column}_high": e.high}
    return row


def _counts(runs: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """COUNTS of each request, and its longest draft; a run without a drafter has no draft, one that does not tell NaN."""
    plain = requests.run_id.isin(runs[runs.num_drafts == 0].run_id)

    def each(column: str, of) -> np.ndarray:
        held = [[] if nothing else steps for steps, nothing in zip(requests[column], plain, strict=True)]
        return np.array([np.nan if steps is None else of(steps) for steps in held], dtype=float)

    accepted = each("accepted_per_step", sum)
    return requests[["run_id", "request"]].assign(
        output=requests.num_output_tokens,
        steps=requests.num_output_tokens - accepted,
        drafts=each("drafted_per_step", np.count_nonzero),
        drafted=each("drafted_per_step", sum),
        accepted=accepted,
        longest=each("drafted_per_step", lambda steps: max(steps, default=0)),
    )


def _step_times(runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """By run: `ms`, mean time of the steps that decode only with all the concurrency running; `full`, share of decode steps
    that ran a FULL graph, of those whose graph the engine told."""
    ms = 1000 * steps.t_s.groupby(steps.run_id, sort=False).diff()
    decode = steps.prefills == 0
    whole = decode & (steps.running == steps.run_id.map(runs.set_index("run_id").concurrency))
    told = steps[decode & (steps.graph_mode != "")]
    full = (told.graph_mode == "FULL").groupby(told.run_id).mean()
    return pd.DataFrame({"ms": ms[whole].groupby(steps.run_id[whole]).mean(), "full": full})
