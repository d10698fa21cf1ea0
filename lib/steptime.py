"""The step-time law: what an engine step costs, and what a drafter must therefore reach.

Grid -> rows -> law. `cells` asks for the grid (batch sizes x drafted tokens x context on each
architecture), `rows` takes the median decode step of every measured cell, and `fit` puts, for each
dispatched CUDA-graph mode apart,

    t = c0 + c1 B + c2 V + c3 B C / 1000        [ms]

through them: B running requests, V verified tokens (B + drafted), C context tokens a request. c3 is fitted
only where the grid holds several contexts; a term that the grid cannot tell from another one is left out
and not guessed.

With V = B (1 + gamma), a drafter pays if its tokens per step exceed `break_even` = t(B, V) / t_vanilla(B, B).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field

from lib import ladder, metrics, published, shapes, stats
from lib.cells import Cell, Engine, Frozen, Workload, engine_key
from lib.params import Profile
from lib.records import Reader, Record, Trace
from lib.stats import Estimate

BASELINES = ("vanilla", "vanilla_v1", "vanilla_v1_sync")
RUNGS = (*BASELINES, "walking")  # walking with nothing drafted is the null drafter
NUM_WARM_STEPS = 4  # decode steps of a cell that are not timed: first use of a shape compiles and captures
MIN_STEPS = 3  # timed steps behind a row
TERMS = ("fixed", "token", "request", "context")
UNTOLD = "untold"  # the engine does not say which graph mode a step was dispatched with


class ExtrapolationError(ValueError):
    """A prediction outside the measured grid was asked for."""


class FitError(ValueError):
    """Too few or unfit points for a law."""


# ---------------------------------------------------------------- the grid, asked for


def _num_prefill_steps(batch: int, context: int, tokens: int, budget: int) -> int:
    """Engine steps until all prompts are read, when requests that are ready verify `tokens` a step first."""
    waiting, steps = batch * context, 0
    while waiting > 0:
        ready = batch - -(-waiting // context)
        waiting -= max(budget - ready * tokens, 1)
        steps += 1
    return steps


def cells(p: Profile) -> list[Cell]:
    """The grid of `p.step_time` as engine cells, architecture by architecture.

    Each architecture gets vanilla as shipped and a walking drafter with `max(draft_tokens)` speculative
    tokens, even drafts of every length and, for batches above one, uneven ones; `full_draft_tokens` adds
    engines in which even drafts have exactly the length the FULL graph was captured for. Architectures in
    `baselines_of` get every baseline and, to stand beside them, a second start of vanilla; those in `again_of` one of
    vanilla and of the added engines.
    """
    s = p.step_time
    made: list[Cell] = []
    for architecture in s.architectures or (p.model.name,):
        own = {
            "contexts": s.contexts_of.get(architecture, s.contexts),
            "full_draft_tokens": s.full_draft_tokens_of.get(architecture, s.full_draft_tokens),
        }
        profile = p.model_copy(
            update={"model": ladder.model_of(p, architecture), "step_time": s.model_copy(update=own)}
        )
        again = architecture in s.again_of
        for name in BASELINES if architecture in s.baselines_of else BASELINES[:1]:
            for repeat in range(2 if name == "vanilla" and (again or architecture in s.baselines_of) else 1):
                baseline = ladder.setting(profile, name)[0].model_copy(update={"repeat": repeat})
                made += _grid(profile, name, baseline, [(None, False)])
        longest = max(*s.draft_tokens, 1)
        engine = ladder.setting(profile, "walking")[0]
        # without graphs evenness changes nothing, which one draft length is enough to show
        uneven = [g for g in s.draft_tokens if g > 1 and (g == longest or not engine.enforce_eager)]
        walks = [(g, False) for g in s.draft_tokens] + [(g, True) for g in uneven]
        made += _grid(profile, "walking", engine, walks)
        for gamma in own["full_draft_tokens"]:
            exact = engine.speculative.model_copy(update={"num_speculative_tokens": gamma})
            for repeat in range(2 if again and gamma in s.full_draft_tokens else 1) if gamma != longest else ():
                captured = engine.model_copy(update={"speculative": exact, "repeat": repeat})
                made += _grid(profile, "walking", captured, [(gamma, False)])
    return made


def _grid(p: Profile, setting: str, engine: Engine, walks: list[tuple[int | None, bool]]) -> list[Cell]:
    s = p.step_time
    longest = max(*s.draft_tokens, *s.full_draft_tokens, 1)
    budget = engine.max_num_batched_tokens or 4096
    most = max(s.batch_sizes) * (1 + longest)
    if most > budget:
        raise ValueError(
            f"engine.max_num_batched_tokens is {budget}, allowed: at least {most}, the grid's largest step"
        )
    timed = NUM_WARM_STEPS + s.num_steps
    lengths = {
        (batch, context, gamma): timed + _num_prefill_steps(batch, context, 1 + (gamma or 0), budget)
        for batch in s.batch_sizes for context in s.contexts for gamma, _ in walks
    }  # fmt: skip
    # all cells of an engine share one length limit; within gamma of it, vLLM drafts zeros for the whole batch
    room = max(s.contexts) + max(
        timed + _num_prefill_steps(max(s.batch_sizes), c, 1 + longest, budget) for c in s.contexts
    )
    engine = engine.model_copy(
        update={
            "dtype": s.dtype or engine.dtype,
            "max_model_len": max(room + 2 * longest + 2, 16),
            "max_num_seqs": max(engine.max_num_seqs, *s.batch_sizes),
            "max_num_batched_tokens": budget,
        }
    )
    return [
        Cell(
            engine=engine,
            workload=Workload(name="random", form="raw", num_prompts=batch, input_tokens=context, seed=number),
            output_tokens=lengths[batch, context, gamma],
            ignore_eos=True,
            batch_size=batch,
            draft_tokens=gamma,
            uneven=uneven,
            setting=setting,
        )
        for number in range(s.rounds)
        for context in s.contexts
        for gamma, uneven in walks
        for batch in sorted(s.batch_sizes, reverse=True)
        if batch > 1 or not uneven
    ]


# ---------------------------------------------------------------- measured rows


class Row(Frozen):
    """The median decode step of one point of the grid in one graph mode, all requests running."""

    model: str
    hardware: str
    setting: str
    mode: str  # FULL, PIECEWISE, NONE as dispatched, or `untold`
    batch: int
    verified: float  # tokens a step, batch included
    context: float  # tokens a request
    input_tokens: int = 0  # prompt length asked for: rows are compared at one
    step_ms: float
    low_ms: float  # 95 % interval of the median over the steps
    high_ms: float
    num_steps: int
    gamma: int | None = None  # drafted tokens asked for; None without a drafter
    uneven: bool = False
    num_speculative_tokens: int | None = None  # what the engine's graphs were captured for
    graphs: bool = True  # whether the engine has CUDA graphs at all
    parameters_b: float | None = None  # billions
    measured: str = ""  # when, UTC; empty if unknown
    host: str = ""  # processor, cores and number of GPUs of the machine; empty if unknown

    @property
    def family(self) -> str:
        """Drafts of just the length that the FULL graph was captured for, of another length, or no graphs."""
        if not self.graphs:
            return "no graphs"
        return "as captured" if self.gamma == self.num_speculative_tokens and not self.uneven else "other length"

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.step_ms, self.low_ms, self.high_ms, self.num_steps)


def model_label(engine: Engine) -> str:
    """Model, quantization and parallel size, the parts that change a step's cost."""
    label = engine.model.name + (f" {engine.model.quantization}" if engine.model.quantization else "")
    return label + (f" x{engine.tensor_parallel_size}" if engine.tensor_parallel_size > 1 else "")


def hardware_of(record: Record) -> str:
    """The GPU, or the CPU with its number of cores."""
    where = record.provenance
    return where.gpu or f"{where.cpu or 'CPU'} ({where.num_cpus} cores)"


def _host_of(record: Record) -> str:
    where = record.provenance
    return f"{where.cpu}, {where.num_cpus} cores, {where.num_gpus} GPUs" + (
        f" {where.machine}" if where.machine else ""
    )


def parameters_b(record: Record) -> float | None:
    """Billions of parameters: counted from the shape, or as the record tells; None if neither does."""
    model = record.cell.engine.model
    if model.name in shapes.SHAPES:
        return shapes.num_parameters(shapes.SHAPES[model.name]) / 1e9
    known = record.resolved.num_parameters if record.resolved else None
    return known / 1e9 if known else None


def _median(values: np.ndarray) -> tuple[float, float, float]:
    """Median and its distribution-free 95 % interval (order statistics, binomial taken as normal)."""
    ordered, n = np.sort(values), len(values)
    half = 0.98 * np.sqrt(n)
    low, high = int(np.floor(n / 2 - half)), int(np.ceil(n / 2 + half))
    return float(np.median(ordered)), float(ordered[max(low, 0)]), float(ordered[min(high, n - 1)])


def rows(record: Record, trace: Trace) -> list[Row]:
    """One row a graph mode from the steps with all requests running and nothing prefilled, the first few
    left out.

    `verified` is what the trace says was verified, whatever was asked for. No row where fewer than three
    steps remain.
    """
    cell, columns = record.cell, trace.steps
    if record.status != "ok" or not columns or cell.setting in ladder.SYNTHETIC:
        return []
    held = np.cumsum(columns["output_tokens"]) / cell.batch_size
    steps = metrics.decode_steps(Trace(steps=columns | {"held": list(held)}))
    chosen = np.flatnonzero(steps["running"] == cell.batch_size)[NUM_WARM_STEPS:]
    eager = record.resolved is not None and record.resolved.enforce_eager
    modes = np.array([str(m) or ("NONE" if eager else UNTOLD) for m in steps["graph_mode"]], dtype=object)
    found = []
    for mode in sorted(set(modes[chosen])):
        at = chosen[modes[chosen] == mode]
        if len(at) < MIN_STEPS:
            continue
        middle, low, high = _median(steps["step_ms"][at])
        speculative = cell.engine.speculative
        found.append(
            Row(
                model=model_label(cell.engine), hardware=hardware_of(record), setting=cell.setting, mode=mode,
                batch=cell.batch_size, verified=float(np.median(steps["verified"][at])),
                context=cell.workload.input_tokens + float(np.median(steps["held"][at])),
                input_tokens=cell.workload.input_tokens,
                step_ms=middle, low_ms=low, high_ms=high, num_steps=len(at), gamma=cell.draft_tokens,
                uneven=cell.uneven, parameters_b=parameters_b(record),
                num_speculative_tokens=speculative.num_speculative_tokens if speculative else None,
                graphs=not eager, measured=record.provenance.measured, host=_host_of(record),
            )
        )  # fmt: skip
    return found


def rows_of(records: Iterable[Record], store: Reader) -> list[Row]:
    """Rows of all records that kept a trace, one a point of the grid and graph mode.

    Rounds of a point are merged: the median of their medians, and an interval that holds theirs, because what
    slows the host for a second slows all steps of a round alike.
    """
    rounds: dict[tuple, list[Row]] = {}
    for r in records:
        if r.status == "ok" and r.has_trace:
            point = (engine_key(r.cell), r.cell.batch_size, r.cell.draft_tokens, r.cell.uneven)
            for row in rows(r, store.trace(r)):
                rounds.setdefault((*point, r.cell.workload.input_tokens, row.mode), []).append(row)
    return [_merged(same) for same in rounds.values()]


def _merged(same: Sequence[Row]) -> Row:
    if len(same) == 1:
        return same[0]
    return same[0].model_copy(
        update={
            "step_ms": float(np.median([r.step_ms for r in same])),
            "low_ms": min(r.low_ms for r in same),
            "high_ms": max(r.high_ms for r in same),
            "verified": float(np.median([r.verified for r in same])),
            "context": float(np.median([r.context for r in same])),
            "num_steps": sum(r.num_steps for r in same),
        }
    )


def at_context(rows: Iterable[Row], input_tokens: int) -> list[Row]:
    """Each model's rows at the prompt length nearest to `input_tokens`, which break-evens and taxes compare at."""
    kept = []
    for own in by_model(rows).values():
        nearest = min({r.input_tokens for r in own}, key=lambda n: abs(math.log(max(n, 1) / max(input_tokens, 1))))
        kept += [r for r in own if r.input_tokens == nearest]
    return kept


def find(
    rows: Iterable[Row], *, setting: str, batch: int, gamma: int | None = None, mode: str | None = None,
    uneven: bool | None = False, exact: bool | None = None, beside: Row | None = None,
) -> Row | None:  # fmt: skip
    """The row that matches, of the round of `beside` where it has any, with the most steps, the first measured of
    equals; None if there is none.

    `exact`: the engine's graphs were captured for just this draft length (True), or for another one (False).
    """
    matching = [
        r for r in rows
        if r.setting == setting and r.batch == batch and r.gamma == gamma and mode in (None, r.mode)
        and uneven in (None, r.uneven) and exact in (None, r.num_speculative_tokens == gamma)
    ]  # fmt: skip
    near = [r for r in matching if beside is not None and _one_round(r, beside)]
    return min(near or matching, key=lambda r: (-r.num_steps, r.measured), default=None)


def ratio(test: Row, base: Row) -> Estimate:
    """Step time of `test` over `base`; relative half-widths of both medians are added in quadrature."""
    value = test.step_ms / base.step_ms
    up = np.hypot(np.log(test.high_ms / test.step_ms), np.log(base.step_ms / base.low_ms))
    down = np.hypot(np.log(test.step_ms / test.low_ms), np.log(base.high_ms / base.step_ms))
    return Estimate(value, value * float(np.exp(-down)), value * float(np.exp(up)), min(test.num_steps, base.num_steps))


class BreakEven(NamedTuple):
    """Tokens per step that a drafter must reach, from two measured medians and not from the law."""

    model: str
    parameters_b: float | None
    batch: int
    gamma: int
    family: str  # as `Row.family`
    mode: str  # graph mode that the steps with drafts were dispatched with
    tokens: Estimate
    one_round: bool = True  # whether both medians were measured in one round


def break_evens(rows: Iterable[Row]) -> list[BreakEven]:
    """Even drafts over vanilla as shipped: every model, batch size, length from one on, and family.

    `rows` hold one prompt length a model (`at_context`). Engines that were started again give one break-even a round:
    those whose two medians are of one round are merged, the median of them with an interval that holds theirs.
    """
    rows = list(rows)
    found: dict[tuple, list[tuple[Row, BreakEven]]] = {}
    for model, own in by_model(rows).items():
        for test in own:
            base = find(own, setting="vanilla", batch=test.batch, beside=test)
            if test.setting == "walking" and test.gamma and not test.uneven and base is not None:
                key = (model, test.batch, test.gamma, test.family)
                even = BreakEven(
                    model, test.parameters_b, *key[1:], test.mode, ratio(test, base), _one_round(test, base)
                )
                rounds = found.setdefault(key, [])
                # rows of one round differ in graph mode or engine: the one with the most steps counts
                same = next((i for i, (other, _) in enumerate(rounds) if _one_round(other, test)), None)
                if same is None:
                    rounds.append((test, even))
                elif test.num_steps > rounds[same][0].num_steps:
                    rounds[same] = (test, even)
    merged = [_one_break_even([even for _, even in rounds]) for rounds in found.values()]
    return sorted(merged, key=lambda e: (e.parameters_b or 0.0, *e[2:5]))


def _one_break_even(rounds: Sequence[BreakEven]) -> BreakEven:
    same = [e for e in rounds if e.one_round] or list(rounds)
    tokens = [e.tokens for e in same]
    if len(same) == 1:
        return same[0]
    value = float(np.exp(np.median(np.log([t.value for t in tokens]))))
    low, high = min(t.low for t in tokens), max(t.high for t in tokens)
    return same[0]._replace(tokens=Estimate(value, low, high, sum(t.n for t in tokens)))


def _one_round(a: Row, b: Row) -> bool:
    """As `stats.same_round`; what is not known does not tell two rows apart."""
    told = a.host and b.host and a.host != b.host
    return not told and (not (a.measured and b.measured) or stats.near(a.measured, b.measured))


class Departure(NamedTuple):
    """One step with the FULL graph and without it, in one engine, padded to the same number of tokens."""

    model: str
    parameters_b: float | None
    batch: int
    gamma: int
    full: Row  # even drafts, as captured
    piecewise: Row  # every second request drafts one token less
    one_round: bool  # whether both were measured in one round, so by one start of the engine

    @property
    def ratio(self) -> float:
        return self.piecewise.step_ms / self.full.step_ms

    @property
    def saved(self) -> float:
        """Share of the PIECEWISE step that the FULL graph saves."""
        return 1 - 1 / self.ratio


def departures(rows: Iterable[Row]) -> list[Departure]:
    """What leaving the FULL graph costs: even against uneven drafts of one engine, at one batch size and prompt length.

    Engines captured for different lengths are not compared: they pad a step to different sizes, and a GPU's matrix
    kernels can take longer for 130 tokens than for 208.
    """
    found = []
    for model, own in by_model(rows).items():
        full = [r for r in own if r.gamma and r.mode == "FULL" and r.family == "as captured"]
        for even in sorted(full, key=lambda r: (r.input_tokens, r.batch, r.gamma)):
            same = [
                r for r in own
                if r.uneven and r.mode == "PIECEWISE" and (r.batch, r.gamma, r.num_speculative_tokens, r.input_tokens)
                == (even.batch, even.gamma, even.num_speculative_tokens, even.input_tokens)
            ]  # fmt: skip
            found += [
                Departure(model, even.parameters_b, even.batch, even.gamma, even, r, _one_round(even, r)) for r in same
            ]
    return sorted(found, key=lambda d: d.parameters_b or 0.0)


class Leverage(NamedTuple):
    """How far one factor moves the break-even between its outermost measured levels, all else held fixed."""

    family: str
    factor: str
    spans: tuple[tuple[str, str, int], ...]  # (lowest level, highest level, comparisons), the most frequent first
    ratio: float  # break-even at the highest level over the lowest, median over the comparisons
    smallest: float
    largest: float
    n: int
    strength: float  # how far the factor moves it, up or down: every ratio turned to at least 1, their median


def _leverage(family: str, factor: str, spans: Sequence[tuple[str, str]], ratios: Sequence[float]) -> Leverage:
    strength = float(np.exp(np.median(np.abs(np.log(ratios)))))
    spread = (float(np.median(ratios)), min(ratios), max(ratios), len(ratios))
    counted = tuple((*ends, n) for ends, n in Counter(spans).most_common())
    return Leverage(family, factor, counted, *spread, strength)


_FACTORS: dict[str, tuple[Callable, Callable, Callable]] = {  # level, what is held fixed, label of the level
    "model size": (lambda e: e.parameters_b, lambda e: (e.batch, e.gamma), lambda e: e.model),
    "batch size": (lambda e: e.batch, lambda e: (e.model, e.gamma), lambda e: str(e.batch)),
    "draft length": (lambda e: e.gamma, lambda e: (e.model, e.batch), lambda e: str(e.gamma)),
}


def _moved(points: Sequence[BreakEven], factor: str, family: str) -> Leverage | None:
    level, others, label = _FACTORS[factor]
    known = sorted((e for e in points if level(e) is not None), key=level)
    alike: dict[tuple, list[BreakEven]] = {}
    for e in known:
        alike.setdefault(others(e), []).append(e)
    ends = [(same[0], same[-1]) for same in alike.values() if level(same[0]) != level(same[-1])]
    ratios = [high.tokens.value / low.tokens.value for low, high in ends]
    return _leverage(family, factor, [(label(low), label(high)) for low, high in ends], ratios) if ratios else None


def leverage(points: Sequence[BreakEven], left: Sequence[Departure] = ()) -> list[Leverage]:
    """What model size, batch size and draft length do within each family, and leaving the FULL graph (`left`).

    Drafts as captured count only where the FULL graph ran: a batch above its largest size is another step.

    Strongest first in each family. A comparison goes from the lowest to the highest level that was measured with all
    else fixed.
    """
    found = []
    for family in sorted({e.family for e in points}):
        own = [e for e in points if e.family == family and (family != "as captured" or e.mode in ("FULL", UNTOLD))]
        moved = [_moved(own, factor, family) for factor in _FACTORS]
        found += sorted((x for x in moved if x is not None), key=lambda x: -x.strength)
    if ratios := [d.ratio for d in left if d.one_round]:
        found.append(_leverage("all", "leaving the FULL graph", [("FULL", "PIECEWISE")] * len(ratios), ratios))
    return found


class Tax(NamedTuple):
    """What one rung of the ladder adds to a step, nothing drafted yet."""

    rung: str
    step: Estimate  # ms
    added_ms: float  # over the rung before, by their factors: the two may be of different rounds
    factor: Estimate  # over vanilla as shipped, of its own round where that was measured
    one_round: bool  # whether it was measured in the round of the vanilla that stands first


def taxes(rows: Sequence[Row], batch: int) -> list[Tax]:
    """Step times at `batch` of vanilla, V1, V1 synchronous and null drafter; without a row, no rung.

    `rows` are one model's, at one prompt length (`at_context`).
    """
    rungs = [(name, find(rows, setting=name, batch=batch)) for name in BASELINES]
    rungs.append(("null", find(rows, setting="walking", batch=batch, gamma=0)))
    measured = [(name, row) for name, row in rungs if row is not None]
    if not measured or measured[0][0] != "vanilla":
        return []
    if len(measured) > 1:  # of several starts of vanilla, the one that the next rung was measured beside
        measured[0] = ("vanilla", find(rows, setting="vanilla", batch=batch, beside=measured[1][1]))
    plain, before, out = measured[0][1].step_ms, 1.0, []
    for name, row in measured:
        factor = ratio(row, find(rows, setting="vanilla", batch=batch, beside=row))
        together = _one_round(row, measured[0][1])
        out.append(Tax(name, row.estimate, (factor.value - before) * plain, factor, together))
        before = factor.value
    return out


# ---------------------------------------------------------------- the law


class Grid(Frozen):
    """The ranges that were measured; predictions outside are refused."""

    batch: tuple[float, float]
    verified: tuple[float, float]
    per_request: tuple[float, float]  # verified tokens a request
    context: tuple[float, float] | None = None  # None: not known

    def outside(self, batch: np.ndarray, verified: np.ndarray, context: np.ndarray | None) -> str:
        """What lies outside, as text; empty if nothing does."""
        asked = {"batch": batch, "verified": verified, "per_request": verified / batch}
        if context is not None and self.context is not None:
            asked["context"] = context
        for name, values in asked.items():
            low, high = getattr(self, name)
            slack = 1e-6 * abs(high)
            if values.min() < low - slack or values.max() > high + slack:
                given = f"{values.min():g} to {values.max():g}"
                return f"{name} is {given}, allowed: {low:g} to {high:g} (the measured grid)"
        return ""


class Regime(Frozen):
    """The law of one graph mode. Coefficients in ms, 0 for a term that the grid cannot identify."""

    mode: str
    fixed: float
    token: float = 0.0  # a verified token
    request: float = 0.0  # a running request
    context: float = 0.0  # 1,000 tokens of context held
    identified: tuple[str, ...]
    grid: Grid
    num_rows: int
    r_squared: float | None = None
    held_out_error: float | None = None  # median relative error on points left out of the fit
    held_out_worst: float | None = None

    def step_ms(self, batch, verified, context) -> np.ndarray:
        """The formula itself; arrays broadcast."""
        return (
            self.fixed
            + self.token * verified
            + self.request * batch
            + self.context * batch * np.asarray(context) / 1000
        )


class Law(Frozen):
    """Step times of one model on one machine with one setting, a regime a graph mode; pydantic's JSON."""

    model: str
    hardware: str
    setting: str
    source: str = "measured"
    regimes: tuple[Regime, ...]
    left_out: dict[str, str] = Field(default_factory=dict)  # graph mode -> why it has no law

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(r.mode for r in self.regimes)

    @property
    def grid(self) -> dict[str, Grid]:
        """Measured ranges by graph mode."""
        return {r.mode: r.grid for r in self.regimes}

    @property
    def relative_error(self) -> float:
        """Median relative error on held-out points, worst regime; NaN where no point could be held out."""
        errors = [r.held_out_error for r in self.regimes if r.held_out_error is not None]
        return max(errors, default=float("nan"))

    def regime(self, mode: str | None = None) -> Regime:
        """The regime of `mode`; None is allowed where there is only one. Raises ValueError."""
        if mode is None and len(self.regimes) == 1:
            return self.regimes[0]
        for regime in self.regimes:
            if regime.mode == mode:
                return regime
        raise ValueError(f"mode is {mode!r}, allowed for {self.model} {self.setting}: {', '.join(self.modes)}")

    def predict(self, batch, verified, context=None, *, mode: str | None = None, extrapolate: bool = False):
        """Step time in ms; `batch`, `verified` and `context` broadcast.

        `verified` counts the batch's own tokens. `context`: tokens a request, default the grid's middle.
        Raises ExtrapolationError outside the measured grid, unless `extrapolate` takes the risk; ValueError
        for a mode without a law.
        """
        regime = self.regime(mode)
        batch, verified = np.asarray(batch, float), np.asarray(verified, float)
        asked = None if context is None else np.asarray(context, float)
        problem = regime.grid.outside(batch, verified, asked)
        if problem and not extrapolate:
            raise ExtrapolationError(f"{self.model} {self.setting} {regime.mode}: {problem}")
        if asked is None:
            asked = np.mean(regime.grid.context or (0.0, 0.0))
        return regime.step_ms(batch, verified, asked)[()]


def _design(rows: Sequence[Row]) -> np.ndarray:
    """Columns 1, V, B, B C / 1000: shape [rows, terms]."""
    batch = np.array([r.batch for r in rows], float)
    verified = np.array([r.verified for r in rows], float)
    context = np.array([r.context for r in rows], float)
    return np.column_stack([np.ones(len(rows)), verified, batch, batch * context / 1000])


def _identified(design: np.ndarray, wanted: Sequence[int]) -> list[int]:
    """The wanted columns that are linearly independent of those before them."""
    scaled, kept = design / np.abs(design).max(axis=0), []
    for column in wanted:
        if np.linalg.matrix_rank(scaled[:, [*kept, column]], tol=1e-6) == len(kept) + 1:
            kept.append(column)
    return kept


def _solve(design: np.ndarray, times: np.ndarray, kept: list[int]) -> np.ndarray:
    """Coefficients of all terms (zero where left out) that minimise the squared *relative* errors."""
    part = design[:, kept] / times[:, None]
    scale = np.abs(part).max(axis=0)
    solution = np.linalg.lstsq(part / scale, np.ones(len(times)), rcond=None)[0] / scale
    full = np.zeros(design.shape[1])
    full[kept] = solution
    return full


def _fit_regime(mode: str, rows: Sequence[Row]) -> Regime:
    design, times = _design(rows), np.array([r.step_ms for r in rows])
    contexts = [r.context for r in rows]
    # a context that only grows by decoding says nothing about its cost
    several = max(contexts) >= 1.5 * min(contexts)
    kept = _identified(design, [0, 1, 2, 3] if several else [0, 1, 2])
    if len(set(design[:, 1])) < 2:
        raise FitError(f"mode {mode} has {len(rows)} points of one step size, allowed: at least two sizes")
    if len(rows) < len(kept) + 1:
        raise FitError(f"mode {mode} has {len(rows)} points, allowed: at least {len(kept) + 1} for {len(kept)} terms")
    solution = _solve(design, times, kept)
    errors = []
    for out in range(len(rows)):
        others = np.arange(len(rows)) != out
        if _identified(design[others], kept) == kept:
            guess = design[out] @ _solve(design[others], times[others], kept)
            errors.append(abs(guess / times[out] - 1))
    spread = ((times - times.mean()) ** 2).sum()
    r_squared = 1 - ((design @ solution - times) ** 2).sum() / spread if spread > 0 else None

    def span(values) -> tuple[float, float]:
        return float(min(values)), float(max(values))

    return Regime(
        mode=mode,
        **dict(zip(TERMS, map(float, solution), strict=True)),
        identified=tuple(TERMS[i] for i in kept),
        grid=Grid(
            batch=span(design[:, 2]), verified=span(design[:, 1]), context=span(contexts),
            per_request=span(design[:, 1] / design[:, 2]),
        ),
        num_rows=len(rows),
        r_squared=None if r_squared is None else float(r_squared),
        held_out_error=float(np.median(errors)) if errors else None,
        held_out_worst=float(np.max(errors)) if errors else None,
    )  # fmt: skip


def fit(rows: Iterable[Row]) -> Law:
    """The law of one model, machine and setting, by relative least squares, a regime a graph mode.

    A mode with too few points is named in `left_out`. Raises FitError if rows mix models, machines or
    settings, or if no mode has enough points (one more than there are identifiable terms).
    """
    rows = list(rows)
    for name in ("model", "hardware", "setting"):
        values = sorted({getattr(r, name) for r in rows})
        if len(values) > 1:
            raise FitError(f"rows hold {name} {values[0]!r} and {values[1]!r}, allowed: one")
    regimes, left_out = [], {}
    for mode in sorted({r.mode for r in rows}):
        try:
            regimes.append(_fit_regime(mode, [r for r in rows if r.mode == mode]))
        except FitError as error:
            left_out[mode] = str(error)
    if not regimes:
        raise FitError(
            "; ".join(left_out.values()) or "rows is empty, allowed: at least three points of two step sizes"
        )
    first = rows[0]
    return Law(
        model=first.model,
        hardware=first.hardware,
        setting=first.setting,
        regimes=tuple(regimes),
        left_out=left_out,
    )


def laws(rows: Iterable[Row]) -> dict[str, Law]:
    """A law for each setting of one model's rows; settings without enough points are left out."""
    by_setting: dict[str, list[Row]] = {}
    for row in rows:
        by_setting.setdefault(row.setting, []).append(row)
    found = {}
    for setting in sorted(by_setting, key=lambda s: RUNGS.index(s) if s in RUNGS else len(RUNGS)):
        try:
            found[setting] = fit(by_setting[setting])
        except FitError:
            continue
    return found


def from_records(records: Iterable[Record], store: Reader) -> dict[str, Law]:
    """Laws by setting (`vanilla`, `vanilla_v1`, `vanilla_v1_sync`, `walking`) from the grid's records of
    one model.

    Raises FitError where the records mix models or machines: take them apart by model first (`by_model`).
    """
    found = rows_of(records, store)
    if len({(r.model, r.hardware) for r in found}) > 1:
        raise FitError(f"records hold {', '.join(by_model(found))}, allowed: one model on one machine")
    return laws(found)


def by_model(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by model label, smallest model first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.model, []).append(row)
    return dict(sorted(found.items(), key=lambda item: (item[1][0].parameters_b or 0.0, item[0])))


def break_even(
    law_vanilla: Law, law_drafter: Law, batch, gamma, *, mode: str | None = None, vanilla_mode: str | None =
    None, context=None, extrapolate: bool = False,
):  # fmt: skip
    """tau*(gamma, B) = t_drafter(B, B (1 + gamma)) / t_vanilla(B, B): tokens per step from which drafts pay.

    Arrays broadcast. `mode` is the drafter's regime, `vanilla_mode` vanilla's. Raises as `Law.predict`.
    """
    batch, gamma = np.asarray(batch, float), np.asarray(gamma, float)
    options = {"context": context, "extrapolate": extrapolate}
    drafted = law_drafter.predict(batch, batch * (1 + gamma), mode=mode, **options)
    return drafted / law_vanilla.predict(batch, batch, mode=vanilla_mode, **options)


class Choice(NamedTuple):
    """A draft length and the speedup expected of it; length 0 is vanilla, speculation off."""

    gamma: int
    speedup: float


def best_gamma(
    law_vanilla: Law, law_drafter: Law, batch: float, acceptance: Sequence[float], *, mode: str | None = None,
    vanilla_mode: str | None = None, coverage: float = 1.0,
) -> Choice:  # fmt: skip
    """The draft length with the largest expected speedup at `batch`; 0 if none beats vanilla.

    Lengths outside the drafter's measured grid are not considered. The arguments are those of `expected_speedups`.
    """
    options = {"mode": mode, "vanilla_mode": vanilla_mode, "coverage": coverage}
    found = expected_speedups(law_vanilla, law_drafter, batch, acceptance, **options)
    best = max(found, key=found.get, default=0)
    return Choice(best, found[best]) if best and found[best] > 1 else Choice(0, 1.0)


def expected_speedups(
    law_vanilla: Law, law_drafter: Law, batch: float, acceptance: Sequence[float], *, mode: str | None = None,
    vanilla_mode: str | None = None, coverage: float = 1.0, extrapolate: bool = False,
) -> dict[int, float]:  # fmt: skip
    """tau / R by draft length at a constant batch; lengths outside the drafter's grid only if `extrapolate`.

    acceptance[i]: share of drafts accepted up to position i + 1 (`metrics.acceptance_per_position`), so
    that a draft of gamma tokens emits 1 + their sum; `coverage`: share of request-steps with a draft, which
    also scales V.
    """
    base, found = law_vanilla.predict(batch, batch, mode=vanilla_mode), {}
    for gamma in range(1, len(acceptance) + 1):
        verified = batch * (1 + coverage * gamma)
        try:
            step = law_drafter.predict(batch, verified, mode=mode, extrapolate=extrapolate)
        except ExtrapolationError:
            continue
        found[gamma] = float((1 + coverage * float(np.sum(acceptance[:gamma]))) * base / step)
    return found


# ---------------------------------------------------------------- does speedup = tau / R hold?


class Identity(NamedTuple):
    """speedup = tau / R x concurrency x prefill on one pair of cells; the last two are 1 in a steady state."""

    speedup: float  # output tokens a second, whole run, test over base
    decode_speedup: float  # the same over pure decode steps only: what prefill adds or takes is gone
    tau: float  # tokens per request-step in decode steps
    r: float  # step time of test over base at the same number of running requests
    shared: float  # share of the test's decode steps whose number of running requests occurs in both

    @property
    def predicted(self) -> float:
        return self.tau / self.r

    @property
    def concurrency(self) -> float:
        """What differing numbers of running requests (ramp-up, tail) make of tau / R: a factor, 1 at none."""
        return self.decode_speedup / self.predicted

    @property
    def prefill(self) -> float:
        """What the steps that read prompts make of the decode speedup: a factor, 1 at none."""
        return self.speedup / self.decode_speedup

    @property
    def cause(self) -> str:
        """The larger of the two factors, by name."""
        larger = abs(np.log(self.concurrency)) > abs(np.log(self.prefill))
        return "running requests" if larger else "prefill"


def identity(test: Trace, base: Trace) -> Identity:
    """Compare speedup with tau / R (`metrics.step_time_ratio`) for traces of the same prompts.

    Raises ValueError if no number of running requests occurs in both.
    """
    a, b = metrics.decode_steps(test), metrics.decode_steps(base)
    r = metrics.step_time_ratio(test, base)
    if not np.isfinite(r):
        raise ValueError("the traces share no number of running requests, allowed: cells of the same batch size")

    def rate(steps: Mapping) -> float:
        return steps["output_tokens"].sum() / steps["step_ms"].sum()

    def whole(trace: Trace) -> float:
        return sum(trace.steps["output_tokens"]) / trace.steps["t_s"][-1]

    return Identity(
        speedup=whole(test) / whole(base),
        decode_speedup=float(rate(a) / rate(b)),
        tau=float(a["output_tokens"].sum() / a["running"].sum()),
        r=r,
        shared=float(np.isin(a["running"], b["running"]).mean()),
    )


# ---------------------------------------------------------------- the study's own steps, analysed again


def _published(model: str, fixed: float, token: float, r_squared: float, points: int) -> Law:
    grid = Grid(batch=(17, 256), verified=(17, 256 * 13), per_request=(1, 13))
    regime = Regime(
        mode="PIECEWISE", fixed=fixed, token=token, identified=("fixed", "token"), grid=grid, num_rows=points,
        r_squared=r_squared,
    )  # fmt: skip
    return Law(
        model=model, hardware="8 x NVIDIA H100 80GB HBM3", setting="published", regimes=(regime,),
        source="re-analysis of the study's engine logs: 10 s intervals, batch mostly 256, at most 12 drafted",
    )  # fmt: skip


# Straight lines through the step times that follow from the study's published engine logs: a re-analysis,
# not a measurement of this project. The logs do not tell B from V, so one line serves vanilla and both
# drafters.
PUBLISHED = {
    "Llama-3.3-70B": _published("Llama-3.3-70B", 14.0, 0.0617, 0.984, 151),
    "Qwen2.5-72B": _published("Qwen2.5-72B", 15.7, 0.0594, 0.979, 130),
    "Qwen2.5-32B": _published("Qwen2.5-32B", 11.9, 0.0376, 0.967, 131),
}
# Llama-3.3-70B decode steps at batch about 256 without prefill, ms, from the same logs.
PUBLISHED_STEPS_MS = {
    "vanilla": (31.0, 31.0),
    "ngram code": (97.0, 97.0),
    "suffix code": (111.0, 111.0),
    "ngram sonnet": (117.0, 117.0),
    "suffix sonnet": (205.0, 205.0),
    "suffix mixes": (216.0, 224.0),
}


class PublishedPoint(NamedTuple):
    """One published speculative run against the vanilla run of its own series; single runs, no interval."""

    model: str
    parameters_b: float
    workload: str
    method: str
    campaign: str
    speedup: float
    tau: float  # tokens per step over the whole run; NaN where the study logged no counters


def published_points() -> list[PublishedPoint]:
    """The study's one-engine ngram and suffix runs that have exactly one vanilla run beside them."""
    found = []
    for cell in published.select(status="ok", arrangement="one-engine", method=("ngram", "suffix")):
        try:
            speedup = published.speedup(cell)
        except LookupError:
            continue
        tau = metrics.tokens_per_step(cell.counters) if cell.has_counters else float("nan")
        found.append(PublishedPoint(cell.model, cell.params_b, cell.workload, cell.method, cell.campaign, speedup, tau))
    return found
