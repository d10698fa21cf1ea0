"""Saved notebooks: one run, top to bottom, readable, and free of the machine they ran on."""

import hashlib
import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MACHINE_PATHS = ("/root/", "/work/", "/home/", "/tmp/")
MOST_WORDS, MOST_WORDS_TO_A_PICTURE = 900, 400
MOST_CODE_LINES = 12  # blank lines and comments do not count
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


def test_is_short_and_shows_a_picture_soon(path):
    words, to_a_picture = 0, None
    for cell in nbformat.read(path, as_version=4).cells:
        words += len(cell.source.split()) if cell.cell_type == "markdown" else 0
        if to_a_picture is None and any("image/png" in o.get("data", {}) for o in cell.get("outputs", [])):
            to_a_picture = words
    assert words <= MOST_WORDS
    assert to_a_picture is not None and to_a_picture < MOST_WORDS_TO_A_PICTURE


def test_says_what_nbval_compares_and_where_the_answer_is(path):
    """A shown figure is not compared (fonts differ by machine); whatever else is shown says whether it is."""
    for cell in (c for c in cells(path, "code") if c.outputs):
        kinds = {"nbval-ignore-output"} if any("image/png" in o.get("data", {}) for o in cell.outputs) else {
            "nbval-ignore-output", "nbval-check-output"
        }  # fmt: skip
        assert kinds & set(cell.metadata.tags), cell.source
    assert sum("answer" in c.metadata.get("tags", []) for c in cells(path, "code")) == 1


def test_outputs_name_no_machine(path):
    outputs = json.dumps([c.outputs for c in cells(path, "code")])
    assert [p for p in MACHINE_PATHS if p in outputs] == []


def test_code_cells_are_short(path):
    lines = [[li for li in c.source.splitlines() if li.strip() and li.strip()[0] != "#"] for c in cells(path, "code")]
    assert max(map(len, lines)) <= MOST_CODE_LINES, "shorten it; what is used twice moves to lib"


def digest() -> str:
    figures = sorted((ROOT / "figures").glob("*.*"))
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in figures)).hexdigest()


def run_all(client: NotebookClient, notebook: nbformat.NotebookNode, change: str = "") -> list[str]:
    """Run the cells in the client's kernel, `change` at the end of the parameters cell; what the checked cells show."""
    shown = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            source = cell.source
            cell.source += f"\n{change}" if "parameters" in cell.metadata.get("tags", []) else ""
            client.execute_cell(cell, index)
            cell.source = source
            if "nbval-check-output" in cell.metadata.get("tags", []):
                shown.append(json.dumps([o.get("data", o.get("text")) for o in cell.outputs]))
    return shown


def test_runs_any_number_of_times_and_a_changed_parameter_changes_no_figure(path):
    """Twice in one kernel, with one text only in between: the same outputs, and the committed figures' very bytes."""
    notebook = nbformat.read(path, as_version=4)
    (parameters,) = [c.source for c in cells(path, "code") if "parameters" in c.metadata.get("tags", [])]
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    before = digest()
    with client.setup_kernel():
        first = run_all(client, notebook)
        assert digest() == before, "figures drawn from the records differ from the stored ones"
        if "workloads:" in parameters:
            changed = run_all(client, notebook, "workloads = ['chat']")
            assert changed != first and digest() == before
        assert run_all(client, notebook) == first
