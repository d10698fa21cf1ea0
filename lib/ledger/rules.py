"""Predicates for one claim each, where none of the general ones (`predicates`) fits. Same form: rows in, a Finding out."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from lib.ledger import published
from lib.ledger.predicates import Finding, bounds, decide, name_of, numbers, predicate, shown
from lib.results import stats
from lib.results.records import ROOT

ANSWERS = ROOT / "params" / "recorded" / "answers.parquet"


def _by_setting(rows: pd.DataFrame, settings: list[str]) -> pd.DataFrame:
    """Speedups (value, low, high) of several settings side by side, one row a workload (and concurrency)."""
    keys = [c for c in ("model", "workload", "concurrency") if c in rows and rows[c].notna().any()]
    parts = {s: rows[rows.setting == s] for s in settings}
    return pd.concat({s: bounds(r.set_index(keys), "speedup") for s, r in parts.items()}, axis=1, join="inner")


@predicate
def mix_by_its_own_merit(rows: pd.DataFrame, mix: str, model: str = published.MAIN_MODEL) -> Finding:
    """Refuted if suffix takes over 10 % more tokens a step on the mix than its parts explain, while ngram does not: the mix ran
    last in an engine that had answered the same prompts. Supported if suffix does not, either."""
    suffix, ngram = (published.memory_ratio(m, mix, model) for m in ("suffix", "ngram"))
    text = f"tokens per step over what the mix's parts explain: suffix {suffix:.2f}, ngram (no memory) {ngram:.2f}"
    return Finding(decide(suffix <= 1.1, ngram < 1.1), text, suffix, n=len(rows))


@predicate
def slower_in_both_series(rows: pd.DataFrame, main: str = "SUB_093") -> Finding:
    """The study ran its small models twice. Supported if all cells are slower than vanilla, refuted if each series has a faster
    one; where the series disagree, single runs decide nothing."""
    rows = rows.dropna(subset=["speedup"])
    last, first = rows[rows.campaign == main].speedup, rows[rows.campaign != main].speedup
    up = (first > 1).sum(), (last > 1).sum()
    text = f"faster than vanilla: {up[0]} of {len(first)} cells in the first series, {up[1]} of {len(last)} in the last"
    return Finding(decide(not any(up), all(up)), text, float((rows.speedup > 1).mean()), n=len(rows))


@predicate
def linear_rule(rows: pd.DataFrame) -> Finding:
    """Refuted if K = 1 + a gamma is exact only for drafts of one length (an identity), and where they vary no nearer than the
    closed form."""
    k, a, gamma = rows.mean_acceptance_length, rows.acceptance_rate, rows.num_speculative_tokens
    formed = pd.DataFrame({"linear": 1 + a * gamma, "closed": (1 - a ** (gamma + 1)) / (1 - a)})
    off = formed.div(k, axis=0).sub(1).abs()
    fixed, varying = off[rows.setting == "ngram"].linear.max(), off[rows.setting == "suffix"].median()
    text = (
        f"ngram: off by at most {100 * fixed:.1f} %, as an identity must; "
        f"suffix: {100 * varying.linear:.0f} %, closed form {100 * varying.closed:.0f} %"
    )
    return Finding(decide(varying.linear < varying.closed, fixed < 0.01), text, varying.linear, n=len(rows))


@predicate
def most_of_the_gain(rows: pd.DataFrame, first: str, whole: str) -> Finding:
    """Supported if on every workload setting `first` gives half or more of the gain of `whole`, refuted if on one it does not."""
    gains = _by_setting(rows, [first, whole])
    share = (gains[first].value - 1) / (gains[whole].value - 1)
    text = ", ".join(
        f"{n} {100 * s:.0f} %" for n, s in zip(share.index.get_level_values("workload"), share, strict=True)
    )
    return Finding(decide((share >= 0.5).all()), f"share of the gain: {text}", float(share.min()), n=len(share))


@predicate
def rescues(rows: pd.DataFrame, slow: str, test: str) -> Finding:
    """Of the workloads that setting `slow` slows down: supported if all are faster than vanilla under `test`, refuted if one is
    still slower, whole intervals."""
    both = _by_setting(rows, [slow, test])
    held = both[both[slow].high < 1]
    if held.empty:
        return Finding("undecided", f"{slow} slows down none of {len(both)}", n=len(both))
    after = held[test]
    worst = after.loc[after.value.idxmin()]
    faster = f"under {test} {(after.low > 1).sum()} of them are faster, the slowest {numbers(worst, 'speedup')}"
    text = f"{slow} slows down {len(held)} of {len(both)}; {faster}"
    return Finding(decide((after.low > 1).all(), (after.high < 1).any()), text, *map(float, worst), len(held))


@predicate
def fails_alone(rows: pd.DataFrame, at_least: int) -> Finding:
    """Supported if a run failed that differs from a finished one in the number of drafted tokens alone, else undecided."""
    long = rows[rows.num_speculative_tokens >= at_least]
    failed = long[long.status == "crashed"]
    like = ["campaign", "workload", "method", "prompt_lookup_min", "prompt_lookup_max"]
    alone = failed.merge(rows[rows.status == "ok"], on=like)
    text = f"{len(failed)} of {len(long)} runs with at least {at_least} crashed"
    text += "; it changed the lookup range, too" if alone.empty else ""
    return Finding(decide(not alone.empty, False), text, len(failed), n=len(long))


@predicate
def prompt_alone_explains(rows: pd.DataFrame) -> Finding:
    """Refuted if a workload accepted a larger share of its output than the prompts could give at all.

    A lookup of two tokens or more in the prompt copies only tokens that end a run of three that the prompt holds: their share
    of the recorded answers is the most that a search of prompts alone could have had accepted.
    """
    found = {}
    for workload, texts in pd.read_parquet(ANSWERS).groupby("workload"):
        counts = np.array([_copied(p, a) for p, a in zip(texts.prompt, texts.answer, strict=True)])
        found[workload] = stats.bootstrap([counts], lambda s: s[..., 0] / s[..., 1], resamples=300)
    accepted = 1 - 1 / bounds(rows, "tokens_per_step")  # of the output
    beyond = accepted.low > rows.workload.map({w: e.high for w, e in found.items()})
    ratio = accepted.value / rows.workload.map({w: e.value for w, e in found.items()})
    top = ratio.idxmax()
    most, own = found[rows.workload[top]], accepted.loc[top]
    text = (
        f"{beyond.sum()} of {len(rows)} accept more than prompts hold; {name_of(rows.loc[top])}: "
        f"{own.value:.3f} of the output [{own.low:.3f}, {own.high:.3f}], prompts alone could give {most.value:.3f} "
        f"[{most.low:.3f}, {most.high:.3f}]"
    )
    return Finding(decide(False, beyond.any()), text, own.value, own.low, own.high, len(rows))


def _copied(prompt: np.ndarray, answer: np.ndarray) -> tuple[int, int]:
    """Tokens of the answer that end a run of three tokens which the prompt holds, and all its tokens."""
    known = set(zip(prompt, prompt[1:], prompt[2:], strict=False))
    whole = [*prompt[-2:], *answer]
    return sum(run in known for run in zip(whole, whole[1:], whole[2:], strict=False)), len(answer)


@predicate
def vocabulary(rows: None, below: int) -> Finding:
    """Supported if the sonnet lines hold fewer different words than that, case ignored; undecided without the source text."""
    from lib.measure import corpus  # what the workloads are made of

    try:
        found = {word for line in corpus.sonnet_lines() for word in re.findall(r"[a-z']+", line.lower())}
    except corpus.CorpusError:
        return Finding("undecided", "the source text is not installed")
    return Finding(decide(len(found) < below), f"{shown(len(found))} different words in the source text", len(found))
