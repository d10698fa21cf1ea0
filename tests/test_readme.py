"""What README's computed tables say of ratios that are known."""

import pandas as pd
import pytest

from lib import readme


def row(**values) -> pd.Series:
    return pd.Series({"ratio": 1.5, "low": 1.4, "high": 1.6, "aa": 0.1, "concurrency": 8} | values)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({}, "**use** 1.50"),
        ({"aa": 0.5}, "no difference 1.50"),
        ({"ratio": 0.8, "low": 0.7, "high": 0.85}, "don't 0.80"),
        ({"ratio": 0.8, "low": 0.7, "high": 0.95}, "no difference 0.80"),
        ({"aa": float("nan"), "low": 1.06}, "**use** 1.50"),  # of 8 in flight, of another model
        ({"aa": float("nan"), "low": 1.06, "concurrency": 1}, "no difference 1.50"),  # the largest
    ],
)
def test_a_verdict_goes_beyond_what_equal_engines_differ_by(values, verdict):
    assert readme._verdict(row(**values), pd.Series({8: 0.05, 64: 0.2})) == verdict


def test_every_notebook_has_a_row():
    lines = readme.notebook_table().splitlines()
    assert len(lines) == 2 + len(list((readme.PATH.parent / "notebooks").glob("[0-9][0-9]_*.ipynb")))
    assert lines[2].startswith(
        "| [00 start](notebooks/00_start.ipynb) | Should I switch speculative decoding on? | h200 |"
    )


def test_missing_markers_are_named(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("no marker")
    readme.COMPUTED[path] = {"computed": readme.answer}
    try:
        with pytest.raises(ValueError, match="README.md must hold the markers"):
            readme.render(path)
    finally:
        del readme.COMPUTED[path]
