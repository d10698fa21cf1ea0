"""The rules that decide the study's claims, each from records or from the study's own cells.

A rule is a function of the `Evidence` and its arguments in claims.yaml; its docstring says how it decides. It
returns findings: a verdict, where it comes from, and the numbers behind it. No record, no finding.

What a machine may decide: acceptance depends on the model and the prompts but not on the machine, so drafting
is judged on any machine, each time for the model that was measured. Speed, step cost and utilisation are
judged on GPUs only: a CPU engine is another machine, and no evidence against a claim about GPUs. Intervals
are 95 %; a rule decides only what the whole interval says, and a value without an interval is taken as it is,
with its n.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from lib import corpus, ladder, metrics, params, replay, stats, steptime
from lib.cells import WORKLOADS
from lib.params import Profile
from lib.records import Reader, Record, Request, Trace, data_folder
from lib.stats import Estimate
from lib.table import Published, is_published

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

    def __init__(self, profile: Profile, store: Reader):
        self.profile, self.store, self.name = profile, store, profile.profile
        self._traces: dict[str, Trace | None] = {}
        self._speedups: dict[tuple, Estimate] = {}

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

    def records(self, setting: str, workload: str | None = None, *, reused: bool | None = None) -> list[Record]:
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
        """The record's trace; None if it kept none, or if the file is not here."""
        if record.cell_id not in self._traces:
            try:
                self._traces[record.cell_id] = self.store.trace(record)
            except (KeyError, OSError):
                self._traces[record.cell_id] = None
        return self._traces[record.cell_id]

    @cached_property
    def noise(self) -> dict[int, float]:
        """The A/A noise floor by batch size: vanilla's largest departure from itself in another repeat, where it has any."""
        arms: dict[int, list[Record]] = {}
        for r in self.records("vanilla"):
            arms.setdefault(r.cell.engine.repeat, []).append(r)
        return stats.noise_floors(list(arms.values()))

    def noise_at(self, batch_size: int) -> float:
        """The noise floor at a batch size; the largest there is where that has none, 0 without any."""
        return self.noise.get(batch_size, max(self.noise.values(), default=0.0))

    def speedups(
        self, tests: Iterable[Record], bases: Iterable[Record] | None = None
    ) -> dict[tuple[str, int], Estimate]:
        """Throughput ratio of `tests` over `bases` (default: vanilla) by (workload, batch size), within rounds."""
        bases = list(self.records("vanilla") if bases is None else bases)
        groups: dict[tuple[str, int], list[Record]] = {}
        for r in stats.beside(tests, bases):
            groups.setdefault((r.cell.workload.name, r.cell.batch_size), []).append(r)
        found = {}
        for key in sorted(groups, key=lambda key: (_order(key[0]), key[1])):
            if pairs := stats.pair(groups[key], bases):
                # many rules ask for the same ratio, and resampling takes a tenth of a second
                asked = tuple((t.cell_id, *(b.cell_id for b in stats.bases_of(t, bases))) for t, _ in pairs)
                if asked not in self._speedups:
                    self._speedups[asked] = stats.speedup(groups[key], bases)
                found[key] = self._speedups[asked]
        return found

    def faster(self, ratios: Mapping[tuple, Estimate]) -> list[tuple]:
        """The keys, each ending in a batch size, whose throughput ratio is a gain: interval above 1, value above the noise
        floor of that batch size (of ratios that pool a workload's seeds, for single cells too)."""
        return [key for key, e in ratios.items() if _lowest(e) > 1 and e.value > np.exp(self.noise_at(key[-1]))]

    def slower(self, ratios: Mapping[tuple, Estimate]) -> list[tuple]:
        """The keys whose ratio is a loss in the same sense."""
        return [key for key, e in ratios.items() if _highest(e) < 1 and e.value < np.exp(-self.noise_at(key[-1]))]


class Evidence:
    """Everything that rules may look at: a bench for each profile that has records."""

    def __init__(self, benches: Iterable[Bench]):
        self.benches = list(benches)

    @classmethod
    def committed(cls, *replaced: Bench) -> Evidence:
        """The committed records of every profile in params/ whose model answers by itself, `replaced` benches standing in
        for those of their profile. A parrot's texts are not the study's, whatever their names."""
        own = {bench.name: bench for bench in replaced}
        names = {path.stem for path in params.PARAMS.glob("*.yaml") if is_published(path.stem)}
        names = {name for name in names if params.load(name).answers == "model"}
        return cls(
            own[name] if name in own else Bench(params.load(name), Published(data_folder(name)))
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


def is_true(condition: bool) -> Verdict:
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
    """K, acceptance rate or tokens per step of records pooled.

    Intervals come from resampled prompts where the engine tells each request's steps, else from the spread over
    cells.
    """
    if quantity == "K":
        estimate, one = stats.mean_acceptance_length(records), metrics.mean_acceptance_length
    elif quantity == "a":
        estimate, one = stats.acceptance_rate(records), metrics.acceptance_rate
    else:
        estimate, one = _tokens_per_step(records), metrics.tokens_per_step
    if np.isfinite(estimate.low):
        return estimate
    cells = spread([one(r.counters) for r in records])
    half = cells.high - cells.value
    requests = sum(len(r.requests) for r in records)
    return Estimate(estimate.value, estimate.value - half, estimate.value + half, requests)


def _tokens_per_step(records: Sequence[Record]) -> Estimate:
    """Pooled tokens per step; the interval resamples prompts where the engine tells each request's steps."""
    value = metrics.tokens_per_step(metrics.pooled(records))
    if any(not r.requests or r.requests[0].accepted_per_step is None for r in records):
        return Estimate(value, float("nan"), float("nan"), 0)
    groups = [np.array([_output_and_steps(q) for q in r.requests]) for r in records]
    e = stats.bootstrap(groups, lambda sums: sums[..., 0] / sums[..., 1])
    return Estimate(value, value * e.low / e.value, value * e.high / e.value, e.n)


def band(inside: int, total: int) -> Verdict:
    """supported from nine tenths inside up, refuted under one half."""
    return "supported" if inside >= 0.9 * total else "refuted" if inside < 0.5 * total else "undecided"


def explained(pairs: Sequence[tuple[float, float]]) -> tuple[Verdict, str]:
    """How much of the variance of log speedup log K explains; pairs: (K, speedup). supported from 0.9,
    refuted under 0.5."""
    k, ratio = np.log(np.asarray(pairs)).T
    share = float(np.corrcoef(k, ratio)[0, 1] ** 2)
    verdict = "supported" if share >= 0.9 else "refuted" if share < 0.5 else "undecided"
    return verdict, f"K explains {100 * share:.0f} % of the variance of the speedup, {len(pairs)} cells"


def as_percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]} B={key[1]}"


def median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


# ---------------------------------------------------------------- this collection's records


def _where(bench: Bench, records: Sequence[Record]) -> str:
    """Model, hardware kind and n, as every measured finding ends."""
    machine = next((r.provenance.gpu for r in records if r.provenance.gpu), None) or "CPU"
    requests = sum(len(r.requests) for r in records)
    return f"({bench.profile.model.name}, {machine.removeprefix('NVIDIA ')}, n = {requests})"


@measurement
def runs_on_a_release(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """Supported if a released vLLM (a plain version number) drafted with one of the settings, on any
    machine."""
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
                    is_true(drafts > 0),
                    bench.name,
                    f"{drafts:,} drafts with plugins blocked {_where(bench, records)}",
                )
            )
    return findings


@measurement
def measured_losses(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only. Supported if a setting is slower than vanilla somewhere, refuted if all are faster
    everywhere."""
    findings = []
    for bench in evidence.gpus:
        found = {(s, *key): e for s in settings for key, e in bench.speedups(bench.records(s)).items()}
        if not found:
            continue
        slow = bench.slower(found)
        worst = min(found, key=lambda key: found[key].value)
        text = f"{len(slow)} of {len(found)} slower; {worst[0]} {_name(worst[1:])} {found[worst]}"
        verdict = "supported" if slow else "refuted" if len(bench.faster(found)) == len(found) else "undecided"
        findings.append(Finding(verdict, bench.name, text))
    return findings


@measurement
def measured_mix_memory(evidence: Evidence, mix: str) -> list[Finding]:
    """Any machine, its own model. Tokens per step of the mix, memory on over off, on the same prompts: refuted if with
    prompts that the engine answered before the interval lies above 1.1 and above that with fresh prompts; supported if
    it lies below 1.1."""
    findings = []
    for bench in evidence.benches:
        answered, fresh = (memory_gain(bench, mix, reused=reused) for reused in (True, False))
        if answered is None or fresh is None:
            continue
        where = _where(bench, bench.records("suffix_warm", mix, reused=True))
        grows = _lowest(answered) > max(1.1, _highest(fresh))
        verdict = "refuted" if grows else "supported" if _highest(answered) < 1.1 else "undecided"
        text = f"{mix}, memory on over off: prompts answered before {answered}, fresh {fresh} {where}"
        findings.append(Finding(verdict, bench.name, text))
    return findings


def memory_gain(
    bench: Bench, workload: str | None = None, *, reused: bool, warm: bool | None = None
) -> Estimate | None:
    """Tokens per step of suffix with its memory of earlier requests over without, on the same prompts.

    `reused`: a mix of the single workloads' prompts, all answered before; otherwise fresh prompts, or the same prompts
    once more if `warm`. None where a record lacks.
    """
    warm = reused if warm is None else warm
    on = bench.records("suffix_warm" if warm else "suffix_cold", workload, reused=reused)
    pairs = stats.pair(on, bench.records("suffix", workload, reused=reused))
    return _tau_ratio(pairs) if pairs else None


def _tau_ratio(pairs: Sequence[tuple[Record, Record]]) -> Estimate:
    """Ratio of pooled tokens per step; intervals resample prompts, paired, where the engine tells each request's steps,
    else they come from the spread over cells."""
    tests, bases = [t for t, _ in pairs], [b for _, b in pairs]
    value = metrics.tokens_per_step(metrics.pooled(tests)) / metrics.tokens_per_step(metrics.pooled(bases))
    told = all(r.requests and r.requests[0].accepted_per_step is not None for r in (*tests, *bases))
    if not told:
        cells = spread([metrics.tokens_per_step(t.counters) / metrics.tokens_per_step(b.counters) for t, b in pairs])
        half = cells.high - cells.value
        return Estimate(value, value - half, value + half, sum(len(t.requests) for t in tests))
    groups = [np.array([[*_output_and_steps(x), *_output_and_steps(y)]
                        for x, y in zip(t.requests, b.requests, strict=True)]) for t, b in pairs]  # fmt: skip

    e = stats.bootstrap(groups, lambda sums: sums[..., 0] / sums[..., 1] / (sums[..., 2] / sums[..., 3]))
    return Estimate(value, value * e.low / e.value, value * e.high / e.value, e.n)


def _output_and_steps(request: Request) -> tuple[int, int]:
    return request.num_output_tokens, max(request.num_output_tokens - sum(request.accepted_per_step), 1)


@measurement
def silent_changes(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """Any machine. Refuted if the engine resolved the model runner or asynchronous scheduling differently
    from vanilla."""
    findings = []
    for bench in evidence.benches:
        base = [r.resolved for r in bench.records("vanilla") if r.resolved]
        tests = {s: [r.resolved for r in bench.records(s) if r.resolved] for s in settings}
        tests = {s: found for s, found in tests.items() if found}
        if not base or not tests:
            continue
        changes: dict[str, list[str]] = {}
        for name, found in tests.items():
            for field, label in (("runner", "runner"), ("async_scheduling", "async scheduling")):
                was, now = getattr(base[0], field), getattr(found[0], field)
                if was != now:
                    changes.setdefault(f"{label} {was} -> {now}", []).append(name)
        text = "; ".join(f"{change} with {', '.join(names)}" for change, names in changes.items())
        findings.append(Finding(is_true(not changes), bench.name, text or f"none with {', '.join(tests)}"))
    return findings


@measurement
def measured_fewer_steps_slower(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only. Refuted if a cell takes over 5 % fewer request-steps than vanilla and is slower, interval
    below 1."""
    findings = []
    for bench in evidence.gpus:
        few = {}
        for name in settings:
            records = bench.records(name)
            for key, ratio in bench.speedups(records).items():
                tau = drafting(_at(records, key), "tau").value
                if tau > 1.05:
                    few[(name, *key)] = (tau, ratio)
        slow = bench.slower({key: ratio for key, (_, ratio) in few.items()})
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
    """Any machine. Refuted if a request was drafted for in more steps than there are places of its output
    whose last `prompt_lookup_min` tokens occur in its prompt: a search of the prompt alone could not have
    found those drafts."""
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
    """(prompt ids, output ids) by (workload, index, output hash), from every trace of the profile that kept
    them."""
    found = {}
    for r in bench.text:
        trace = bench.trace(r) if r.cell.keep_tokens else None
        if trace is not None and trace.prompt_token_ids and trace.output_token_ids:
            for index, (prompt, output) in enumerate(zip(trace.prompt_token_ids, trace.output_token_ids, strict=True)):
                found[(r.cell.workload, index, r.requests[index].output_hash)] = (prompt, output)
    return found


@measurement
def memory_of_other_requests(evidence: Evidence) -> list[Finding]:
    """Any machine, its own model. Tokens per step of suffix on prompts answered before, memory on over off on the same
    prompts: refuted if the whole interval exceeds 1.05, supported if none of it does."""
    findings = []
    for bench in evidence.benches:
        gain = memory_gain(bench, reused=False, warm=True)
        if gain is not None:
            where = _where(bench, bench.records("suffix_warm", reused=False))
            findings.append(Finding(within(gain, high=1.05), bench.name, f"memory on over off {gain} {where}"))
    return findings


@measurement
def measured_best_draft_length(evidence: Evidence, workload: str, best: int, others: Sequence[int]) -> list[Finding]:
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
                "refuted" if bench.faster(ratios)
                else "supported" if len(bench.slower(ratios)) == len(ratios) else "undecided"
            )  # fmt: skip
            findings.append(Finding(verdict, bench.name, text))
    return findings


@measurement
def suffix_limit_is_inert(evidence: Evidence, limits: Sequence[int]) -> list[Finding]:
    """Any machine. Refuted if a smaller limit drafted and accepted as many tokens as the profile's on the
    same prompts, to within one percent (ties of rounded logits)."""
    findings = []
    for bench in evidence.benches:
        full = bench.profile.suffix.num_speculative_tokens
        same, text = [], []
        for limit in limits:
            pairs = stats.pair(bench.records(f"suffix_g{limit}"), bench.records("suffix"))
            if pairs:
                sums = np.array(
                    [[[r.counters.num_draft_tokens, r.counters.num_accepted_tokens] for r in pair] for pair in pairs]
                ).sum(axis=0)
                ratio = sums[0] / sums[1]
                same.append(bool(np.abs(ratio - 1).max() <= 0.01))
                text.append(f"{limit} over {full}: drafted {ratio[0]:.3f}, accepted {ratio[1]:.3f}, {len(pairs)} cells")
        if same:
            findings.append(Finding("refuted" if any(same) else "undecided", bench.name, "; ".join(text)))
    return findings


@measurement
def no_capture_while_running(evidence: Evidence) -> list[Finding]:
    """GPU only. Refuted if suffix in the default mode dispatched steps to PIECEWISE graphs or to none:
    varying drafts leave the FULL graph, they do not have it captured again."""
    findings = []
    for bench in evidence.gpus:
        records = [
            r for r in bench.records("suffix") if r.resolved and r.resolved.cudagraph_mode == "FULL_AND_PIECEWISE"
        ]
        shares = [s for r in records if (t := bench.trace(r)) is not None and (s := metrics.graph_mode_shares(t))]
        if shares:
            means = {m: float(np.mean([s.get(m, 0.0) for s in shares])) for m in ("FULL", "PIECEWISE", "NONE")}
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
        if r.cell.engine.speculative is not None and not r.cell.workload.reuse_prompts and r.cell.memory != "warm":
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
    """GPU only, models of at most 7B, warm memory left out. Refuted if a drafter of the families is faster
    than vanilla on one workload at one batch size (interval above 1 and beyond the noise floor); supported if
    all are slower."""
    findings = []
    for bench in evidence.gpus:
        found = _own_speedups(bench, families) if _is_small(bench) else {}
        if not found:
            continue
        up = bench.faster(found)
        top = max(found, key=lambda key: found[key].value)
        text = (
            f"{len(up)} of {len(found)} faster; best {top[0]} {_name(top[1:])}: {found[top]} "
            f"({bench.profile.model.name})"
        )
        verdict = "refuted" if up else "supported" if len(bench.slower(found)) == len(found) else "undecided"
        findings.append(Finding(verdict, bench.name, text))
    return findings


@measurement
def measured_sign_at_one_size(evidence: Evidence) -> list[Finding]:
    """GPU only. Refuted if one model gains with one drafter, workload and batch size and loses with
    another."""
    findings = []
    for bench in evidence.gpus:
        found = _own_speedups(bench, ("ngram", "ngram_gpu", "suffix", "full", "padded"))
        if not found:
            continue
        up, down = (len(f(found)) for f in (bench.faster, bench.slower))
        text = f"{bench.profile.model.name}: {up} of {len(found)} faster, {down} slower"
        findings.append(Finding("refuted" if up and down else "undecided", bench.name, text))
    return findings


def _costs(bench: Bench, settings: Sequence[str]) -> dict[tuple, float]:
    """R by (setting, workload, batch size): decode steps over vanilla's at equal running requests."""
    found = {}
    for name in settings:
        groups: dict[tuple[str, int], list[float]] = {}
        plain = bench.records("vanilla")
        for test, base in stats.pair(stats.beside(bench.records(name), plain), plain):
            traces = bench.trace(test), bench.trace(base)
            if None not in traces and np.isfinite(cost := metrics.step_time_ratio(*traces)):
                groups.setdefault((test.cell.workload.name, test.cell.batch_size), []).append(cost)
        found |= {(name, *key): float(np.mean(costs)) for key, costs in groups.items()}
    return found


@measurement
def measured_fixed_inequality(evidence: Evidence, settings: Sequence[str], bound: float) -> list[Finding]:
    """GPU only. Refuted if a cell whose K exceeds `bound` is slower than vanilla, interval below 1."""
    findings = []
    for bench in evidence.gpus:
        above = {}
        for name in settings:
            records = bench.records(name)
            for key, ratio in bench.speedups(records).items():
                if metrics.mean_acceptance_length(metrics.pooled(_at(records, key))) > bound:
                    above[(name, *key)] = ratio
        if above:
            slow = len(bench.slower(above))
            text = f"K exceeds {bound:g} in {len(above)} cells, {slow} of them are slower"
            findings.append(Finding("refuted" if slow else "supported", bench.name, text))
    return findings


@measurement
def measured_step_cost(evidence: Evidence, settings: Sequence[str], low: float, high: float) -> list[Finding]:
    """GPU decides; a CPU's R is shown beside it. R from step times at equal running requests: supported if
    nine tenths of the cells lie in the band, refuted if under half do."""
    findings = []
    for bench in evidence.benches:
        costs = list(_costs(bench, settings).values())
        if costs:
            inside = sum(low <= c <= high for c in costs)
            text = (
                f"{inside} of {len(costs)} cells inside; {min(costs):.2f} to {max(costs):.2f}, "
                f"median {median(costs):.2f}"
            )
            verdict = band(inside, len(costs)) if bench.on_gpu else "undecided"
            findings.append(Finding(verdict, bench.name, text if bench.on_gpu else f"{text} (a CPU, decides nothing)"))
    return findings


@measurement
def measured_variation(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only, at least six cells of one batch size. Refuted if K explains less than half of the variance of
    the speedup (squared correlation of their logarithms) at a batch size, supported if nine tenths at all."""
    findings = []
    for bench in evidence.gpus:
        at: dict[int, list[tuple[float, float]]] = {}
        for name in settings:
            records = bench.records(name)
            for key, ratio in bench.speedups(records).items():
                k = metrics.mean_acceptance_length(metrics.pooled(_at(records, key)))
                if np.isfinite(k):
                    at.setdefault(key[1], []).append((k, ratio.value))
        parts = {batch: explained(pairs) for batch, pairs in sorted(at.items()) if len(pairs) >= 6}
        if parts:
            text = "; ".join(f"B={batch}: {text}" for batch, (_, text) in parts.items())
            findings.append(Finding(all_of(v for v, _ in parts.values()), bench.name, text))
    return findings


@measurement
def measured_k_against_tau(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """Any machine. Refuted if on some workload a request-step advances by less than 0.9 K, supported if on
    none."""
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
            findings.append(Finding(is_true(tau >= 0.9 * k), bench.name, text))
    return findings


@measurement
def conditional_acceptance_rises(evidence: Evidence, setting: str) -> list[Finding]:
    """Any machine, its own model. Acceptance at positions 2 and later given the one before, minus that at
    position 1, over cells: supported if the whole interval is above 0, refuted if it is below."""
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
    """Any machine, its own model. Supported if K and acceptance both stay below the bounds, refuted if one
    exceeds its own."""
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
    """GPU only. Ngram's share of the full configuration's gain, where that gains: supported if it is one half or more at
    every batch size, refuted if it is less at one."""
    findings = []
    for bench in evidence.gpus:
        ngram, full = (bench.speedups(bench.records(s)) for s in ("ngram", "full"))
        asked = [key for key in full if key[0] in workloads and key in ngram]
        gains = bench.faster(full)
        shares = [(ngram[k].value - 1) / (full[k].value - 1) for k in asked if k in gains]
        if asked:
            text = [f"{_name(k)}: ngram {ngram[k].value:.2f}, full {full[k].value:.2f}" for k in asked]
            verdict = all_of(is_true(share >= 0.5) for share in shares)
            findings.append(Finding(verdict, bench.name, "; ".join(text)))
    return findings


@measurement
def measured_staircase(evidence: Evidence, workload: str, ladder: Sequence[str]) -> list[Finding]:
    """GPU only. Each step of the ladder over the one before: refuted if one is slower, supported if all are
    faster."""
    findings = []
    for bench in evidence.gpus:
        verdicts, text = [], []
        for before, after in itertools.pairwise(ladder):
            found = bench.speedups(bench.records(after, workload), bench.records(before, workload))
            up, down = bench.faster(found), bench.slower(found)
            verdicts += ["refuted" if key in down else "supported" if key in up else "undecided" for key in found]
            text += [f"{after} B={batch} {e.value:.2f}" for (_, batch), e in found.items()]
        if verdicts:
            findings.append(Finding(all_of(verdicts), bench.name, "over the step before: " + ", ".join(text)))
    return findings


@measurement
def measured_rescue(evidence: Evidence) -> list[Finding]:
    """GPU only. Of the cells that ngram slows down: refuted if one is still slower than vanilla in the full
    configuration, supported if all are faster."""
    findings = []
    for bench in evidence.gpus:
        ngram, full = (bench.speedups(bench.records(s)) for s in ("ngram", "full"))
        slowed = {key: full[key] for key in bench.slower(ngram) if key in full}
        if slowed:
            still, up = (len(f(slowed)) for f in (bench.slower, bench.faster))
            verdict = "refuted" if still else "supported" if up == len(slowed) else "undecided"
            text = (
                f"{len(slowed)} cells that ngram slows down: {up} faster, {still} still slower "
                "in the full configuration"
            )
            findings.append(Finding(verdict, bench.name, text))
    return findings


@measurement
def measured_k_ratio(evidence: Evidence, low: float, high: float) -> list[Finding]:
    """Any machine, its own model. Suffix's K (memory off) over ngram's: supported if it lies in [low, high]
    on every workload, refuted if on one it does not."""
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
    """Any machine, its own model. Supported if suffix's acceptance is at least that many times ngram's,
    refuted if not."""
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
            findings.append(Finding(is_true(all(m == mode for m, _ in found)), bench.name, text))
    return findings


@measurement
def measured_mode_gain(evidence: Evidence, test: str, base: str) -> list[Finding]:
    """GPU only. Supported if `test` is faster than `base` in every cell, refuted if it is in none."""
    findings = []
    for bench in evidence.gpus:
        found = bench.speedups(bench.records(test), bench.records(base))
        if found:
            up = len(bench.faster(found))
            values = [e.value for e in found.values()]
            text = (
                f"faster in {up} of {len(found)} cells; ratio {min(values):.2f} to {max(values):.2f}, "
                f"median {median(values):.2f}"
            )
            verdict = "supported" if up == len(found) else "refuted" if up == 0 else "undecided"
            findings.append(Finding(verdict, bench.name, f"{text} {_where(bench, bench.records(test))}"))
    return findings


@measurement
def vocabulary(evidence: Evidence, below: int) -> list[Finding]:
    """Supported if the sonnet lines hold fewer different words, case ignored; undecided without the source
    text."""
    try:
        words = {w for line in corpus.sonnet_lines() for w in re.findall(r"[a-z']+", line.lower())}
    except corpus.CorpusError:
        return []
    return [Finding(is_true(len(words) < below), "source text", f"{len(words):,} different words")]


@measurement
def accepted_drafts_come_from(evidence: Evidence, workload: str, source: Literal["prompt", "output"]) -> list[Finding]:
    """Any machine, its own model. Ngram replayed over recorded token streams: the share of accepted draft tokens that
    it copied from `source`, the search taking the match that favours the claim (the earliest for the prompt, the latest
    for the output); supported if the interval lies above one half, refuted if below."""
    findings = []
    for bench in evidence.benches:
        n, chosen = bench.profile.ngram, ("prompt", "output").index(source)
        limits = (n.prompt_lookup_min, n.prompt_lookup_max, n.num_speculative_tokens)
        streams = [replay.stream(*ids) for (w, _, _), ids in _tokens(bench).items() if w.name == workload]
        rows = np.array([replay.ngram_sources([s], *limits, latest=source == "output") for s in streams], float)
        if rows.sum():
            share = stats.bootstrap([rows], lambda sums, chosen=chosen: sums[..., chosen] / sums.sum(axis=-1))
            percents = f"{100 * share.value:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"
            where = f"({bench.profile.model.name}, n = {len(rows)})"
            text = f"{percents} of accepted tokens from the {source} {where}"
            findings.append(Finding(within(share, low=0.5), bench.name, text))
    return findings


@measurement
def measured_k_order(evidence: Evidence, setting: str, higher: str, lower: str) -> list[Finding]:
    """Any machine, its own model. Ratio of the two workloads' K: supported if the interval is above 1,
    refuted if below."""
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
    """GPU only, step times of shapes. R with drafts of exactly the captured length (FULL graph kept) at each
    batch size: refuted if the smallest model's R is no higher than the largest's at one, supported if it is
    higher at all."""
    findings = []
    for bench in evidence.gpus:
        records = [r for r in bench.all if r.cell.workload.name == "random"]
        rows = [row for r in records if (trace := bench.trace(r)) for row in steptime.rows(r, trace)]
        rows = steptime.at_context(rows, bench.profile.step_time.contexts[0])
        costs: dict[int, dict[str, tuple[float, Estimate]]] = {}
        for model in sorted({row.model for row in rows}):
            own = [row for row in rows if row.model == model]
            for batch in sorted({row.batch for row in own}):
                test = steptime.find(own, setting="walking", batch=batch, gamma=draft_tokens, exact=True)
                base = steptime.find(own, setting="vanilla", batch=batch, beside=test)
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
    """GPU only. Supported if a setting is faster than vanilla with a busy share lower by over two points (and
    less energy a token), refuted if no faster setting is."""
    findings = []
    for bench in evidence.gpus:
        base = bench.records("vanilla")
        names = sorted({r.cell.setting for r in bench.text if r.cell.engine.speculative is not None})
        up, found = 0, []
        for name in names:
            records = [r for r in bench.text if r.cell.setting == name and not r.cell.workload.reuse_prompts]
            ratios = bench.speedups(records)
            for key in bench.faster(ratios):
                tests, bases = _monitored(records, key), _monitored(base, key)
                if not (tests and bases):
                    continue
                up += 1
                joules = _joules(bases), _joules(tests)
                if _busy_pct(tests) < _busy_pct(bases) - 2 and (not energy or joules[1] < joules[0]):
                    found.append((name, key, ratios[key], _busy_pct(bases), _busy_pct(tests), joules))
        if up:
            text = f"{len(found)} of {up} faster cells"
            if found:
                name, key, ratio, was, now, joules = max(found, key=lambda f: f[2].value)
                text += f"; {name} {_name(key)} {ratio} at {was:.0f} -> {now:.0f} % busy"
                text += f", {1000 * joules[0]:.1f} -> {1000 * joules[1]:.1f} mJ a token" if energy else ""
            findings.append(Finding(is_true(bool(found)), bench.name, text))
    return findings


@measurement
def busy_without_fewer_steps(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only. Refuted if the busy share falls at least half as far as with ngram or suffix where nothing is
    drafted and the number of steps is vanilla's; supported if it falls by under a tenth of that; at batch
    sizes where it falls at all."""
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
    """Any machine, its own model. Supported if tokens per step lie in [low, high] on most workloads, refuted
    if outside on most."""
    findings = []
    for bench in evidence.benches:
        values = {w: drafting(r, "tau").value for w in WORKLOADS if (r := bench.records(setting, w))}
        if values:
            inside = sum(low <= v <= high for v in values.values())
            text = ", ".join(f"{w} {v:.2f}" for w, v in values.items())
            where = _where(bench, bench.records(setting))
            findings.append(Finding(is_true(inside > len(values) / 2), bench.name, f"{setting}: {text} {where}"))
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
    """Any machine, its own model. Acceptance of `test` over `base`: supported (it collapses) if the interval
    lies below `share`, refuted if above."""
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
    """Any machine, its own model. Acceptance of `test` over `base` on the same prompts: supported if the
    interval lies below 1, refuted if above."""
    return acceptance_kept(evidence, test, base, 1.0)


@measurement
def measured_both_signs(evidence: Evidence, settings: Sequence[str]) -> list[Finding]:
    """GPU only. Supported if one setting at one batch size is faster on one workload and slower on another,
    refuted if none is."""
    findings = []
    for bench in evidence.gpus:
        found, seen = [], 0
        for name in settings:
            ratios = bench.speedups(bench.records(name))
            for batch in sorted({b for _, b in ratios}):
                at = {key: e for key, e in ratios.items() if key[1] == batch}
                seen += len(at) > 1
                up, down = (f(at) for f in (bench.faster, bench.slower))
                if up and down:
                    told = ", ".join(f"{key[0]} {at[key].value:.2f}" for key in (up[0], down[0]))
                    found.append(f"{name} B={batch}: {told}")
        if seen:
            text = f"{len(found)} of {seen} settings and batches" + (f"; {found[0]}" if found else "")
            findings.append(Finding(is_true(bool(found)), bench.name, text))
    return findings


@measurement
def measured_vanilla_shift(evidence: Evidence, test: str, base: str, share: float) -> list[Finding]:
    """GPU only. Throughput of vanilla with one setting changed: supported if somewhere the whole interval
    differs from 1 by at least `share`, refuted if everywhere it differs by less."""
    findings = []
    for bench in evidence.gpus:
        found = bench.speedups(bench.records(test), bench.records(base))
        if found:
            verdicts = [within(e, 1 - share, 1 + share) for e in found.values()]
            far = max(found, key=lambda key: abs(np.log(found[key].value)))
            verdict = (
                "supported" if "refuted" in verdicts else "refuted" if set(verdicts) == {"supported"} else "undecided"
            )
            findings.append(Finding(verdict, bench.name, f"{test} over {base}, largest {_name(far)}: {found[far]}"))
    return findings
