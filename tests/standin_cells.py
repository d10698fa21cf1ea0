"""A stand-in child process that stores records: `python tests/standin_cells.py FOLDER CELLS`.

It measures nothing: each engine cell's record follows from its seed alone. Its parent may kill it at any moment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lib.cells import Cell, Engine, Workload
from lib.records import Counters, Provenance, Record, Store, Trace

TRACE_STEPS = 2000  # large enough for a kill to fall into the writing


def cell(seed: int) -> Cell:
    workload = Workload(name="random", form="raw", num_prompts=1, input_tokens=8, seed=seed)
    return Cell(engine=Engine(), workload=workload, output_tokens=TRACE_STEPS, batch_size=1, setting="standin")


def made_up(seed: int) -> tuple[Record, Trace]:
    counters = Counters(
        num_output_tokens=TRACE_STEPS, num_prompt_tokens=8 + seed, num_engine_steps=TRACE_STEPS,
        num_request_steps=TRACE_STEPS, request_steps_source="engine",
    )  # fmt: skip
    provenance = Provenance(measured="2026-01-01T00:00:00Z")
    record = Record(cell=cell(seed), status="ok", wall_s=1.0, counters=counters, provenance=provenance)
    return record, Trace(steps={"t_s": [(seed + 1) * i / 1000 for i in range(TRACE_STEPS)]})


def main(folder: str, num_cells: str) -> None:
    store = Store(folder)
    print("ready", flush=True)
    held = {record.cell_id for record in store.all()}
    for seed in range(int(num_cells)):
        if cell(seed).cell_id not in held:
            with open(Path(folder).with_suffix(".measured"), "a") as log:
                log.write(f"{seed}\n")
            store.save(*made_up(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
