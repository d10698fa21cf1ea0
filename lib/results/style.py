"""Figures: one style, the provenance line, files that are the same bytes for the same records, and drawing that notebooks share.

figure, ax = style.new("the finding, as the title")
style.sign(figure, "04", p.profile, runs)
style.save(figure, "03_ladder", p, mode)
"""

from __future__ import annotations

import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg", force=False)
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from lib import results
from lib.results.records import ROOT, runs_folder

STYLE = {
    "figure.figsize": (6.4, 4.0), "figure.dpi": 100, "savefig.dpi": 150, "font.family": "DejaVu Sans", "font.size": 10,
    "axes.titlesize": 11, "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "grid.color": "#E6E6E6", "grid.linewidth": 0.8, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.frameon": False,
    "svg.hashsalt": "speculation", "svg.fonttype": "path", "figure.constrained_layout.use": True,
}  # fmt: skip
GREY = "#6B6B6B"


def live() -> bool:
    """Whether a person sits at this kernel: papermill, nbconvert and nbval take no input, JupyterLab does."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return bool(getattr(getattr(get_ipython(), "kernel", None), "_allow_stdin", False))


def _show_in_notebooks() -> None:
    """Let IPython show a figure as PNG where it is displayed, and only there: Agg has no such output of its own."""
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython
    from IPython.core.pylabtools import select_figure_formats

    if get_ipython() is not None:
        select_figure_formats(get_ipython(), {"png"}, bbox_inches=None)


_show_in_notebooks()


def new(title: str, *, nrows: int = 1, ncols: int = 1, width: float = 6.4, height: float = 4.0, **kwargs: Any):
    """(figure, axes) in the collection's style; the title, top left, states the finding."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(nrows, ncols, figsize=(width, height), **kwargs)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure, axes


def provenance(notebook: str, profile: str, runs: pd.DataFrame) -> str:
    """`04 · profile · model · vLLM version · hardware · n · date @ commit`, all of it from the runs."""

    def some(column: pd.Series) -> str:
        values = sorted({str(v) for v in column.dropna() if v})
        return values[0] if len(values) == 1 else f"{values[0]} … {values[-1]}" if values else "unknown"

    good = runs[runs.status == "ok"]
    number = f"{len(good)} runs, {good.num_prompts.sum():.0f} requests"
    when = f"measured {some(good.measured.str[:10])} @ {some(good.commit.str[:7])}"
    on = f"vLLM {some(good.resolved_vllm_version)} · {some(good.gpu.fillna(good.cpu))}"
    return " · ".join([notebook, profile, some(good.model), on, number, when])


def sign(figure: Figure, text: str, profile: str = "", runs: pd.DataFrame | None = None) -> None:
    """Put the provenance line of the runs under the figure (or `text` itself, without runs), wrapped to its width."""
    line = text if runs is None else provenance(text, profile, runs)
    width, lines = int(figure.get_figwidth() * 21), [""]
    for word in line.split(" · "):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines.append("")
        lines[-1] += (" · " if lines[-1] else "") + word
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6, color=GREY)


def save(figure: Figure, name: str, p: Any, mode: str) -> None:
    """Write `<name>_<profile>.svg` and `.png` into figures/; into the run's own folder where engines were asked for or a
    parameter was changed (`p.changed`). `p` is a Profile or its name."""
    profile, changed = getattr(p, "profile", p), getattr(p, "changed", False)
    folder = ROOT / "figures" if mode == "replay" and not changed else runs_folder(profile) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        (folder / f"{name}_{profile}.svg").write_text(numbered(drawn.getvalue()), encoding="utf-8")
        figure.savefig(folder / f"{name}_{profile}.png", metadata={"Software": None})
    plt.close(figure)  # pyplot need not hold it: a notebook displays the object itself


def numbered(svg: str) -> str:
    """An SVG with coordinates to a hundredth of a point, whose last digits are not the same on every processor, and with
    clip paths and markers numbered in order of appearance: matplotlib names them by a hash of their coordinates."""
    svg = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{round(float(found[0]), 2) + 0:g}", svg)  # + 0: no minus zero
    hashed = dict.fromkeys(re.findall(r'id="([a-z][0-9a-f]{10})"', svg))
    names = {name: f"{name[0]}{number}" for number, name in enumerate(hashed, 1)}
    return re.sub(r'(?<=["#])[a-z][0-9a-f]{10}(?=[")])', lambda found: names.get(found[0], found[0]), svg)


def log(ax: Axes, x: Sequence[float] = (), y: Sequence[float] = ()) -> None:
    """Logarithmic axes with plain numbers at these ticks, as far as the data reach."""
    for name, ticks in (("x", x), ("y", y)):
        if len(ticks):
            ax.set(**{f"{name}scale": "log"})
            axis = getattr(ax, f"{name}axis")
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(NullLocator())


def no_gain(ax: Axes, value: float = 1.0, text: str = "no gain", axis: str = "y") -> None:
    """A dashed reference line; a horizontal one is named at its end."""
    (ax.axhline if axis == "y" else ax.axvline)(value, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    if axis == "y":
        ax.annotate(text, (1, value), xycoords=("axes fraction", "data"), xytext=(-2, 2), ha="right",
                    textcoords="offset points", fontsize=7.5, color=GREY)  # fmt: skip


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
    return [placed[order.index(i)] for i in range(len(values))]


def blocks(ax: Axes, table: pd.DataFrame, settings: Sequence[str]) -> Iterator[tuple[float, pd.Series]]:
    """(y, row) of horizontal bars for `table` (indexed by concurrency and setting): blocks by concurrency, settings in their
    order and named at the left. A block that lacks a setting which another has is left out; the figure's height fits."""
    held = table.reset_index()
    held = held[held.setting.isin(settings)].sort_values("setting", key=lambda s: s.map(list(settings).index))
    size = held.groupby("concurrency").setting.transform("size")
    held = held[size == size.max()].sort_values("concurrency", kind="stable")
    heights = [i + 0.8 * block for i, block in enumerate(held.groupby("concurrency").ngroup())]
    ax.figure.set_figheight(1.4 + 0.25 * len(held))
    ax.set_yticks(heights, [results.label(s) for s in held.setting])
    ax.set_ylim(heights[-1] + 0.6, -1.2)
    ax.grid(False)
    for y, number in zip(heights, held.concurrency.mask(held.concurrency.duplicated()), strict=True):
        if number == number:
            ax.annotate(f" {number:.0f} in flight", (0, y - 0.5), fontsize=8, fontweight="bold")
    return iter([(y, row) for y, (_, row) in zip(heights, held.iterrows(), strict=True)])


def pick(draw: Callable[..., Any], **choices: Sequence[Any]) -> None:
    """Dropdowns that call `draw` with what is chosen and show the figure it returns; nothing where nobody can choose."""
    if not live() or not all(choices.values()):
        return
    import ipywidgets as widgets
    from IPython.display import display

    def show(**chosen: Any) -> None:
        drawn = draw(**chosen)
        display(drawn)
        if isinstance(drawn, Figure):
            plt.close(drawn)

    pickers = {name: widgets.Dropdown(options=list(values), description=name) for name, values in choices.items()}
    output = widgets.interactive_output(show, pickers)
    display(widgets.VBox([widgets.HBox(list(pickers.values())), output]))
