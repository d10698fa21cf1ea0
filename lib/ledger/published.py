"""The published study's measurements as a table: numbers only, in this collection's words.

Source, licence and limits: figures/data/published/README.md. Counters are sums over whole runs; what the study printed (one
log interval of about ten seconds) stands in columns that begin with `printed_`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.results.records import ROOT

FOLDER = ROOT / "figures" / "data" / "published"
SOURCE_LINE = "published cells · 70B, 72B and 32B on 8 x H100, Phi-3-medium 14B on 1 · n = 1 run each"
MAIN_MODEL = "Llama-3.3-70B"
SINGLES = ("sonnet", "chat", "code")
# Prompts of each single workload in a mix, of 500: what the study states for its own runs.
MIXES = {
    "mix-sh": {"sonnet": 300, "chat": 100, "code": 100},
    "mix-bal": {"sonnet": 170, "chat": 165, "code": 165},
    "mix-ch": {"sonnet": 50, "chat": 100, "code": 350},
}
WORKLOADS = (*SINGLES, *MIXES)
# Where a campaign has no vanilla run of its own: those the study compares it with, in order of preference.
BASE_CAMPAIGNS = {
    "SUB_044": ("SUB_086",), "SUB_074": ("SUB_086",), "SUB_075": ("SUB_071", "SUB_086"), "SUB_085": ("SUB_086",),
    "SUB_085v2": ("SUB_086",), "SUB_087": ("SUB_086",), "SUB_088": ("SUB_079", "SUB_078"), "SUB_089": ("SUB_086",),
}  # fmt: skip


class Reference(NamedTuple):
    """A published value and the text that stands beside its mark in a figure."""

    value: float
    text: str


@cache
def cells() -> pd.DataFrame:
    """Every run of the study, one row each, with what follows from its counts. NaN: not recorded by the study.

    `main`: a cell of the article's own matrix; `setting`: vanilla, ngram or suffix (there: the study's configuration).
    `speedup` is over the vanilla run of the same campaign, else over that of BASE_CAMPAIGNS; its `_low` and `_high` are off by
    what the study's only unchanged repeats differ by (`noise`). `step_cost` is R = tokens per step / speedup, ramp-up and tail
    included; `verified` the tokens that a request-step verifies; `mean_acceptance_length_ratio` and `acceptance_rate_ratio`
    are suffix's over ngram's.
    """
    rows = _with_totals(pd.read_csv(FOLDER / "cells.csv"))
    drafts, drafted = rows.num_drafts, rows.num_draft_tokens
    steps = rows.num_output_tokens - rows.num_accepted_tokens
    rows = rows.assign(
        setting=rows.method,
        tokens_per_step=rows.num_output_tokens / steps,
        mean_acceptance_length=1 + rows.num_accepted_tokens / drafts,
        acceptance_rate=rows.num_accepted_tokens / drafted,
        draft_coverage=drafts / steps,
        verified=1 + drafted / steps,
        joules_per_token=rows.gpu_power_w / rows.throughput_tok_s,
        mean_prompt_tokens=rows.num_prompt_tokens / rows.num_prompts,
        mean_output_tokens=rows.num_output_tokens / rows.num_prompts,
    )
    rows["step_over_k"] = rows.tokens_per_step / rows.mean_acceptance_length
    base = rows.reindex([_base(rows, row) for row in rows.itertuples()]).set_axis(rows.index)
    rows["speedup"] = rows.throughput_tok_s / base.throughput_tok_s
    rows["speedup_low"], rows["speedup_high"] = rows.speedup / (1 + _noise(rows)), rows.speedup * (1 + _noise(rows))
    rows["step_cost"] = rows.tokens_per_step / rows.speedup
    for name in ("wall_s", "gpu_busy_pct", "joules_per_token"):
        rows[f"{name}_ratio"] = rows[name] / base[name]
    rows["gpu_busy_fall"] = 1 / rows.gpu_busy_pct_ratio
    suffix, ngram = (rows[rows.main & (rows.method == m)].set_index(["model", "workload"]) for m in ("suffix", "ngram"))
    for name in ("mean_acceptance_length", "acceptance_rate"):
        over = suffix[name] / ngram[name].reindex(suffix.index)
        rows.loc[rows.main & (rows.method == "suffix"), f"{name}_ratio"] = over.to_numpy()
    return rows


def _with_totals(rows: pd.DataFrame) -> pd.DataFrame:
    """The cells, and for each model and method of the matrix one row `all six`: sums, and means weighted by wall time."""
    rows["main"] = rows.in_study & (rows.arrangement == "one-engine")
    made = []
    for _, group in rows[rows.main & rows.workload.isin(WORKLOADS)].groupby(["model", "method"]):
        if len(group) == len(WORKLOADS):
            sums = group[["num_prompts", "num_prompt_tokens", "num_output_tokens", "wall_s"]].sum()
            means = {n: np.average(group[n], weights=group.wall_s) for n in ("gpu_busy_pct", "gpu_power_w")}
            speed = sums.num_output_tokens / sums.wall_s
            whole = {"gpu_busy_process_pct": group.gpu_busy_process_pct.mean(), "throughput_tok_s": speed}
            fixed = group.iloc[0][["campaign", "arrangement", "model", "params_b", "method", "status"]]
            made.append({**fixed, **sums, **means, **whole, "workload": "all six", "main": False, "in_study": False})
    return pd.concat([rows, pd.DataFrame(made)], ignore_index=True)


def _base(rows: pd.DataFrame, row) -> int:
    """Index of the vanilla run that a run is compared with; -1 (no row) where the study has none."""
    for campaign in (row.campaign, *BASE_CAMPAIGNS.get(row.campaign, ())):
        found = rows[
            (rows.campaign == campaign) & (rows.model == row.model) & (rows.workload == row.workload)
            & (rows.arrangement == row.arrangement) & (rows.method == "vanilla")
        ]  # fmt: skip
        if len(found) == 1:
            return found.index[0]
    return -1


def _noise(rows: pd.DataFrame) -> float:
    speeds = rows[rows.campaign == "SUB_089"].throughput_tok_s
    return speeds.max() / speeds.min() - 1


def noise() -> float:
    """Spread of throughput between the runs that the study repeated with nothing changed (three runs)."""
    return _noise(cells())


def main(model: str | None = MAIN_MODEL) -> pd.DataFrame:
    """The cells of the article's matrix (one engine, one run each), of one model or of all (None)."""
    held = cells()[cells().main]
    return held if model is None else held[held.model == model]


def main_cell(workload: str, method: str, *, model: str = MAIN_MODEL) -> pd.Series:
    """The matrix's cell; `study` and `full` name its suffix cell. LookupError if it has none."""
    method = "suffix" if method in ("study", "full") else method
    found = main(model).query("workload == @workload and method == @method")
    if len(found) != 1:
        raise LookupError(f"workload, method, model must name a cell of the matrix, got {workload}, {method}, {model}")
    return found.iloc[0]


def drafting() -> pd.DataFrame:
    """The cells with whole-run counts of drafts: four models, two drafters, six workloads."""
    return cells().dropna(subset=["num_drafts"])


def value(workload: str, method: str, quantity: str, *, model: str = MAIN_MODEL) -> Reference | None:
    """The study's value of `quantity` (a column of `cells`) as a reference mark for a figure; None where it has none."""
    if quantity not in cells():
        raise ValueError(f"quantity must be a column of the published cells, got {quantity!r}")
    try:
        cell = main_cell(workload, method, model=model)
    except LookupError:
        return None
    if pd.isna(cell[quantity]):
        return None
    where = f"{model}, {cell.num_gpus:.0f} x {cell.gpu.split()[0]}"
    return Reference(float(cell[quantity]), f"published: {where}, n = 1 run of {cell.num_prompts:.0f} requests")


def memory_ratio(method: str, mix: str, model: str = MAIN_MODEL) -> float:
    """Tokens per step of a mix over what its prompts take in the single workloads; above 1 where the drafter had seen the
    answers before."""
    parts = [(n, main_cell(name, method, model=model)) for name, n in MIXES[mix].items()]
    tokens = sum(n * c.num_output_tokens for n, c in parts)
    steps = sum(n * (c.num_output_tokens - c.num_accepted_tokens) for n, c in parts)
    return main_cell(mix, method, model=model).tokens_per_step / (tokens / steps)


@cache
def real_models() -> pd.DataFrame:
    """What drafters find in the published answers of 23 real models to chat, by model and method."""
    names = {"method": "setting", "K": "mean_acceptance_length"}
    rows = pd.read_csv(FOLDER / "acceptance_by_model.csv").rename(columns=names)
    return rows.assign(
        acceptance_rate=rows.num_accepted_tokens / rows.num_draft_tokens,
        step_over_k=rows.tokens_per_step / rows.mean_acceptance_length,
    )
