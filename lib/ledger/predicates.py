"""The predicates that decide claims, each over the rows of one evidence table.

A predicate gets rows and its arguments in claims.yaml and returns a `Finding`: supported, refuted or undecided, the number
and interval that decided, and a sentence with what was seen. Where a quantity has `_low` and `_high` columns, only what the
whole interval says counts; a value without an interval is taken as it is. No rows, no finding: the caller sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

Verdict = Literal["supported", "refuted", "undecided"]
Number = float | int
SHARES = {"acceptance_rate"}  # shown as percentages
WORDS = {
    "mean_acceptance_length": "K", "mean_acceptance_length_ratio": "ratio of K", "step_cost": "R",
    "step_over_k": "tokens per step / K", "gpu_busy_fall": "the busy share's fall", "throughput_tok_s": "tokens/s",
}  # fmt: skip


class Finding(NamedTuple):
    """What one test found in one source."""

    verdict: Verdict
    text: str
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    n: int = 0  # rows looked at
    source: str = ""
    recount: bool = False  # no further run would change it
    context: bool = False  # shown beside the verdict, and no part of it


PREDICATES: dict[str, Callable[..., Finding]] = {}


def predicate(function: Callable[..., Finding]) -> Callable[..., Finding]:
    """Make a predicate known to claims.yaml by its name."""
    PREDICATES[function.__name__] = function
    return function


def decide(yes: bool, no: bool = True) -> Verdict:
    """supported if `yes`, else refuted if `no`, else undecided."""
    return "supported" if yes else "refuted" if no else "undecided"


def bounds(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Columns value, low and high of a quantity; rows without a value are left out."""
    value = rows[quantity].astype(float)
    low, high = (
        rows[f"{quantity}_{end}"].fillna(value) if f"{quantity}_{end}" in rows else value for end in ("low", "high")
    )
    return pd.DataFrame({"value": value, "low": low, "high": high}).dropna(subset=["value"])


def name_of(row: pd.Series) -> str:
    """A row in a few words: campaign or model, setting, workload and concurrency, as far as it has them."""
    words = [row.get(c) for c in ("campaign", "model", "setting", "workload")]
    at = [] if "campaign" in row or pd.isna(row.get("concurrency")) else [f"at {row['concurrency']:.0f}"]
    return " ".join([str(w) for w in words if isinstance(w, str)] + at)


def shown(value: Number, quantity: str = "") -> str:
    if quantity in SHARES:
        return f"{100 * value:.1f} %"
    if quantity == "speedup":
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def numbers(held: pd.Series, quantity: str = "") -> str:
    """A value with its interval, where it has one."""
    text = shown(held.value, quantity)
    return text if held.low == held.high else f"{text} [{shown(held.low, quantity)}, {shown(held.high, quantity)}]"


def words(quantity: str) -> str:
    """A quantity's column in words."""
    return WORDS.get(quantity, quantity.replace("_pct", "").replace("_s_ratio", " ratio").replace("_", " "))


def _range(low: float, high: float, inside: bool) -> str:
    """Where a row lies that is in [low, high], or outside, in words."""
    if np.isinf(high):
        return f"above {low:g}" if inside else f"below {low:g}"
    if np.isinf(low):
        return f"below {high:g}" if inside else f"above {high:g}"
    return f"{'within' if inside else 'outside'} {low:.3g} to {high:.3g}"


def _inside(held: pd.DataFrame, low: float, high: float) -> tuple[pd.Series, pd.Series]:
    """Which rows' intervals lie wholly in [low, high], and which wholly outside."""
    return (held.low >= low) & (held.high <= high), (held.high < low) | (held.low > high)


def _seen(rows: pd.DataFrame, held: pd.DataFrame, quantity: str, index: Any, count: str, verdict: Verdict) -> Finding:
    """A finding that shows one row of all."""
    told = held.loc[index]
    text = f"{words(quantity)} {numbers(told, quantity)}, {name_of(rows.loc[index])}"
    text = text if len(held) == 1 else f"{count}; {text}"
    return Finding(verdict, text, *map(float, told), len(held))


def _within(rows: pd.DataFrame, quantity: str, low: float, high: float, one_is_enough: bool) -> Finding:
    """How many rows' intervals lie in [low, high]; shown is the row that decides: the deepest inside, or the farthest out."""
    held = bounds(rows, quantity)
    yes, no = _inside(held, low, high)
    out = np.maximum(low - held.value, held.value - high)
    counted = (yes if one_is_enough else no).sum()
    verdict = decide(yes.any(), no.all()) if one_is_enough else decide(yes.all(), no.any())
    shown = out.idxmin() if one_is_enough else out.idxmax()
    return _seen(rows, held, quantity, shown, f"{counted} of {len(held)} {_range(low, high, one_is_enough)}", verdict)


@predicate
def all_within(rows: pd.DataFrame, quantity: str, low: float = -np.inf, high: float = np.inf) -> Finding:
    """Supported if every row's interval lies in [low, high], refuted if one lies wholly outside."""
    return _within(rows, quantity, low, high, one_is_enough=False)


@predicate
def any_within(rows: pd.DataFrame, quantity: str, low: float = -np.inf, high: float = np.inf) -> Finding:
    """Supported if one row's interval lies in [low, high], refuted if all lie wholly outside."""
    return _within(rows, quantity, low, high, one_is_enough=True)


@predicate
def share_within(
    rows: pd.DataFrame, quantity: str, low: float = -np.inf, high: float = np.inf, at_least: float = 0.9, below: float = 0.5
) -> Finding:  # fmt: skip
    """Supported if `at_least` of the values lie in [low, high], refuted if fewer than `below` do."""
    held = bounds(rows, quantity)
    number = int(held.value.between(low, high).sum())
    least, median, most = held.value.quantile([0, 0.5, 1])
    span = f"{shown(least, quantity)} to {shown(most, quantity)}, median {shown(median, quantity)}"
    text = f"{words(quantity)} {span}; {number} of {len(held)} {_range(low, high, True)}"
    share = number / len(held)
    return Finding(decide(share >= at_least, share < below), text, median, least, most, len(held))


@predicate
def close(
    rows: pd.DataFrame, quantity: str, value: Number | Mapping[str, Number], *,
    within: float | None = None, relative: float | None = None, by: str = "workload", of: str | None = None,
) -> Finding:  # fmt: skip
    """Supported if every row's value is the claimed one to within a tolerance, refuted if none is, undecided if some are.

    value: one number, or one for each value of column `by`. of: compare the rows' min, max, sum or count instead.
    """
    rows = rows.dropna(subset=[quantity])
    found = rows[quantity] if of is None else pd.Series([rows[quantity].agg(of)])
    asked = rows[by].map(value) if isinstance(value, Mapping) else pd.Series(float(value), found.index)
    tolerance = within if within is not None else relative * asked.abs()
    near = (found - asked).abs() <= tolerance
    names = [f"{name} " for name in rows[by]] if len(found) > 1 else [""]
    told = ", ".join(name + shown(v, quantity) for name, v in zip(names, found, strict=True))
    text = f"{len(rows)}" if of == "count" else f"{words(quantity)} {told}"
    return Finding(decide(near.all(), not near.any()), text, float(found.mean()), n=len(found))


@predicate
def ordered(rows: pd.DataFrame, quantity: str, by: str, order: Sequence[Any], each: Sequence[str] = ()) -> Finding:
    """Supported if the quantity rises along `order` (values of column `by`), intervals apart; refuted if a later one lies
    wholly below an earlier one, in any group of `each`."""
    verdicts, told = [], []
    for key, group in rows.groupby(list(each)) if each else [((), rows)]:
        found = {name: bounds(group[group[by] == name], quantity).mean() for name in order}
        for a, b in zip(order, order[1:], strict=False):
            if found[a].notna().all() and found[b].notna().all():
                verdicts.append(decide(found[b].low > found[a].high, found[b].high < found[a].low))
        values = ", ".join(f"{n} {numbers(v, quantity)}" for n, v in found.items() if v.notna().all())
        told.append(" ".join(map(str, key)) + ": " * bool(key) + values)
    verdict = decide(bool(verdicts) and set(verdicts) == {"supported"}, "refuted" in verdicts)
    return Finding(verdict, f"{words(quantity)} {'; '.join(told[:3])}", n=len(rows))


@predicate
def best(rows: pd.DataFrame, quantity: str, by: str, value: Any) -> Finding:
    """Supported if the largest value is that of the rows where column `by` is `value`, refuted if another one is larger."""
    top = rows.groupby(by)[quantity].max()
    text = ", ".join(f"{name:g}: {shown(v, quantity)}" for name, v in top.items())
    return Finding(
        decide(top.idxmax() == value), f"{words(quantity)} by {words(by)} {text}", float(top[value]), n=len(rows)
    )


@predicate
def both_signs(rows: pd.DataFrame, quantity: str, bound: float = 1.0, by: Sequence[str] = ()) -> Finding:
    """Supported if in one group of `by` one row's interval lies above the bound and another's below, refuted if in none."""
    held, mixed = bounds(rows, quantity), []
    groups = [held.loc[part.index] for _, part in rows.loc[held.index].groupby(list(by))] if by else [held]
    for group in groups:
        if (group.low > bound).any() and (group.high < bound).any():
            mixed.append(group)
    text = f"both signs in {len(mixed)} of {len(groups)}"
    if not mixed:
        return Finding("refuted", text, n=len(held))
    widest = max(mixed, key=lambda g: g.value.max() / g.value.min())
    ends = [widest.value.idxmin(), widest.value.idxmax()]
    told = ", ".join(f"{name_of(rows.loc[i])} {numbers(widest.loc[i], quantity)}" for i in ends)
    return Finding("supported", f"{text}; {told}", *map(float, widest.loc[ends[0]]), len(held))


@predicate
def explains(
    rows: pd.DataFrame, x: str, y: str, by: Sequence[str] = (), at_least: float = 0.9, below: float = 0.5
) -> Finding:
    """Supported if log x explains `at_least` of the variance of log y and both rise together, refuted if under `below`; in
    every group of `by` with six rows or more."""
    shares = {}
    for key, group in rows.dropna(subset=[x, y]).groupby(list(by)) if by else [((), rows.dropna(subset=[x, y]))]:
        if len(group) >= 6:
            r = np.corrcoef(np.log(group[[x, y]].to_numpy(float)).T)[0, 1]
            shares[" ".join(f"{k:g}" if isinstance(k, Number) else str(k) for k in key)] = r * r if r > 0 else 0.0
    verdict = decide(bool(shares) and min(shares.values()) >= at_least, bool(shares) and min(shares.values()) < below)
    told = ", ".join(f"{100 * s:.0f} %" + f" at {key}" * bool(key) for key, s in shares.items())
    text = f"{words(x)} explains {told or 'nothing, too few rows'} of the variance of {words(y)}"
    return Finding(verdict, text, min(shares.values(), default=np.nan), n=len(rows))


@predicate
def covers(rows: pd.DataFrame, column: str, at_least: int, by: str | None = None) -> Finding:
    """Supported if each group of `by` (or all rows) holds at least that many different values of a column."""
    if by is None:
        held = sorted(map(str, rows[column].dropna().unique()))
        return Finding(decide(len(held) >= at_least), f"{column}: {', '.join(held)}", len(held), n=len(rows))
    number = rows.groupby(by)[column].nunique()
    text = f"{(number >= at_least).sum()} of {len(number)} {by}s have {at_least} {column}s"
    return Finding(decide((number >= at_least).all()), text, float((number >= at_least).sum()), n=len(rows))


@predicate
def every(rows: pd.DataFrame, that: str) -> Finding:
    """Supported if the condition holds for every row."""
    return _counted(rows, that, lambda yes: yes.all())


@predicate
def some(rows: pd.DataFrame, that: str) -> Finding:
    """Supported if the condition holds for at least one row."""
    return _counted(rows, that, lambda yes: yes.any())


def _counted(rows: pd.DataFrame, that: str, holds: Callable[[pd.Series], bool]) -> Finding:
    yes = rows.eval(that, engine="python").astype(bool)
    odd = rows[yes] if yes.sum() <= len(rows) / 2 and yes.any() else rows[~yes]  # the rarer kind, as an example
    example = f", {'e.g.' if yes[odd.index[0]] else 'not'} {name_of(odd.iloc[0])}" if len(odd) else ""
    return Finding(decide(bool(holds(yes))), f"{yes.sum()} of {len(rows)}{example}", float(yes.sum()), n=len(rows))


@predicate
def same(rows: pd.DataFrame, columns: Sequence[str], each: Sequence[str] = (), tolerance: float = 0.0) -> Finding:
    """Supported if the rows (of each group of `each`) agree in all columns: numbers to within a share, others exactly."""
    told, agree = [], True
    for key, group in rows.groupby(list(each)) if each else [((), rows)]:
        for column in columns:
            held = group[column].dropna()
            number = pd.api.types.is_numeric_dtype(held) and not pd.api.types.is_bool_dtype(held)
            equal = held.max() <= held.min() * (1 + tolerance) if number else held.nunique() <= 1
            agree &= bool(equal)
            if number or not equal:
                values = ", ".join(shown(v, column) if number else str(v) for v in held)
                told.append(" ".join([*map(str, key), words(column)]) + f" {values}")
    return Finding(decide(agree), "; ".join(told) or f"equal: {', '.join(columns)}", n=len(rows))


@predicate
def arithmetic(rows: pd.DataFrame, expression: str, value: Number, within: float = 0.0) -> Finding:
    """Supported if the expression gives the claimed value to within a tolerance; it looks at no row."""
    found = float(pd.eval(expression))
    return Finding(decide(abs(found - value) <= within), f"{expression} = {found:g}", found)
