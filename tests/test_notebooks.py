"""Saved notebooks: one run, top to bottom, readable, and free of the machine they ran on."""

import json
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
MACHINE_PATHS = ("/root/", "/work/", "/home/", "/tmp/")
MOST_CODE_LINES = 13  # blank lines and comments do not count
MOST_CODE_CELLS_IN_A_ROW = 4

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list:
    """The cells of one kind that hold anything."""
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == kind and cell.source.strip()]


def test_has_one_parameters_cell(path):
    tagged = [c for c in cells(path, "code") if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1, "papermill injects after the cell tagged 'parameters'"


def test_ran_top_to_bottom(path):
    counts = [c.execution_count for c in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1)), "run all cells in a fresh kernel, then save"


def test_holds_no_error(path):
    errors = [o.ename for c in cells(path, "code") for o in c.outputs if o.output_type == "error"]
    assert not errors


def test_explains_itself(path):
    kinds = "".join(cell.cell_type[0] for cell in nbformat.read(path, as_version=4).cells if cell.source.strip())
    assert max(map(len, kinds.split("m"))) <= MOST_CODE_CELLS_IN_A_ROW, "a word between cells says what comes next"


def test_outputs_name_no_machine(path):
    outputs = json.dumps([c.outputs for c in cells(path, "code")])
    assert [p for p in MACHINE_PATHS if p in outputs] == []


def test_code_cells_are_short(path):
    lines = [[li for li in c.source.splitlines() if li.strip() and li.strip()[0] != "#"] for c in cells(path, "code")]
    assert max(map(len, lines)) <= MOST_CODE_LINES, "shorten it; what is used twice moves to lib"
