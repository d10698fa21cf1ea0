"""Engine cells for the stand-in engine in tests/standin, and what two runs of them must agree on."""

import os
from pathlib import Path

from lib import params
from lib.cells import Cell, Workload
from lib.records import Store

FOLDER = Path(__file__).parent / "standin"


def use(monkeypatch, cache: Path, step_s: float = 0.002) -> None:
    """Engines started from now on are stand-ins."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("SPECULATION_MODEL_CACHE", str(cache))
    monkeypatch.setenv("STANDIN_STEP_S", str(step_s))


def profile(**changes) -> params.Profile:
    model = {"source": "shape", "name": "opt-125m"}
    return params.load("cpu", {"model": model, "threads": 1, "time_limit_s": 60} | changes)


def cells(num_engines: int, num_cells: int, output_tokens: int = 20) -> list[Cell]:
    """`num_engines` engines with `num_cells` engine cells each, told apart by their seeds."""
    base = profile().base_engine
    return [
        Cell(
            engine=base.model_copy(update={"repeat": i}),
            workload=Workload(name="random", form="raw", num_prompts=4, input_tokens=8, seed=100 * i + j),
            output_tokens=output_tokens, batch_size=2, keep_tokens=True, setting=f"arm{i}",
        )
        for i in range(num_engines)
        for j in range(num_cells)
    ]  # fmt: skip


def facts(store: Store) -> dict:
    """All that must not depend on where and when an engine cell was measured."""
    found = {}
    for r in store.all():
        tokens = store.trace(r).output_token_ids if r.has_trace else None
        found[r.cell_id] = (r.status, r.counters, r.output_hash, tokens, [q.output_hash for q in r.requests])
    return found
