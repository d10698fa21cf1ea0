"""The published study's engine cells as data: numbers only, in this collection's words, checked as they are
read.

Source, licence and limits: figures/data/published/README.md. Derived quantities come from `metrics`, over the
counters summed over the whole run; the values that the study printed (one log interval) are kept apart under
`printed_`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationError, model_validator

from lib import metrics
from lib.cells import WORKLOADS, Frozen
from lib.records import ROOT, Counters

PATH = ROOT / "figures" / "data" / "published" / "cells.csv"
SOURCE_LINE = "published cells · 70B, 72B and 32B on 8 x H100, Phi-3-medium 14B on 1 · n = 1 run each"
MAIN_MODEL, MAIN_CAMPAIGN = "Llama-3.3-70B", "SUB_093"
SINGLES = ("sonnet", "chat", "code")
# Prompts of each single workload in a mix, of 500: what the study states for its own runs.
MIXES: Mapping[str, Mapping[str, int]] = {
    "mix-sh": {"sonnet": 300, "chat": 100, "code": 100},
    "mix-bal": {"sonnet": 170, "chat": 165, "code": 165},
    "mix-ch": {"sonnet": 50, "chat": 100, "code": 350},
}


# Where a campaign has no vanilla run of its own: those the study compares it with, in order of preference.
BASE_CAMPAIGNS: Mapping[str, tuple[str, ...]] = {
    "SUB_044": ("SUB_086",),
    "SUB_074": ("SUB_086",),
    "SUB_075": ("SUB_071", "SUB_086"),
    "SUB_085": ("SUB_086",),
    "SUB_085v2": ("SUB_086",),
    "SUB_087": ("SUB_086",),
    "SUB_088": ("SUB_079", "SUB_078"),
    "SUB_089": ("SUB_086",),
}


class PublishedCell(Frozen):
    """One run of one workload under one setting. `None`: not recorded by the study."""

    campaign: str  # the study's own name for a series of runs
    date: str
    arrangement: Literal["one-engine", "two-engines-http", "quoted"]  # quoted: the study cites it
    in_study: bool  # one of the cells that the article counts
    model: str
    params_b: float = Field(gt=0)  # billions of parameters
    tensor_parallel: int | None = Field(default=None, ge=1)
    gpu: str
    num_gpus: int = Field(ge=1)
    workload: str
    method: Literal["vanilla", "ngram", "suffix", "router"]
    num_speculative_tokens: int | None = Field(default=None, ge=1)
    prompt_lookup_min: int | None = Field(default=None, ge=1)
    prompt_lookup_max: int | None = Field(default=None, ge=1)
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL_AND_PIECEWISE"] | None = None
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    max_num_seqs: int | None = Field(default=None, ge=1)
    kv_cache_dtype: str | None = None
    num_prompts: int | None = Field(default=None, ge=1)
    input_tokens_nominal: int | None = Field(default=None, ge=1)  # as stated, not as measured
    output_cap: int | None = Field(default=None, ge=1)
    run: int = Field(ge=1)
    patched: bool
    disturbed: bool
    status: Literal["ok", "oom", "crashed"]
    num_prompt_tokens: int | None = Field(default=None, ge=0)
    num_output_tokens: int | None = Field(default=None, ge=0)
    wall_s: float | None = Field(default=None, gt=0)
    throughput_tok_s: float | None = Field(default=None, gt=0)
    num_drafts: int | None = Field(default=None, ge=0)
    num_draft_tokens: int | None = Field(default=None, ge=0)
    num_accepted_tokens: int | None = Field(default=None, ge=0)
    printed_mean_acceptance_length: float | None = Field(default=None, ge=1)
    printed_acceptance_rate: float | None = Field(default=None, ge=0, le=1)
    last_interval_mean_acceptance_length: float | None = Field(default=None, ge=1)
    min_interval_mean_acceptance_length: float | None = Field(default=None, ge=1)
    max_interval_mean_acceptance_length: float | None = Field(default=None, ge=1)
    gpu_busy_process_pct: float | None = Field(default=None, ge=0, le=100)  # start-up included
    gpu_busy_pct: float | None = Field(default=None, ge=0, le=100)  # while this workload was generating
    gpu_power_w: float | None = Field(default=None, gt=0)  # all GPUs, while generating
    cpu_process_pct: float | None = Field(default=None, ge=0, le=100)
    cpu_pct: float | None = Field(default=None, ge=0, le=100)
    concurrency: int | None = Field(default=None, ge=1)
    latency_p50_s: float | None = Field(default=None, gt=0)
    latency_p99_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> PublishedCell:
        if (self.status == "ok") != (self.throughput_tok_s is not None):
            raise ValueError(
                f"throughput_tok_s is {self.throughput_tok_s}, allowed with status {self.status}: the other"
            )
        counts = (self.num_drafts, self.num_draft_tokens, self.num_accepted_tokens)
        if any(c is None for c in counts) != all(c is None for c in counts):
            raise ValueError(f"num_drafts, num_draft_tokens, num_accepted_tokens are {counts}, allowed: all or none")
        if self.num_accepted_tokens is not None and self.num_accepted_tokens > self.num_draft_tokens:
            raise ValueError(
                f"num_accepted_tokens is {self.num_accepted_tokens}, "
                f"allowed: at most num_draft_tokens ({self.num_draft_tokens})"
            )
        return self

    @property
    def has_counters(self) -> bool:
        """Whether whole-run drafting counters are known (vanilla needs none)."""
        return self.num_output_tokens is not None and (self.method == "vanilla" or self.num_drafts is not None)

    @property
    def counters(self) -> Counters:
        """Counters for `metrics`; request-steps are output - accepted. ValueError if the study logged
        none."""
        if not self.has_counters:
            raise ValueError(f"{self.label} has no whole-run counters, allowed: a cell whose has_counters is true")
        accepted = self.num_accepted_tokens or 0
        return Counters(
            num_output_tokens=self.num_output_tokens,
            num_prompt_tokens=self.num_prompt_tokens or 0,
            num_drafts=self.num_drafts or 0,
            num_draft_tokens=self.num_draft_tokens or 0,
            num_accepted_tokens=accepted,
            num_engine_steps=0,  # not in the logs
            num_request_steps=self.num_output_tokens - accepted,
            request_steps_source="output_minus_accepted",
        )

    @property
    def label(self) -> str:
        return f"{self.campaign} {self.model} {self.workload} {self.method}"

    @property
    def hardware(self) -> str:
        return f"{self.num_gpus} x {self.gpu.split()[0]}"


class Reference(NamedTuple):
    """A published value and the text that stands beside its mark in a figure."""

    value: float
    text: str


@cache
def cells() -> tuple[PublishedCell, ...]:
    """All cells of the study. Raises ValueError, one sentence, if a row is not valid."""
    return read(PATH)


def read(path: Path) -> tuple[PublishedCell, ...]:
    """Cells of a file in the schema of `PublishedCell`; empty fields are None."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for number, row in enumerate(rows, start=2):
        try:
            found.append(PublishedCell.model_validate({key: value for key, value in row.items() if value != ""}))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            why = first["msg"].removeprefix("Value error, ")
            value = f" is {first['input']!r}" if where else ""
            raise ValueError(
                f"{path.name} line {number}: {where}{value}{', allowed: ' if where else ''}{why}"
            ) from None
    return tuple(found)


def select(source: Iterable[PublishedCell] | None = None, **fields: Any) -> list[PublishedCell]:
    """Cells whose fields equal what is given; a tuple allows several values. ValueError for an unknown
    field."""
    for name in fields:
        if name not in PublishedCell.model_fields:
            raise ValueError(
                f"{name} is no field of a published cell, allowed: {', '.join(PublishedCell.model_fields)}"
            )

    def fits(cell: PublishedCell) -> bool:
        return all(
            getattr(cell, name) in wanted if isinstance(wanted, tuple) else getattr(cell, name) == wanted
            for name, wanted in fields.items()
        )

    return [cell for cell in (cells() if source is None else source) if fits(cell)]


def one(**fields: Any) -> PublishedCell:
    """The single cell with these fields; LookupError if there is none or more than one."""
    found = select(**fields)
    if len(found) != 1:
        raise LookupError(f"{fields} fits {len(found)} published cells, allowed: exactly one")
    return found[0]


@cache
def main_cell(workload: str, method: str, *, model: str = MAIN_MODEL) -> PublishedCell:
    """The cell of the article's own matrix (one engine, one run); LookupError if it has none."""
    found = select(model=model, workload=workload, method=method, arrangement="one-engine", in_study=True)
    if len(found) != 1:
        raise LookupError(f"{model} {workload} {method} fits {len(found)} cells of the matrix, allowed: exactly one")
    return found[0]


def speculative_cells() -> list[PublishedCell]:
    """The cells with whole-run drafting counters: four models, two drafters, six workloads."""
    return [cell for cell in cells() if cell.num_drafts is not None]


@cache
def baseline(cell: PublishedCell) -> PublishedCell:
    """The vanilla run of the same model and workload in its campaign, else in BASE_CAMPAIGNS; LookupError if
    none."""
    for campaign in (cell.campaign, *BASE_CAMPAIGNS.get(cell.campaign, ())):
        found = select(
            campaign=campaign,
            model=cell.model,
            workload=cell.workload,
            arrangement=cell.arrangement,
            method="vanilla",
        )
        if len(found) == 1:
            return found[0]
    raise LookupError(f"{cell.label} has no vanilla run, allowed: a cell of a campaign with one, or of BASE_CAMPAIGNS")


def speedup(test: PublishedCell, base: PublishedCell | None = None) -> float:
    """Throughput of `test` over that of `base` (default: its `baseline`)."""
    return test.throughput_tok_s / (base or baseline(test)).throughput_tok_s


def step_cost(cell: PublishedCell) -> float:
    """R as the identity speedup = tau / R gives it: tokens per step over the speedup (ramp-up and tail
    included)."""
    return metrics.tokens_per_step(cell.counters) / speedup(cell)


class CostFit(NamedTuple):
    """R of a model's cells against the tokens verified a request and step: its range, and a straight line."""

    num_cells: int
    lowest: float
    highest: float
    slope: float
    r_squared: float


def step_costs() -> dict[str, dict[str, list[tuple[float, float]]]]:
    """(verified tokens a request and step, R) of every cell with counters, by drafter and model."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {"ngram": {}, "suffix": {}}
    for cell in speculative_cells():
        point = (verified_per_request_step(cell), step_cost(cell))
        found[cell.method].setdefault(cell.model, []).append(point)
    return found


def step_cost_fits() -> dict[str, CostFit]:
    """A straight line through both drafters' points of each model."""
    fits = {}
    by_drafter = step_costs()
    for model in by_drafter["ngram"]:
        x, y = np.array([*by_drafter["ngram"][model], *by_drafter["suffix"][model]]).T
        slope, _ = np.polyfit(x, y, 1)
        r_squared = float(np.corrcoef(x, y)[0, 1] ** 2)
        fits[model] = CostFit(len(x), float(y.min()), float(y.max()), float(slope), r_squared)
    return fits


def verified_per_request_step(cell: PublishedCell) -> float:
    """Tokens that a request-step verifies on average: its own and the drafted ones."""
    c = cell.counters
    return 1 + c.num_draft_tokens / c.num_request_steps


def predicted_tau(parts: Iterable[tuple[float, Counters]]) -> float:
    """Tokens per step of prompts mixed with the given weights: weighted tokens over weighted
    request-steps."""
    parts = list(parts)
    return sum(w * c.num_output_tokens for w, c in parts) / sum(w * c.num_request_steps for w, c in parts)


def predicted_mix_tau(model: str, method: str, mix: str) -> float:
    """Tokens per step of a mix if its prompts behaved as in the single workloads."""
    return predicted_tau((n, main_cell(name, method, model=model).counters) for name, n in MIXES[mix].items())


def memory_ratio(model: str, method: str, mix: str) -> float:
    """Measured over predicted tokens per step of a mix; above 1 where the drafter had seen the answers
    before."""
    measured = metrics.tokens_per_step(main_cell(mix, method, model=model).counters)
    return measured / predicted_mix_tau(model, method, mix)


def predicted_mix_throughput(model: str, method: str, mix: str) -> float:
    """Throughput of a mix from the single workloads: prompt-weighted tokens over prompt-weighted wall
    time."""
    parts = [(share, main_cell(name, method, model=model)) for name, share in MIXES[mix].items()]
    return sum(s * c.num_output_tokens for s, c in parts) / sum(s * c.wall_s for s, c in parts)


def speedups_by_output_cap(method: str = "ngram") -> dict[str, list[tuple[int, float]]]:
    """(output cap, speedup) of the article's model by workload, rising: three series of runs that differ in
    the cap."""
    found: dict[str, list[tuple[int, float]]] = {}
    for campaign in ("REC1", "REC1v2", MAIN_CAMPAIGN):
        for cell in select(campaign=campaign, model=MAIN_MODEL, method=method, workload=SINGLES):
            found.setdefault(cell.workload, []).append((cell.output_cap, speedup(cell)))
    return {name: sorted(found[name]) for name in SINGLES if name in found}


@cache
def noise() -> float:
    """Largest relative spread of throughput between runs that the study repeated with nothing changed (three
    runs)."""
    speeds = [cell.throughput_tok_s for cell in select(campaign="SUB_089")]
    return max(speeds) / min(speeds) - 1


def total_wall_s(method: str, *, model: str = MAIN_MODEL) -> float:
    """Wall time of the six workloads of a model together, s."""
    return sum(main_cell(workload, method, model=model).wall_s for workload in WORKLOADS)


def total_throughput_tok_s(method: str, *, model: str = MAIN_MODEL) -> float:
    """Output tokens of the six workloads of a model over their wall time."""
    tokens = sum(main_cell(workload, method, model=model).num_output_tokens for workload in WORKLOADS)
    return tokens / total_wall_s(method, model=model)


# What `value` can tell, each from one cell.
QUANTITIES = {
    "throughput_tok_s": lambda cell: cell.throughput_tok_s,
    "wall_s": lambda cell: cell.wall_s,
    "speedup": speedup,
    "mean_acceptance_length": lambda cell: metrics.mean_acceptance_length(cell.counters),
    "acceptance_rate": lambda cell: metrics.acceptance_rate(cell.counters),
    "draft_coverage": lambda cell: metrics.draft_coverage(cell.counters),
    "tokens_per_step": lambda cell: metrics.tokens_per_step(cell.counters),
    "step_cost": step_cost,
    "gpu_busy_pct": lambda cell: cell.gpu_busy_pct,
    "gpu_busy_process_pct": lambda cell: cell.gpu_busy_process_pct,
    "gpu_power_w": lambda cell: cell.gpu_power_w,
    "joules_per_token": lambda cell: cell.gpu_power_w and cell.gpu_power_w / cell.throughput_tok_s,
    "mean_output_tokens": lambda cell: cell.num_output_tokens / cell.num_prompts,
    "mean_prompt_tokens": lambda cell: cell.num_prompt_tokens / cell.num_prompts,
}


def value(workload: str, method: str, quantity: str, *, model: str = MAIN_MODEL) -> Reference | None:
    """The article's value of `quantity` (a key of QUANTITIES) for a reference mark, or None where it has
    none.

    `method` is vanilla, ngram, suffix, or full (the article's full configuration, which is its suffix cell).
    Counts are over the whole run. Raises ValueError for an unknown quantity.
    """
    if quantity not in QUANTITIES:
        raise ValueError(f"quantity is {quantity!r}, allowed: {', '.join(QUANTITIES)}")
    try:
        cell = main_cell(workload, "suffix" if method == "full" else method, model=model)
        number = QUANTITIES[quantity](cell)
    except (LookupError, ValueError):
        return None
    if number is None or math.isnan(number):
        return None
    text = f"published: {cell.model}, {cell.hardware}, n = 1 run of {cell.num_prompts} requests"
    return Reference(float(number), text)


def printed(
    workload: str, method: str, quantity: Literal["mean_acceptance_length", "acceptance_rate"]
) -> Reference | None:
    """What the article prints for K or a of a workload: one log interval near the end of a run, None where it
    has none."""
    campaign = {"ngram": "SUB_075", "suffix": "SUB_085v2"}.get(method)  # the sources that its figure 4 names
    found = select(campaign=campaign, workload=workload, method=method)
    number = getattr(found[0], f"printed_{quantity}") if found else None
    if number is None:
        return None
    return Reference(number, f"as printed: {found[0].model}, {found[0].hardware}, one log interval")
