"""Saved outputs hold: a record that changes shows in the notebook cell that tells of it, and not before."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq

from lib import notebooks, results

ROOT = Path(__file__).parents[1]
NOTEBOOK = "notebooks/01_vanilla_baseline.ipynb"


def failed_cells(folder: Path) -> list[int]:
    """Code cells of NOTEBOOK in a copy of the tree at `folder` whose outputs differ from the saved ones."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", NOTEBOOK],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return [int(number) for number in re.findall(r"^FAILED .*::Cell (\d+)", run.stdout, re.MULTILINE)]


def test_a_changed_record_fails_in_its_cell(tmp_path):
    for name in ("lib", "params", "figures/data"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / NOTEBOOK, tmp_path / NOTEBOOK)
    assert failed_cells(tmp_path) == []

    path = tmp_path / "figures" / "data" / "h200" / "runs.parquet"
    runs = results.load("h200").query("setting == 'vanilla' and workload == 'code' and concurrency == 64")
    chosen = set(runs.run_id[runs.session == runs.session.value_counts().idxmax()])
    held = pq.read_table(path)
    pairs = zip(held["run_id"].to_pylist(), held["wall_s"].to_pylist(), strict=True)
    slower = [wall * (1 + (run_id in chosen)) for run_id, wall in pairs]
    pq.write_table(held.set_column(held.schema.get_field_index("wall_s"), "wall_s", pa.array(slower)), path)
    code = [c.source for c in nbformat.read(ROOT / NOTEBOOK, 4).cells if c.cell_type == "code"]
    tells = [number for number, source in enumerate(code) if "tok_s" in source]
    assert failed_cells(tmp_path)[0] == tells[0]


def test_saved_outputs_do_not_tell_how_a_run_went(tmp_path):
    """The same text printed in pieces, on stderr, with papermill's traces: saved as one text, and nothing else."""
    v4 = nbformat.v4
    pieces = [v4.new_output("stream", name=name, text=text) for name, text in (("stdout", "a\n"), ("stdout", "b\n"))]
    warned = v4.new_output("stream", name="stderr", text="a warning\n")
    cells = [
        v4.new_code_cell("profile = 'cpu'", metadata={"tags": ["injected-parameters"]}),
        v4.new_code_cell(
            "print()", outputs=[*pieces, warned], execution_count=7, metadata={"papermill": {"duration": 1.0}}
        ),
    ]
    saved = tmp_path / "saved.ipynb"
    notebooks._save(saved, v4.new_notebook(cells=cells, metadata={"papermill": {"version": "0"}}))
    (cell,) = nbformat.read(saved, as_version=4).cells
    assert [(o.name, o.text) for o in cell.outputs] == [("stdout", "a\nb\n")]
    assert cell.execution_count == 1 and "papermill" not in cell.metadata
