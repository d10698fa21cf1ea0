"""Sliders for a live notebook: ipywidgets where somebody can move them, nothing where a notebook only runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

from lib import figures, prediction
from lib.prediction import Costs


def live() -> bool:
    """Whether a person sits at this kernel: papermill, nbconvert and nbval take no input, JupyterLab does."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    kernel = getattr(get_ipython(), "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", False))


def sentence(costs: Costs, batch: int, length: int) -> str:
    """The break-even at one point of the map, in words."""
    found = {name: tau[0, 0] for name, tau in prediction.break_even_grids(costs, [batch], [length]).items()}
    told = [
        f"{tau:.2f} tokens per step" + (f" ({name.split(',')[0]})" if name else "")
        for name, tau in found.items()
        if np.isfinite(tau)
    ]
    if not told:
        return f"Batch {batch} with drafts of {length}: outside the measured grid"
    return f"At batch {batch}, drafts of {length} pay from {', '.join(told)}"


def furthest(taus: Mapping[str, np.ndarray], batches: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """The largest batch, then the longest draft, that the first map knows and that no other map shows equal."""
    tau, *others = taus.values()
    known = [
        (batches[j], lengths[i])
        for i, j in np.argwhere(np.isfinite(tau))
        if all(tau[i, j] != other[i, j] for other in others)
    ]
    return max(known, default=(batches[0], lengths[0]))


def break_even(models: Mapping[str, Costs], batches: Sequence[int], lengths: Sequence[int]) -> None:
    """Display sliders for model, batch and draft length over the break-even map; only if somebody can move them."""
    if not live() or not models:
        return
    import ipywidgets as widgets
    from IPython.display import display

    def show(model: str, batch: int, length: int) -> None:
        costs = models[model]
        taus = prediction.break_even_grids(costs, batches, lengths)
        figure = figures.break_even_map(batches, lengths, taus, sentence(costs, batch, length), mark=(batch, length))
        display(figure)
        plt.close(figure)

    pickers = {
        "model": widgets.Dropdown(options=list(models), description="model"),
        "batch": widgets.SelectionSlider(options=list(batches), description="batch"),
        "length": widgets.SelectionSlider(options=list(lengths), description="drafted"),
    }
    output = widgets.interactive_output(show, pickers)
    display(widgets.VBox([widgets.HBox(list(pickers.values())), output]))


def answers(ratios: Mapping[str, pd.DataFrame], profile: str) -> None:
    """Display pickers for setting, text and requests in flight over tables of `results.compare`; only if somebody can pick."""
    if not live() or not ratios:
        return
    import ipywidgets as widgets
    from IPython.display import display

    def show(setting: str, workload: str, concurrency: int) -> None:
        asked = f"workload == '{workload}' and concurrency == {concurrency}"
        found = ratios[setting].query(asked)
        display(found.round(3) if len(found) else "not measured")
        print(f'results.compare(results.load("{profile}"), "{setting}").query("{asked}")')

    tables = ratios.values()
    options = {
        "setting": list(ratios),
        "workload": sorted({w for t in tables for w in t.workload}),
        "concurrency": sorted({int(c) for t in tables for c in t.concurrency}, reverse=True),
    }
    pickers = {name: widgets.Dropdown(options=values, description=name) for name, values in options.items()}
    display(widgets.VBox([widgets.HBox(list(pickers.values())), widgets.interactive_output(show, pickers)]))
