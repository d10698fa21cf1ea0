"""Sliders appear only before a person; the pictures of predictions hold what they were given."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_machine import NGRAM, PERIODIC, hand_made

from lib import explore, figures, prediction, recommend, requestlog
from lib.stats import Estimate


def test_nobody_sits_at_a_test():
    assert explore.live() is False
    assert explore.break_even({"m": hand_made()}, [1, 2], [1, 3]) is None


def test_the_break_even_in_words():
    assert explore.sentence(hand_made(), 2, 3) == "At batch 2, drafts of 3 pay from 1.20 tokens per step"
    assert "outside the measured grid" in explore.sentence(hand_made(), 1000, 3)


def texts(figure) -> str:
    """Every text of a figure."""
    return " | ".join(t.get_text() for t in figure.findobj(match=lambda artist: hasattr(artist, "get_text")))


def test_the_break_even_map_shows_its_numbers_and_the_mark():
    taus = prediction.break_even_grids(hand_made(), [1, 2, 1000], [1, 3])
    assert explore.furthest(taus, [1, 2, 1000], [1, 3]) == (2, 3)
    figure = figures.break_even_map([1, 2, 1000], [1, 3], taus, "a finding", mark=(2, 3))
    assert texts(figure).count("1.20") == 4
    assert "nan" not in texts(figure)


def test_predicted_against_measured_draws_every_cell():
    points = {"ngram": [(Estimate(1.2, 1.1, 1.3, 9), Estimate(1.1, 1.0, 1.2, 9))] * 2, "suffix": []}
    figure = figures.predicted_against_measured(points, "a finding", 0.05)
    assert "within 10 %" in texts(figure)
    assert figure.axes[0].get_xlim()[1] > 1.2
    figures.predicted_against_measured({}, "nothing measured")


def test_the_decision_map_marks_what_lies_outside_the_grid():
    maps = {
        w: {("small", 1): prediction.Steady(1.5, "ngram", True), ("small", 8): prediction.Steady(0.5, "ngram", False)}
        for w in ("sonnet", "code", "chat", "mix-sh")
    }
    figure = figures.decision_map(maps, "a finding")
    assert texts(figure).count("0.50?") == 4
    assert texts(figure).count("1.50") >= 4


@pytest.mark.parametrize("noise", [{1: 0.05}, {}])
def test_the_recommendation_has_a_panel_a_batch_size(noise):
    log = requestlog.Log(tuple(PERIODIC), (), ())
    settings = {"vanilla": None, "ngram_g3": NGRAM}
    answer = recommend.answer(log, hand_made(noise=noise), batch_sizes=[1, 2], settings=settings)
    figure = figures.recommendation(answer)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["batch 1", "batch 2"]
    assert "ngram g3" in texts(figure)
    assert np.isfinite(figure.axes[0].get_xlim()).all()
