"""The rules on the study's own numbers: what its cells say about its claims, once counted over whole runs.

Every value is one run (n = 1) unless a finding says otherwise; where a sign matters, the spread of the
study's only unchanged repeats (`published.noise`) is the margin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from lib import corpus, metrics, published
from lib.cells import WORKLOADS
from lib.published import MAIN_MODEL, SINGLES, PublishedCell
from lib.rules import (
    ARITHMETIC,
    PUBLISHED,
    SMALL_B,
    Evidence,
    Finding,
    Verdict,
    as_percent,
    band,
    explained,
    is_true,
    median,
    reanalysis,
)


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
        is_true(len(cells) == expected),
        f"{len(cells)} cells, of which {http} are an HTTP test of two engines",
    )


@reanalysis
def published_grid(evidence: Evidence, models: int, workloads: int) -> list[Finding]:
    """Supported if that many models each have that many workloads."""
    by_model: dict[str, set[str]] = {}
    for cell in published.select(in_study=True, arrangement="one-engine"):
        by_model.setdefault(cell.model, set()).add(cell.workload)
    whole = sum(len(names) >= workloads for names in by_model.values())
    text = f"{whole} of {len(by_model)} models have {workloads} workloads"
    return _found(is_true(len(by_model) == models and whole == models), text)


@reanalysis
def published_gain(
    evidence: Evidence,
    workload: str,
    method: str,
    percent: float,
    model: str = MAIN_MODEL,
    tolerance: float = 1.0,
) -> list[Finding]:
    """Supported if the cell's throughput over vanilla's differs from the claim by at most `tolerance`
    points."""
    gain = 100 * (_gains(model, method, [workload])[workload] - 1)
    return _found(is_true(abs(gain - percent) <= tolerance), f"{workload} {method} {gain:+.1f} % (n = 1 run)")


@reanalysis
def published_gain_range(evidence: Evidence, model: str, method: str, low: float, high: float) -> list[Finding]:
    """Supported if smallest and largest gain over the six workloads are the claimed ones to within one
    point."""
    gains = [100 * (g - 1) for g in _gains(model, method, WORKLOADS).values()]
    near = abs(min(gains) - low) <= 1 and abs(max(gains) - high) <= 1
    return _found(is_true(near), f"{min(gains):+.1f} % to {max(gains):+.1f} % (n = 1 run each)")


@reanalysis
def published_all_gain(
    evidence: Evidence, model: str, method: str, workloads: Sequence[str] = WORKLOADS
) -> list[Finding]:
    """Refuted if a workload is slower than vanilla by more than the study's noise; supported if all are
    faster."""
    gains, noise = _gains(model, method, workloads), published.noise()
    losing = [f"{w} {as_percent(g)}" for w, g in gains.items() if g < 1 - noise]
    text = f"{model} {method}: {sum(g > 1 for g in gains.values())} of {len(gains)} gain"
    text += f", but {', '.join(losing)}" if losing else ""
    verdict = "refuted" if losing else "supported" if min(gains.values()) > 1 else "undecided"
    return _found(verdict, f"{text} (n = 1 run each)")


@reanalysis
def published_loses(evidence: Evidence, model: str, method: str, workload: str) -> list[Finding]:
    """Supported if the cell is slower than vanilla by more than the study's noise, refuted if it is
    faster."""
    gain, noise = _gains(model, method, [workload])[workload], published.noise()
    verdict = "supported" if gain < 1 - noise else "refuted" if gain > 1 + noise else "undecided"
    return _found(verdict, f"{workload} {method} {as_percent(gain)} (n = 1 run)")


@reanalysis
def published_loses_only(evidence: Evidence, model: str, method: str, workload: str, percent: float) -> list[Finding]:
    """Supported if only `workload` is slower than vanilla, by the claimed share to within one point."""
    gains = _gains(model, method, WORKLOADS)
    losing = [w for w, g in gains.items() if g < 1]
    near = abs(100 * (gains[workload] - 1) - percent) <= 1
    text = f"slower: {', '.join(f'{w} {as_percent(gains[w])}' for w in losing) or 'none'} (n = 1 run each)"
    return _found(is_true(losing == [workload] and near), text)


@reanalysis
def published_losses(evidence: Evidence) -> list[Finding]:
    """Supported if some speculative cell of the matrix is slower than vanilla."""
    cells = published.speculative_cells()
    slow = [c for c in cells if published.speedup(c) < 1 - published.noise()]
    return _found(is_true(bool(slow)), f"{len(slow)} of {len(cells)} speculative cells with logs are slower")


@reanalysis
def published_wall(evidence: Evidence, percent: float) -> list[Finding]:
    """Supported if the six workloads' wall time together changes by the claimed share to within one point."""
    change = 100 * (published.total_wall_s("suffix") / published.total_wall_s("vanilla") - 1)
    return _found(is_true(abs(change - percent) <= 1), f"{change:+.1f} % over six workloads")


@reanalysis
def published_mix_memory(evidence: Evidence, mix: str) -> list[Finding]:
    """Refuted if suffix takes over 10 % more tokens a step on the mix than its parts explain, while ngram
    does not.

    The mix ran last in an engine that had answered the same prompts; the suffix drafter remembers answers.
    """
    suffix, ngram = (published.memory_ratio(MAIN_MODEL, m, mix) for m in ("suffix", "ngram"))
    predicted = published.predicted_mix_throughput(MAIN_MODEL, "suffix", mix)
    fair = predicted / published.main_cell(mix, "vanilla").throughput_tok_s
    text = (
        f"{mix} tokens per step, measured over predicted from its parts: suffix "
        f"{suffix:.2f}, ngram {ngram:.2f}; "
        f"its parts' own speed would give {as_percent(fair)}"
    )
    return _found("refuted" if suffix > 1.1 > ngram else "supported" if suffix < 1.1 else "undecided", text)


@reanalysis
def published_fewer_steps_slower(evidence: Evidence) -> list[Finding]:
    """Refuted if a cell takes over 10 % fewer request-steps than vanilla and is slower by more than the
    noise."""
    cells = published.speculative_cells()
    few = [c for c in cells if metrics.tokens_per_step(c.counters) > 1.1]
    slow = [c for c in few if published.speedup(c) < 1 - published.noise()]
    worst = min(few, key=published.speedup)
    text = (
        f"{len(slow)} of {len(few)} cells with fewer steps are slower, e.g. {worst.model} "
        f"{worst.workload} {worst.method}: "
        f"{metrics.tokens_per_step(worst.counters):.2f} tokens per step, "
        f"{as_percent(published.speedup(worst))}"
    )
    return _found("refuted" if slow else "supported", text)


@reanalysis
def published_best_draft_length(evidence: Evidence, best: int) -> list[Finding]:
    """Supported if that number of drafted tokens is the fastest of those the study ran on sonnet (one run
    each)."""
    speeds: dict[int, float] = {}
    for cell in _one_engine(campaign=("SUB_044", "SUB_048"), workload="sonnet", method="ngram"):
        held = speeds.get(cell.num_speculative_tokens, 0.0)
        speeds[cell.num_speculative_tokens] = max(held, cell.throughput_tok_s)
    text = ", ".join(f"{g}: {speeds[g]:,.0f}" for g in sorted(speeds))
    return _found(is_true(max(speeds, key=speeds.get) == best), f"tok/s by drafted tokens {text} (n = 1 run each)")


@reanalysis
def published_memory_limit(evidence: Evidence, fails: float, works: float) -> list[Finding]:
    """Supported if suffix with PIECEWISE ran out of memory at the one fraction and finished at the other."""
    runs = published.select(model=MAIN_MODEL, method="suffix", cudagraph_mode="PIECEWISE", num_prompts=500)
    high = [c for c in runs if c.gpu_memory_utilization == fails]
    low = [c for c in runs if c.gpu_memory_utilization == works]
    failed = sum(c.status == "oom" for c in high)
    text = (
        f"out of memory: {failed} of {len(high)} at {fails:g}, "
        f"{sum(c.status == 'oom' for c in low)} of {len(low)} at {works:g}"
    )
    return _found(is_true(failed > 0 and all(c.status == "ok" for c in low)), text)


@reanalysis
def published_one_setting_both_ways(evidence: Evidence, gain: float, loss: float) -> list[Finding]:
    """Supported if one drafter's best and worst workload are the claimed gain and loss to within two
    points."""
    ranges = {m: [100 * (g - 1) for g in _gains(MAIN_MODEL, m, WORKLOADS).values()] for m in ("ngram", "suffix")}
    one = any(abs(max(r) - gain) <= 2 and abs(min(r) - loss) <= 2 for r in ranges.values())
    text = "; ".join(f"{m} {min(r):+.1f} to {max(r):+.1f} %" for m, r in ranges.items())
    return _found(is_true(one), f"{text} (n = 1 run each)")


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
    text = (
        f"from {max(factors):.2f}x slower to {1 / min(factors):.2f}x faster, {outside} of {len(factors)} cells outside"
    )
    return _found(is_true(outside == 0), text)


@reanalysis
def published_small_grid(evidence: Evidence) -> list[Finding]:
    """Supported if each small model ran with both drafters and on two kinds of GPU, refuted if a cell
    lacks."""
    cells = [c for c in published.select(method=("ngram", "suffix")) if c.params_b < SMALL_B]
    models = sorted({c.model for c in cells})
    lacking = [m for m in models if not any(c.model == m and c.method == "suffix" for c in cells)]
    gpus = {c.gpu.split()[0] for c in cells if c.arrangement != "quoted"}
    text = (
        f"{len(models)} models; never run with suffix: {', '.join(lacking) or 'none'}; measured on "
        f"{', '.join(sorted(gpus))} only"
    )
    return _found(is_true(not lacking and len(gpus) > 1), text)


@reanalysis
def published_slower_by(evidence: Evidence, model: str, method: str, workload: str, factor: float) -> list[Finding]:
    """One finding a run of the cell: supported if it is slower by the claimed factor to within a tenth."""
    findings = []
    for cell in published.select(model=model, method=method, workload=workload, status="ok"):
        found = 1 / published.speedup(cell)
        text = f"{cell.campaign}: {found:.2f}x slower" if found >= 1 else f"{cell.campaign}: {as_percent(1 / found)}"
        findings += _found(is_true(abs(found / factor - 1) <= 0.1), text)
    return findings


@reanalysis
def published_fixed_inequality(evidence: Evidence, bound: float) -> list[Finding]:
    """Refuted if a cell whose whole-run K exceeds `bound` is slower than vanilla by more than the noise."""
    above = [c for c in published.speculative_cells() if metrics.mean_acceptance_length(c.counters) > bound]
    slow = [c for c in above if published.speedup(c) < 1 - published.noise()]
    text = (
        f"K exceeds {bound:g} in {len(above)} of {len(published.speculative_cells())} cells, "
        f"{len(slow)} of them are slower"
    )
    return _found("refuted" if slow else "supported", text)


@reanalysis
def published_step_cost(evidence: Evidence, low: float, high: float) -> list[Finding]:
    """R = tokens per step over speedup: supported if nine tenths of the cells lie in the band, refuted if
    under half do."""
    costs = [published.step_cost(c) for c in published.speculative_cells()]
    inside = sum(low <= r <= high for r in costs)
    text = f"{inside} of {len(costs)} cells inside; {min(costs):.2f} to {max(costs):.2f}, median {median(costs):.2f}"
    return _found(band(inside, len(costs)), text)


@reanalysis
def published_variation(evidence: Evidence) -> list[Finding]:
    """Refuted if K explains less than half of the variance of the speedup over the cells (squared correlation
    of their logarithms), supported if it explains nine tenths."""
    cells = published.speculative_cells()
    pairs = [(metrics.mean_acceptance_length(c.counters), published.speedup(c)) for c in cells]
    return _found(*explained(pairs))


@reanalysis
def published_k_against_tau(evidence: Evidence) -> list[Finding]:
    """Refuted if in some cell a request-step advances by less than 0.9 K."""
    ratios = {
        c: metrics.tokens_per_step(c.counters) / metrics.mean_acceptance_length(c.counters)
        for c in published.speculative_cells()
    }
    worst = min(ratios, key=ratios.get)
    text = (
        f"{sum(r < 0.9 for r in ratios.values())} of {len(ratios)} cells below; {worst.model} "
        f"{worst.workload} {worst.method}: "
        f"K {metrics.mean_acceptance_length(worst.counters):.2f}, tokens per step "
        f"{metrics.tokens_per_step(worst.counters):.2f}"
    )
    return _found(is_true(min(ratios.values()) >= 0.9), text)


@reanalysis
def published_linear_rule(evidence: Evidence) -> list[Finding]:
    """Refuted if K = 1 + a gamma is exact only for drafts of fixed length (an identity) and worse than the
    closed form else."""

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
        median(errors("suffix", linear)),
        median(errors("suffix", closed)),
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
    """Supported if whole-run K and acceptance both stay below the bounds, refuted if one exceeds its
    bound."""
    c = published.main_cell(workload, method).counters
    found_k, found_a = metrics.mean_acceptance_length(c), metrics.acceptance_rate(c)
    share = c.num_accepted_tokens / c.num_output_tokens
    text = (
        f"whole run: K {found_k:.2f}, acceptance {100 * found_a:.1f} %, {100 * share:.0f} % of the output from drafts"
    )
    return _found(is_true(found_k <= k and found_a <= acceptance), text)


@reanalysis
def published_single_step(evidence: Evidence, base: str, test: str, percent: float) -> list[Finding]:
    """Refuted if the two runs differ in a recorded setting besides the drafter; the gain itself is given."""
    first = published.one(campaign=base, workload="sonnet", method="vanilla")
    runs = _one_engine(campaign=test, workload="sonnet", method="ngram", num_speculative_tokens=7)
    second = max(runs, key=lambda c: c.throughput_tok_s)
    differ = [
        f"{name} {getattr(first, name)} / {getattr(second, name)}"
        for name in ("gpu_memory_utilization", "max_num_seqs", "num_prompts", "output_cap")
        if None not in (getattr(first, name), getattr(second, name)) and getattr(first, name) != getattr(second, name)
    ]
    gain = second.throughput_tok_s / first.throughput_tok_s
    same = _gains(MAIN_MODEL, "ngram", ["sonnet"])["sonnet"]
    text = (
        f"{as_percent(gain)}, but also {', '.join(differ)}; same conditions {as_percent(same)}"
        if differ
        else as_percent(gain)
    )
    return _found(is_true(not differ and abs(100 * (gain - 1) - percent) <= 1), text)


@reanalysis
def published_first_step_share(evidence: Evidence, workloads: Sequence[str]) -> list[Finding]:
    """One verdict over the workloads: refuted if ngram's gain is under half of the full configuration's on
    one of them."""
    ngram, full = (_gains(MAIN_MODEL, m, workloads) for m in ("ngram", "suffix"))
    shares = {w: (ngram[w] - 1) / (full[w] - 1) for w in workloads}
    text = ", ".join(f"{w} {100 * s:.0f} %" for w, s in shares.items())
    return _found(is_true(min(shares.values()) >= 0.5), f"ngram's share of the gain: {text} (n = 1 run each)")


@reanalysis
def published_staircase(evidence: Evidence, workload: str) -> list[Finding]:
    """Refuted if suffix alone (the study's only run without PIECEWISE was eager) is slower than ngram before
    it."""
    base = published.one(campaign="SUB_086", workload=workload, method="vanilla")
    ngram = published.one(campaign="SUB_075", workload=workload, method="ngram")
    alone = published.one(campaign="SUB_074", workload=workload, method="suffix", num_prompts=500)
    last = published.one(campaign="SUB_085v2", workload=workload, method="suffix")
    speeds = [c.throughput_tok_s for c in (base, ngram, alone, last)]
    text = " -> ".join(f"{s:,.0f}" for s in speeds) + " tok/s (vanilla, ngram, suffix eager, suffix PIECEWISE)"
    return _found(is_true(speeds == sorted(speeds)), text)


@reanalysis
def published_rescue(evidence: Evidence, model: str) -> list[Finding]:
    """Supported if every workload that ngram slows down is faster than vanilla with the full
    configuration."""
    ngram, full = _gains(model, "ngram", WORKLOADS), _gains(model, "suffix", WORKLOADS)
    slowed = [w for w in WORKLOADS if ngram[w] < 1 - published.noise()]
    text = ", ".join(f"{w} {as_percent(ngram[w])} -> {as_percent(full[w])}" for w in slowed)
    return _found(is_true(bool(slowed) and all(full[w] > 1 for w in slowed)), f"{text} (n = 1 run each)")


def _whole_run(workload: str, method: str, quantity: Literal["K", "a"]) -> float:
    c = published.main_cell(workload, method).counters
    return metrics.mean_acceptance_length(c) if quantity == "K" else metrics.acceptance_rate(c)


@reanalysis
def published_k_ratio(evidence: Evidence, low: float, high: float) -> list[Finding]:
    """Supported if suffix's whole-run K over ngram's lies in [low, high] on all three single workloads."""
    ratios = {w: _whole_run(w, "suffix", "K") / _whole_run(w, "ngram", "K") for w in SINGLES}
    text = ", ".join(f"{w} {r:.2f}" for w, r in ratios.items())
    return _found(is_true(all(low <= r <= high for r in ratios.values())), f"whole-run ratio: {text}")


@reanalysis
def published_acceptance_ratio(evidence: Evidence, workload: str, at_least: float) -> list[Finding]:
    """Supported if suffix's whole-run acceptance is at least `at_least` times ngram's."""
    suffix, ngram = _whole_run(workload, "suffix", "a"), _whole_run(workload, "ngram", "a")
    text = f"whole run {100 * ngram:.1f} % -> {100 * suffix:.1f} %, {suffix / ngram:.1f} times"
    return _found(is_true(suffix / ngram >= at_least), text)


@reanalysis
def published_eager_chat(evidence: Evidence, loss: float, gain: float) -> list[Finding]:
    """Supported if on chat eager suffix loses and PIECEWISE suffix gains as claimed, to within two points."""
    eager = published.one(campaign="SUB_074", workload="chat", method="suffix")
    pieces = published.one(campaign="SUB_085v2", workload="chat", method="suffix")
    found = [100 * (published.speedup(c) - 1) for c in (eager, pieces)]
    near = abs(found[0] - loss) <= 2 and abs(found[1] - gain) <= 2
    return _found(is_true(near), f"chat: eager {found[0]:+.1f} %, PIECEWISE {found[1]:+.1f} % (n = 1 run each)")


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
    return _found(is_true(all(near)), f"whole run: {', '.join(parts)}")


@reanalysis
def published_only_bar_below(evidence: Evidence, bound: float) -> list[Finding]:
    """Supported if ngram on code is the only single-workload cell whose whole-run K is below `bound`."""
    values = {(w, m): _whole_run(w, m, "K") for w in SINGLES for m in ("ngram", "suffix")}
    below = [key for key, k in values.items() if k < bound]
    return _found(
        is_true(below == [("code", "ngram")]),
        f"{len(below)} of {len(values)} below; smallest {min(values.values()):.2f}",
    )


@reanalysis
def published_k_order(evidence: Evidence, method: str, higher: str, lower: str) -> list[Finding]:
    """Supported if the whole-run K of the one workload exceeds that of the other."""
    top, bottom = _whole_run(higher, method, "K"), _whole_run(lower, method, "K")
    return _found(is_true(top > bottom), f"whole-run K: {higher} {top:.2f}, {lower} {bottom:.2f}")


@reanalysis
def published_chat_length(evidence: Evidence, expected: float) -> list[Finding]:
    """One finding a series of runs: supported if vanilla's mean chat reply is within a tenth of it and below
    the cap."""
    findings = []
    for cell in _one_engine(model=MAIN_MODEL, workload="chat", method="vanilla", output_cap=8192):
        mean = cell.num_output_tokens / cell.num_prompts
        near = abs(mean / expected - 1) <= 0.1 and mean < cell.output_cap
        findings += _found(is_true(near), f"{cell.campaign}: {mean:.0f} tokens")
    return findings


@reanalysis
def published_gains_close(evidence: Evidence, method: str, workloads: Sequence[str], points: float) -> list[Finding]:
    """Supported if the two gains differ by at most `points` percentage points."""
    gains = {w: 100 * (g - 1) for w, g in _gains(MAIN_MODEL, method, workloads).items()}
    text = ", ".join(f"{w} {g:+.1f} %" for w, g in gains.items())
    return _found(is_true(max(gains.values()) - min(gains.values()) <= points), f"{text} (n = 1 run each)")


@reanalysis
def expected_repeats(evidence: Evidence, draws: int, pool: int, expected: float) -> list[Finding]:
    """Supported if draws - pool (1 - (1 - 1/pool)^draws), the expected number of repeats, is within one of
    the claim."""
    found = draws - pool * (1 - (1 - 1 / pool) ** draws)
    return [Finding(is_true(abs(found - expected) <= 1), ARITHMETIC, f"{found:.1f} repeats expected")]


@reanalysis
def word_pairs(evidence: Evidence, expected: int) -> list[Finding]:
    """Supported if the square of the word pool's size is the claimed number."""
    size = len(corpus.CODE_WORDS)
    return [Finding(is_true(size**2 == expected), ARITHMETIC, f"{size} x {size} = {size**2}")]


@reanalysis
def published_sign_by_output_cap(evidence: Evidence) -> list[Finding]:
    """Refuted if on one model a workload's sign changes with the output cap alone (number of prompts
    aside)."""
    curves = published.speedups_by_output_cap()
    flips = [w for w, points in curves.items() if min(s for _, s in points) < 1 < max(s for _, s in points)]
    text = "; ".join(
        f"{MAIN_MODEL} ngram {w} " + ", ".join(f"{as_percent(s)} at {cap:,}" for cap, s in curves[w]) for w in flips[:1]
    )
    return _found("refuted" if flips else "undecided", f"{text} output tokens (n = 1 run each)")


@reanalysis
def published_models_differ(evidence: Evidence, models: Sequence[str], workload: str, method: str) -> list[Finding]:
    """Supported if the models' whole-run acceptance differs by more than a tenth."""
    values = {m: metrics.acceptance_rate(published.main_cell(workload, method, model=m).counters) for m in models}
    text = ", ".join(f"{m} {100 * a:.1f} %" for m, a in values.items())
    return _found(is_true(max(values.values()) / min(values.values()) > 1.1), f"{workload} {method}: {text}")


def _busy(method: str) -> float:
    return float(np.mean([published.main_cell(w, method).gpu_busy_process_pct for w in WORKLOADS]))


@reanalysis
def published_busy(evidence: Evidence, base: float, test: float) -> list[Finding]:
    """Supported if the printed means are the claimed ones to within half a point; means while generating are
    given too."""
    shown = _busy("vanilla"), _busy("suffix")
    pure = [
        float(np.average([published.main_cell(w, m).gpu_busy_pct for w in WORKLOADS],
                         weights=[published.main_cell(w, m).wall_s for w in WORKLOADS]))
        for m in ("vanilla", "suffix")
    ]  # fmt: skip
    near = abs(shown[0] - base) <= 0.5 and abs(shown[1] - test) <= 0.5
    text = f"{shown[0]:.1f} -> {shown[1]:.1f} %, start-up included; {pure[0]:.1f} -> {pure[1]:.1f} % while generating"
    return _found(is_true(near), text)


@reanalysis
def published_matched_totals(evidence: Evidence, gain: float, wall: float) -> list[Finding]:
    """Supported if gain and wall time hold for the same six workloads to within three points."""
    speed = 100 * (published.total_throughput_tok_s("suffix") / published.total_throughput_tok_s("vanilla") - 1)
    time = 100 * (published.total_wall_s("suffix") / published.total_wall_s("vanilla") - 1)
    one = published.main_cell("sonnet", "suffix")
    alone = 100 * (one.wall_s / published.baseline(one).wall_s - 1)
    text = (
        f"six workloads {speed:+.1f} % with wall {time:+.1f} %; "
        f"sonnet {as_percent(published.speedup(one))} with wall {alone:+.1f} %"
    )
    return _found(is_true(abs(speed - gain) <= 3 and abs(time - wall) <= 3), text)


@reanalysis
def published_faster_less_busy(evidence: Evidence, energy: bool = False) -> list[Finding]:
    """Supported if a cell is faster than vanilla with a lower busy share while generating (and less energy a
    token)."""
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
    text = (
        f"{len(found)} cells, e.g. {cell.workload} {cell.method} {as_percent(published.speedup(cell))} at "
        f"{base.gpu_busy_pct:.0f} -> {cell.gpu_busy_pct:.0f} % busy"
    )
    return _found("supported", text + (f", {joules[0]:.2f} -> {joules[1]:.2f} J a token" if energy else ""))


@reanalysis
def published_tokens_per_step(evidence: Evidence, low: float, high: float) -> list[Finding]:
    """Supported if most workloads' tokens per step with suffix lie in [low, high], refuted if most do not."""
    values = {w: metrics.tokens_per_step(published.main_cell(w, "suffix").counters) for w in WORKLOADS}
    inside = sum(low <= v <= high for v in values.values())
    text = ", ".join(f"{w} {v:.1f}" for w, v in values.items())
    return _found(is_true(inside > len(values) / 2), f"{MAIN_MODEL}: {text}")


@reanalysis
def published_long_drafts(evidence: Evidence, at_least: int) -> list[Finding]:
    """Supported if a run failed that differs from a finished one in the number of drafted tokens alone, else
    undecided."""
    long = [
        c for c in published.cells() if (c.num_speculative_tokens or 0) >= at_least and c.arrangement == "one-engine"
    ]
    failed = [c for c in long if c.status == "crashed"]
    alone = [
        c
        for c in failed
        if published.select(
            campaign=c.campaign, workload=c.workload, method=c.method, status="ok",
            prompt_lookup_min=c.prompt_lookup_min, prompt_lookup_max=c.prompt_lookup_max,
        )
    ]  # fmt: skip
    text = (
        f"{len(failed)} of {len(long)} runs with at least {at_least} crashed, and it changed the lookup range as well"
    )
    return _found("supported" if alone else "undecided", text)


@reanalysis
def published_both_signs(evidence: Evidence, model: str, method: str) -> list[Finding]:
    """Supported if one drafter is faster on one workload and slower on another, beyond the study's noise."""
    gains, noise = _gains(model, method, WORKLOADS), published.noise()
    both = min(gains.values()) < 1 - noise and max(gains.values()) > 1 + noise
    text = f"{method} {as_percent(min(gains.values()))} to {as_percent(max(gains.values()))} (n = 1 run each)"
    return _found(is_true(both), text)


@reanalysis
def published_memory_fraction(evidence: Evidence, share: float) -> list[Finding]:
    """Supported if vanilla at 0.85 and at 0.80 differs by at least `share` on a workload, refuted if on
    none."""
    shifts = {}
    for workload in ("chat", "code"):
        high = published.one(campaign="SUB_071", workload=workload, method="vanilla")
        low = published.one(campaign="SUB_086", workload=workload, method="vanilla")
        shifts[workload] = low.throughput_tok_s / high.throughput_tok_s
    text = ", ".join(f"{w} {as_percent(s)}" for w, s in shifts.items())
    return _found(is_true(any(abs(s - 1) >= share for s in shifts.values())), f"0.85 -> 0.80: {text} (n = 1 run each)")


@reanalysis
def published_same_work(evidence: Evidence, first: str, second: str) -> list[Finding]:
    """Refuted if the two runs read different numbers of prompt tokens for the same number of prompts."""
    a, b = (
        _one_engine(campaign=name, method="vanilla", workload=("sonnet", "sonnet-permuted"))[0]
        for name in (first, second)
    )
    sizes = [c.num_prompt_tokens / c.num_prompts for c in (a, b)]
    text = (
        f"{a.throughput_tok_s:,.0f} tok/s with {sizes[0]:,.0f} prompt tokens each, "
        f"{b.throughput_tok_s:,.0f} with {sizes[1]:,.0f}"
    )
    return _found(is_true(abs(sizes[0] / sizes[1] - 1) < 0.05), text)
