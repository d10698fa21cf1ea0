"""What may import what, and how much code there is."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
MODULES = {".".join(p.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__"): p
           for p in sorted((TOP / "lib").rglob("*.py"))}  # fmt: skip
MOST_LINES_OF_A_MODULE, MOST_LINES = 400, 5400


def imported(node: ast.stmt) -> set[str]:
    """Modules that an import statement names; of `from a import b` the module a.b where there is one of lib."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {name if (name := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names}
    return set()


def imports(name: str, *, late: bool) -> set[str]:
    """What a module imports when it is imported itself, and, `late`, what its functions import when they are called."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    inside = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)}
    return {m for n in ast.walk(tree) if late or n not in inside for m in imported(n)}


def count_lines():
    spec = importlib.util.spec_from_file_location("code_lines", TOP / "tools" / "code_lines.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def loaded(module: str) -> set[str]:
    """Every module that importing one brings along."""
    code = f"import sys; import {module}; print(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TOP).stdout.split()
    )


def test_results_need_tables_only():
    found = loaded("lib.results")
    assert "lib.results.table" in found
    assert not {"torch", "vllm", "transformers", "numba", "matplotlib"} & found
    assert not [m for m in found if m.startswith(("lib.measure", "lib.answer", "lib.ledger"))]


def test_measure_brings_no_engine():
    assert not {"torch", "vllm", "transformers", "ray"} & loaded("lib.measure.engines")


def test_only_the_engine_process_imports_vllm():
    found = {name for name in MODULES for m in imports(name, late=True) if m.partition(".")[0] == "vllm"}
    assert found <= {"lib.measure.worker", "lib.measure.forkserver"}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("lib.results", ()),
        ("lib.measure", ("lib.results",)),
        ("lib.answer", ("lib.results", "lib.measure")),
        ("lib.ledger", ("lib.results", "lib.measure.corpus")),  # whose word pool is one of the article's claims
    ],
)
def test_packages_know_only_those_below_them(package, allowed):
    found = {
        (name, m) for name in MODULES if name.startswith(package) for m in imports(name, late=True)
        if m.startswith("lib.") and not m.startswith((package, *allowed))
    }  # fmt: skip
    assert found == set()


def test_no_module_of_lib_imports_itself_in_a_circle():
    graph = {name: {m for m in imports(name, late=False) if m in MODULES} for name in MODULES}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_module_is_long_and_lib_is_short():
    counted = count_lines().of_folder(TOP / "lib")
    assert {str(p.relative_to(TOP)): n for p, n in counted.items() if n > MOST_LINES_OF_A_MODULE} == {}
    assert sum(counted.values()) <= MOST_LINES


def test_code_lines_are_those_that_hold_code():
    source = (
        '"""Doc.\n\nMore."""\n\nx = 1  # said\n# alone\n\n\ndef f():\n    """Doc."""\n    return (\n        2\n    )\n'
    )
    assert count_lines().count(source) == 5
    assert count_lines().count('x = """\na\nb"""\n') == 3
    assert count_lines().count("") == 0
