"""Figure style, and one draw function a figure. Figures are drawn from records alone.

Every draw function returns a matplotlib figure whose title states the finding; `save` writes SVG and PNG with the same
bytes for the same records on the same pinned stack.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg", force=False)
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

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
    width = int(figure.get_figwidth() * 26)
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


def published_mark(ax, x: float, y: float, *, first: bool = False, text: str = "published") -> None:
    """The article's value as an unobtrusive open mark."""
    ax.plot([x], [y], marker="_", markersize=14, color="#A0A0A0", markeredgewidth=1.6, linestyle="none", zorder=4)
    if first:
        ax.annotate(text, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7, color="#6B6B6B")


def save(figure: Figure, name: str, profile: str, mode: str) -> None:
    """Write `<name>_<profile>.svg` and `.png`: into figures/ in replay, into the run's own folder in measure mode."""
    folder = ROOT / "figures" if mode == "replay" else runs_folder(profile) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure.savefig(folder / f"{name}_{profile}.svg", metadata={"Date": None, "Creator": None})
        figure.savefig(folder / f"{name}_{profile}.png", metadata={"Software": None})


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
            ax.errorbar([x], [estimate.value], yerr=error_bars(*estimate[:3]), color="#262626", linewidth=0.9, capsize=1.5)
            if show_values:
                top = estimate.high if np.isfinite(estimate.high) else estimate.value
                ax.annotate(format(estimate.value, value_format), (x, top), xytext=(0, 2), ha="center", fontsize=6.5,
                            textcoords="offset points")  # fmt: skip
    ax.set_xticks(range(len(groups)), groups)
