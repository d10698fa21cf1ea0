"""Derived quantities, always recomputed from a record's raw counters. Names are vLLM's.

With drafts = request-steps that carried a draft:

* mean acceptance length K = 1 + accepted / drafts (the bonus token included)
* draft acceptance rate a = accepted / draft tokens
* draft coverage c = drafts / request-steps
* tokens per step tau = output tokens / request-steps; 1 + c (K - 1) is what a step emits, cut at a stop included
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from lib.records import Counters, Record, Trace


def mean_acceptance_length(c: Counters) -> float:
    """K, tokens a request gains in a step that carried a draft; NaN without drafts."""
    return 1 + c.num_accepted_tokens / c.num_drafts if c.num_drafts else float("nan")


def acceptance_rate(c: Counters) -> float:
    """a in [0, 1]: share of really drafted tokens that were accepted; filling tokens are not counted as drafted."""
    drafted = c.num_draft_tokens - c.num_filling_tokens
    return c.num_accepted_tokens / drafted if drafted else float("nan")


def draft_coverage(c: Counters) -> float:
    """c in [0, 1]: share of request-steps that carried a draft."""
    return c.num_drafts / c.num_request_steps


def tokens_per_step(c: Counters) -> float:
    """tau, output tokens a request-step, steps without a draft counted."""
    return c.num_output_tokens / c.num_request_steps


def emitted_tokens_per_step(c: Counters) -> float:
    """1 + c (K - 1): what a request-step emits. Above `tokens_per_step` by what was accepted past a stop and then cut."""
    return 1 + draft_coverage(c) * (mean_acceptance_length(c) - 1) if c.num_drafts else 1.0


def acceptance_per_position(c: Counters) -> list[float]:
    """Share of drafts whose token at position 1..gamma was accepted (vLLM's denominator: all drafts)."""
    return [n / c.num_drafts for n in c.num_accepted_tokens_per_pos] if c.num_drafts else []


def conditional_acceptance(c: Counters) -> list[float]:
    """Share accepted at position i among drafts accepted at i - 1 (position 1: among all drafts); NaN where none was."""
    counts = [c.num_drafts, *c.num_accepted_tokens_per_pos]
    return [now / before if before else float("nan") for before, now in zip(counts, counts[1:], strict=False)]


def throughput_tok_s(record: Record) -> float:
    """Output tokens a second over the whole run: ramp-up, prefill and tail included, engine start-up excluded."""
    assert record.counters is not None and record.wall_s
    return record.counters.num_output_tokens / record.wall_s


def mean_output_tokens(record: Record) -> float:
    return float(np.mean([r.num_output_tokens for r in record.requests]))


def mean_prompt_tokens(record: Record) -> float:
    return float(np.mean([r.num_prompt_tokens for r in record.requests]))


def cap_share(record: Record) -> float:
    """Share of outputs that ended at the cap (finish reason `length`) and not by themselves."""
    return float(np.mean([r.finish_reason == "length" for r in record.requests]))


def tpot_ms(record: Record) -> np.ndarray:
    """Time per output token of each request, ms: (last - first token time) / (output tokens - 1); NaN for one token."""
    times = [
        1000 * (r.last_token_s - r.first_token_s) / (r.num_output_tokens - 1)
        if r.num_output_tokens > 1 and r.last_token_s is not None and r.first_token_s is not None
        else float("nan")
        for r in record.requests
    ]
    return np.asarray(times)


def decode_steps(trace: Trace) -> dict[str, np.ndarray]:
    """The steps of a trace that decoded and prefilled nothing: columns as arrays, and `step_ms`, their time in ms.

    `running` is the number of requests that decoded in the step and `verified` = running + draft tokens.
    """
    columns = {name: np.asarray(values) for name, values in trace.steps.items()}
    if not columns or len(columns["t_s"]) < 2:
        return {name: values[:0] for name, values in columns.items()} | {
            "step_ms": np.zeros(0),
            "verified": np.zeros(0),
        }
    step_ms = 1000 * np.diff(columns["t_s"], prepend=np.nan)
    pure = (columns["prefills"] == 0) & (columns["running"] > 0) & np.isfinite(step_ms)
    chosen = {name: values[pure] for name, values in columns.items()}
    return chosen | {"step_ms": step_ms[pure], "verified": chosen["running"] + chosen["draft_tokens"]}


def prompt_steps(trace: Trace) -> tuple[float, float]:
    """(mean time in ms, share of the run's time) of the steps that read a prompt or a part of one; NaN, 0 without any."""
    step_ms = 1000 * np.diff(np.asarray(trace.steps.get("t_s", ())), prepend=0.0)
    reading = np.asarray(trace.steps.get("prefills", ())) != 0
    return (
        (float(step_ms[reading].mean()), float(step_ms[reading].sum() / step_ms.sum()))
        if reading.any()
        else (np.nan, 0.0)
    )


def mean_step_ms(trace: Trace, running: int | None = None) -> float:
    """Mean time of the decode steps (with exactly `running` requests, if given), ms."""
    steps = decode_steps(trace)
    keep = np.ones(len(steps["step_ms"]), bool) if running is None else steps["running"] == running
    return float(steps["step_ms"][keep].mean()) if keep.any() else float("nan")


def step_time_ratio(test: Trace, base: Trace) -> float:
    """R, time of a speculative decode step over a vanilla one at the same number of running requests.

    Steps are matched by their number of running requests; each number weighs as often as it occurs in `test`. NaN when
    no number occurs in both.
    """
    steps, reference = decode_steps(test), decode_steps(base)
    above = below = 0.0
    for running in np.unique(steps["running"]):
        mine = steps["step_ms"][steps["running"] == running]
        theirs = reference["step_ms"][reference["running"] == running]
        if len(mine) and len(theirs):
            above += mine.sum()
            below += len(mine) * theirs.mean()
    return float(above / below) if below else float("nan")


def graph_mode_shares(trace: Trace) -> dict[str, float]:
    """Share of decode steps dispatched with each CUDA-graph mode; empty where the engine does not tell."""
    modes = [mode for mode in decode_steps(trace).get("graph_mode", ()) if mode]
    return {str(mode): modes.count(mode) / len(modes) for mode in sorted(set(modes))}


def steady_share(trace: Trace, batch_size: int) -> float:
    """Share of wall time spent with at least 90 % of `batch_size` requests running (the rest is ramp-up and tail)."""
    t, running = np.asarray(trace.steps["t_s"]), np.asarray(trace.steps["running"])
    spans = np.diff(t, prepend=0.0)
    return float(spans[running >= 0.9 * batch_size].sum() / spans.sum())


def pooled(records: Iterable[Record]) -> Counters:
    """Counters of several cells of one setting, summed."""
    parts = [r.counters for r in records if r.counters is not None]
    if not parts:
        raise ValueError("records holds none with counters, allowed: at least one record whose status is ok")
    gamma = max(len(c.num_accepted_tokens_per_pos) for c in parts)
    positions = tuple(
        sum(c.num_accepted_tokens_per_pos[i] for c in parts if i < len(c.num_accepted_tokens_per_pos))
        for i in range(gamma)
    )
    sums = {
        name: sum(getattr(c, name) for c in parts)
        for name, field in Counters.model_fields.items()
        if field.annotation is int
    }
    sources = {c.request_steps_source for c in parts}
    source = "engine" if sources == {"engine"} else "output_minus_accepted"
    return Counters(**sums, num_accepted_tokens_per_pos=positions, request_steps_source=source)


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs (or where one ends before the other); None if equal."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def identical_outputs(a: Record, b: Record) -> float:
    """Share of requests whose output ids are identical in two records of the same prompts."""
    if len(a.requests) != len(b.requests):
        raise ValueError(f"records hold {len(a.requests)} and {len(b.requests)} requests, allowed: the same prompts")
    return float(np.mean([x.output_hash == y.output_hash for x, y in zip(a.requests, b.requests, strict=True)]))
