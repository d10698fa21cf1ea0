"""Shared drawing: what is on the axes, where files go, and bytes that repeat."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.results import style


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(style, "ROOT", tmp_path)
    monkeypatch.setattr(style, "runs_folder", lambda profile: tmp_path / "runs" / profile)
    (tmp_path / "figures").mkdir()
    return tmp_path


@given(st.lists(st.floats(-5, 5), max_size=8), st.floats(0.01, 0.5))
def test_labels_stand_apart_in_their_order(values, gap):
    placed = style.apart(values, gap)
    in_order = [placed[i] for i in sorted(range(len(values)), key=lambda i: values[i])]
    assert all(b - a >= gap * 0.9 for a, b in zip(in_order, in_order[1:], strict=False))
    assert sum(placed) == pytest.approx(sum(values), abs=1e-6)


def table(cells):
    index = pd.MultiIndex.from_tuples(cells, names=["concurrency", "setting"])
    return pd.DataFrame({"value": range(len(cells))}, index=index)


def test_blocks_keep_the_settings_order_and_leave_out_a_block_that_lacks_one():
    figure, ax = style.new("t")
    held = table([(8, "ngram"), (64, "vanilla"), (64, "ngram"), (8, "vanilla"), (1, "vanilla"), (8, "other")])
    drawn = list(style.blocks(ax, held, ["vanilla", "ngram"]))
    assert [(row.concurrency, row.setting, row.value) for _, row in drawn] == [
        (8, "vanilla", 3), (8, "ngram", 0), (64, "vanilla", 1), (64, "ngram", 2),
    ]  # fmt: skip
    heights = [y for y, _ in drawn]
    assert heights == sorted(heights) and len(set(heights)) == 4
    assert [label.get_text() for label in ax.get_yticklabels()] == ["vanilla", "ngram"] * 2
    assert [t.get_text().strip() for t in ax.texts] == ["8 in flight", "64 in flight"]
    plt.close(figure)


def test_a_figure_is_the_same_bytes_twice(folders):
    found = []
    for _ in range(2):
        figure, ax = style.new("t")
        ax.plot([1, 2], [1, 2], "o")
        style.no_gain(ax)
        style.sign(figure, "a line of text")
        style.save(figure, "f", "p", "replay")
        found.append([(folders / "figures" / f"f_p.{kind}").read_bytes() for kind in ("svg", "png")])
    assert found[0] == found[1]


@pytest.mark.parametrize(("mode", "changed", "where"), [
    ("replay", False, "figures"), ("replay", True, "runs/p/figures"), ("measure", False, "runs/p/figures"),
])  # fmt: skip
def test_only_an_unchanged_replay_writes_a_committed_figure(folders, mode, changed, where):
    style.save(style.new("t")[0], "f", SimpleNamespace(profile="p", changed=changed), mode)
    assert [path.parent for path in folders.rglob("*.svg")] == [folders / where]


def test_provenance_tells_what_the_good_runs_hold():
    runs = pd.DataFrame({
        "status": ["ok", "ok", "oom"], "model": ["A", "B", "C"], "num_prompts": [3, 4, 5], "gpu": [None, None, None],
        "resolved_vllm_version": ["1.0", "1.0", "2.0"], "cpu": ["Xeon"] * 3, "measured": ["2026-01-02T03:04:05Z"] * 3,
        "commit": ["abcdef0123"] * 3,
    })  # fmt: skip
    assert (
        style.provenance("04", "x", runs)
        == "04 · x · A … B · vLLM 1.0 · Xeon · 2 runs, 7 requests · measured 2026-01-02 @ abcdef0"
    )


def test_nobody_at_the_kernel_gets_no_dropdowns():
    style.pick(lambda text: pytest.fail("drawn"), text=["a"])


def test_an_svg_does_not_depend_on_the_last_digits_of_a_coordinate():
    drawn = [
        f'<use xlink:href="#m{mark}"/><g clip-path="url(#p{clip})"/><clipPath id="p{clip}"/><path id="m{mark}"/>'
        for clip, mark in (("35177091bd", "0123456789"), ("b7bdd3d13c", "abcdefabcd"))
    ]
    first, second = map(style.numbered, drawn)
    assert first == second == '<use xlink:href="#m2"/><g clip-path="url(#p1)"/><clipPath id="p1"/><path id="m2"/>'
    assert style.numbered("L 47.514898 -0.000001") == style.numbered("L 47.514899 0.000001") == "L 47.51 0"
    assert style.numbered('<use xlink:href="#DejaVuSans-41"/>') == '<use xlink:href="#DejaVuSans-41"/>'


def test_logarithmic_ticks_are_plain_numbers_within_the_data():
    figure, ax = style.new("t")
    ax.plot([1, 3], [0.4, 2])
    style.log(ax, y=[0.25, 0.5, 1, 2, 4])
    figure.canvas.draw()
    low, high = ax.get_ylim()
    shown = [t.get_text() for t in ax.get_yticklabels() if low <= t.get_position()[1] <= high]
    assert (ax.get_xscale(), ax.get_yscale(), shown) == ("linear", "log", ["0.5", "1", "2"])
    assert low > 0.25 and high < 4
    plt.close(figure)
