"""The rules that decide the study's claims, each from records or from the study's own cells.

A rule is a function of the `Evidence` and its arguments in claims.yaml; its docstring says how it decides. It returns
findings: a verdict, where it comes from, and the numbers behind it. No record, no finding.

What a machine may decide: acceptance depends on the model and the prompts but not on the machine, so drafting is judged
on any machine, each time for the model that was measured. Speed, step cost and utilisation are judged on GPUs only: a CPU
engine is another machine, and no evidence against a claim about GPUs. Intervals are 95 %; a rule decides only what the
whole interval says, and a value without an interval is taken as it is, with its n.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from lib import corpus, ladder, metrics, params, published, stats, steptime, workloads
from lib.cells import WORKLOADS
from lib.params import Profile
from lib.published import MAIN_MODEL, SINGLES, PublishedCell
from lib.records import Record, Store, Trace, data_folder
from lib.stats import Estimate

Verdict = Literal["supported", "refuted", "undecided"]
PUBLISHED, ARITHMETIC = "published", "arithmetic"  # sources that are no profile
SMALL_B = 8.0  # "7B and below": billions of parameters, as the models are really sized


class Finding(NamedTuple):
    """What one rule found in one source: PUBLISHED, ARITHMETIC, or a profile's name."""

    verdict: Verdict
    source: str
    text: str


Rule = Callable[..., list[Finding]]
RULES: dict[str, Rule] = {}
ON_RECORDS: set[str] = set()  # rules that look at this collection's records, not only at the study's numbers


def reanalysis(function: Rule) -> Rule:
    """Make a rule on the study's own numbers known to claims.yaml."""
    RULES[function.__name__] = function
    return function


def measurement(function: Rule) -> Rule:
    """Make a rule on this collection's records (or its source text) known to claims.yaml."""
    ON_RECORDS.add(function.__name__)
    return reanalysis(function)


# ---------------------------------------------------------------- evidence


class Bench:
    """The records of one profile, found by what was asked for and not by what a file is called."""

    def __init__(self, profile: Profile, store: Store):
        self.profile, self.store, self.name = profile, store, profile.profile
        self._traces: dict[str, Trace] = {}

    @cached_property
    def all(self) -> list[Record]:
        return [r for r in self.store.all() if r.status == "ok" and r.counters is not None]

    @cached_property
    def on_gpu(self) -> bool:
        return any(r.provenance.gpu for r in self.all)

    @cached_property
    def text(self) -> list[Record]:
        """Records of the profile's model on its workloads, in its prompt form and with its output rule."""
        p = self.profile
        return [
            r
            for r in self.all
            if r.cell.engine.model == p.model
            and r.cell.workload.name in WORKLOADS
            and r.cell.workload.form == p.form
            and r.cell.ignore_eos == p.ignore_eos
        ]

    @cached_property
    def _by_engine(self) -> dict[tuple, list[Record]]:
        found: dict[tuple, list[Record]] = {}
        for r in self.text:
            engine = r.cell.engine.model_copy(update={"repeat": 0}).model_dump_json(exclude_defaults=True)
            found.setdefault((engine, r.cell.memory, r.cell.workload.reuse_prompts), []).append(r)
        return found

    def records(
        self, setting: str, workload: str | None = None, *, reused: bool | None = None
    ) -> list[Record]:
        """Records of a setting of `ladder`; [] where the profile's machine cannot have it.

        `reused`: mixes that repeat the prompts of the single workloads (default: what the profile asks for).
        """
        try:
            engine, memory = ladder.setting(self.profile, setting)
        except ValueError:
            return []
        reused = self.profile.reuse_prompts if reused is None else reused
        key = (engine.model_copy(update={"repeat": 0}).model_dump_json(exclude_defaults=True), memory, reused)
        return [r for r in self._by_engine.get(key, []) if workload in (None, r.cell.workload.name)]

    def trace(self, record: Record) -> Trace | None:
        if not record.has_trace:
            return None
        if record.cell_id not in self._traces:
            self._traces[record.cell_id] = self.store.trace(record)
        return self._traces[record.cell_id]

    @cached_property
    def noise(self) -> float:
        """The A/A noise floor: largest departure of vanilla from itself in another repeat; 0 without repeats."""
        arms: dict[int, list[Record]] = {}
        for r in self.records("vanilla"):
            arms.setdefault(r.cell.engine.repeat, []).append(r)
        return stats.noise_floor(list(arms.values())) if len(arms) > 1 else 0.0

    def speedups(
        self, tests: Iterable[Record], bases: Iterable[Record] | None = None
    ) -> dict[tuple[str, int], Estimate]:
        """Throughput ratio of `tests` over `bases` (default: vanilla) by (workload, batch size)."""
        bases = list(self.records("vanilla") if bases is None else bases)
        groups: dict[tuple[str, int], list[Record]] = {}
        for r in tests:
            groups.setdefault((r.cell.workload.name, r.cell.batch_size), []).append(r)
        return {
            key: stats.speedup(group, bases)
            for key, group in sorted(groups.items(), key=lambda item: (_order(item[0][0]), item[0][1]))
            if stats.pair(group, bases)
        }

    def faster(self, ratio: Estimate) -> bool:
        """Whether a throughput ratio is a gain: interval above 1, value above the noise floor."""
        return _lowest(ratio) > 1 and ratio.value > np.exp(self.noise)

    def slower(self, ratio: Estimate) -> bool:
        return _highest(ratio) < 1 and ratio.value < np.exp(-self.noise)


class Evidence:
    """Everything that rules may look at: a bench for each profile that has records."""

    def __init__(self, benches: Iterable[Bench]):
        self.benches = list(benches)

    @classmethod
    def committed(cls, *replaced: Bench) -> Evidence:
        """The committed records of every profile in params/, `replaced` benches standing in for those of their profile."""
        own = {bench.name: bench for bench in replaced}
        names = {
            path.stem for path in params.PARAMS.glob("*.yaml") if any(data_folder(path.stem).glob("*.json"))
        }
        return cls(
            own[name] if name in own else Bench(params.load(name), Store(data_folder(name)))
            for name in sorted(names | set(own))
        )

    @property
    def gpus(self) -> list[Bench]:
        """The benches that may decide about a GPU's speed."""
        return [bench for bench in self.benches if bench.on_gpu]


# ---------------------------------------------------------------- deciding


def _order(workload: str) -> int:
    return WORKLOADS.index(workload) if workload in WORKLOADS else len(WORKLOADS)


def _lowest(e: Estimate) -> float:
    return e.low if np.isfinite(e.low) else e.value


def _highest(e: Estimate) -> float:
    return e.high if np.isfinite(e.high) else e.value


def within(e: Estimate, low: float = -np.inf, high: float = np.inf) -> Verdict:
    """supported if the whole interval lies in [low, high], refuted if none of it does, else undecided."""
    if not np.isfinite(e.value):
        return "undecided"
    if low <= _lowest(e) and _highest(e) <= high:
        return "supported"
    return "refuted" if _highest(e) < low or _lowest(e) > high else "undecided"


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """refuted if one is, supported if all are, else undecided."""
    verdicts = list(verdicts)
    if "refuted" in verdicts:
        return "refuted"
    return "supported" if verdicts and set(verdicts) == {"supported"} else "undecided"


def _is(condition: bool) -> Verdict:
    return "supported" if condition else "refuted"


def spread(values: Sequence[float]) -> Estimate:
    """Mean and normal 95 % interval of values of independent cells; no interval for one."""
    array = np.asarray([v for v in values if np.isfinite(v)], float)
    if not len(array):
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    half = 1.96 * array.std(ddof=1) / np.sqrt(len(array)) if len(array) > 1 else float("nan")
    return Estimate(float(array.mean()), float(array.mean() - half), float(array.mean() + half), len(array))


def over(a: Estimate, b: Estimate) -> Estimate:
    """Ratio of two independent estimates; relative half-widths are added in quadrature."""
    value = a.value / b.value
    up = np.hypot(np.log(a.high / a.value), np.log(b.value / b.low))
    down = np.hypot(np.log(a.value / a.low), np.log(b.high / b.value))
    return Estimate(value, float(value * np.exp(-down)), float(value * np.exp(up)), min(a.n, b.n))


def drafting(records: Sequence[Record], quantity: Literal["K", "a", "tau"]) -> Estimate:
    """K, acceptance rate or tokens per step of records pooled; intervals over prompts where the engine tells, else cells."""
    if quantity == "tau":
        value = metrics.tokens_per_step(metrics.pooled(records))
        cells = spread([metrics.tokens_per_step(r.counters) for r in records])
    else:
        known = stats.mean_acceptance_length if quantity == "K" else stats.acceptance_rate
        estimate = known(records)
        if np.isfinite(estimate.low):
            return estimate
        value = estimate.value
        one = metrics.mean_acceptance_length if quantity == "K" else metrics.acceptance_rate
        cells = spread([one(r.counters) for r in records])
    half = cells.high - cells.value
    return Estimate(value, value - half, value + half, sum(len(r.requests) for r in records))


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]} B={key[1]}"


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


# ---------------------------------------------------------------- the study's own cells


def _found(verdict: Verdict, text: str) -> list[Finding]:
    return [Finding(verdict, PUBLISHED, text)]


def _one_engine(**fields) -> list[PublishedCell]:
    return published.select(arrangement="one-engine", status="ok", **fields)


def _gains(model: str, method: str, names: Sequence[str]) -> dict[str, float]:
    return {w: published.speedup(published.main_cell(w, method, model=model)) for w in names}


@reanalysis
def published_count(evidence: Evidence, expected: int) -> list[Finding]:
    """Supported if the study's cells are as many as it says."""
    cells = published.select(in_study=True)
    http = sum(c.arrangement == "two-engines-http" for c in cells)
    return _found(
        _is(len(cells) == expected), f"{len(cells)} cells, of which {http} are an HTTP test of two engines"
    )


@reanalysis
def published_grid(evidence: Evidence, models: int, workloads: int) -> list[Finding]:
    """Supported if that many models each have that many workloads."""
    by_model: dict[str, set[str]] = {}
    for cell in published.select(in_study=True, arrangement="one-engine"):
        by_model.setdefault(cell.model, set()).add(cell.workload)
    whole = sum(len(names) >= workloads for names in by_model.values())
    text = f"{whole} of {len(by_model)} models have {workloads} workloads"
    return _found(_is(len(by_model) == models and whole == models), text)


@reanalysis
def published_gain(
    evidence: Evidence,
    workload: str,
    method: str,
    percent: float,
    model: str = MAIN_MODEL,
    tolerance: float = 1.0,
) -> list[Finding]:
    """Supported if the cell's throughput over vanilla's differs from the claim by at most `tolerance` points."""
    gain = 100 * (_gains(model, method, [workload])[workload] - 1)
    return _found(_is(abs(gain - percent) <= tolerance), f"{workload} {method} {gain:+.1f} % (n = 1 run)")


@reanalysis
def published_gain_range(
    evidence: Evidence, model: str, method: str, low: float, high: float
) -> list[Finding]:
    """Supported if smallest and largest gain over the six workloads are the claimed ones to within one point."""
    gains = [100 * (g - 1) for g in _gains(model, method, WORKLOADS).values()]
    near = abs(min(gains) - low) <= 1 and abs(max(gains) - high) <= 1
    return _found(_is(near), f"{min(gains):+.1f} % to {max(gains):+.1f} % (n = 1 run each)")


@reanalysis
def published_all_gain(
    evidence: Evidence, model: str, method: str, workloads: Sequence[str] = WORKLOADS
) -> list[Finding]:
    """Refuted if a workload is slower than vanilla by more than the study's noise; supported if all are faster."""
    gains, noise = _gains(model, method, workloads), published.noise()
    losing = [f"{w} {_percent(g)}" for w, g in gains.items() if g < 1 - noise]
    text = f"{model} {method}: {sum(g > 1 for g in gains.values())} of {len(gains)} gain"
    text += f", but {', '.join(losing)}" if losing else ""
    verdict = "refuted" if losing else "supported" if min(gains.values()) > 1 else "undecided"
    return _found(verdict, f"{text} (n = 1 run each)")


@reanalysis
def published_loses(evidence: Evidence, model: str, method: str, workload: str) -> list[Finding]:
    """Supported if the cell is slower than vanilla by more than the study's noise, refuted if it is faster."""
    gain, noise = _gains(model, method, [workload])[workload], published.noise()
    verdict = "supported" if gain < 1 - noise else "refuted" if gain > 1 + noise else "undecided"
    return _found(verdict, f"{workload} {method} {_percent(gain)} (n = 1 run)")


@reanalysis
def published_loses_only(
    evidence: Evidence, model: str, method: str, workload: str, percent: float
) -> list[Finding]:
    """Supported if only `workload` is slower than vanilla, by the claimed share to within one point."""
    gains = _gains(model, method, WORKLOADS)
    losing = [w for w, g in gains.items() if g < 1]
    near = abs(100 * (gains[workload] - 1) - percent) <= 1
    text = f"slower: {', '.join(f'{w} {_percent(gains[w])}' for w in losing) or 'none'} (n = 1 run each)"
    return _found(_is(losing == [workload] and near), text)


@reanalysis
def published_losses(evidence: Evidence) -> list[Finding]:
    """Supported if some speculative cell of the matrix is slower than vanilla."""
    cells = published.speculative_cells()
    slow = [c for c in cells if published.speedup(c) < 1 - published.noise()]
    return _found(_is(bool(slow)), f"{len(slow)} of {len(cells)} speculative cells with logs are slower")


@reanalysis
def published_wall(evidence: Evidence, percent: float) -> list[Finding]:
    """Supported if the six workloads' wall time together changes by the claimed share to within one point."""
    change = 100 * (published.total_wall_s("suffix") / published.total_wall_s("vanilla") - 1)
    return _found(_is(abs(change - percent) <= 1), f"{change:+.1f} % over six workloads")


@reanalysis
def published_mix_memory(evidence: Evidence, mix: str) -> list[Finding]:
    """Refuted if suffix takes over 10 % more tokens a step on the mix than its parts explain, while ngram does not.

    The mix ran last in an engine that had answered the same prompts; the suffix drafter remembers answers.
    """
    suffix, ngram = (published.memory_ratio(MAIN_MODEL, m, mix) for m in ("suffix", "ngram"))
    predicted = published.predicted_mix_throughput(MAIN_MODEL, "suffix", mix)
    fair = predicted / published.main_cell(mix, "vanilla").throughput_tok_s
    text = (
        f"{mix} tokens per step, measured over predicted from its parts: suffix {suffix:.2f}, ngram {ngram:.2f}; "
        f"its parts' own speed would give {_percent(fair)}"
    )
    return _found("refuted" if suffix > 1.1 > ngram else "supported" if suffix < 1.1 else "undecided", text)


@reanalysis
def published_fewer_steps_slower(evidence: Evidence) -> list[Finding]:
    """Refuted if a cell takes over 10 % fewer request-steps than vanilla and is slower by more than the noise."""
    cells = published.speculative_cells()
    few = [c for c in cells if metrics.tokens_per_step(c.counters) > 1.1]
    slow = [c for c in few if published.speedup(c) < 1 - published.noise()]
    worst = min(few, key=published.speedup)
    text = (
        f"{len(slow)} of {len(few)} cells with fewer steps are slower, e.g. {worst.model} {worst.workload} {worst.method}: "
        f"{metrics.tokens_per_step(worst.counters):.2f} tokens per step, {_percent(published.speedup(worst))}"
    )
    return _found("refuted" if slow else "supported", text)


@reanalysis
def published_best_draft_length(evidence: Evidence, best: int) -> list[Finding]:
    """Supported if that number of drafted tokens is the fastest of those the study ran on sonnet (one run each)."""
    speeds: dict[int, float] = {}
    for cell in _one_engine(campaign=("SUB_044", "SUB_048"), workload="sonnet", method="ngram"):
        held = speeds.get(cell.num_speculative_tokens, 0.0)
        speeds[cell.num_speculative_tokens] = max(held, cell.throughput_tok_s)
    text = ", ".join(f"{g}: {speeds[g]:,.0f}" for g in sorted(speeds))
    return _found(
        _is(max(speeds, key=speeds.get) == best), f"tok/s by drafted tokens {text} (n = 1 run each)"
    )


@reanalysis
def published_memory_limit(evidence: Evidence, fails: float, works: float) -> list[Finding]:
    """Supported if suffix with PIECEWISE ran out of memory at the one fraction and finished at the other."""
    runs = published.select(model=MAIN_MODEL, method="suffix", cudagraph_mode="PIECEWISE", num_prompts=500)
    high = [c for c in runs if c.gpu_memory_utilization == fails]
    low = [c for c in runs if c.gpu_memory_utilization == works]
    failed = sum(c.status == "oom" for c in high)
    text = f"out of memory: {failed} of {len(high)} at {fails:g}, {sum(c.status == 'oom' for c in low)} of {len(low)} at {works:g}"
    return _found(_is(failed > 0 and all(c.status == "ok" for c in low)), text)


@reanalysis
def published_one_setting_both_ways(evidence: Evidence, gain: float, loss: float) -> list[Finding]:
    """Supported if one drafter's best and worst workload are the claimed gain and loss to within two points."""
    ranges = {
        m: [100 * (g - 1) for g in _gains(MAIN_MODEL, m, WORKLOADS).values()] for m in ("ngram", "suffix")
    }
    one = any(abs(max(r) - gain) <= 2 and abs(min(r) - loss) <= 2 for r in ranges.values())
    text = "; ".join(f"{m} {min(r):+.1f} to {max(r):+.1f} %" for m, r in ranges.items())
    return _found(_is(one), f"{text} (n = 1 run each)")


def _small(methods: Sequence[str]) -> dict[PublishedCell, float]:
    """Speedups of the study's speculative cells at 7B and below."""
    cells = [c for c in _one_engine(method=tuple(methods)) if c.params_b < SMALL_B]
    return {c: published.speedup(c) for c in cells}


@reanalysis
def published_small_models(evidence: Evidence, methods: Sequence[str]) -> list[Finding]:
    """Supported if all cells are slower than vanilla, refuted if each series of runs has a faster one.

    The study ran its small models twice; where the two series disagree, single runs decide nothing.
    """
    gains, main = _small(methods), published.MAIN_CAMPAIGN
    last = [g for c, g in gains.items() if c.campaign == main]
    rest = [g for c, g in gains.items() if c.campaign != main]
    up = sum(g > 1 for g in last), sum(g > 1 for g in rest)
    verdict = "refuted" if all(up) else "supported" if not any(up) else "undecided"
    text = f"faster than vanilla: {up[1]} of {len(rest)} cells in the first series, {up[0]} of {len(last)} in the last"
    return _found(verdict, f"{text} (n = 1 run each, the two disagree)" if verdict == "undecided" else text)


@reanalysis
def published_small_factors(evidence: Evidence, low: float, high: float) -> list[Finding]:
    """Supported if every small-model cell is slower by a factor in [low, high], refuted if one is not."""
    factors = [1 / g for g in _small(("ngram", "suffix")).values()]
    outside = sum(not low <= f <= high for f in factors)
    text = f"from {max(factors):.2f}x slower to {1 / min(factors):.2f}x faster, {outside} of {len(factors)} cells outside"
    return _found(_is(outside == 0), text)


@reanalysis
def published_small_grid(evidence: Evidence) -> list[Finding]:
    """Supported if each small model ran with both drafters and on two kinds of GPU, refuted if a cell lacks."""
    cells = [c for c in published.select(method=("ngram", "suffix")) if c.params_b < SMALL_B]
    models = sorted({c.model for c in cells})
    lacking = [m for m in models if not any(c.model == m and c.method == "suffix" for c in cells)]
    gpus = {c.gpu.split()[0] for c in cells if c.arrangement != "quoted"}
    text = f"{len(models)} models; never run with suffix: {', '.join(lacking) or 'none'}; measured on {', '.join(sorted(gpus))} only"
    return _found(_is(not lacking and len(gpus) > 1), text)


@reanalysis
def published_slower_by(
    evidence: Evidence, model: str, method: str, workload: str, factor: float
) -> list[Finding]:
    """One finding a run of the cell: supported if it is slower by the claimed factor to within a tenth."""
    findings = []
    for cell in published.select(model=model, method=method, workload=workload, status="ok"):
        found = 1 / published.speedup(cell)
        text = (
            f"{cell.campaign}: {found:.2f}x slower"
            if found >= 1
            else f"{cell.campaign}: {_percent(1 / found)}"
        )
        findings += _found(_is(abs(found / factor - 1) <= 0.1), text)
    return findings


@reanalysis
def published_fixed_inequality(evidence: Evidence, bound: float) -> list[Finding]:
    """Refuted if a cell whose whole-run K exceeds `bound` is slower than vanilla by more than the noise."""
    above = [c for c in published.speculative_cells() if metrics.mean_acceptance_length(c.counters) > bound]
    slow = [c for c in above if published.speedup(c) < 1 - published.noise()]
    text = f"K exceeds {bound:g} in {len(above)} of {len(published.speculative_cells())} cells, {len(slow)} of them are slower"
    return _found("refuted" if slow else "supported", text)


@reanalysis
def published_step_cost(evidence: Evidence, low: float, high: float) -> list[Finding]:
    """R = tokens per step over speedup: supported if nine tenths of the cells lie in the band, refuted if under half do."""
    costs = [published.step_cost(c) for c in published.speculative_cells()]
    inside = sum(low <= r <= high for r in costs)
    text = f"{inside} of {len(costs)} cells inside; {min(costs):.2f} to {max(costs):.2f}, median {_median(costs):.2f}"
    return _found(_band(inside, len(costs)), text)


def _band(inside: int, total: int) -> Verdict:
    return "supported" if inside >= 0.9 * total else "refuted" if inside < 0.5 * total else "undecided"


@reanalysis
def published_variation(evidence: Evidence) -> list[Finding]:
    """Refuted if K explains less than half of the variance of the speedup over the cells (squared correlation of their
    logarithms), supported if it explains nine tenths."""
    cells = published.speculative_cells()
    pairs = [(metrics.mean_acceptance_length(c.counters), published.speedup(c)) for c in cells]
    return _found(*_explained(pairs))


def _explained(pairs: Sequence[tuple[float, float]]) -> tuple[Verdict, str]:
    k, ratio = np.log(np.asarray(pairs)).T
    share = float(np.corrcoef(k, ratio)[0, 1] ** 2)
    verdict = "supported" if share >= 0.9 else "refuted" if share < 0.5 else "undecided"
    return verdict, f"K explains {100 * share:.0f} % of the variance of the speedup, {len(pairs)} cells"


@reanalysis
def published_k_against_tau(evidence: Evidence) -> list[Finding]:
    """Refuted if in some cell a request-step advances by less than 0.9 K."""
    ratios = {
        c: metrics.tokens_per_step(c.counters) / metrics.mean_acceptance_length(c.counters)
        for c in published.speculative_cells()
    }
    worst = min(ratios, key=ratios.get)
    text = (
        f"{sum(r < 0.9 for r in ratios.values())} of {len(ratios)} cells below; {worst.model} {worst.workload} {worst.method}: "
        f"K {metrics.mean_acceptance_length(worst.counters):.2f}, tokens per step {metrics.tokens_per_step(worst.counters):.2f}"
    )
    return _found(_is(min(ratios.values()) >= 0.9), text)


@reanalysis
def published_linear_rule(evidence: Evidence) -> list[Finding]:
    """Refuted if K = 1 + a gamma is exact only for drafts of fixed length (an identity) and worse than the closed form else."""

    def errors(method: str, formula: Callable[[float, int], float]) -> list[float]:
        cells = [c for c in published.speculative_cells() if c.method == method]
        pairs = [
            (
                metrics.mean_acceptance_length(c.counters),
                formula(metrics.acceptance_rate(c.counters), c.num_speculative_tokens),
            )
            for c in cells
        ]
        return [abs(formed / k - 1) for k, formed in pairs]

    def linear(a: float, gamma: int) -> float:
        return 1 + a * gamma

    def closed(a: float, gamma: int) -> float:
        return (1 - a ** (gamma + 1)) / (1 - a)

    identity, varying, other = (
        max(errors("ngram", linear)),
        _median(errors("suffix", linear)),
        _median(errors("suffix", closed)),
    )
    text = (
        f"ngram (7 each): off by at most {100 * identity:.1f} %, as an identity must; "
        f"suffix: off by {100 * varying:.0f} %, closed form {100 * other:.0f} % (medians)"
    )
    return _found("refuted" if identity < 0.01 and varying >= other else "undecided", text)


@reanalysis
def published_finds_nothing(
    evidence: Evidence, workload: str, method: str, k: float, acceptance: float
) -> list[Finding]:
    """Supported if whole-run K and acceptance both stay below the bounds, refuted if one exceeds its bound."""
    c = published.main_cell(workload, method).counters
    found_k, found_a = metrics.mean_acceptance_length(c), metrics.acceptance_rate(c)
    share = c.num_accepted_tokens / c.num_output_tokens
    text = f"whole run: K {found_k:.2f}, acceptance {100 * found_a:.1f} %, {100 * share:.0f} % of the output from drafts"
    return _found(_is(found_k <= k and found_a <= acceptance), text)


@reanalysis
def published_single_step(evidence: Evidence, base: str, test: str, percent: float) -> list[Finding]:
    """Refuted if the two runs differ in a recorded setting besides the drafter; the gain itself is given."""
    first = published.one(campaign=base, workload="sonnet", method="vanilla")
    runs = _one_engine(campaign=test, workload="sonnet", method="ngram", num_speculative_tokens=7)
    second = max(runs, key=lambda c: c.throughput_tok_s)
    differ = [
        f"{name} {getattr(first, name)} / {getattr(second, name)}"
        for name in ("gpu_memory_utilization", "max_num_seqs", "num_prompts", "output_cap")
        if None not in (getattr(first, name), getattr(second, name))
        and getattr(first, name) != getattr(second, name)
    ]
    gain = second.throughput_tok_s / first.throughput_tok_s
    same = _gains(MAIN_MODEL, "ngram", ["sonnet"])["sonnet"]
    text = (
        f"{_percent(gain)}, but also {', '.join(differ)}; same conditions {_percent(same)}"
        if differ
        else _percent(gain)
    )
    return _found(_is(not differ and abs(100 * (gain - 1) - percent) <= 1), text)


@reanalysis
def published_first_step_share(evidence: Evidence, workloads: Sequence[str]) -> list[Finding]:
    """One verdict over the workloads: refuted if ngram's gain is under half of the full configuration's on one of them."""
    ngram, full = (_gains(MAIN_MODEL, m, workloads) for m in ("ngram", "suffix"))
    shares = {w: (ngram[w] - 1) / (full[w] - 1) for w in workloads}
    text = ", ".join(f"{w} {100 * s:.0f} %" for w, s in shares.items())
    return _found(_is(min(shares.values()) >= 0.5), f"ngram's share of the gain: {text} (n = 1 run each)")


@reanalysis
def published_staircase(evidence: Evidence, workload: str) -> list[Finding]:
    """Refuted if suffix alone (the study's only run without PIECEWISE was eager) is slower than ngram before it."""
    base = published.one(campaign="SUB_086", workload=workload, method="vanilla")
    ngram = published.one(campaign="SUB_075", workload=workload, method="ngram")
    alone = published.one(campaign="SUB_074", workload=workload, method="suffix", num_prompts=500)
    last = published.one(campaign="SUB_085v2", workload=workload, method="suffix")
    speeds = [c.throughput_tok_s for c in (base, ngram, alone, last)]
    text = (
        " -> ".join(f"{s:,.0f}" for s in speeds) + " tok/s (vanilla, ngram, suffix eager, suffix PIECEWISE)"
    )
    return _found(_is(speeds == sorted(speeds)), text)


@reanalysis
def published_rescue(evidence: Evidence, model: str) -> list[Finding]:
    """Supported if every workload that ngram slows down is faster than vanilla with the full configuration."""
    ngram, full = _gains(model, "ngram", WORKLOADS), _gains(model, "suffix", WORKLOADS)
    slowed = [w for w in WORKLOADS if ngram[w] < 1 - published.noise()]
    text = ", ".join(f"{w} {_percent(ngram[w])} -> {_percent(full[w])}" for w in slowed)
    return _found(_is(bool(slowed) and all(full[w] > 1 for w in slowed)), f"{text} (n = 1 run each)")


def _whole_run(workload: str, method: str, quantity: Literal["K", "a"]) -> float:
    c = published.main_cell(workload, method).counters
    return metrics.mean_acceptance_length(c) if quantity == "K" else metrics.acceptance_rate(c)


@reanalysis
def published_k_ratio(evidence: Evidence, low: float, high: float) -> list[Finding]:
    """Supported if suffix's whole-run K over ngram's lies in [low, high] on all three single workloads."""
    ratios = {w: _whole_run(w, "suffix", "K") / _whole_run(w, "ngram", "K") for w in SINGLES}
    text = ", ".join(f"{w} {r:.2f}" for w, r in ratios.items())
    return _found(_is(all(low <= r <= high for r in ratios.values())), f"whole-run ratio: {text}")


@reanalysis
def published_acceptance_ratio(evidence: Evidence, workload: str, at_least: float) -> list[Finding]:
    """Supported if suffix's whole-run acceptance is at least `at_least` times ngram's."""
    suffix, ngram = _whole_run(workload, "suffix", "a"), _whole_run(workload, "ngram", "a")
    text = f"whole run {100 * ngram:.1f} % -> {100 * suffix:.1f} %, {suffix / ngram:.1f} times"
    return _found(_is(suffix / ngram >= at_least), text)


@reanalysis
def published_eager_chat(evidence: Evidence, loss: float, gain: float) -> list[Finding]:
    """Supported if on chat eager suffix loses and PIECEWISE suffix gains as claimed, to within two points."""
    eager = published.one(campaign="SUB_074", workload="chat", method="suffix")
    pieces = published.one(campaign="SUB_085v2", workload="chat", method="suffix")
    found = [100 * (published.speedup(c) - 1) for c in (eager, pieces)]
    near = abs(found[0] - loss) <= 2 and abs(found[1] - gain) <= 2
    return _found(_is(near), f"chat: eager {found[0]:+.1f} %, PIECEWISE {found[1]:+.1f} % (n = 1 run each)")


@reanalysis
def published_printed_acceptance(evidence: Evidence, method: str) -> list[Finding]:
    """Supported if the printed K and acceptance are within a tenth of the whole run's on all three workloads.

    The printed values are one log interval of about ten seconds; the whole-run values sum all intervals.
    """
    parts, near = [], []
    for workload in SINGLES:
        k, a = _whole_run(workload, method, "K"), _whole_run(workload, method, "a")
        shown_k = published.printed(workload, method, "mean_acceptance_length").value
        shown_a = published.printed(workload, method, "acceptance_rate").value
        near += [abs(shown_k / k - 1) <= 0.1, abs(shown_a / a - 1) <= 0.1]
        parts.append(f"{workload} {k:.2f} / {100 * a:.1f} %")
    return _found(_is(all(near)), f"whole run: {', '.join(parts)}")


@reanalysis
def published_only_bar_below(evidence: Evidence, bound: float) -> list[Finding]:
    """Supported if ngram on code is the only single-workload cell whose whole-run K is below `bound`."""
    values = {(w, m): _whole_run(w, m, "K") for w in SINGLES for m in ("ngram", "suffix")}
    below = [key for key, k in values.items() if k < bound]
    return _found(
        _is(below == [("code", "ngram")]),
        f"{len(below)} of {len(values)} below; smallest {min(values.values()):.2f}",
    )


@reanalysis
def published_k_order(evidence: Evidence, method: str, higher: str, lower: str) -> list[Finding]:
    """Supported if the whole-run K of the one workload exceeds that of the other."""
    top, bottom = _whole_run(higher, method, "K"), _whole_run(lower, method, "K")
    return _found(_is(top > bottom), f"whole-run K: {higher} {top:.2f}, {lower} {bottom:.2f}")


@reanalysis
def published_chat_length(evidence: Evidence, expected: float) -> list[Finding]:
    """One finding a series of runs: supported if vanilla's mean chat reply is within a tenth of it and below the cap."""
    findings = []
    for cell in _one_engine(model=MAIN_MODEL, workload="chat", method="vanilla", output_cap=8192):
        mean = cell.num_output_tokens / cell.num_prompts
        near = abs(mean / expected - 1) <= 0.1 and mean < cell.output_cap
        findings += _found(_is(near), f"{cell.campaign}: {mean:.0f} tokens")
    return findings


@reanalysis
def published_gains_close(
    evidence: Evidence, method: str, workloads: Sequence[str], points: float
) -> list[Finding]:
    """Supported if the two gains differ by at most `points` percentage points."""
    gains = {w: 100 * (g - 1) for w, g in _gains(MAIN_MODEL, method, workloads).items()}
    text = ", ".join(f"{w} {g:+.1f} %" for w, g in gains.items())
    return _found(_is(max(gains.values()) - min(gains.values()) <= points), f"{text} (n = 1 run each)")


@reanalysis
def expected_repeats(evidence: Evidence, draws: int, pool: int, expected: float) -> list[Finding]:
    """Supported if draws - pool (1 - (1 - 1/pool)^draws), the expected number of repeats, is within one of the claim."""
    found = draws - pool * (1 - (1 - 1 / pool) ** draws)
    return [Finding(_is(abs(found - expected) <= 1), ARITHMETIC, f"{found:.1f} repeats expected")]


@reanalysis
def word_pairs(evidence: Evidence, expected: int) -> list[Finding]:
    """Supported if the square of the word pool's size is the claimed number."""
    size = len(corpus.CODE_WORDS)
    return [Finding(_is(size**2 == expected), ARITHMETIC, f"{size} x {size} = {size**2}")]


@reanalysis
def published_sign_by_output_cap(evidence: Evidence) -> list[Finding]:
    """Refuted if on one model a workload's sign changes with the output cap alone (number of prompts aside)."""
    curves = published.speedups_by_output_cap()
    flips = [w for w, points in curves.items() if min(s for _, s in points) < 1 < max(s for _, s in points)]
    text = "; ".join(
        f"{MAIN_MODEL} ngram {w} " + ", ".join(f"{_percent(s)} at {cap:,}" for cap, s in curves[w])
        for w in flips[:1]
    )
    return _found("refuted" if flips else "undecided", f"{text} output tokens (n = 1 run each)")


@reanalysis
def published_models_differ(
    evidence: Evidence, models: Sequence[str], workload: str, method: str
) -> list[Finding]:
    """Supported if the models' whole-run acceptance differs by more than a tenth."""
    values = {
        m: metrics.acceptance_rate(published.main_cell(workload, method, model=m).counters) for m in models
    }
    text = ", ".join(f"{m} {100 * a:.1f} %" for m, a in values.items())
    return _found(_is(max(values.values()) / min(values.values()) > 1.1), f"{workload} {method}: {text}")


def _busy(method: str) -> float:
    return float(np.mean([published.main_cell(w, method).gpu_busy_process_pct for w in WORKLOADS]))


@reanalysis
def published_busy(evidence: Evidence, base: float, test: float) -> list[Finding]:
    """Supported if the printed means are the claimed ones to within half a point; means while generating are given too."""
    shown = _busy("vanilla"), _busy("suffix")
    pure = [
        float(np.average([published.main_cell(w, m).gpu_busy_pct for w in WORKLOADS],
                         weights=[published.main_cell(w, m).wall_s for w in WORKLOADS]))
        for m in ("vanilla", "suffix")
    ]  # fmt: skip
    near = abs(shown[0] - base) <= 0.5 and abs(shown[1] - test) <= 0.5
    text = f"{shown[0]:.1f} -> {shown[1]:.1f} %, start-up included; {pure[0]:.1f} -> {pure[1]:.1f} % while generating"
    return _found(_is(near), text)


@reanalysis
def published_matched_totals(evidence: Evidence, gain: float, wall: float) -> list[Finding]:
    """Supported if gain and wall time hold for the same six workloads to within three points."""
    speed = 100 * (
        published.total_throughput_tok_s("suffix") / published.total_throughput_tok_s("vanilla") - 1
    )
    time = 100 * (published.total_wall_s("suffix") / published.total_wall_s("vanilla") - 1)
    one = published.main_cell("sonnet", "suffix")
    alone = 100 * (one.wall_s / published.baseline(one).wall_s - 1)
    text = (
        f"six workloads {speed:+.1f} % with wall {time:+.1f} %; "
        f"sonnet {_percent(published.speedup(one))} with wall {alone:+.1f} %"
    )
    return _found(_is(abs(speed - gain) <= 3 and abs(time - wall) <= 3), text)


@reanalysis
def published_faster_less_busy(evidence: Evidence, energy: bool = False) -> list[Finding]:
    """Supported if a cell is faster than vanilla with a lower busy share while generating (and less energy a token)."""
    found = []
    for cell in published.speculative_cells():
        base = published.baseline(cell)
        if None in (cell.gpu_busy_pct, base.gpu_busy_pct, cell.gpu_power_w, base.gpu_power_w):
            continue
        joules = [c.gpu_power_w / c.throughput_tok_s for c in (base, cell)]
        if (
            published.speedup(cell) > 1
            and cell.gpu_busy_pct < base.gpu_busy_pct - 2
            and (not energy or joules[1] < joules[0])
        ):
            found.append((cell, base, joules))
    if not found:
        return _found("refuted", "no such cell")
    cell, base, joules = found[0]
    text = f"{len(found)} cells, e.g. {cell.workload} {cell.method} {_percent(published.speedup(cell))} at {base.gpu_busy_pct:.0f} -> {cell.gpu_busy_pct:.0f} % busy"
    return _found("supported", text + (f", {joules[0]:.2f} -> {joules[1]:.2f} J a token" if energy else ""))


@reanalysis
def published_tokens_per_step(evidence: Evidence, low: float, high: float) -> list[Finding]:
    """Supported if most workloads' tokens per step with suffix lie in [low, high], refuted if most do not."""
    values = {w: metrics.tokens_per_step(published.main_cell(w, "suffix").counters) for w in WORKLOADS}
    inside = sum(low <= v <= high for v in values.values())
    text = ", ".join(f"{w} {v:.1f}" for w, v in values.items())
    return _found(_is(inside > len(values) / 2), f"{MAIN_MODEL}: {text}")


@reanalysis
def published_long_drafts(evidence: Evidence, at_least: int) -> list[Finding]:
    """Supported if a run failed that differs from a finished one in the number of drafted tokens alone, else undecided."""
    long = [
        c
        for c in published.cells()
        if (c.num_speculative_tokens or 0) >= at_least and c.arrangement == "one-engine"
    ]
    failed = [c for c in long if c.status == "crashed"]
    alone = [
        c for c in failed
        if any(o.status == "ok" and (o.prompt_lookup_min, o.prompt_lookup_max) == (c.prompt_lookup_min, c.prompt_lookup_max)
               for o in published.select(campaign=c.campaign, workload=c.workload, method=c.method))
    ]  # fmt: skip
    text = f"{len(failed)} of {len(long)} runs with at least {at_least} crashed, and it changed the lookup range as well"
    return _found("supported" if alone else "undecided", text)


@reanalysis
def published_both_signs(evidence: Evidence, model: str, method: str) -> list[Finding]:
    """Supported if one drafter is faster on one workload and slower on another, beyond the study's noise."""
    gains, noise = _gains(model, method, WORKLOADS), published.noise()
    both = min(gains.values()) < 1 - noise and max(gains.values()) > 1 + noise
    text = f"{method} {_percent(min(gains.values()))} to {_percent(max(gains.values()))} (n = 1 run each)"
    return _found(_is(both), text)


@reanalysis
def published_memory_fraction(evidence: Evidence, share: float) -> list[Finding]:
    """Supported if vanilla at 0.85 and at 0.80 differs by at least `share` on a workload, refuted if on none."""
    shifts = {}
    for workload in ("chat", "code"):
        high = published.one(campaign="SUB_071", workload=workload, method="vanilla")
        low = published.one(campaign="SUB_086", workload=workload, method="vanilla")
        shifts[workload] = low.throughput_tok_s / high.throughput_tok_s
    text = ", ".join(f"{w} {_percent(s)}" for w, s in shifts.items())
    return _found(
        _is(any(abs(s - 1) >= share for s in shifts.values())), f"0.85 -> 0.80: {text} (n = 1 run each)"
    )


@reanalysis
def published_same_work(evidence: Evidence, first: str, second: str) -> list[Finding]:
    """Refuted if the two runs read different numbers of prompt tokens for the same number of prompts."""
    a, b = (
        _one_engine(campaign=name, method="vanilla", workload=("sonnet", "sonnet-permuted"))[0]
        for name in (first, second)
    )
    sizes = [c.num_prompt_tokens / c.num_prompts for c in (a, b)]
    text = f"{a.throughput_tok_s:,.0f} tok/s with {sizes[0]:,.0f} prompt tokens each, {b.throughput_tok_s:,.0f} with {sizes[1]:,.0f}"
    return _found(_is(abs(sizes[0] / sizes[1] - 1) < 0.05), text)


# ---------------------------------------------------------------- this collection's records


def _where(bench: Bench, records: Sequence[Record]) -> str:
    """Model, hardware kind and n, as every measured finding ends."""
    machine = next((r.provenance.gpu for r in records if r.provenance.gpu), None) or "CPU"
    return f"({bench.profile.model.name}, {machine.removeprefix('NVIDIA ')}, n = {sum(len(r.requests) for r in records)})"


@measurement
def runs_on_a_release(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """Supported if a released vLLM (a plain version number) drafted with one of the settings, on any machine."""
    findings = []
    for bench in evidence.benches:
        records = [r for s in settings for r in bench.records(s) if r.counters.num_drafts and r.resolved]
        versions = sorted({r.resolved.vllm_version for r in records})
        plain = [v for v in versions if re.fullmatch(r"\d+\.\d+\.\d+(\.post\d+)?(\+(cpu|cu\d+))?", v)]
        if versions:
            findings.append(
                Finding(
                    "supported" if plain else "undecided",
                    bench.name,
                    f"suffix ran on vLLM {', '.join(versions)}",
                )
            )
    return findings


@measurement
def suffix_without_plugins(evidence: Evidence) -> list[Finding]:
    """Supported if suffix drafted here, where every engine starts with VLLM_PLUGINS empty, on any machine."""
    findings = []
    for bench in evidence.benches:
        records = [r for s in ("suffix", "suffix_cold") for r in bench.records(s)]
        if records:
            drafts = sum(r.counters.num_drafts for r in records)
            findings.append(
                Finding(
                    _is(drafts > 0),
                    bench.name,
                    f"{drafts:,} drafts with plugins blocked {_where(bench, records)}",
                )
            )
    return findings


@measurement
def measured_losses(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only. Supported if a setting is slower than vanilla somewhere, refuted if all are faster everywhere."""
    findings = []
    for bench in evidence.gpus:
        found = {(s, *key): e for s in settings for key, e in bench.speedups(bench.records(s)).items()}
        if not found:
            continue
        slow = [key for key, e in found.items() if bench.slower(e)]
        worst = min(found, key=lambda key: found[key].value)
        text = f"{len(slow)} of {len(found)} slower; {worst[0]} {_name(worst[1:])} {found[worst]}"
        verdict = (
            "supported" if slow else "refuted" if all(map(bench.faster, found.values())) else "undecided"
        )
        findings.append(Finding(verdict, bench.name, text))
    return findings


@measurement
def measured_mix_memory(evidence: Evidence, mix: str) -> list[Finding]:
    """Any machine, its own model. A mix's tokens per step over what its parts predict, with prompts that the engine
    answered before over fresh prompts: refuted if this exceeds 1.1 with the drafter's memory on and not with it off."""
    findings = []
    for bench in evidence.benches:
        effects = {memory: mix_effect(bench, mix, memory) for memory in ("on", "off")}
        if None in effects.values():
            continue
        on, off = (over(e["answered"], e["fresh"]) for e in (effects["on"], effects["off"]))
        text = f"{mix}, answered before over fresh: memory on {on}, off {off} {_where(bench, bench.records('suffix_cold', mix))}"
        grows, still = within(on, high=1.1), within(off, low=0.9, high=1.1)
        verdict = (
            "refuted"
            if (grows, still) == ("refuted", "supported")
            else "supported"
            if grows == "supported"
            else "undecided"
        )
        findings.append(Finding(verdict, bench.name, text))
    return findings


def mix_effect(bench: Bench, mix: str, memory: Literal["on", "off"]) -> dict[str, Estimate] | None:
    """Tokens per step of a mix over the prediction from its parts, by seed: `fresh` prompts, and `answered` ones (the
    study's way: the mix repeats prompts of the single workloads). None where a record lacks."""
    single, repeated = ("suffix_cold", "suffix_warm") if memory == "on" else ("suffix", "suffix")
    ratios: dict[str, list[float]] = {"fresh": [], "answered": []}
    for key, records in (
        ("fresh", bench.records(single, mix, reused=False)),
        ("answered", bench.records(repeated, mix, reused=True)),
    ):
        for r in records:
            parts = {
                kind: [
                    s.counters
                    for s in bench.records(single, kind, reused=False)
                    if (s.cell.workload.seed, s.cell.batch_size) == (r.cell.workload.seed, r.cell.batch_size)
                ]
                for kind in workloads.KINDS
            }
            if all(parts.values()):
                shares = workloads.mix_counts(mix, r.cell.workload.num_prompts)
                predicted = published.predicted_tau((shares[kind], found[0]) for kind, found in parts.items())
                ratios[key].append(metrics.tokens_per_step(r.counters) / predicted)
    if not all(ratios.values()):
        return None
    return {key: spread(values) for key, values in ratios.items()}


@measurement
def silent_changes(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """Any machine. Refuted if the engine resolved the model runner or asynchronous scheduling differently from vanilla."""
    findings = []
    for bench in evidence.benches:
        base = [r.resolved for r in bench.records("vanilla") if r.resolved]
        tests = {s: [r.resolved for r in bench.records(s) if r.resolved] for s in settings}
        tests = {s: found for s, found in tests.items() if found}
        if not base or not tests:
            continue
        changed = []
        for name, found in tests.items():
            for field, label in (("runner", "runner"), ("async_scheduling", "async scheduling")):
                was, now = getattr(base[0], field), getattr(found[0], field)
                if was != now:
                    changed.append(f"{name}: {label} {was} -> {now}")
        findings.append(
            Finding(_is(not changed), bench.name, "; ".join(changed) or f"none with {', '.join(tests)}")
        )
    return findings


@measurement
def measured_fewer_steps_slower(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only. Refuted if a cell takes over 5 % fewer request-steps than vanilla and is slower, interval below 1."""
    findings = []
    for bench in evidence.gpus:
        few, slow = {}, []
        for name in settings:
            records = bench.records(name)
            for key, ratio in bench.speedups(records).items():
                tau = drafting(_at(records, key), "tau").value
                if tau > 1.05:
                    few[(name, *key)] = (tau, ratio)
                    slow += [(name, *key)] if bench.slower(ratio) else []
        if few:
            worst = min(few, key=lambda key: few[key][1].value)
            text = (
                f"{len(slow)} of {len(few)} with fewer steps are slower; {worst[0]} {_name(worst[1:])}: "
                f"{few[worst][0]:.2f} tokens per step, speedup {few[worst][1]}"
            )
            findings.append(Finding("refuted" if slow else "supported", bench.name, text))
    return findings


def _at(records: Iterable[Record], key: tuple[str, int]) -> list[Record]:
    return [r for r in records if (r.cell.workload.name, r.cell.batch_size) == key]


@measurement
def ngram_beyond_the_prompt(evidence: Evidence) -> list[Finding]:
    """Any machine. Refuted if a request was drafted for in more steps than there are places of its output whose last
    `prompt_lookup_min` tokens occur in its prompt: a search of the prompt alone could not have found those drafts."""
    findings = []
    for bench in evidence.benches:
        tokens = _tokens(bench)
        low, requests, beyond = bench.profile.ngram.prompt_lookup_min, 0, 0
        for r in bench.records("ngram"):
            for index, request in enumerate(r.requests):
                held = tokens.get((r.cell.workload, index, request.output_hash))
                if held is None or request.drafted_per_step is None:
                    continue
                prompt, output = held
                known = {tuple(prompt[i : i + low]) for i in range(len(prompt) - low + 1)}
                whole = [*prompt, *output]
                ends = range(len(prompt) + 1, len(whole))
                possible = sum(tuple(whole[end - low : end]) in known for end in ends)
                requests += 1
                beyond += sum(d > 0 for d in request.drafted_per_step) > possible
        if requests:
            text = f"{beyond} of {requests} requests drafted more often than their prompt allows"
            findings.append(Finding("refuted" if beyond else "undecided", bench.name, text))
    return findings


def _tokens(bench: Bench) -> dict[tuple, tuple[list[int], list[int]]]:
    """(prompt ids, output ids) by (workload, index, output hash), from every trace of the profile that kept them."""
    found = {}
    for r in bench.text:
        trace = bench.trace(r) if r.cell.keep_tokens else None
        if trace is not None and trace.prompt_token_ids and trace.output_token_ids:
            for index, (prompt, output) in enumerate(
                zip(trace.prompt_token_ids, trace.output_token_ids, strict=True)
            ):
                found[(r.cell.workload, index, r.requests[index].output_hash)] = (prompt, output)
    return found


@measurement
def memory_of_other_requests(evidence: Evidence) -> list[Finding]:
    """Any machine, its own model. Tokens per step of suffix on prompts answered before, memory on over off: refuted if
    the whole interval exceeds 1.05."""
    findings = []
    for bench in evidence.benches:
        warm, off = bench.records("suffix_warm", reused=False), bench.records("suffix")
        pairs = stats.pair(warm, off)
        if pairs:
            ratio = spread(
                [metrics.tokens_per_step(t.counters) / metrics.tokens_per_step(b.counters) for t, b in pairs]
            )
            text = f"memory on over off {ratio} over {ratio.n} cells {_where(bench, [t for t, _ in pairs])}"
            findings.append(Finding(within(ratio, high=1.05), bench.name, text))
    return findings


@measurement
def measured_best_draft_length(
    evidence: Evidence, workload: str, best: int, others: Sequence[int]
) -> list[Finding]:
    """GPU only. Refuted if another length is faster at a batch size, supported if all are slower at all."""
    findings = []
    for bench in evidence.gpus:
        base = bench.records(f"ngram_g{best}", workload)
        ratios = {
            (g, key[1]): e
            for g in others
            for key, e in bench.speedups(bench.records(f"ngram_g{g}", workload), base).items()
        }
        if ratios:
            top = max(ratios, key=lambda key: ratios[key].value)
            text = f"{top[0]} over {best} drafted tokens at B={top[1]}: {ratios[top]} {_where(bench, base)}"
            verdict = (
                "refuted" if any(map(bench.faster, ratios.values()))
                else "supported" if all(map(bench.slower, ratios.values())) else "undecided"
            )  # fmt: skip
            findings.append(Finding(verdict, bench.name, text))
    return findings


@measurement
def suffix_limit_is_inert(evidence: Evidence, limits: Sequence[int]) -> list[Finding]:
    """Any machine. Refuted if a smaller limit drafted and accepted as many tokens as the profile's on the same prompts, to
    within one percent (ties of rounded logits)."""
    findings = []
    for bench in evidence.benches:
        full = bench.profile.suffix.num_speculative_tokens
        same, text = [], []
        for limit in limits:
            pairs = stats.pair(bench.records(f"suffix_g{limit}"), bench.records("suffix"))
            if pairs:
                sums = np.array(
                    [
                        [[r.counters.num_draft_tokens, r.counters.num_accepted_tokens] for r in pair]
                        for pair in pairs
                    ]
                ).sum(axis=0)
                ratio = sums[0] / sums[1]
                same.append(bool(np.abs(ratio - 1).max() <= 0.01))
                text.append(
                    f"{limit} over {full}: drafted {ratio[0]:.3f}, accepted {ratio[1]:.3f}, {len(pairs)} cells"
                )
        if same:
            findings.append(Finding("refuted" if any(same) else "undecided", bench.name, "; ".join(text)))
    return findings


@measurement
def no_capture_while_running(evidence: Evidence) -> list[Finding]:
    """GPU only. Refuted if suffix in the default mode dispatched steps to PIECEWISE graphs or to none: varying drafts leave
    the FULL graph, they do not have it captured again."""
    findings = []
    for bench in evidence.gpus:
        records = [
            r
            for r in bench.records("suffix")
            if r.resolved and r.resolved.cudagraph_mode == "FULL_AND_PIECEWISE"
        ]
        shares = [
            s for r in records if (t := bench.trace(r)) is not None and (s := metrics.graph_mode_shares(t))
        ]
        if shares:
            means = {
                m: float(np.mean([s.get(m, 0.0) for s in shares])) for m in ("FULL", "PIECEWISE", "NONE")
            }
            text = ", ".join(f"{m} {100 * v:.0f} %" for m, v in means.items())
            left = means["PIECEWISE"] + means["NONE"] > 0.01
            findings.append(
                Finding(
                    "refuted" if left else "undecided",
                    bench.name,
                    f"steps by graph: {text}, {len(shares)} cells",
                )
            )
    return findings


def _family(setting: str) -> str:
    """The drafter behind a setting's name; `padded`: one of this collection's own, filled up or not."""
    for family in ("padded", "plain", "ngram_gpu", "ngram", "suffix", "full"):
        if setting.startswith(family):
            return "padded" if family == "plain" else family
    return setting


def _own_speedups(bench: Bench, families: Sequence[str]) -> dict[tuple, Estimate]:
    """Speedups of every measured setting of the families, by (setting, workload, batch size)."""
    by_setting: dict[str, list[Record]] = {}
    for r in bench.text:
        if (
            r.cell.engine.speculative is not None
            and not r.cell.workload.reuse_prompts
            and r.cell.memory != "warm"
        ):
            by_setting.setdefault(r.cell.setting, []).append(r)
    return {
        (name, *key): ratio
        for name in sorted(by_setting)
        if _family(name) in families
        for key, ratio in bench.speedups(by_setting[name]).items()
    }


def _is_small(bench: Bench) -> bool:
    counts = [r.resolved.num_parameters for r in bench.text if r.resolved and r.resolved.num_parameters]
    return bool(counts) and max(counts) < SMALL_B * 1e9


@measurement
def measured_small_model_gain(evidence: Evidence, families: Sequence[str]) -> list[Finding]:
    """GPU only, models of at most 7B, warm memory left out. Refuted if a drafter of the families is faster than vanilla on
    one workload at one batch size (interval above 1 and beyond the noise floor); supported if all are slower."""
    findings = []
    for bench in evidence.gpus:
        found = _own_speedups(bench, families) if _is_small(bench) else {}
        if not found:
            continue
        up = [key for key, e in found.items() if bench.faster(e)]
        top = max(found, key=lambda key: found[key].value)
        text = f"{len(up)} of {len(found)} faster; best {top[0]} {_name(top[1:])}: {found[top]} ({bench.profile.model.name})"
        verdict = "refuted" if up else "supported" if all(map(bench.slower, found.values())) else "undecided"
        findings.append(Finding(verdict, bench.name, text))
    return findings


@measurement
def measured_sign_at_one_size(evidence: Evidence) -> list[Finding]:
    """GPU only. Refuted if one model gains with one drafter, workload and batch size and loses with another."""
    findings = []
    for bench in evidence.gpus:
        found = _own_speedups(bench, ("ngram", "ngram_gpu", "suffix", "full", "padded"))
        if not found:
            continue
        up, down = (sum(map(f, found.values())) for f in (bench.faster, bench.slower))
        text = f"{bench.profile.model.name}: {up} of {len(found)} faster, {down} slower"
        findings.append(Finding("refuted" if up and down else "undecided", bench.name, text))
    return findings


def _costs(bench: Bench, settings: Sequence[str]) -> dict[tuple, tuple[float, float, float]]:
    """(K, tokens per step, R) by (setting, workload, batch size); R: mean decode step over vanilla's with all requests
    running, both from the steps of the traces."""
    found = {}
    for name in settings:
        groups: dict[tuple[str, int], list[tuple[Record, float]]] = {}
        for test, base in stats.pair(bench.records(name), bench.records("vanilla")):
            traces = bench.trace(test), bench.trace(base)
            if None not in traces:
                batch = min(test.cell.batch_size, test.cell.workload.num_prompts)
                cost = metrics.mean_step_ms(traces[0], batch) / metrics.mean_step_ms(traces[1], batch)
                if np.isfinite(cost):
                    groups.setdefault((test.cell.workload.name, test.cell.batch_size), []).append(
                        (test, cost)
                    )
        for key, pairs in groups.items():
            c = metrics.pooled(r for r, _ in pairs)
            cost = float(np.mean([cost for _, cost in pairs]))
            found[(name, *key)] = (metrics.mean_acceptance_length(c), metrics.tokens_per_step(c), cost)
    return found


@measurement
def measured_fixed_inequality(evidence: Evidence, settings: Sequence[str], bound: float) -> list[Finding]:
    """GPU only. Refuted if a cell whose K exceeds `bound` is slower than vanilla, interval below 1."""
    findings = []
    for bench in evidence.gpus:
        above, slow = 0, 0
        for name in settings:
            records = bench.records(name)
            for key, ratio in bench.speedups(records).items():
                if metrics.mean_acceptance_length(metrics.pooled(_at(records, key))) > bound:
                    above += 1
                    slow += bench.slower(ratio)
        if above:
            text = f"K exceeds {bound:g} in {above} cells, {slow} of them are slower"
            findings.append(Finding("refuted" if slow else "supported", bench.name, text))
    return findings


@measurement
def measured_step_cost(evidence: Evidence, settings: Sequence[str], low: float, high: float) -> list[Finding]:
    """GPU decides; a CPU's R is shown beside it. R from step times at equal running requests: supported if nine tenths of the
    cells lie in the band, refuted if under half do."""
    findings = []
    for bench in evidence.benches:
        costs = [cost for _, _, cost in _costs(bench, settings).values()]
        if costs:
            inside = sum(low <= c <= high for c in costs)
            text = f"{inside} of {len(costs)} cells inside; {min(costs):.2f} to {max(costs):.2f}, median {_median(costs):.2f}"
            verdict = _band(inside, len(costs)) if bench.on_gpu else "undecided"
            findings.append(
                Finding(verdict, bench.name, text if bench.on_gpu else f"{text} (a CPU, decides nothing)")
            )
    return findings


@measurement
def measured_variation(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only, at least six cells of one batch size. Refuted if K explains less than half of the variance of the speedup
    (squared correlation of their logarithms) at a batch size, supported if nine tenths at all."""
    findings = []
    for bench in evidence.gpus:
        at: dict[int, list[tuple[float, float]]] = {}
        for name in settings:
            records = bench.records(name)
            for key, ratio in bench.speedups(records).items():
                k = metrics.mean_acceptance_length(metrics.pooled(_at(records, key)))
                if np.isfinite(k):
                    at.setdefault(key[1], []).append((k, ratio.value))
        parts = {batch: _explained(pairs) for batch, pairs in sorted(at.items()) if len(pairs) >= 6}
        if parts:
            text = "; ".join(f"B={batch}: {text}" for batch, (_, text) in parts.items())
            findings.append(Finding(all_of(v for v, _ in parts.values()), bench.name, text))
    return findings


@measurement
def measured_k_against_tau(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """Any machine. Refuted if on some workload a request-step advances by less than 0.9 K, supported if on none."""
    findings = []
    for bench in evidence.benches:
        pairs = {}
        for name in settings:
            for workload in WORKLOADS:
                if records := bench.records(name, workload):
                    c = metrics.pooled(records)
                    if c.num_drafts:
                        pairs[(name, workload)] = (
                            metrics.mean_acceptance_length(c),
                            metrics.tokens_per_step(c),
                        )
        if pairs:
            worst = min(pairs, key=lambda key: pairs[key][1] / pairs[key][0])
            k, tau = pairs[worst]
            text = f"{worst[1]} {worst[0]}: K {k:.2f}, tokens per step {tau:.2f} {_where(bench, bench.records(*worst))}"
            findings.append(Finding(_is(tau >= 0.9 * k), bench.name, text))
    return findings


@measurement
def conditional_acceptance_rises(evidence: Evidence, setting: str) -> list[Finding]:
    """Any machine, its own model. Acceptance at positions 2 and later given the one before, minus that at position 1, over
    cells: supported if the whole interval is above 0, refuted if it is below."""
    findings = []
    for bench in evidence.benches:
        records = [r for r in bench.records(setting) if r.counters.num_drafts]
        rises = []
        for r in records:
            accepted = np.array([r.counters.num_drafts, *r.counters.num_accepted_tokens_per_pos], float)
            if accepted[1:-1].sum():
                rises.append(accepted[2:].sum() / accepted[1:-1].sum() - accepted[1] / accepted[0])
        if rises:
            rise = spread(rises)
            text = f"later minus first position {rise} over {rise.n} cells {_where(bench, records)}"
            findings.append(Finding(within(rise, low=0.0), bench.name, text))
    return findings


@measurement
def measured_finds_nothing(
    evidence: Evidence, workload: str, setting: str, k: float, acceptance: float
) -> list[Finding]:
    """Any machine, its own model. Supported if K and acceptance both stay below the bounds, refuted if one exceeds its own."""
    findings = []
    for bench in evidence.benches:
        if records := bench.records(setting, workload):
            found_k, found_a = drafting(records, "K"), drafting(records, "a")
            text = f"K {found_k}, acceptance {found_a} {_where(bench, records)}"
            findings.append(
                Finding(all_of([within(found_k, high=k), within(found_a, high=acceptance)]), bench.name, text)
            )
    return findings


@measurement
def measured_first_step_share(evidence: Evidence, workloads: Sequence[str]) -> list[Finding]:
    """GPU only. Ngram's share of the full configuration's gain: supported from one half up, refuted below, undecided where the
    full configuration does not gain."""
    findings = []
    for bench in evidence.gpus:
        ngram, full = (bench.speedups(bench.records(s)) for s in ("ngram", "full"))
        verdicts, text = [], []
        for key in full:
            if key[0] in workloads and key in ngram:
                gains = bench.faster(full[key])
                share = (ngram[key].value - 1) / (full[key].value - 1)
                verdicts.append("undecided" if not gains else _is(share >= 0.5))
                text.append(f"{_name(key)}: ngram {ngram[key].value:.2f}, full {full[key].value:.2f}")
        if verdicts:
            findings.append(Finding(all_of(verdicts), bench.name, "; ".join(text)))
    return findings


@measurement
def measured_staircase(evidence: Evidence, workload: str, ladder: Sequence[str]) -> list[Finding]:
    """GPU only. Each step of the ladder over the one before: refuted if one is slower, supported if all are faster."""
    findings = []
    for bench in evidence.gpus:
        verdicts, text = [], []
        for before, after in itertools.pairwise(ladder):
            for key, e in bench.speedups(
                bench.records(after, workload), bench.records(before, workload)
            ).items():
                verdicts.append(
                    "refuted" if bench.slower(e) else "supported" if bench.faster(e) else "undecided"
                )
                text.append(f"{after} B={key[1]} {e.value:.2f}")
        if verdicts:
            findings.append(Finding(all_of(verdicts), bench.name, "over the step before: " + ", ".join(text)))
    return findings


@measurement
def measured_rescue(evidence: Evidence) -> list[Finding]:
    """GPU only. Of the cells that ngram slows down: refuted if one is still slower than vanilla in the full configuration,
    supported if all are faster."""
    findings = []
    for bench in evidence.gpus:
        ngram, full = (bench.speedups(bench.records(s)) for s in ("ngram", "full"))
        slowed = [key for key in ngram if key in full and bench.slower(ngram[key])]
        if slowed:
            still, up = (sum(f(full[key]) for key in slowed) for f in (bench.slower, bench.faster))
            verdict = "refuted" if still else "supported" if up == len(slowed) else "undecided"
            text = f"{len(slowed)} cells that ngram slows down: {up} faster, {still} still slower in the full configuration"
            findings.append(Finding(verdict, bench.name, text))
    return findings


@measurement
def measured_k_ratio(evidence: Evidence, low: float, high: float) -> list[Finding]:
    """Any machine, its own model. Suffix's K (memory off) over ngram's: supported if it lies in [low, high] on every workload,
    refuted if on one it does not."""
    findings = []
    for bench in evidence.benches:
        ratios = _drafting_ratios(bench, "K")
        if ratios:
            text = ", ".join(f"{w} {r.value:.2f}" for w, r in ratios.items())
            verdict = all_of(within(r, low, high) for r in ratios.values())
            findings.append(
                Finding(verdict, bench.name, f"ratio of K: {text} {_where(bench, bench.records('suffix'))}")
            )
    return findings


def _drafting_ratios(bench: Bench, quantity: Literal["K", "a"]) -> dict[str, Estimate]:
    found = {}
    for workload in WORKLOADS:
        suffix, ngram = (bench.records(s, workload) for s in ("suffix", "ngram"))
        if suffix and ngram:
            found[workload] = over(drafting(suffix, quantity), drafting(ngram, quantity))
    return {w: r for w, r in found.items() if np.isfinite(r.value)}


@measurement
def measured_acceptance_ratio(evidence: Evidence, workload: str, at_least: float) -> list[Finding]:
    """Any machine, its own model. Supported if suffix's acceptance is at least that many times ngram's, refuted if not."""
    findings = []
    for bench in evidence.benches:
        ratio = _drafting_ratios(bench, "a").get(workload)
        if ratio is not None:
            text = f"suffix over ngram {ratio} {_where(bench, bench.records('suffix', workload))}"
            findings.append(Finding(within(ratio, low=at_least), bench.name, text))
    return findings


@measurement
def default_graph_mode(evidence: Evidence, mode: str) -> list[Finding]:
    """GPU only. Supported if vanilla, asked for no mode, resolved to `mode`."""
    findings = []
    for bench in evidence.gpus:
        records = [r for r in bench.records("vanilla") if r.resolved and r.cell.engine.cudagraph_mode is None]
        if records and not records[0].cell.engine.enforce_eager:
            found = sorted({(r.resolved.cudagraph_mode, r.resolved.vllm_version) for r in records})
            text = ", ".join(f"{m} (vLLM {v})" for m, v in found)
            findings.append(Finding(_is(all(m == mode for m, _ in found)), bench.name, text))
    return findings


@measurement
def measured_mode_gain(evidence: Evidence, test: str, base: str) -> list[Finding]:
    """GPU only. Supported if `test` is faster than `base` in every cell, refuted if it is in none."""
    findings = []
    for bench in evidence.gpus:
        found = bench.speedups(bench.records(test), bench.records(base))
        if found:
            up = sum(map(bench.faster, found.values()))
            values = [e.value for e in found.values()]
            text = f"faster in {up} of {len(found)} cells; ratio {min(values):.2f} to {max(values):.2f}, median {_median(values):.2f}"
            verdict = "supported" if up == len(found) else "refuted" if up == 0 else "undecided"
            findings.append(Finding(verdict, bench.name, f"{text} {_where(bench, bench.records(test))}"))
    return findings


@measurement
def vocabulary(evidence: Evidence, below: int) -> list[Finding]:
    """Supported if the sonnet lines hold fewer different words, case ignored; undecided without the source text."""
    try:
        words = {w for line in corpus.sonnet_lines() for w in re.findall(r"[a-z']+", line.lower())}
    except corpus.CorpusError:
        return []
    return [Finding(_is(len(words) < below), "source text", f"{len(words):,} different words")]


@measurement
def output_repeats(evidence: Evidence, workload: str, source: Literal["prompt", "output"]) -> list[Finding]:
    """Any machine, its own model. Shares of output tokens that, with the two before them, occur in the prompt and earlier in
    the output: supported if the claimed source has the larger share (interval over prompts), refuted if the smaller."""
    findings = []
    for bench in evidence.benches:
        rows = [
            _repeats(prompt, output)
            for (w, _, _), (prompt, output) in _tokens(bench).items()
            if w.name == workload
        ]
        rows = [row for row in rows if row is not None]
        if not rows:
            continue
        ours, other = (0, 1) if source == "prompt" else (1, 0)
        lead = stats.bootstrap(
            [np.asarray(rows)[:, [ours, other]]], lambda x: float(x[:, 0].mean() - x[:, 1].mean())
        )
        prompt, output = np.asarray(rows).mean(axis=0)
        text = f"repeats of the prompt {100 * prompt:.0f} %, of the output itself {100 * output:.0f} % ({bench.profile.model.name}, n = {len(rows)})"
        findings.append(Finding(within(lead, low=0.0), bench.name, text))
    return findings


def _repeats(prompt: Sequence[int], output: Sequence[int], n: int = 3) -> tuple[float, float] | None:
    """Shares of the output's n-grams that occur in the prompt, and earlier in the output; None for a shorter output."""
    known = {tuple(prompt[i : i + n]) for i in range(len(prompt) - n + 1)}
    grams = [tuple(output[i : i + n]) for i in range(len(output) - n + 1)]
    if not grams:
        return None
    seen: set[tuple] = set()
    again = 0
    for gram in grams:
        again += gram in seen
        seen.add(gram)
    return sum(g in known for g in grams) / len(grams), again / len(grams)


@measurement
def measured_k_order(evidence: Evidence, setting: str, higher: str, lower: str) -> list[Finding]:
    """Any machine, its own model. Ratio of the two workloads' K: supported if the interval is above 1, refuted if below."""
    findings = []
    for bench in evidence.benches:
        top, bottom = bench.records(setting, higher), bench.records(setting, lower)
        if top and bottom:
            ratio = over(drafting(top, "K"), drafting(bottom, "K"))
            text = f"K of {higher} over {lower} {ratio} {_where(bench, [*top, *bottom])}"
            findings.append(Finding(within(ratio, low=1.0), bench.name, text))
    return findings


@measurement
def step_cost_by_size(evidence: Evidence, draft_tokens: int) -> list[Finding]:
    """GPU only, step times of shapes. R with drafts of exactly the captured length (FULL graph kept) at each batch size:
    refuted if the smallest model's R is no higher than the largest's at one, supported if it is higher at all."""
    findings = []
    for bench in evidence.gpus:
        records = [r for r in bench.all if r.cell.workload.name == "random" and r.has_trace]
        rows = steptime.rows_of(records, bench.store)
        costs: dict[int, dict[str, tuple[float, Estimate]]] = {}
        for model in sorted({row.model for row in rows}):
            own = [row for row in rows if row.model == model]
            for batch in sorted({row.batch for row in own}):
                base = steptime.find(own, setting="vanilla", batch=batch)
                test = steptime.find(own, setting="walking", batch=batch, gamma=draft_tokens, exact=True)
                if base and test and base.parameters_b:
                    costs.setdefault(batch, {})[model] = (base.parameters_b, steptime.ratio(test, base))
        verdicts, text = [], []
        for batch, found in costs.items():
            if len(found) > 1:
                small, large = (pick(found, key=lambda m: found[m][0]) for pick in (min, max))
                a, b = found[small][1], found[large][1]
                verdicts.append(within(over(a, b), low=1.0))
                text.append(f"B={batch} {small} {a.value:.2f}, {large} {b.value:.2f}")
        if verdicts:
            findings.append(Finding(all_of(verdicts), bench.name, "; ".join(text)))
    return findings


def _monitored(records: Iterable[Record], key: tuple[str, int]) -> list[Record]:
    return [r for r in _at(records, key) if r.monitor is not None and r.monitor.gpu_busy_pct is not None]


def _busy_pct(records: Sequence[Record]) -> float:
    return float(np.mean([r.monitor.gpu_busy_pct for r in records]))


def _joules(records: Sequence[Record]) -> float:
    """Joules per output token over records that tell the energy; NaN if none does."""
    told = [r for r in records if r.monitor.gpu_energy_j is not None]
    tokens = sum(r.counters.num_output_tokens for r in told)
    return sum(r.monitor.gpu_energy_j for r in told) / tokens if tokens else float("nan")


@measurement
def measured_faster_less_busy(evidence: Evidence, energy: bool = False) -> list[Finding]:
    """GPU only. Supported if a setting is faster than vanilla with a busy share lower by over two points (and less energy a
    token), refuted if no faster setting is."""
    findings = []
    for bench in evidence.gpus:
        base = bench.records("vanilla")
        names = sorted({r.cell.setting for r in bench.text if r.cell.engine.speculative is not None})
        up, found = 0, []
        for name in names:
            records = [r for r in bench.text if r.cell.setting == name and not r.cell.workload.reuse_prompts]
            for key, ratio in bench.speedups(records).items():
                tests, bases = _monitored(records, key), _monitored(base, key)
                if not (tests and bases and bench.faster(ratio)):
                    continue
                up += 1
                joules = _joules(bases), _joules(tests)
                if _busy_pct(tests) < _busy_pct(bases) - 2 and (not energy or joules[1] < joules[0]):
                    found.append((name, key, ratio, _busy_pct(bases), _busy_pct(tests), joules))
        if up:
            text = f"{len(found)} of {up} faster cells"
            if found:
                name, key, ratio, was, now, joules = max(found, key=lambda f: f[2].value)
                text += f"; {name} {_name(key)} {ratio} at {was:.0f} -> {now:.0f} % busy"
                text += f", {1000 * joules[0]:.1f} -> {1000 * joules[1]:.1f} mJ a token" if energy else ""
            findings.append(Finding(_is(bool(found)), bench.name, text))
    return findings


@measurement
def busy_without_fewer_steps(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only. Refuted if the busy share falls at least half as far as with ngram or suffix where nothing is drafted and the
    number of steps is vanilla's; supported if it falls by under a tenth of that; at batch sizes where it falls at all."""
    findings = []
    for bench in evidence.gpus:
        base, verdicts, text = bench.records("vanilla"), [], []
        for key in sorted({(r.cell.workload.name, r.cell.batch_size) for r in base}):
            level = _monitored(base, key)
            drafted = [_monitored(bench.records(s), key) for s in ("ngram", "suffix")]
            drops = [_busy_pct(level) - _busy_pct(found) for found in drafted if found and level]
            still = [
                _busy_pct(level) - _busy_pct(found)
                for s in settings
                if level and (found := _monitored(bench.records(s), key))
            ]
            if drops and still and max(drops) > 2:
                share = max(still) / max(drops)
                verdicts.append("refuted" if share >= 0.5 else "supported" if share < 0.1 else "undecided")
                text.append(f"{_name(key)}: {max(drops):.0f} points with drafts, {max(still):.0f} without")
        if verdicts:
            findings.append(Finding(all_of(verdicts), bench.name, "; ".join(text[:3])))
    return findings


@measurement
def measured_tokens_per_step(evidence: Evidence, setting: str, low: float, high: float) -> list[Finding]:
    """Any machine, its own model. Supported if tokens per step lie in [low, high] on most workloads, refuted if outside on most."""
    findings = []
    for bench in evidence.benches:
        values = {w: drafting(r, "tau").value for w in WORKLOADS if (r := bench.records(setting, w))}
        if values:
            inside = sum(low <= v <= high for v in values.values())
            text = ", ".join(f"{w} {v:.2f}" for w, v in values.items())
            where = _where(bench, bench.records(setting))
            findings.append(Finding(_is(inside > len(values) / 2), bench.name, f"{setting}: {text} {where}"))
    return findings


def _acceptance_change(bench: Bench, test: str, base: str) -> tuple[Estimate, list[Record]] | None:
    """Acceptance of `test` over `base` on the same prompts."""
    pairs = stats.pair(bench.records(test), bench.records(base))
    if not pairs:
        return None
    tests, bases = [t for t, _ in pairs], [b for _, b in pairs]
    return over(drafting(tests, "a"), drafting(bases, "a")), tests


@measurement
def acceptance_kept(evidence: Evidence, test: str, base: str, share: float) -> list[Finding]:
    """Any machine, its own model. Acceptance of `test` over `base`: supported (it collapses) if the interval lies below
    `share`, refuted if above."""
    findings = []
    for bench in evidence.benches:
        if found := _acceptance_change(bench, test, base):
            ratio, records = found
            findings.append(
                Finding(
                    within(ratio, high=share),
                    bench.name,
                    f"{test} over {base} {ratio} {_where(bench, records)}",
                )
            )
    return findings


@measurement
def acceptance_lower(evidence: Evidence, test: str, base: str) -> list[Finding]:
    """Any machine, its own model. Acceptance of `test` over `base` on the same prompts: supported if the interval lies below
    1, refuted if above."""
    return acceptance_kept(evidence, test, base, 1.0)


@measurement
def measured_both_signs(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only. Supported if one setting at one batch size is faster on one workload and slower on another, refuted if none is."""
    findings = []
    for bench in evidence.gpus:
        found, seen = [], 0
        for name in settings:
            ratios = bench.speedups(bench.records(name))
            for batch in sorted({b for _, b in ratios}):
                at = {w: e for (w, b), e in ratios.items() if b == batch}
                seen += len(at) > 1
                up, down = ([w for w, e in at.items() if f(e)] for f in (bench.faster, bench.slower))
                if up and down:
                    found.append(
                        f"{name} B={batch}: {up[0]} {at[up[0]].value:.2f}, {down[0]} {at[down[0]].value:.2f}"
                    )
        if seen:
            findings.append(
                Finding(
                    _is(bool(found)),
                    bench.name,
                    f"{len(found)} of {seen} settings and batches; {'; '.join(found[:1])}",
                )
            )
    return findings


@measurement
def measured_vanilla_shift(evidence: Evidence, test: str, base: str, share: float) -> list[Finding]:
    """GPU only. Throughput of vanilla with one setting changed: supported if somewhere the whole interval differs from 1 by at
    least `share`, refuted if everywhere it differs by less."""
    findings = []
    for bench in evidence.gpus:
        found = bench.speedups(bench.records(test), bench.records(base))
        if found:
            verdicts = [within(e, 1 - share, 1 + share) for e in found.values()]
            far = max(found, key=lambda key: abs(np.log(found[key].value)))
            verdict = (
                "supported"
                if "refuted" in verdicts
                else "refuted"
                if set(verdicts) == {"supported"}
                else "undecided"
            )
            findings.append(
                Finding(verdict, bench.name, f"{test} over {base}, largest {_name(far)}: {found[far]}")
            )
    return findings
