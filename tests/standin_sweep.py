"""Runs for the stand-in engine in tests/standin, and what two measurements of them must agree on."""

import os
from pathlib import Path

from lib.measure import plan, profiles
from lib.results.records import Store
from lib.results.run import Run, Workload

FOLDER = Path(__file__).parent / "standin"


def use(monkeypatch, cache: Path, step_s: float = 0.002) -> None:
    """Engines started from now on are stand-ins."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("SPECULATION_MODEL_CACHE", str(cache))
    monkeypatch.setenv("STANDIN_STEP_S", str(step_s))


def profile(**changes) -> profiles.Profile:
    model = {"source": "dummy", "name": "opt-125m"}
    return profiles.load("cpu", {"model": model, "threads": 1, "time_limit_s": 60} | changes)


def runs(num_engines: int, num_runs: int, output_tokens: int = 20) -> list[Run]:
    """`num_engines` engines with `num_runs` runs each, distinguished by their seeds."""
    p = profile()
    base = plan.engine_of(p, p.model, p.menu["vanilla"])
    return [
        Run(
            engine=base.model_copy(update={"repeat": i}),
            workload=Workload(name="random", form="raw", num_prompts=4, input_tokens=8, seed=100 * i + j),
            output_tokens=output_tokens, concurrency=2, setting=f"arm{i}",
        )
        for i in range(num_engines)
        for j in range(num_runs)
    ]  # fmt: skip


def facts(store: Store) -> dict:
    """All that must not depend on where and when a run was measured."""
    return {
        r.run.plan_id: (r.status, r.counters, r.output_hash, [q.output_hash for q in r.requests]) for r in store.all()
    }
