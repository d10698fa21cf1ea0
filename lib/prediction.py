"""Predicted speedups: step-time law + drafter replay, and how they compare with what was measured.

The replay tells how many tokens every step of a setting verifies and emits, the law what such a step costs on
a machine. The time of a setting is the sum over its steps

    t(step) = law(B, V, context) + prompt tokens x prompt_ms + extra_ms(drafter, B)        [ms]

and its speedup is the plain run's sum over that. `prompt_ms` and `extra_ms` (drafting on the host, longer
contexts) come from runs with real prompts in the same folder of records, where there are any.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from lib import ladder, metrics, replay, stats, steptime
from lib.cells import Cell, Speculative, engine_key
from lib.records import ROOT, Reader, Record, Resolved, Trace
from lib.replay import Replayed, Simulation, Stream
from lib.stats import Estimate
from lib.steptime import Law, Regime
from lib.table import open_folder

PAYS, NOT, CLOSE, BEYOND = "pays", "does not pay", "too close to call", "beyond the measured grid"
NUM_RESAMPLES = 500
POOL_FROM = 4_000_000  # tokens to replay from which several processes are started
MIN_POOLED = 12  # steps behind a point of a law that is fitted to runs with real prompts
# a cell that forces NONE upon every step has none of the regimes that the laws tell apart
CHOSEN_MODES = (None, "PIECEWISE", "FULL", "FULL_AND_PIECEWISE")
MEMORY_ON = ", memory on"
SLACK = 0.05  # by which a step may lie beyond the measured grid's ends and still count as inside
OUTSIDE = 0.05  # share of decode time outside the measured grid beyond which no verdict is given


class NoLawError(ValueError):
    """A folder of records does not hold the law that was asked for; one sentence says what it holds."""


# ---- what a step costs ----


def drafter_of(speculative: Speculative | None) -> str:
    """The name under which a drafter's own cost is kept: vLLM's method, or the class for `custom_class`.

    A suffix drafter that remembers answered requests keeps one tree more, so it has a name of its own.
    """
    if speculative is None:
        return "vanilla"
    if speculative.method == "suffix" and speculative.suffix_decoding_max_cached_requests:
        return speculative.method + MEMORY_ON
    return speculative.drafter or speculative.method


def is_grid(record: Record) -> bool:
    """Whether a record belongs to the step-time grid (random prompts) and not to a workload."""
    return record.cell.workload.name == "random"


@dataclass(frozen=True)
class Costs:
    """What steps cost on one machine with one model.

    prompt_ms: a prompt token. extra_ms[drafter]: (batch size, ms a step) that real prompts and the drafter
    itself add to the law; linear between, from (0, 0). noise[batch size]: |log ratio| that identical engine
    cells show there (A/A), empty if unknown.
    """

    vanilla: Law
    drafter: Law
    prompt_ms: float
    extra_ms: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    noise: Mapping[int, float] = field(default_factory=dict)
    runner: Literal["V1", "V2"] = "V1"  # of vLLM's own ngram
    notes: tuple[str, ...] = ()

    def noise_at(self, batch_size: int) -> float:
        """The floor of the measured batch size nearest by factor, the larger one of two; NaN if none was measured."""
        near = sorted((abs(np.log(batch_size / batch)), -floor) for batch, floor in self.noise.items())
        return -near[0][1] if near else float("nan")

    def extra(self, drafter: str, running: np.ndarray) -> np.ndarray:
        """ms that `drafter` adds to steps with `running` requests; if unmeasured, what a plain run adds.

        A suffix drafter that was measured only with its memory on, or off, costs the same with it off, or on.
        """
        other = drafter.removesuffix(MEMORY_ON) if drafter.endswith(MEMORY_ON) else drafter + MEMORY_ON
        known = (drafter, other, "vanilla")
        points = next((self.extra_ms[name] for name in known if name in self.extra_ms), ())
        batches, ms = zip((0.0, 0.0), *points, strict=True)
        return np.interp(running, batches, ms)


def _on_the_host(extra_ms: Mapping[str, tuple[tuple[float, float], ...]]) -> dict[str, tuple[tuple[float, float], ...]]:
    """What drafting itself adds, whatever the model: each drafter's extra above the cheapest one's, never negative."""
    drafting = {name: points for name, points in extra_ms.items() if name != "vanilla"}
    found = {"vanilla": ()}
    for name, points in drafting.items():
        least = [min(np.interp(batch, *zip(*other, strict=True)) for other in drafting.values()) for batch, _ in points]
        found[name] = tuple((batch, max(ms - low, 0.0)) for (batch, ms), low in zip(points, least, strict=True))
    return found


class _Timed(NamedTuple):
    """A replay with its step times, ms [steps] by part; `outside`: share of decode time beyond the grid."""

    replayed: Replayed
    parts: dict[str, np.ndarray]
    errors: dict[str, float]  # relative standard error of each part
    outside: float

    @property
    def total_ms(self) -> float:
        return float(sum(part.sum() for part in self.parts.values()))


class Graphs(NamedTuple):
    """The CUDA graphs of an engine: whether FULL ones are among them, the tokens of the largest (vLLM's upper default), and
    whether FULL ones hold steps of any composition and not uniform ones alone."""

    full: bool = True
    largest: int = 512
    any_step: bool = False

    @classmethod
    def of_cell(cls, cell: Cell, resolved: Resolved | None) -> Graphs:
        """Those that the engine captured, where its record tells; else those that were asked for."""
        asked = cell.engine.max_cudagraph_capture_size or AS_SHIPPED.largest
        mode = cell.engine.cudagraph_mode if resolved is None else resolved.cudagraph_mode
        sizes = () if resolved is None else resolved.cudagraph_capture_sizes
        return cls(mode != "PIECEWISE", max(sizes, default=asked), mode == "FULL")

    @classmethod
    def for_any_step(cls, batch_size: int, num_speculative_tokens: int) -> Graphs:
        """FULL ones for steps of any composition, up to that of a full batch of drafts; never fewer than as shipped."""
        return cls(True, max(cls().largest, ladder.capture_size(batch_size, num_speculative_tokens)), True)


AS_SHIPPED = Graphs()


def _modes(law: Law, steps: Mapping[str, np.ndarray], tokens: np.ndarray, graphs: Graphs = AS_SHIPPED) -> np.ndarray:
    """The graph mode of each step: FULL if captured for it, else PIECEWISE, NONE beyond the largest graph.

    A mode without a law is replaced by the law's nearest one.
    """
    wanted = np.where((steps["uniform"] > 0) & graphs.full | graphs.any_step, "FULL", "PIECEWISE")
    wanted = np.where(tokens > graphs.largest, "NONE", wanted)
    nearest = {
        "FULL": ("FULL", "PIECEWISE", "NONE"), "PIECEWISE": ("PIECEWISE", "NONE", "FULL"),
        "NONE": ("NONE", "PIECEWISE", "FULL"),
    }  # fmt: skip
    chosen = {mode: next((m for m in order if m in law.modes), law.modes[0]) for mode, order in nearest.items()}
    return np.vectorize(chosen.get, otypes=[object])(wanted)


def _outside(regime: Regime, batch: np.ndarray, verified: np.ndarray) -> np.ndarray:
    """Which steps lie outside the measured grid of a regime."""
    found = np.zeros(len(batch), bool)
    for name, values in (("batch", batch), ("verified", verified), ("per_request", verified / batch)):
        low, high = getattr(regime.grid, name)
        found |= (values < low * (1 - SLACK)) | (values > high * (1 + SLACK))
    return found


def time_steps(replayed: Replayed, law: Law, costs: Costs, drafter: str, graphs: Graphs = AS_SHIPPED) -> _Timed:
    """Step times of a replay under a law."""
    steps = replayed.steps
    decoding, pure = steps["running"] - steps["prefills"], steps["prompt_tokens"] == 0
    batch = np.maximum(decoding, 1)  # a step that only reads prompts still costs a step's fixed part
    verified = np.maximum(decoding + steps["draft_tokens"], 1)
    context = np.where(decoding > 0, steps["context_tokens"] / batch, np.mean(_grid_context(law)))
    parts = {
        "prompt": costs.prompt_ms * steps["prompt_tokens"],
        "extra": costs.extra(drafter, steps["running"]),
    }
    errors = {"prompt": 0.0, "extra": 0.0}
    # a prompt read beside drafts can outgrow the largest graph: the step is then as slow as one without graphs
    modes, beyond = _modes(law, steps, decoding + steps["draft_tokens"] + steps["prompt_tokens"], graphs), 0.0
    for mode in sorted(set(modes)):
        regime = law.regime(mode)
        at = modes == mode
        ms = np.where(at, regime.step_ms(batch, verified, context), 0.0)
        beyond += ms[at & pure & _outside(regime, batch, verified)].sum()
        name = f"{law.setting} {mode}"
        parts[name] = ms
        # the median of the absolute value of a normal variable is 0.6745 of its standard deviation
        errors[name] = float("nan") if regime.held_out_error is None else regime.held_out_error / 0.6745
    decode = sum(parts[name][pure].sum() for name in parts if name not in ("prompt", "extra"))
    return _Timed(replayed, parts, errors, float(beyond / decode) if decode else 0.0)


def _grid_context(law: Law) -> tuple[float, float]:
    return law.regimes[0].grid.context or (0.0, 0.0)


@dataclass(frozen=True)
class _Observed:
    """A run with real prompts: its decode steps, and those that read prompts, as arrays of equal length."""

    record: Record
    decode: Mapping[str, np.ndarray]  # running, verified, graph_mode, step_ms
    reading: Mapping[str, np.ndarray]  # decoding, graph_mode, step_ms; empty for runs that speculate

    @property
    def label(self) -> str:
        return steptime.model_label(self.record.cell.engine)

    @property
    def workload(self) -> str:
        return self.record.cell.workload.name

    @property
    def drafter(self) -> str:
        return drafter_of(self.record.cell.engine.speculative)

    def extra_ms(self, law: Law) -> float:
        """ms by which a full-batch decode step exceeds the law; NaN with too few steps.

        In proportion to the running requests, so that all decode steps together take as long as they did.
        """
        running, verified, modes, step_ms = self.decode.values()
        if len(running) < steptime.MIN_STEPS:
            return float("nan")
        beyond = (step_ms - _law_ms(law, running, verified, modes)).sum()
        return float(self.record.cell.batch_size * beyond / running.sum())

    def prompts_ms(self, law: Law) -> float:
        """ms that the steps that read prompts took beyond the law."""
        decoding, modes, step_ms = (self.reading[name] for name in ("decoding", "graph_mode", "step_ms"))
        return float((step_ms - _law_ms(law, decoding, decoding, modes)).sum())


def _observe(record: Record, trace: Trace) -> _Observed:
    steps = metrics.decode_steps(trace)
    decode = {name: steps[name] for name in ("running", "verified", "graph_mode", "step_ms")}
    columns = {name: np.asarray(values) for name, values in trace.steps.items()}
    plain = record.cell.engine.speculative is None
    at = columns["prefills"] != 0 if plain else np.zeros(len(columns["prefills"]), bool)
    reading = {
        "decoding": np.maximum(columns["running"] - np.maximum(columns["prefills"], 0), 1)[at],
        "graph_mode": columns["graph_mode"][at],
        "step_ms": 1000 * np.diff(columns["t_s"], prepend=0.0)[at],
    }
    return _Observed(record, decode, reading)


def _law_ms(law: Law, batch: np.ndarray, verified: np.ndarray, modes: np.ndarray) -> np.ndarray:
    """The law's step times where the engine told the graph modes; one without a law takes the last regime's."""
    context, ms = np.mean(_grid_context(law)), np.zeros(len(batch))
    for mode in sorted(set(map(str, modes))):
        at = modes == mode
        regime = law.regime(mode if mode in law.modes else law.modes[-1])
        ms[at] = regime.step_ms(batch[at], verified[at], context)
    return ms


def _rows(observed: Iterable[_Observed]) -> list[steptime.Row]:
    """Points for a law from decode steps of real runs: medians over steps of about one batch and draft length.

    A bucket spans a factor of the square root of 2 in either; contexts are not told apart. Rows of drafting steps go
    under the name of the grid's drafter.
    """
    pooled: dict[tuple, list[tuple[float, float, float]]] = {}
    first: dict[tuple, Record] = {}
    for o in observed:
        setting = "vanilla" if o.drafter == "vanilla" else "walking"
        eager = o.record.resolved is not None and o.record.resolved.enforce_eager
        for running, verified, mode, ms in zip(*o.decode.values(), strict=True):
            told = str(mode) or ("NONE" if eager else steptime.UNTOLD)
            buckets = (round(2 * np.log2(running)), round(2 * np.log2(verified / running)))
            key = (setting, told, o.workload, *buckets)
            pooled.setdefault(key, []).append((running, verified / running, ms))
            first.setdefault(key, o.record)
    rows = []
    for (setting, mode, *_), steps in sorted(pooled.items()):
        if len(steps) >= MIN_POOLED:
            batch, each, ms = np.median(np.array(steps, float), axis=0)
            record = first[(setting, mode, *_)]
            rows.append(
                steptime.Row(
                    model=steptime.model_label(record.cell.engine), hardware=steptime.hardware_of(record),
                    setting=setting, mode=mode, batch=round(batch), verified=round(batch) * each, context=1.0, step_ms=ms,
                    low_ms=ms, high_ms=ms, num_steps=len(steps), parameters_b=steptime.parameters_b(record),
                )
            )  # fmt: skip
    return rows


def rows_of_runs(records: Iterable[Record], store: Reader) -> list[steptime.Row]:
    """Points for a law from the decode steps of runs with real prompts that kept a trace, as `Survey.laws` uses them."""
    return _rows([_observe(r, store.trace(r)) for r in records if r.status == "ok" and r.has_trace])


def _left_out_error(laws: Mapping[str, Law]) -> float:
    """The larger of both sides' errors on held-out points; unknown is worst."""
    errors = [laws[name].relative_error for name in ("vanilla", "walking")]
    return max(np.inf if np.isnan(e) else e for e in errors)


_CHEAP = {"vanilla", "NullDrafter", "PaddedNgram", "ngram"}


@dataclass(frozen=True)
class Survey:
    """A folder of records read once: the laws of its models, and what real prompts cost beyond them."""

    grid: Mapping[str, Sequence[steptime.Row]]  # points from random prompts, by model label
    observed: tuple[_Observed, ...]
    noise: Mapping[str, Mapping[int, float]]  # A/A floor of ratios that pool seeds, by model label and batch size
    cell_noise: Mapping[str, float]  # A/A floor of single engine cells
    runners: Mapping[str, Literal["V1", "V2"]]
    parameters_b: Mapping[str, float]  # billions; 0 where unknown
    # laws by model and runs, shared by what `of_round` gives
    _fitted: dict[tuple, Mapping[str, Law]] = field(default_factory=dict, compare=False)

    def real(self, label: str, without: str | None = None) -> list[_Observed]:
        """Runs of a model with real prompts, without those of one workload."""
        return [o for o in self.observed if o.label == label and o.workload != without]

    def of_round(self, record: Record) -> Survey:
        """This survey with the real prompts of `record`'s own round alone, where a plain run of another workload is among
        them.

        A machine's host is not equally fast in every round. The grid of random prompts stays whole.
        """
        within = tuple(o for o in self.observed if stats.same_round(o.record, record))
        others = (o for o in within if o.workload != record.cell.workload.name)
        plain = {o.label for o in others if o.drafter == "vanilla"}
        return replace(self, observed=within) if steptime.model_label(record.cell.engine) in plain else self

    def laws(self, label: str, without: str | None = None) -> Mapping[str, Law]:
        """A model's laws by setting: of its grid of random prompts, of its runs with real prompts, or of both.

        Of the three, the one that does best on points left out of its fit.
        """
        real = self.real(label, without)
        key = (label, *(o.record.cell_id for o in real))
        if key not in self._fitted:
            self._fitted[key] = self._fit(self.grid.get(label, ()), real)
        return self._fitted[key]

    @staticmethod
    def _fit(grid: Sequence[steptime.Row], real: Sequence[_Observed]) -> Mapping[str, Law]:
        # a drafter's own time is no part of the law, so cheap drafters come first
        cheap = [o for o in real if o.drafter in _CHEAP]
        runs = _rows(cheap if len({o.drafter for o in cheap}) > 1 else real)
        # contexts are not told apart in runs with real prompts
        both = [row.model_copy(update={"context": 1.0}) for row in grid if row.setting in ("vanilla", "walking")] + runs
        fitted = [steptime.laws(rows) for rows in (grid, runs, both) if rows]
        options = [laws for laws in fitted if {"vanilla", "walking"} <= set(laws)]
        return min(options, key=_left_out_error, default={})

    @property
    def complete(self) -> list[str]:
        """Labels of the models whose law has a plain and a drafting side, smallest first."""
        labels = sorted(self.parameters_b, key=lambda label: (self.parameters_b[label], label))
        return [label for label in labels if {"vanilla", "walking"} <= set(self.laws(label))]

    def costs(self, model: str | None = None, *, without: str | None = None) -> Costs:
        """The costs of one model, needed by its label where there are several.

        without: a workload whose runs are not looked at, so that its speedups are predicted blindly. Raises
        NoLawError.
        """
        known = self.complete
        if not known:
            raise NoLawError("law holds no step times, allowed: a folder with the grid of notebook 05")
        if model is None and len(known) > 1:
            raise NoLawError(f"law holds several models, allowed: one of {', '.join(known)} (--law-model)")
        label = model or known[0]
        if label not in known:
            raise NoLawError(f"law model is {label!r}, allowed: {', '.join(known)}")
        laws, real = self.laws(label, without), self.real(label, without)
        if not {"vanilla", "walking"} <= set(laws):
            raise NoLawError(f"law of {label} lacks points, allowed: the whole grid of notebook 05")
        notes, groups = [], {}
        if laws["vanilla"].regimes[0].grid.context == (1.0, 1.0):
            notes.append(f"The law of {label} comes from runs with real prompts, not from a grid of step times alone.")
        for o in real:
            extra = o.extra_ms(laws["vanilla" if o.drafter == "vanilla" else "walking"])
            if np.isfinite(extra):
                groups.setdefault(o.drafter, {}).setdefault(o.record.cell.batch_size, []).append(extra)
        extra_ms = {
            drafter: tuple((float(batch), float(np.median(found))) for batch, found in sorted(by_batch.items()))
            for drafter, by_batch in sorted(groups.items())
        }
        # drafting, the noise floor and the runner belong to the machine: another model's runs tell them too
        lenders = [other for other in known if other != label and self.real(other, without)]
        teller = label if real or not lenders else lenders[0]
        if teller != label:
            extra_ms = _on_the_host(self.costs(teller, without=without).extra_ms)
            notes.append(f"Drafting on the host and the noise floor are taken from the runs of {teller}.")
        elif not extra_ms:
            notes.append("No run with real prompts is in the law's folder: drafting on the host is left out.")
        plain = [o for o in real if o.drafter == "vanilla"]
        tokens = sum(o.record.counters.num_prompt_tokens for o in plain)
        if tokens:
            prompt_ms = max(sum(o.prompts_ms(laws["vanilla"]) for o in plain) / tokens, 0.0)
        else:
            prompt_ms = max(laws["vanilla"].regimes[0].token, 0.0)
            notes.append("No plain run with real prompts is in the law's folder: reading a prompt is the law's guess.")
        return Costs(
            laws["vanilla"], laws["walking"], float(prompt_ms), extra_ms, self.noise.get(teller, {}),
            self.runners.get(teller, "V1"), tuple(notes),
        )  # fmt: skip


def survey(all_records: Iterable[Record], store: Reader) -> Survey:
    """Read a folder of records; each trace is read once."""
    good = [r for r in all_records if r.status == "ok" and r.has_trace]
    rows = steptime.by_model(steptime.rows_of([r for r in good if is_grid(r)], store))
    sizes = {label: found[0].parameters_b or 0.0 for label, found in rows.items()}
    observed, arms, runners = [], {}, {}
    for r in (r for r in good if not is_grid(r)):
        label, speculative = steptime.model_label(r.cell.engine), r.cell.engine.speculative
        if speculative is None and r.cell.setting != "vanilla":
            continue  # other baselines say nothing about vanilla as shipped
        if r.cell.engine.cudagraph_mode in CHOSEN_MODES:
            observed.append(_observe(r, store.trace(r)))
            sizes.setdefault(label, steptime.parameters_b(r) or 0.0)
        if speculative is None:
            arms.setdefault(label, {}).setdefault(r.cell.engine.repeat, []).append(r)
        if r.cell.setting == "ngram" and r.resolved is not None:
            runners[label] = r.resolved.runner
    pooled, single = {}, {}
    for label, by_repeat in arms.items():
        repeats = list(by_repeat.values())
        single[label] = stats.noise_floor(repeats, otherwise=float("nan"))
        if floors := stats.noise_floors(repeats):
            pooled[label] = floors
    return Survey(rows, tuple(observed), pooled, single, runners, sizes)


def survey_folder(folder: Path | str) -> Survey:
    """Survey a folder of records, e.g. figures/data/h200, relative to the top folder. Raises NoLawError."""
    path = ROOT / folder
    if not path.is_dir():
        raise NoLawError(f"law is {str(folder)!r}, allowed: a folder of records, e.g. figures/data/h200")
    store = open_folder(path)
    return survey(store.all(), store)


# ---- predictions ----


@dataclass(frozen=True)
class Prediction:
    """What a setting is expected to do at a batch size.

    tau: tokens per step. drafted: verified drafts a request-step. r: mean step time over the plain run's at
    full batch and decoding alone. outside: share of decode time beyond the law's grid.
    """

    setting: str
    speculative: Speculative | None
    batch_size: int
    tau: float
    coverage: float
    acceptance: float
    drafted: float
    r: float
    throughput: Estimate
    speedup: Estimate
    verdict: str
    outside: float = 0.0
    acceptance_per_position: tuple[float, ...] = ()
    graphs: Graphs = AS_SHIPPED


def judge(speedup: Estimate, noise: float = float("nan"), outside: float = 0.0) -> str:
    """pays / does not pay if the whole interval lies beyond the noise floor; no verdict outside the measured grid."""
    floor = noise if np.isfinite(noise) else 0.0
    if outside > OUTSIDE:
        return BEYOND
    if not np.isfinite(speedup.low):
        return CLOSE
    if np.log(speedup.low) > floor:
        return PAYS
    if np.log(speedup.high) < -floor:
        return NOT
    return CLOSE


def _per_request(timed: _Timed) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(output tokens, ms by part) of each request, in log order: those in a step share its time."""
    done, steps = timed.replayed.requests, timed.replayed.steps
    order = np.argsort(done["number"])
    first, last = done["first_step"][order], done["last_step"][order]
    shares = {}
    for name, ms in timed.parts.items():
        until = np.concatenate([[0.0], np.cumsum(ms / steps["scheduled"])])
        shares[name] = until[last + 1] - until[first]
    return done["num_output_tokens"][order].astype(float), shares


def compare(test: _Timed, base: _Timed, *, seed: int = 0, resamples: int = NUM_RESAMPLES) -> tuple[Estimate, Estimate]:
    """(throughput in tokens a second, speedup) of `test` over `base`, with 95 % intervals.

    Requests are resampled in pairs (another day's requests), and every regime of either law is off by one
    factor drawn from its held-out error (another machine of the kind). One request gives no interval.
    """
    tokens, test_ms = _per_request(test)
    _, base_ms = _per_request(base)
    value = 1000 * tokens.sum() / test.total_ms
    ratio = base.total_ms / test.total_ms
    count = len(tokens)
    known = np.isfinite([*test.errors.values(), *base.errors.values()]).all()
    if count < 2 or not known:
        nan = float("nan")
        return Estimate(value, nan, nan, count), Estimate(ratio, nan, nan, count)
    rng = np.random.default_rng(seed)
    names = sorted({*test.parts, *base.parts})
    rates, ratios = np.empty(resamples), np.empty(resamples)
    for i in range(resamples):
        weights = np.bincount(rng.integers(count, size=count), minlength=count)
        factors = {n: np.exp(rng.normal() * max(test.errors.get(n, 0.0), base.errors.get(n, 0.0))) for n in names}
        spent = [sum(factors[n] * (weights @ ms) for n, ms in shares.items()) for shares in (test_ms, base_ms)]
        rates[i] = 1000 * (weights @ tokens) / spent[0]
        ratios[i] = spent[1] / spent[0]
    return tuple(
        Estimate(float(centre), *(float(v) for v in np.percentile(draws, [2.5, 97.5])), count)
        for centre, draws in ((value, rates), (ratio, ratios))
    )


def predict(
    setting: str,
    speculative: Speculative | None,
    test: Replayed,
    base: Replayed,
    costs: Costs,
    batch_size: int,
    *,
    graphs: Graphs = AS_SHIPPED,
) -> Prediction:
    """The prediction for one setting from its replay and the plain run's, both at `batch_size`; `graphs`: its engine's."""
    name = drafter_of(speculative)
    timed = time_steps(test, costs.drafter if speculative else costs.vanilla, costs, name, graphs)
    plain = time_steps(base, costs.vanilla, costs, "vanilla")
    throughput, speedup = compare(timed, plain)
    if speculative is None:
        speedup = Estimate(1.0, 1.0, 1.0, speedup.n)
    c = test.counters
    verdict = (
        judge(speedup, costs.noise_at(batch_size), max(timed.outside, plain.outside)) if speculative else "baseline"
    )
    return Prediction(
        setting, speculative, batch_size, metrics.tokens_per_step(c), metrics.draft_coverage(c),
        metrics.acceptance_rate(c), c.num_draft_tokens / c.num_request_steps, _ratio(timed, plain),
        throughput,
        speedup, verdict, max(timed.outside, plain.outside), tuple(metrics.acceptance_per_position(c)), graphs,
    )  # fmt: skip


def _ratio(test: _Timed, base: _Timed) -> float:
    """R: mean decode step time of `test` over `base` at the same numbers of running requests."""
    sums = []
    for timed in (test, base):
        steps, ms = timed.replayed.steps, sum(timed.parts.values())
        pure = (steps["prefills"] == 0) & (steps["scheduled"] == steps["running"])
        running = steps["running"][pure]
        sums.append((np.bincount(running, ms[pure]), np.bincount(running)))
    (test_ms, test_n), (base_ms, base_n) = sums
    common = [n for n in range(1, min(len(test_n), len(base_n))) if test_n[n] and base_n[n]]
    if not common:
        return float("nan")
    weight = test_n[common]
    return float((test_ms[common]).sum() / (weight * base_ms[common] / base_n[common]).sum())


def steady_speedup(
    tau: float, drafted: float, batch: float, costs: Costs, *, uniform: bool = False, drafter: str | None = None
) -> tuple[float, bool]:
    """(speedup, inside the grid?) at a constant batch: tau t_vanilla(B, B) / t_drafter(B, B (1 + drafted)).

    drafter: adds what real prompts and this drafter cost beyond the laws; None: the laws alone.
    """
    steps = {"uniform": np.array([int(uniform)])}
    plain = {"uniform": np.array([1])}
    at, verified = np.array([float(batch)]), np.array([float(batch) * (1 + drafted)])
    test = costs.drafter.regime(str(_modes(costs.drafter, steps, verified)[0]))
    base = costs.vanilla.regime(str(_modes(costs.vanilla, plain, at)[0]))
    inside = not (_outside(test, at, verified)[0] or _outside(base, at, at)[0])
    context = [np.mean(_grid_context(law)) for law in (costs.drafter, costs.vanilla)]
    test_ms, base_ms = test.step_ms(at, verified, context[0]), base.step_ms(at, at, context[1])
    if drafter is not None:
        test_ms, base_ms = test_ms + costs.extra(drafter, at), base_ms + costs.extra("vanilla", at)
    return float(tau * base_ms[0] / test_ms[0]), inside


class Traffic(NamedTuple):
    """What a setting does to a workload's steps, whatever they cost: tokens per step and drafts a request-step."""

    tau: float
    drafted: float
    uniform: bool  # decode steps carry 1 + gamma tokens a request, 9 in 10 at least
    drafter: str


def traffic(
    streams: Sequence[Stream], settings: Mapping[str, Speculative | None], batch_size: int, runner: str = "V1"
) -> dict[str, Traffic]:
    """Replay every setting once."""
    found = {}
    for name, speculative in settings.items():
        done = Simulation(speculative, max_num_seqs=batch_size, runner=runner).run(streams)
        c, pure = done.counters, done.steps["prompt_tokens"] == 0
        uniform = bool(pure.any() and done.steps["uniform"][pure].mean() >= 0.9)
        drafted = (
            float(speculative.num_speculative_tokens)
            if uniform and speculative
            else (c.num_draft_tokens / c.num_request_steps)
        )
        found[name] = Traffic(metrics.tokens_per_step(c), drafted, uniform, drafter_of(speculative))
    return found


class Steady(NamedTuple):
    """The best of several settings at a constant batch size, and whether that lies inside the measured grid."""

    speedup: float
    setting: str
    inside: bool


def best_steady(found: Mapping[str, Traffic], batch: float, costs: Costs) -> Steady:
    """The drafting setting with the largest predicted speedup; settings inside the grid come first."""
    options = []
    for name, t in found.items():
        if t.drafted > 0:
            speedup, inside = steady_speedup(t.tau, t.drafted, batch, costs, uniform=t.uniform, drafter=t.drafter)
            options.append(Steady(speedup, name, inside))
    return max(options, key=lambda s: (s.inside, s.speedup))


def decisions(
    costs: Mapping[str, Costs], by_workload: Mapping[str, Mapping[str, Traffic]], batch_sizes: Sequence[int]
) -> dict[str, dict[tuple[str, int], Steady]]:
    """The best setting for every workload, model and batch size: {workload: {(model, batch): Steady}}."""
    return {
        workload: {(model, b): best_steady(found, b, c) for model, c in costs.items() for b in batch_sizes}
        for workload, found in by_workload.items()
    }


def break_even_grid(costs: Costs, batches: Sequence[int], lengths: Sequence[int], uniform: bool = False) -> np.ndarray:
    """tau* [lengths, batches]: tokens per step from which drafts of a length pay; NaN outside the measured grid."""
    tau = np.full((len(lengths), len(batches)), np.nan)
    for row, length in enumerate(lengths):
        for column, batch in enumerate(batches):
            value, inside = steady_speedup(1.0, length, batch, costs, uniform=uniform)
            if inside:
                tau[row, column] = 1 / value
    return tau


def break_even_grids(costs: Costs, batches: Sequence[int], lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """`break_even_grid` with even drafts that keep the FULL graph and with uneven ones, where graphs make a difference."""
    if not {"FULL", "PIECEWISE"} <= set(costs.drafter.modes):
        return {"": break_even_grid(costs, batches, lengths)}
    return {
        "even drafts, FULL graph": break_even_grid(costs, batches, lengths, uniform=True),
        "uneven drafts, PIECEWISE": break_even_grid(costs, batches, lengths),
    }


_shared: list[Stream] = []  # of a replaying process


def _share(streams: list[Stream]) -> None:
    _shared[:] = streams


class _Job(NamedTuple):
    """One replay: a setting at a batch size."""

    speculative: Speculative | None
    batch_size: int
    runner: Literal["V1", "V2"]
    max_model_len: int

    def run(self, streams: Sequence[Stream] | None = None) -> Replayed:
        simulation = Simulation(
            self.speculative, max_num_seqs=self.batch_size, runner=self.runner, max_model_len=self.max_model_len
        )
        return simulation.run(_shared if streams is None else streams)


def _replays(jobs: Sequence[_Job], streams: Sequence[Stream], progress: bool) -> list[Replayed]:
    """Run jobs, over all cores where there is enough to do to pay for starting processes."""
    work = len(jobs) * sum(s.num_output_tokens for s in streams)
    processes = min(os.cpu_count() or 1, len(jobs)) if work > POOL_FROM else 1
    bar = {"total": len(jobs), "desc": "replay", "unit": "setting", "disable": not progress, "file": sys.stderr}
    if processes == 1:
        return [job.run(streams) for job in tqdm(jobs, **bar)]
    # not forked: numba's and tqdm's threads do not survive a fork
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _share, (list(streams),)) as pool:
        return list(tqdm(pool.map(_Job.run, jobs), **bar))


def rank(
    streams: Sequence[Stream],
    costs: Costs,
    *,
    batch_sizes: Sequence[int],
    settings: Mapping[str, Speculative | None],
    any_step: Container[str] = (),
    max_model_len: int | None = None,
    progress: bool = False,
) -> list[Prediction]:
    """Predictions of every setting at every batch size, best first within a batch size.

    any_step: names of the settings whose engine holds FULL graphs for any step, up to a full batch of drafts.
    """
    longest = max(len(s.prompt_token_ids) + len(s.output_token_ids) for s in streams)
    limit = max_model_len or longest + 128  # room for drafts: nobody is near the model's length
    asked = [(name, batch) for batch in batch_sizes for name in {"": None, **settings}]
    jobs = [_Job(settings.get(name), batch, costs.runner, limit) for name, batch in asked]
    replayed = dict(zip(asked, _replays(jobs, streams, progress), strict=True))
    found = []

    def graphs(name: str, batch: int) -> Graphs:
        speculative = settings[name]
        if speculative is None or name not in any_step:
            return AS_SHIPPED
        return Graphs.for_any_step(batch, speculative.num_speculative_tokens)

    for batch in batch_sizes:
        ranked = [
            predict(
                name, speculative, replayed[name, batch], replayed["", batch], costs, batch, graphs=graphs(name, batch)
            )
            for name, speculative in settings.items()
        ]
        found += sorted(ranked, key=lambda p: -p.speedup.value)
    return found


# ---- predicted against measured ----


def has_tokens(record: Record, store: Reader) -> bool:
    """Whether a record's trace kept prompt and output ids."""
    return record.has_trace and store.trace(record).output_token_ids is not None


def streams_of(record: Record, store: Reader) -> list[Stream]:
    """The streams that a plain run recorded."""
    return replay.of_trace(store.trace(record))


def run_cell(cell: Cell, streams: Sequence[Stream], record: Record | None = None) -> Replayed:
    """Replay an engine cell's own configuration over recorded streams."""
    return Simulation.of_cell(cell, record.resolved if record else None).run(streams)


@dataclass(frozen=True)
class Comparison:
    """A speedup as predicted without looking at the engine cell's workload, and as measured."""

    record: Record
    prediction: Prediction
    measured: Estimate

    @property
    def error(self) -> float:
        """Relative error of the predicted speedup."""
        return self.prediction.speedup.value / self.measured.value - 1


def comparisons(all_records: Sequence[Record], store: Reader, *, progress: bool = False) -> list[Comparison]:
    """Every engine cell of the collection that speculates and has a plain partner with recorded tokens and a
    law.

    The law comes from random prompts alone; prompt and drafter costs come from the other workloads of the cell's own
    round. Cells of one engine are replayed in the order they ran, since the suffix drafter's memory is the engine's.
    """
    good = [r for r in all_records if r.status == "ok" and not is_grid(r)]
    vanilla = [r for r in good if r.cell.setting == "vanilla"]
    plain = [r for r in vanilla if has_tokens(r, store)]
    tests = [r for r in good if r.cell.engine.cudagraph_mode in CHOSEN_MODES and _replayable(r.cell.engine.speculative)]
    engines: dict[tuple, list[Record]] = {}
    for r in sorted(tests, key=lambda r: r.order):
        # an engine that was started again remembers nothing; its start tells it from the first
        engines.setdefault((engine_key(r.cell), r.engine_start_s), []).append(r)
    surveyed = survey(all_records, store)
    known: dict[tuple, Costs | None] = {}
    bases: dict[str, Replayed] = {}
    found = []
    for group in tqdm(engines.values(), desc="replay", unit="engine", disable=not progress, file=sys.stderr):
        simulation = Simulation.of_cell(group[0].cell, group[0].resolved)
        for r in group:
            pairs = stats.pair([r], plain)
            label, workload = steptime.model_label(r.cell.engine), r.cell.workload.name
            own = surveyed.of_round(r)
            key = (label, workload, tuple(o.record.cell_id for o in own.observed))
            if key not in known:
                try:
                    known[key] = own.costs(label, without=workload)
                except NoLawError:
                    known[key] = None
            costs = known[key]
            if not pairs or costs is None:
                continue
            base = pairs[0][1]
            streams = streams_of(base, store)
            simulation.max_num_seqs = min(r.cell.batch_size, r.cell.engine.max_num_seqs)
            colds = {c.cell.workload for c in group if c.cell.memory == "cold"}
            if r.cell.memory == "warm" and r.cell.workload not in colds:
                simulation.run(streams)  # the engine answered these prompts once before it was measured
            test = simulation.run(streams)
            if base.cell_id not in bases:
                bases[base.cell_id] = run_cell(base.cell, streams, base)
            prediction = predict(
                r.cell.setting,
                r.cell.engine.speculative,
                test,
                bases[base.cell_id],
                costs,
                r.cell.batch_size,
                graphs=Graphs.of_cell(r.cell, r.resolved),
            )
            found.append(
                Comparison(r, prediction, stats.speedup([r], vanilla))
            )  # tokens of any round, times of its own
    return found


def _replayable(speculative: Speculative | None) -> bool:
    """Whether a setting's drafts follow from the tokens alone, with an installed drafter."""
    if speculative is None or speculative.drafter == "WalkingDrafter" or speculative.synthetic_acceptance_rates:
        return False
    wants_suffix = speculative.method == "suffix" or speculative.drafter == "PaddedSuffix"
    return not wants_suffix or importlib.util.find_spec("arctic_inference") is not None


def by_setting(found: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    """Comparisons grouped by setting, in order of name."""
    groups: dict[str, list[Comparison]] = {}
    for c in sorted(found, key=lambda c: c.record.cell.setting):
        groups.setdefault(c.record.cell.setting, []).append(c)
    return groups


def accuracy_table(found: Iterable[Comparison]) -> str:
    """Plain text: mean absolute error, bias, and the range of predicted and measured speedups by setting."""
    lines = [f"{'setting':25} {'n':>3} {'mean error':>11} {'bias':>7} {'predicted':>12} {'measured':>12}"]
    for name, group in by_setting(found).items():
        errors = [100 * c.error for c in group]
        predicted = [c.prediction.speedup.value for c in group]
        measured = [c.measured.value for c in group]
        spans = "  ".join(f"{min(v):5.2f}-{max(v):5.2f}" for v in (predicted, measured))
        lines.append(f"{name:25} {len(group):3d} {np.mean(np.abs(errors)):9.0f} % {np.mean(errors):+5.0f} %  {spans}")
    return "\n".join(lines)


class Accuracy(NamedTuple):
    """Mean absolute percentage error, and signs right among the cells outside the noise floor.

    repeat_pct: the error of taking, instead of a prediction, the mean measured speedup of the cells that differ in their
    prompt seed alone; NaN without such. Over `repeat_count` cells, whose predictions err by repeated_mape_pct.
    """

    count: int
    mape_pct: float
    signs_right: int
    signs_told: int  # cells whose measured speedup lies outside the noise floor
    repeat_pct: float
    repeat_count: int
    repeated_mape_pct: float


def accuracy(found: Sequence[Comparison], noise: float) -> Accuracy:
    """Errors of predicted speedups; the sign is that of speedup - 1."""
    if not found:
        return Accuracy(0, float("nan"), 0, 0, float("nan"), 0, float("nan"))
    told = [c for c in found if abs(np.log(c.measured.value)) > noise]
    right = sum((c.prediction.speedup.value > 1) == (c.measured.value > 1) for c in told)
    return Accuracy(len(found), _mape_pct(c.error for c in found), right, len(told), *_repeats(found))


def _mape_pct(errors: Iterable[float]) -> float:
    errors = [abs(e) for e in errors]
    return 100 * float(np.mean(errors)) if errors else float("nan")


def _repeats(found: Iterable[Comparison]) -> tuple[float, int, float]:
    """(error of the other seeds' mean speedup, number of cells that have other seeds, their predictions' error), in %."""
    alike: dict[str, list[Comparison]] = {}
    for c in found:
        one = c.record.cell
        seedless = one.model_copy(update={"workload": one.workload.model_copy(update={"seed": 0})})
        alike.setdefault(seedless.model_dump_json(), []).append(c)
    several = [group for group in alike.values() if len(group) > 1]
    errors = [
        (sum(o.measured.value for o in group) / c.measured.value - 1) / (len(group) - 1) - 1
        for group in several for c in group
    ]  # fmt: skip
    return _mape_pct(errors), len(errors), _mape_pct(c.error for group in several for c in group)
