"""Figure style, and one draw function a figure. Figures are drawn from records alone.

Every draw function returns a matplotlib figure whose title states the finding; `save` writes SVG and PNG with the same
bytes for the same records on the same pinned stack.
"""

from __future__ import annotations

import io
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg", force=False)
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from lib import stats
from lib.ladder import LABELS
from lib.records import ROOT, Record, runs_folder

# One colour a method, everywhere: black, and seaborn's colour-blind palette.
COLOURS = {
    "vanilla": "#262626",
    "ngram": "#0173B2",
    "suffix": "#D55E00",
    "padded": "#029E73",
    "null": "#7A7A7A",
    "full": "#8A4FBF",
}
MARKERS = {"vanilla": "o", "ngram": "s", "suffix": "^", "padded": "D", "null": "v", "full": "P"}
STYLE = {
    "figure.figsize": (6.4, 4.0), "figure.dpi": 100, "savefig.dpi": 150, "font.family": "DejaVu Sans", "font.size": 10,
    "axes.titlesize": 11, "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "grid.color": "#E6E6E6", "grid.linewidth": 0.8, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.frameon": False,
    "svg.hashsalt": "speculation", "svg.fonttype": "path", "figure.constrained_layout.use": True,
}  # fmt: skip


def _show_in_notebooks() -> None:
    """Let IPython show a figure as PNG where it is displayed, and only there: Agg has no such output of its own."""
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython
    from IPython.core.pylabtools import select_figure_formats

    if get_ipython() is not None:
        select_figure_formats(get_ipython(), {"png"}, bbox_inches=None)


_show_in_notebooks()


def method_of(setting: str) -> str:
    """The colour family of a setting's name."""
    for family in ("padded", "vanilla", "null", "full", "suffix", "ngram"):
        if setting.startswith(family):
            return family
    return "suffix" if "suffix" in setting else "ngram" if "ngram" in setting else "null"


def colour_of(setting: str) -> str:
    return COLOURS[method_of(setting)]


def marker_of(setting: str) -> str:
    return MARKERS[method_of(setting)]


def label_of(setting: str) -> str:
    """A setting's display name."""
    return LABELS.get(setting, setting.replace("_", " "))


def new(title: str, *, ncols: int = 1, nrows: int = 1, width: float = 6.4, height: float = 4.0, **kwargs):
    """(figure, axes) in the collection's style, `title` top left."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(nrows, ncols, figsize=(width, height), **kwargs)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure, axes


def provenance_line(notebook: str, profile: str, records: Sequence[Record]) -> str:
    """`02 · h200 · model · vLLM version · hardware · n · date @ commit`, all of it from the records."""
    good = [r for r in records if r.status == "ok"]
    if not good:
        return f"{notebook} · {profile} · no record"

    def some(values) -> str:
        values = sorted({str(v) for v in values if v})
        return values[0] if len(values) == 1 else f"{values[0]} … {values[-1]}" if values else "unknown"

    requests = sum(len(r.requests) for r in good)
    seeds = len({r.cell.workload.seed for r in good})
    return " · ".join(
        [
            notebook,
            profile,
            some(r.cell.engine.model.name for r in good),
            "vLLM " + some(r.resolved.vllm_version for r in good if r.resolved),
            some(r.provenance.gpu or r.provenance.cpu for r in good),
            f"{len(good)} engine cells, {requests} requests, {seeds} seed{'s' * (seeds != 1)}",
            f"measured {some(r.provenance.measured[:10] for r in good)} @ {some(r.provenance.commit[:7] for r in good)}",
        ]
    )


def sign(figure: Figure, line: str) -> None:
    """Put the provenance line under the figure, 6 pt grey, wrapped to its width."""
    width = int(figure.get_figwidth() * 21)
    words, lines = line.split(" · "), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines.append("")
        lines[-1] += (" · " if lines[-1] else "") + word
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6, color="#6B6B6B")


def error_bars(value: float, low: float, high: float) -> list[list[float]]:
    """matplotlib's yerr for one point; no bar where there is no interval."""
    if not np.isfinite(low):
        return [[0.0], [0.0]]
    return [[max(value - low, 0.0)], [max(high - value, 0.0)]]


def no_gain(ax, value: float = 1.0, text: str = "no gain", axis: str = "y") -> None:
    """A reference line, labelled."""
    if axis == "y":
        ax.axhline(value, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        ax.annotate(text, (1.0, value), xycoords=("axes fraction", "data"), xytext=(-2, 2), ha="right",
                    textcoords="offset points", fontsize=7.5, color="#6B6B6B")  # fmt: skip
    else:
        ax.axvline(value, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)


def published_mark(ax, x: float, y: float, *, first: bool = False, text: str = "published", marker: str = "_") -> None:
    """The article's value as an unobtrusive dash, named once in the legend."""
    ax.plot([x], [y], marker=marker, markersize=14, color="#A0A0A0", markeredgewidth=1.6, linestyle="none", zorder=4,
            label=text if first else None)  # fmt: skip


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Label positions near `values`, at least `gap` apart, in the order given."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    placed = [float(values[i]) for i in order]
    for _ in range(50):
        for i in range(len(placed) - 1):
            overlap = gap - (placed[i + 1] - placed[i])
            if overlap > 1e-9:
                placed[i] -= overlap / 2
                placed[i + 1] += overlap / 2
    result = [0.0] * len(values)
    for rank, index in enumerate(order):
        result[index] = placed[rank]
    return result


def save(figure: Figure, name: str, profile: str, mode: str) -> None:
    """Write `<name>_<profile>.svg` and `.png`: into figures/ in replay, into the run's own folder in measure mode."""
    folder = ROOT / "figures" if mode == "replay" else runs_folder(profile) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        (folder / f"{name}_{profile}.svg").write_text(numbered(drawn.getvalue()), encoding="utf-8")
        figure.savefig(folder / f"{name}_{profile}.png", metadata={"Software": None})
    plt.close(figure)  # pyplot need not hold it: a notebook displays the object itself


def numbered(svg: str) -> str:
    """An SVG whose clip paths and markers are numbered in order of appearance: matplotlib names them by a hash of their
    coordinates, whose last digits are not the same on every processor."""
    hashed = dict.fromkeys(re.findall(r'id="([a-z][0-9a-f]{10})"', svg))
    names = {name: f"{name[0]}{number}" for number, name in enumerate(hashed, 1)}
    return re.sub(r'(?<=["#])[a-z][0-9a-f]{10}(?=[")])', lambda found: names.get(found[0], found[0]), svg)


def paths(name: str, profile: str) -> list[Path]:
    """The committed files of a figure."""
    return [ROOT / "figures" / f"{name}_{profile}.{kind}" for kind in ("svg", "png")]


def grouped_bars(
    ax,
    groups: Sequence[str],
    series: Mapping[str, Sequence],
    *,
    value_format: str = ".2f",
    show_values: bool = True,
) -> None:
    """Bars of `series[setting][group]` (stats.Estimate or None), intervals on top, one colour a setting."""
    count = len(series)
    width = 0.8 / max(count, 1)
    for index, (setting, estimates) in enumerate(series.items()):
        offset = (index - (count - 1) / 2) * width
        twin = sum(method_of(other) == method_of(setting) for other in list(series)[:index])
        for position, estimate in enumerate(estimates):
            if estimate is None:
                continue
            x = position + offset
            ax.bar(x, estimate.value, width * 0.92, color=colour_of(setting), alpha=1.0 if not twin else 0.55,
                   hatch="//" if twin > 1 else None, edgecolor="white", linewidth=0.3,
                   label=label_of(setting) if position == 0 else None)  # fmt: skip
            ax.errorbar(
                [x], [estimate.value], yerr=error_bars(*estimate[:3]), color="#262626", linewidth=0.9, capsize=1.5
            )
            if show_values:
                top = estimate.high if np.isfinite(estimate.high) else estimate.value
                ax.annotate(format(estimate.value, value_format), (x, top), xytext=(0, 2), ha="center", fontsize=6.5,
                            textcoords="offset points")  # fmt: skip
    ax.set_xticks(range(len(groups)), groups)


def noise_floor(ratios: Mapping[str, Sequence[float]], floor: float) -> Figure:
    """A/A: throughput ratio of identical engine cells in two engines, one point a seed, by workload."""
    figure, ax = new(f"Two identical engines differ by up to {100 * (np.exp(floor) - 1):.1f} %")
    ax.axhspan(np.exp(-floor), np.exp(floor), color="#EFEFEF", zorder=0)
    for position, values in enumerate(ratios.values()):
        ax.plot([position] * len(values), values, "o", color=COLOURS["vanilla"], markersize=5, alpha=0.8)
    no_gain(ax, text="identical")
    ax.set_xticks(range(len(ratios)), list(ratios))
    ax.set_xlim(-0.5, len(ratios) - 0.5)
    ax.set_ylabel("throughput, second engine / first")
    return figure


def draft_length(curves: Mapping[str, Mapping[int, tuple]], title: str) -> Figure:
    """Tokens per step and acceptance rate against the draft length, one line a workload.

    curves[workload][gamma] = (tokens per step, acceptance rate as stats.Estimate).
    """
    figure, axes = new(title, ncols=2, width=7.2, height=3.4)
    markers = ("s", "^", "o", "D")
    greys = ("#0173B2", "#56B4E9", "#004D80", "#7FB2D9")
    for index, (workload, points) in enumerate(curves.items()):
        gammas = sorted(points)
        style = {"marker": markers[index % 4], "color": greys[index % 4], "linewidth": 1.4, "markersize": 5}
        axes[0].plot(gammas, [points[g][0] for g in gammas], **style)
        axes[0].annotate(workload, (gammas[-1], points[gammas[-1]][0]), xytext=(5, 0), textcoords="offset points",
                         va="center", fontsize=8, color=style["color"])  # fmt: skip
        rates = [points[g][1] for g in gammas]
        axes[1].plot(gammas, [100 * r.value for r in rates], **style)
        for g, r in zip(gammas, rates, strict=True):
            axes[1].errorbar([g], [100 * r.value], yerr=[[100 * v[0]] for v in error_bars(*r[:3])], color=style["color"],
                             linewidth=0.9, capsize=2)  # fmt: skip
    axes[0].set_ylabel("tokens per step")
    axes[1].set_ylabel("draft acceptance rate [%]")
    axes[0].set_ylim(bottom=1)
    axes[1].set_ylim(0, 100)
    for ax in axes:
        ax.set_xlabel("num_speculative_tokens")
        ax.margins(x=0.18)
    return figure


def tau_against_r(points: Sequence[Mapping], title: str, published: Sequence[tuple[str, float, float]] = ()) -> Figure:
    """Figure 02: tokens per step against R. Above the diagonal speculation pays.

    Each point: setting, workload, tau, r, and `bold` for the workload in focus. published: (setting, R, tau) of the
    article's cells, drawn hollow and grey.
    """
    figure, ax = new(title)
    whole = [*published, *((p["setting"], p["r"], p["tau"]) for p in points)]
    top = 1.3 * max([*(tau for *_, tau in whole), *(r for _, r, _ in whole), 2.0])
    bottom = 0.72 * min([*(tau for *_, tau in whole), *(r for _, r, _ in whole), 1.0])
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    line = np.array([bottom, top])
    ax.fill_between(line, line, top, color="#F1F7F1", zorder=0)
    for gain, text in ((1.0, "no gain"), (1.5, "1.5 times"), (2.0, "twice as fast")):
        ax.plot(line, gain * line, color="#888888", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        x = 0.9 * top / gain
        ax.annotate(text, (x, gain * x), fontsize=7, color="#6B6B6B", ha="right", va="bottom")
    seen: set[str] = set()
    places = {}
    for setting in dict.fromkeys(p["setting"] for p in points):
        own = [p for p in points if p["setting"] == setting]
        gap = 0.036 * np.log(top / bottom)
        heights = np.exp(apart([np.log(p["tau"]) for p in own], gap))
        places |= {id(p): float(y) for p, y in zip(own, heights, strict=True)}
    far = max(points, key=lambda p: p["r"])["setting"]  # labelled on its right, the other on its left
    for point in points:
        setting, bold = point["setting"], bool(point.get("bold"))
        ax.plot([point["r"]], [point["tau"]], marker=marker_of(setting), color=colour_of(setting), linestyle="none",
                markersize=8 if bold else 5, alpha=1.0 if bold else 0.6,
                label=label_of(setting) if setting not in seen else None)  # fmt: skip
        seen.add(setting)
        factor, align = (1.12, "left") if setting == far else (1 / 1.12, "right")
        edge = (max if align == "left" else min)(p["r"] for p in points if p["setting"] == setting)
        ax.annotate(point["workload"], (point["r"], point["tau"]), xytext=(edge * factor, places[id(point)]), va="center",
                    ha=align, fontsize=8 if bold else 7, color=colour_of(setting), fontweight="bold" if bold else "normal",
                    arrowprops={"arrowstyle": "-", "color": colour_of(setting), "linewidth": 0.4, "alpha": 0.6})  # fmt: skip
    for number, (setting, r, tau) in enumerate(published):
        ax.plot([r], [tau], marker=marker_of(setting), linestyle="none", markersize=4.5, markerfacecolor="none",
                markeredgecolor="#8A8A8A", markeredgewidth=0.9, zorder=1.5,
                label=None if number else "as published, R = tau / speedup:\nLlama-3.3-70B, 8×H100, n = 1 each")  # fmt: skip
    ax.set_xlabel("R: time of a speculative step / vanilla step, same running requests")
    ax.set_ylabel("tokens per step")
    ticks = [t for t in (1, 1.5, 2, 3, 4, 6, 8, 12, 16) if bottom <= t <= top]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(ticks, [f"{t:g}" for t in ticks])
        axis.set_minor_locator(NullLocator())
    ax.set_xlim(bottom, top)
    ax.set_ylim(bottom, top)
    ax.legend(loc="lower right", fontsize=7.5)
    return figure


def acceptance_by_workload(
    workloads: Sequence[str], lengths: Mapping[str, Sequence], rates: Mapping[str, Sequence], title: str,
    printed: Mapping[str, Sequence] | None = None,
) -> Figure:  # fmt: skip
    """Figure 04: K (left) and a (right) by workload and method; `printed[setting]` holds the article's K values."""
    figure, axes = new(title, ncols=2, width=9.6, height=4.0)
    grouped_bars(axes[0], workloads, lengths)
    grouped_bars(axes[1], workloads, {s: [e and e._replace(value=100 * e.value, low=100 * e.low, high=100 * e.high)
                                          for e in es] for s, es in rates.items()}, value_format=".0f")  # fmt: skip
    first = True
    for index, values in enumerate((printed or {}).values()):
        offset = (index - (len(printed or {}) - 1) / 2) * 0.8 / max(len(lengths), 1)
        for position, reference in enumerate(values):
            if reference is not None:
                published_mark(axes[0], position + offset, reference.value, first=first,
                               text="as published: Llama-3.3-70B, 8×H100, whole run")  # fmt: skip
                first = False
    if not first:
        mark = [
            (h, t) for h, t in zip(*axes[0].get_legend_handles_labels(), strict=True) if t.startswith("as published")
        ]
        axes[0].legend(*zip(*mark, strict=True), loc="upper center", fontsize=7.5)
    axes[0].set_ylabel("mean acceptance length K")
    tallest = max([axes[0].get_ylim()[1], *(r.value for rs in (printed or {}).values() for r in rs if r is not None)])
    axes[0].set_ylim(1, 1.12 * tallest)
    axes[1].set_ylabel("draft acceptance rate [%]")
    axes[1].set_ylim(0, 112)
    axes[1].set_yticks(range(0, 101, 20))
    axes[1].legend(loc="upper right", fontsize=8, ncols=2)
    return figure


def round_mark(tests: Iterable[Record], rounds: Sequence[Sequence[Record]]) -> str:
    """`²`, `³`, …: in which of `rounds` (of vanilla, see stats.rounds) records were measured; nothing for the first, `°` for
    none, so that no vanilla stands beside them.
    """
    found = {stats.round_of(r, rounds) for r in tests} - {0}
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "".join("°" if at is None else str(at + 1).translate(raised) for at in sorted(found, key=lambda at: at or 0))


def ladder(
    rungs: Mapping[str, object], title: str, reference: str = "vanilla, as shipped",
    published: Mapping[str, object] | None = None, marks: Mapping[str, str] | None = None,
) -> Figure:  # fmt: skip
    """Figure 03: speedup of each rung over vanilla as shipped (stats.Estimate), top to bottom in the order given.

    published[setting] is the article's value, drawn as a grey dash; marks[setting]: what `round_mark` says of it.
    """
    figure, ax = new(title, height=0.9 + 0.42 * max(len(rungs), 4))
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    for position, (setting, estimate) in enumerate(rungs.items()):
        ax.barh(position, estimate.value, 0.66, color=colour_of(setting),
                hatch="//" if "piecewise" in setting else None, edgecolor="white", linewidth=0.4)  # fmt: skip
        ax.errorbar(
            [estimate.value], [position], xerr=error_bars(*estimate[:3]), color="#262626", linewidth=1, capsize=2
        )
        right = estimate.high if np.isfinite(estimate.high) else estimate.value
        mark = (published or {}).get(setting)
        if mark is not None:
            ax.plot([mark.value], [position], marker="|", markersize=15, color="#A0A0A0", markeredgewidth=1.8, zorder=4,
                    linestyle="none", label="as published: Llama-3.3-70B, 8×H100")  # fmt: skip
            right = mark.value if right < mark.value < 1.2 * right else right  # the number goes where it can be read
        ax.annotate(f"{estimate.value:.2f}", (right, position), xytext=(4, 0), textcoords="offset points",
                    va="center", fontsize=8)  # fmt: skip
    if any((published or {}).values()):
        handles, labels = ax.get_legend_handles_labels()
        ax.legend(handles[:1], labels[:1], loc="upper right", fontsize=7.5)
    ax.set_yticks(range(len(rungs)), [f"{label_of(s)} {(marks or {}).get(s, '')}".rstrip() for s in rungs])
    ax.set_ylim(len(rungs) - 0.5, -1.3 if any((published or {}).values()) else -0.5)  # a free row for the legend
    ax.axvline(1.0, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)))
    ax.set_xlim(left=0)
    ax.margins(x=0.12)
    told = sorted({mark for s in rungs for mark in (marks or {}).get(s, "")})
    note = f"; {' '.join(told)}: not in the first round" if told else ""
    ax.set_xlabel(f"throughput / {reference}{note}")
    return figure


def six_workloads(
    workloads: Sequence[str], throughputs: Mapping[str, Sequence], ratios: Mapping[str, Sequence], title: str,
    published: Sequence | None = None,
) -> Figure:  # fmt: skip
    """Figure 01: throughput by workload (left) and the ratio to vanilla (right), with the article's ratio as a mark."""
    figure, axes = new(title, ncols=2, width=9.6, height=4.0)
    grouped_bars(axes[0], workloads, throughputs, show_values=False)
    axes[0].set_ylabel("output tokens / s")
    axes[0].margins(y=0.22)
    axes[0].legend(loc="upper center", fontsize=7.5, ncols=3)
    grouped_bars(axes[1], workloads, ratios)
    first = True
    for position, reference in enumerate(published or ()):
        if reference is not None:
            published_mark(axes[1], position, reference.value, first=first, text="as published: Llama-3.3-70B, 8×H100")
            first = False
    no_gain(axes[1], text="")
    if not first:
        mark = [
            (h, t) for h, t in zip(*axes[1].get_legend_handles_labels(), strict=True) if t.startswith("as published")
        ]
        axes[1].legend(*zip(*mark, strict=True), loc="upper right", fontsize=7.5)
    axes[1].set_ylabel("throughput / vanilla, as shipped")
    axes[1].margins(y=0.16)
    return figure


def speedup_by_batch(
    curves: Mapping[str, Mapping[int, object]], title: str, fewer: Mapping[str, set[int]] | None = None
) -> Figure:
    """Speedup over vanilla against batch size, one line a setting; curves[setting][batch] is a stats.Estimate.

    fewer[setting]: batches where only some workloads were measured, one engine cell each, drawn hollow.
    """
    figure, ax = new(title)
    names = {}
    for index, (setting, points) in enumerate(curves.items()):
        batches = sorted(points)
        twin = sum(method_of(other) == method_of(setting) for other in list(curves)[:index])
        style = {"color": colour_of(setting), "linestyle": ("-", "--", ":")[min(twin, 2)]}
        ax.plot(batches, [points[b].value for b in batches], **style)
        for b in batches:
            fill = "white" if b in (fewer or {}).get(setting, ()) else style["color"]
            ax.plot([b], [points[b].value], marker=marker_of(setting), markersize=5, markerfacecolor=fill,
                    color=style["color"], zorder=3)  # fmt: skip
        for b in batches:
            ax.errorbar(
                [b], [points[b].value], yerr=error_bars(*points[b][:3]), color=style["color"], capsize=2, linewidth=0.9
            )
        names[setting] = label_of(setting) + ("", " (dashed)", " (dotted)")[min(twin, 2)]
    ends = [(setting, max(points), points[max(points)].value) for setting, points in curves.items()]
    top = max(e.high if np.isfinite(e.high) else e.value for points in curves.values() for e in points.values())
    places = apart([v for *_, v in ends], 0.055 * top)
    lift = max(0.0, -min(places))  # a name below the axis would not be drawn
    for (setting, batch, _), y in zip(ends, [y + lift for y in places], strict=True):
        ax.annotate(names[setting], (batch, y), xytext=(8, 0), fontsize=8, textcoords="offset points", va="center",
                    color=colour_of(setting), bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip
    ax.axhline(1.0, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.annotate("no gain", (0.0, 1.0), xycoords=("axes fraction", "data"), xytext=(3, 2), textcoords="offset points",
                fontsize=7.5, color="#6B6B6B")  # fmt: skip
    ax.set_xscale("log", base=2)
    ticks = sorted({b for points in curves.values() for b in points})
    ax.set_xticks(ticks, [str(b) for b in ticks])
    ax.margins(x=0.25)
    ax.set_ylim(bottom=0)
    note = "; hollow: some workloads, one engine cell each" if any((fewer or {}).values()) else ""
    ax.set_xlabel(f"batch size{note}" if note else "batch size (requests in flight)")
    ax.set_ylabel("throughput / vanilla, as shipped")
    return figure


def memory_effect(study: Mapping, measured: Mapping, title: str) -> Figure:
    """What a suffix drafter's memory does to a mix: the study's cells (left), measured here (right).

    study[drafter][mix]: tokens per step over what the mix's parts predict, by model, the study's main model first.
    measured[prompts][mix]: tokens per step, memory on over off, stats.Estimate or None; prompts: fresh, answered.
    """
    figure, axes = new(title, ncols=2, width=7.6, height=3.8)
    mixes = list(next(iter(study.values())))
    small = {"fontsize": 7.5, "textcoords": "offset points"}
    for drafter, by_mix in study.items():
        side = {"ngram": -0.12, "suffix": 0.12}[drafter]
        marker, colour = marker_of(drafter), colour_of(drafter)
        for position, ratios in enumerate(by_mix.values()):
            (value, *others), label = ratios.values(), drafter if position == 0 else None
            xs = [position + side + 0.04 * (i - len(others) / 2) for i in range(1 + len(others))]
            axes[0].plot(xs[1:], others, marker, color=colour, alpha=0.35, markersize=5)
            axes[0].plot(xs[:1], [value], marker, color=colour, markersize=7, label=label)
            axes[0].annotate(f"{value:.2f}", (xs[0], value), xytext=(-4, 4), ha="right", **small)
    looks = {"fresh": (-0.1, "white", "fresh prompts"), "answered": (0.1, COLOURS["suffix"], "answered before")}
    for prompts, by_mix in measured.items():
        side, fill, label = looks[prompts]
        for position, mix in enumerate(mixes):
            if by_mix.get(mix) is None:
                continue
            e, x, colour = by_mix[mix], position + side, COLOURS["suffix"]
            axes[1].errorbar([x], [e.value], yerr=error_bars(*e[:3]), color=colour, linewidth=0.9, capsize=2)
            axes[1].plot([x], [e.value], "^", color=colour, markerfacecolor=fill, markersize=7, label=label)
            axes[1].annotate(f"{e.value:.2f}", (x, e.value), xytext=(6, 4), **small)
            label = None
    heads = ("published: mix / what its parts predict", "measured: memory on / off, same prompts")
    for ax, head in zip(axes, heads, strict=True):
        no_gain(ax, text="")
        ax.set_xticks(range(len(mixes)), mixes)
        ax.set_xlim(-0.5, len(mixes) - 0.4)
        ax.set_title(head, loc="left", fontsize=9, fontweight="normal")
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize=7.5, loc="upper left", ncols=2)
        ax.set_ylim(0, 1.2 * ax.get_ylim()[1])
    axes[0].set_ylabel("ratio of tokens per step")
    return figure


def step_cost_against_verified(points: Mapping, band: tuple[float, float], title: str) -> Figure:
    """R = tokens per step / speedup of the study's cells against the tokens a request verifies in a step.

    points[drafter][model]: [(verified tokens a request, R)]; band: the range of R that the study prints.
    """
    figure, ax = new(title)
    ax.axhspan(*band, color="#E8E8E8", zorder=0)
    place = ("axes fraction", "data")
    ax.annotate(f"R as printed, {band[0]:g} to {band[1]:g}", (1.0, band[1]), xycoords=place, ha="right",
                xytext=(-2, 2), textcoords="offset points", fontsize=7.5, color="#6B6B6B")  # fmt: skip
    models = list(dict.fromkeys(model for by_model in points.values() for model in by_model))
    shape = dict(zip(models, ("o", "s", "^", "D"), strict=False))
    for drafter, by_model in points.items():
        for model, pairs in by_model.items():
            x, y = zip(*pairs, strict=True)
            ax.plot(x, y, shape[model], color=colour_of(drafter), markersize=5.5, alpha=0.75)
    for model in models:
        ax.plot([], [], shape[model], color="#6B6B6B", label=model)
    for drafter in points:
        ax.plot([], [], "s", color=colour_of(drafter), label=drafter, markersize=8, markeredgewidth=0)
    ax.legend(fontsize=7.5, loc="upper left", ncols=2)
    ax.set_xlabel("tokens verified a step and request")
    ax.set_ylabel("R, speculative step / vanilla step")
    ax.set_xlim(left=1)
    ax.set_ylim(bottom=0)
    return figure


def _apart(heights: Mapping[str, float], gap: float) -> dict[str, float]:
    """Label heights moved up until they are at least `gap` apart, in order of height."""
    placed: dict[str, float] = {}
    for name, y in sorted(heights.items(), key=lambda item: item[1]):
        placed[name] = max([y, *(other + gap for other in placed.values())])
    return placed


def speedup_by_output_cap(curves: Mapping[str, Sequence[tuple[int, float]]], title: str) -> Figure:
    """Speedup of one setting against the cap on output tokens; curves[workload] = [(cap, speedup)]."""
    figure, ax = new(title)
    looks = {"sonnet": ("#0173B2", "s"), "chat": ("#029E73", "D"), "code": ("#D55E00", "^")}
    for workload, pairs in curves.items():
        caps, ratios = zip(*pairs, strict=True)
        colour, marker = looks[workload]
        ax.plot(caps, ratios, marker=marker, color=colour, linewidth=1.4)
    for end, side in ((-1, 7), (0, -7)):
        heights = _apart({name: pairs[end][1] for name, pairs in curves.items()}, 0.06)
        for workload, y in heights.items():
            cap, ratio = curves[workload][end]
            text = f"{100 * (ratio - 1):+.0f} %"
            ax.annotate(f"{workload} {text}" if end else text, (cap, y), xytext=(side, -3), fontsize=8.5,
                        ha="left" if end else "right", textcoords="offset points",
                        color=looks[workload][0])  # fmt: skip
    no_gain(ax)
    ax.set_xscale("log", base=2)
    every = sorted({cap for pairs in curves.values() for cap, _ in pairs})
    ax.set_xticks(every, [f"{cap:,}" for cap in every])
    ax.set_xlim(every[0] * 0.7, every[-1] * 1.6)
    ax.minorticks_off()
    ax.set_xlabel("cap on output tokens")
    ax.set_ylabel("throughput / vanilla")
    ax.set_ylim(bottom=0)
    return figure


def by_text(ratios: Mapping[str, Any], title: str) -> Figure:
    """Speedup against requests in flight, one panel a setting and one line a text.

    ratios: setting -> `results.compare` by workload and concurrency. The band is the A/A variability, bars are 95 %.
    """
    figure, axes = new(title, ncols=len(ratios), width=3.3 * len(ratios), height=4.0, sharey=True, squeeze=False)
    texts = sorted({w for table in ratios.values() for w in table.workload})
    colours = dict(zip(texts, ("#0173B2", "#D55E00", "#029E73", "#8A4FBF", "#7A7A7A", "#262626"), strict=False))
    for ax, (setting, table) in zip(axes[0], ratios.items(), strict=True):
        ends = {}
        for text, line in table.groupby("workload"):
            line = line.sort_values("concurrency")
            bars = np.maximum([line.ratio - line.low, line.high - line.ratio], 0)
            ax.errorbar(
                line.concurrency, line.ratio, bars, color=colours[text], marker="o", markersize=4, linewidth=1.3
            )
            ends[text] = (line.concurrency.iloc[-1], line.ratio.iloc[-1])
        spread = table.groupby("concurrency").aa.max().dropna()
        ax.fill_between(spread.index, 1 / (1 + spread), 1 + spread, color="#BBBBBB", alpha=0.4, linewidth=0)
        ax.set(xscale="log", yscale="log", title=label_of(setting), xlabel="requests in flight")
        ax.set_xticks(ticks := sorted({c for t in ratios.values() for c in t.concurrency}), map(str, ticks))
        ax.set_xlim(min(ticks) / 1.5, 4 * max(ticks))
        _log_ticks(ax, (0.25, 0.5, 1, 2, 4, 8))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.axhline(1, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        heights = apart([np.log(y) for _, y in ends.values()], 0.13)
        for (text, (x, _)), height in zip(ends.items(), heights, strict=True):
            ax.annotate(
                text, (x, np.exp(height)), xytext=(5, -3), textcoords="offset points", color=colours[text], fontsize=9
            )
    axes[0][0].set_ylabel("throughput over vanilla")
    return figure


def recommendation(answer) -> Figure:
    """Predicted speedup of every setting on one request log, a panel a batch size (a `recommend.Answer`)."""
    batches = answer.batch_sizes
    names = list(dict.fromkeys(p.setting for p in answer.predictions if p.speculative is not None))
    paying = len({p.setting for p in answer.predictions if p.verdict == "pays"})
    title = f"{paying} of {len(names)} settings surely pay at some batch size" if names else "Nothing to compare"
    height = 1.6 + 0.24 * max(len(names), 2)
    width = 2.2 + 1.9 * len(batches)
    figure, axes = new(title, ncols=len(batches), width=width, height=height, sharey=True, squeeze=False)
    for ax, batch in zip(axes[0], batches, strict=True):
        floor = answer.costs.noise_at(batch)
        for p in (p for p in answer.predictions if p.batch_size == batch and p.speculative is not None):
            y, e = names.index(p.setting), p.speedup
            sure = p.verdict in ("pays", "does not pay", "baseline")
            ax.errorbar([e.value], [y], xerr=error_bars(*e[:3]), color=colour_of(p.setting),
                        marker=marker_of(p.setting), markersize=5, linewidth=1.0, capsize=1.5,
                        markerfacecolor=None if sure else "white")  # fmt: skip
        if np.isfinite(floor):
            ax.axvspan(np.exp(-floor), np.exp(floor), color="#ECECEC", zorder=0)
        no_gain(ax, axis="x")
        ax.set_title(f"batch {batch}", loc="left", fontsize=9, fontweight="normal")
        ax.set_xlabel("predicted speedup")
        ax.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    axes[0][0].set_yticks(range(len(names)), [label_of(n) for n in names])
    axes[0][0].invert_yaxis()
    law = answer.costs.vanilla
    line = f"{answer.num_requests} requests, {answer.num_tokens:,} output tokens · law: {law.model}, {law.hardware}"
    sign(figure, line + " · bars: 95 % · open marks: too close to call, or beyond the grid · grey: noise floor")
    return figure


def predicted_against_measured(points: Mapping[str, Sequence], title: str, noise: float = float("nan")) -> Figure:
    """Speedups as predicted and as measured; points[setting] = [(predicted Estimate, measured Estimate), ...]."""
    figure, ax = new(title, height=4.6)
    every = [e.value for pairs in points.values() for pair in pairs for e in pair] or [1.0]
    low, high = min(*every, 1.0) * 0.9, max(*every, 1.0) * 1.1
    line = np.array([low, high])
    ax.plot(line, line, color="#888888", linewidth=0.9, zorder=1)
    ax.fill_between(line, line * 0.9, line * 1.1, color="#ECECEC", zorder=0)
    ax.annotate("within 10 %", (high, high * 1.0), xytext=(-4, -14), ha="right", fontsize=7.5, color="#6B6B6B",
                textcoords="offset points")  # fmt: skip
    families: dict[str, str] = {}
    for setting, pairs in points.items():
        for predicted, measured in pairs:
            family = method_of(setting)
            ax.errorbar([predicted.value], [measured.value], xerr=error_bars(*predicted[:3]),
                        yerr=error_bars(*measured[:3]), color=colour_of(setting), marker=marker_of(setting),
                        markersize=4.5, linewidth=0.5, alpha=0.85,
                        label=None if family in families else family)  # fmt: skip
            families[family] = setting
    if np.isfinite(noise):
        ax.axhspan(np.exp(-noise), np.exp(noise), color="#F6E7C9", zorder=0, alpha=0.6)
    no_gain(ax)
    ax.axvline(1.0, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ticks = [t for t in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6) if low <= t <= high]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
        axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
        axis.set_minor_locator(matplotlib.ticker.NullLocator())
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_xlabel("predicted speedup")
    ax.set_ylabel("measured speedup")
    if families:
        ax.legend(fontsize=7.5, loc="lower right")
    return figure


def break_even_map(
    batches: Sequence[int],
    lengths: Sequence[int],
    taus: Mapping[str, np.ndarray],
    title: str,
    mark: tuple[int, int] | None = None,
) -> Figure:
    """Tokens per step from which drafts pay, a panel a map: taus[name] [lengths, batches], NaN outside the law's grid.

    mark: (batch, length) to point out.
    """
    figure, axes = new(title, ncols=len(taus), width=3.2 + 3.2 * len(taus), height=3.6, sharey=True, squeeze=False)
    top = max([1.5, *(float(v) for tau in taus.values() for v in tau.flat if np.isfinite(v))])
    limit = 1 + 0.55 * (top - 1)
    for ax, (name, tau) in zip(axes[0], taus.items(), strict=True):
        shown = np.ma.masked_invalid(tau)
        image = ax.imshow(shown, origin="lower", aspect="auto", cmap="cividis_r", vmin=1.0, vmax=top)
        ax.set_xticks(range(len(batches)), batches)
        ax.set_yticks(range(len(lengths)), lengths)
        for row, column in np.argwhere(np.isfinite(tau)):
            value = tau[row, column]
            ax.annotate(f"{value:.2f}", (column, row), ha="center", va="center", fontsize=7.5,
                        color="white" if value > limit else "#262626")  # fmt: skip
        if mark is not None:
            corner = (list(batches).index(mark[0]) - 0.5, list(lengths).index(mark[1]) - 0.5)
            ax.add_patch(plt.Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=2.2))
        ax.grid(False)
        ax.set_title(name, loc="left", fontsize=9, fontweight="normal")
        ax.set_xlabel("requests decoded together (batch)")
    axes[0][0].set_ylabel("drafted tokens a request")
    figure.colorbar(image, ax=axes.ravel().tolist(), label="break-even tokens per step")
    return figure


def decision_map(maps: Mapping[str, Mapping[tuple[str, int], tuple]], title: str) -> Figure:
    """Best speedup by model and batch, a panel a workload.

    maps[workload][model, batch] = (speedup, setting, inside the measured grid?).
    """
    workloads = list(maps)
    rows = list(dict.fromkeys(model for cells in maps.values() for model, _ in cells))
    columns = sorted({batch for cells in maps.values() for _, batch in cells})
    ncols = min(len(workloads), 3) or 1
    nrows = max(-(-len(workloads) // ncols), 1)
    width, height = 2.4 + 2.2 * ncols, 1.2 + nrows * (0.9 + 0.3 * len(rows))
    figure, axes = new(title, ncols=ncols, nrows=nrows, width=width, height=height, sharex=True, sharey=True,
                       squeeze=False)  # fmt: skip
    spread = max((abs(np.log(v[0])) for cells in maps.values() for v in cells.values()), default=0.5)
    image = None
    for ax, workload in zip(axes.flat, workloads, strict=False):
        values = np.full((len(rows), len(columns)), np.nan)
        for (model, batch), (speedup, _, _) in maps[workload].items():
            values[rows.index(model), columns.index(batch)] = np.log(speedup)
        image = ax.imshow(np.ma.masked_invalid(values), aspect="auto", cmap="PuOr", vmin=-spread, vmax=spread)
        for (model, batch), (speedup, _, inside) in maps[workload].items():
            text, dark = f"{speedup:.2f}" + ("" if inside else "?"), abs(np.log(speedup)) > 0.65 * spread
            ax.annotate(text, (columns.index(batch), rows.index(model)), ha="center", va="center", fontsize=7,
                        color="white" if dark else "#262626")  # fmt: skip
        ax.set_title(workload, loc="left", fontsize=9, fontweight="normal")
        ax.set_xticks(range(len(columns)), columns)
        ax.set_yticks(range(len(rows)), rows)
        ax.grid(False)
    for ax in list(axes.flat)[len(workloads) :]:
        ax.set_visible(False)
    for ax in axes[-1]:
        ax.set_xlabel("batch")
    if image is not None:
        bar = figure.colorbar(image, ax=axes.ravel().tolist(), label="best predicted speedup", shrink=0.8)
        ticks = [t for t in (0.33, 0.5, 0.75, 1, 1.5, 2, 3, 4) if abs(np.log(t)) <= spread]
        bar.set_ticks([np.log(t) for t in ticks], labels=[f"{t:g}" for t in ticks])
    return figure


def _by_size(ax, label: str) -> None:
    """A logarithmic axis of model sizes with the sizes written out."""
    ax.set_xscale("log")
    ticks = (0.125, 0.5, 1.5, 3, 7, 14, 32, 70)
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set_xlim(0.09, 115)
    ax.set_xlabel("parameters [billions]")
    ax.set_ylabel(label)


def _log_ticks(ax, ticks: Sequence[float]) -> None:
    ax.set_yscale("log", base=2)
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_ylim(ticks[0], ticks[-1])


def break_even_by_size(points: Sequence, published: Sequence, title: str, gamma: int) -> Figure:
    """Figure 05: tokens per step from which drafts of `gamma` tokens pay (left), the published speedups (right).

    points: steptime.BreakEven, one line a batch size and family; open marks: no graph was replayed though the engine
    has some. published: steptime.PublishedPoint; tau stands on the left where the study logged it.
    """
    figure, axes = new(title, ncols=2, width=10.4, height=4.4, width_ratios=(1.5, 1))
    points = [e for e in points if e.gamma == gamma and e.parameters_b]
    batches, families = sorted({e.batch for e in points}), sorted({e.family for e in points})
    looks = {"as captured": "-", "no graphs": "-", "other length": "--"}
    shades = dict(zip(batches, plt.get_cmap("cividis")(np.linspace(0.62, 0.0, len(batches))), strict=True))
    left, right = axes
    ends: dict[int, tuple[float, float]] = {}
    for batch in batches:
        for family in families:
            line = sorted((e for e in points if (e.batch, e.family) == (batch, family)), key=lambda e: e.parameters_b)
            if not line:
                continue
            x, y = [e.parameters_b for e in line], [e.tokens.value for e in line]
            left.plot(x, y, looks[family], color=shades[batch], linewidth=1.4)
            for e in line:
                bare = e.mode == "NONE" and family != "no graphs"
                left.errorbar([e.parameters_b], [e.tokens.value], yerr=error_bars(*e.tokens[:3]), color=shades[batch],
                              linewidth=0.9, capsize=2, marker="o", markersize=3.8,
                              markerfacecolor="white" if bare else shades[batch])  # fmt: skip
            if family == next(e.family for e in points if e.batch == batch):
                ends[batch] = (x[-1], y[-1])
    heights = apart([np.log(y) for _, y in ends.values()], 0.11)
    for (batch, (x, y)), height in zip(ends.items(), heights, strict=True):
        left.annotate(f"B={batch}", (x, y), xytext=(1.12 * x, float(np.exp(height))), va="center", fontsize=7.5,
                      color=shades[batch])  # fmt: skip
    told = {
        "as captured": "drafts as captured: FULL graph", "other length": "another length: PIECEWISE",
        "no graphs": "no graphs",
    }  # fmt: skip
    for family in families:
        left.plot([], [], looks[family], color="#262626", label=told[family])
    if any(e.mode == "NONE" and e.family != "no graphs" for e in points):
        left.plot([], [], "o", markerfacecolor="white", color="#262626", markersize=4, label="above the largest graph")
    for method in ("ngram", "suffix"):
        known = [q for q in published if q.method == method and np.isfinite(q.tau)]
        left.plot([q.parameters_b for q in known], [q.tau for q in known], marker_of(method), color=colour_of(method),
                  markersize=4, alpha=0.45, linestyle="none", label=f"tau as published, {method}")  # fmt: skip
    _by_size(left, f"tokens per step to break even, {gamma} drafted")
    _log_ticks(left, (*((0.5,) if any(e.tokens.value < 1 for e in points) else ()), 1, 2, 4, 8, 16, 32))
    left.legend(fontsize=7, loc="upper left")
    same: dict[tuple, list[float]] = {}
    for q in published:
        same.setdefault((q.parameters_b, q.workload, q.method), []).append(q.speedup)
        marker, colour = marker_of(q.method), colour_of(q.method)
        right.plot([q.parameters_b], [q.speedup], marker, color=colour, markersize=4, alpha=0.6)
    for (size, _, method), values in same.items():
        right.plot([size] * len(values), values, "-", color=colour_of(method), linewidth=0.6, alpha=0.5, zorder=1)
    right.axvspan(7.62, 13.9, color="#EFEFEF", zorder=0)
    right.annotate("published\nboundary", (10.3, 0.135), ha="center", fontsize=7, color="#6B6B6B")
    no_gain(right)
    _by_size(right, "published speedup, single runs")
    _log_ticks(right, (0.125, 0.25, 0.5, 1, 2, 4))
    return figure


def busy_ladder(
    rungs: Mapping[str, object], causes: Sequence, title: str, published: Mapping[str, object] | None = None
) -> Figure:
    """Figure 06: the ladder's rungs as rows (busy.Rung) with their single cells as dots, one column a quantity; with a GPU,
    its busy share's causes.

    causes: busy.Cause, drawn as the points each rung adds to or takes from the busy share of the rung before it.
    published: the article's busy share (published.Reference) by rung.
    """
    gpu = all(r.busy_pct is not None for r in rungs.values()) and bool(rungs)
    columns = [
        ("output tokens / s\ndots: single cells", lambda r: r.throughput_tok_s, ".0f"),
        ("wall [s]", lambda r: r.wall_s, ".1f"),
        ("engine steps", lambda r: r.num_steps, ".0f"),
        ("decode step [ms]", lambda r: r.decode_ms, ".1f"),
        ("CPU of the engine [%]", lambda r: r.cpu_pct or np.nan, ".0f"),
    ]
    if gpu:
        columns[3:] = [
            ("GPU busy share [%]", lambda r: r.busy_pct, ".0f"),
            ("energy [mJ / token]", lambda r: 1000 * (r.joules_per_token or np.nan), ".0f"),
        ]
    number = len(columns) + gpu
    height = 0.9 + 0.36 * max(len(rungs), 4)
    figure, axes = new(title, ncols=number, width=2.3 + 1.65 * number, height=height, sharey=True)
    names = list(rungs)
    for ax, (label, value, spec) in zip(axes, columns, strict=False):
        numbers = [value(rungs[name]) for name in names]
        ax.barh(range(len(names)), np.nan_to_num(numbers), 0.66, color=[colour_of(n) for n in names])
        for position, name in enumerate(names):
            cells = [value(one) for one in rungs[name].single]
            ax.plot(cells, np.full(len(cells), position), linestyle="", marker="o", markersize=2.6,
                    markerfacecolor="white", markeredgecolor="#555555", markeredgewidth=0.7)  # fmt: skip
            if np.isfinite(numbers[position]):
                furthest = np.nanmax([numbers[position], *cells])
                ax.annotate(format(numbers[position], spec), (furthest, position), xytext=(4, 0),
                            textcoords="offset points", va="center", fontsize=7.5)  # fmt: skip
        ax.set_xlabel(label, fontsize=8.5)
        for name, reference in (published or {}).items() if label.startswith("GPU busy") else ():
            published_mark(ax, reference.value, names.index(name), marker="|")
            ax.set_xlabel(label + "\ngrey: as published, 70B on\n8×H100, n = 1 each", fontsize=7.5)
        ax.margins(x=0.28)
        ax.set_xlim(left=0)
    if gpu:
        ax = axes[-1]
        for cause in causes:
            position, start = names.index(cause.rung), {False: 0.0, True: 0.0}
            for part, colour in ((cause.from_gaps, "#B5402E"), (cause.from_kernels, "#5F7F95")):
                ax.barh(position, part, 0.66, left=start[part > 0], color=colour)
                start[part > 0] += part
            ax.annotate(f"{cause.points:+.0f}", (max(start.values()), position), xytext=(3, 0), fontsize=7.5,
                        textcoords="offset points", va="center")  # fmt: skip
        ax.axvline(0, color="#888888", linewidth=0.9)
        ax.set_xlabel(
            f"points against the rung before\n(drafters: {'null' if 'null' in names else 'vanilla'}), red from gaps,\n"
            "blue from kernels",
            fontsize=7.5,
        )
        ax.margins(x=0.2)
    axes[0].set_yticks(range(len(names)), [label_of(n) for n in names])
    axes[0].invert_yaxis()
    for ax in axes:
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="x", labelsize=7.5)
    return figure
