"""A stand-in child process that stores records: `python tests/standin_runs.py FOLDER NUM_RUNS`.

It measures nothing: each record follows from its run's seed alone. Its parent may kill it at any moment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lib.results.records import Counters, Provenance, Record, Store, Trace
from lib.results.run import Engine, Run, Workload

TRACE_STEPS = 2000  # large enough for a kill to fall into the writing


def run(seed: int) -> Run:
    workload = Workload(name="random", form="raw", num_prompts=1, input_tokens=8, seed=seed)
    return Run(engine=Engine(), workload=workload, output_tokens=TRACE_STEPS, concurrency=1, setting="standin")


def made_up(seed: int) -> tuple[Record, Trace]:
    counters = Counters(
        num_output_tokens=TRACE_STEPS, num_prompt_tokens=8 + seed, num_engine_steps=TRACE_STEPS,
        num_request_steps=TRACE_STEPS,
    )  # fmt: skip
    provenance = Provenance(measured="2026-01-01T00:00:00Z")
    record = Record(run=run(seed), status="ok", wall_s=1.0, counters=counters, provenance=provenance)
    return record, Trace(steps={"t_s": [(seed + 1) * i / 1000 for i in range(TRACE_STEPS)]})


def main(folder: str, num_runs: str) -> None:
    store = Store(folder)
    print("ready", flush=True)
    held = {record.run.plan_id for record in store.all()}
    for seed in range(int(num_runs)):
        if run(seed).plan_id not in held:
            with open(Path(folder).with_suffix(".measured"), "a") as log:
                log.write(f"{seed}\n")
            store.save(*made_up(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
