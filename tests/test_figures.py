"""Figures: titles, labels and units are there; the same records give the same bytes."""

import pytest
from made_up_records import NGRAM, cell, record

from lib import figures
from lib.stats import Estimate

E1, E2 = Estimate(1.2, 1.1, 1.3, 4), Estimate(0.8, float("nan"), float("nan"), 1)
DRAWN = {
    "noise_floor": lambda: figures.noise_floor({"sonnet": [1.0, 1.02], "code": [0.97]}, 0.03),
    "draft_length": lambda: figures.draft_length({"code": {3: (1.5, E1), 7: (1.8, E1)}}, "Longer drafts add 20 %"),
    "tau_against_r": lambda: figures.tau_against_r(
        [{"setting": "ngram", "workload": "code", "tau": 2.0, "r": 1.5, "bold": True}], "R is 1.5"
    ),
    "acceptance": lambda: figures.acceptance_by_workload(["code"], {"ngram": [E1]}, {"ngram": [E2]}, "Suffix wins"),
    "ladder": lambda: figures.ladder({"ngram": E1, "full": E2}, "No rung pays"),
    "six": lambda: figures.six_workloads(["code"], {"vanilla": [E1], "full": [E2]}, {"full": [E2]}, "One of one"),
    "ladder, rounds": lambda: figures.ladder({"ngram": E1, "full": E2}, "No rung pays", marks={"full": "²"}),
    "by_batch, fewer": lambda: figures.speedup_by_batch({"ngram": {1: E1, 8: E2}}, "Padding pays", {"ngram": {1}}),
    "by_batch": lambda: figures.speedup_by_batch({"ngram": {1: E1, 8: E2}}, "Padding pays"),
}


def test_every_line_by_batch_size_is_named_inside_the_axes():
    """Five lines that end close to zero under a tall interval: names kept apart must not slip below the axis."""
    low, tall = E1._replace(value=0.1, low=0.1, high=0.1), E1._replace(value=5.0, low=1.0, high=10.0)
    names = ("ngram", "padded_ngram", "suffix", "padded_suffix", "full")
    ax = figures.speedup_by_batch({name: {1: tall, 8: low} for name in names}, "All named").axes[0]
    labels = [t for t in ax.texts if t.get_text() != "no gain"]
    assert len(labels) == len(names)
    assert all(ax.get_ylim()[0] <= t.xy[1] <= ax.get_ylim()[1] for t in labels)


@pytest.mark.parametrize("name", DRAWN)
def test_says_its_finding_and_its_axes(name):
    figure = DRAWN[name]()
    assert figure.get_suptitle()
    for ax in figure.axes:
        assert ax.get_xlabel() or ax.get_ylabel()


@pytest.mark.parametrize("name", DRAWN)
def test_same_input_same_bytes(name, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    seen = []
    for _ in range(2):
        figure = DRAWN[name]()
        figures.sign(figure, "line")
        figures.save(figure, "x", "y", "replay")
        seen.append([(tmp_path / "figures" / f"x_y.{kind}").read_bytes() for kind in ("svg", "png")])
    assert seen[0] == seen[1]


def test_an_svg_does_not_depend_on_the_last_digits_of_a_coordinate():
    drawn = [
        f'<use xlink:href="#m{mark}"/><g clip-path="url(#p{clip})"/><clipPath id="p{clip}"/><path id="m{mark}"/>'
        for clip, mark in (("35177091bd", "0123456789"), ("b7bdd3d13c", "abcdefabcd"))
    ]
    first, second = map(figures.numbered, drawn)
    assert first == second == '<use xlink:href="#m2"/><g clip-path="url(#p1)"/><clipPath id="p1"/><path id="m2"/>'
    assert figures.numbered('<use xlink:href="#DejaVuSans-41"/>') == '<use xlink:href="#DejaVuSans-41"/>'


def test_the_provenance_line_comes_from_the_records():
    line = figures.provenance_line("02", "cpu", [record(cell()), record(cell("ngram", speculative=NGRAM))])
    assert line == (
        "02 · cpu · SmolLM2-135M-Instruct · vLLM 0.0 · a CPU · 2 engine cells, 4 requests, 1 seed · "
        "measured 2026-01-01 @ abcdef0"
    )


def test_one_colour_a_method():
    assert figures.colour_of("suffix_cold") == figures.colour_of("suffix_piecewise") == figures.COLOURS["suffix"]
    assert figures.colour_of("padded_ngram") == figures.COLOURS["padded"]
    assert len(set(figures.COLOURS.values())) == len(figures.COLOURS)
