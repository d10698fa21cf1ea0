"""What needs an engine: profiles, plans, weights, workloads and the processes that measure. For notebooks:

p = measure.profile(globals())
runs, requests, steps = measure.collect(p, mode, settings=["vanilla", "ngram"])
"""

from __future__ import annotations

from collections.abc import Iterable

from lib.measure import plan
from lib.measure.profiles import Profile, ProfileError
from lib.measure.profiles import from_notebook as profile
from lib.results import table
from lib.results.table import Tables

__all__ = ["Profile", "ProfileError", "Tables", "collect", "profile"]


def collect(p: Profile, mode: str = "replay", settings: Iterable[str] | None = None) -> Tables:
    """The good runs of a profile (of some `settings`), their requests and steps; says in one line what there is.

    replay: the committed ones; measure: real engines run what is missing first. Raises ProfileError where a profile has no
    committed runs at all.
    """
    asked = {run.plan_id: run.setting for run in plan.runs(p, settings)}
    if mode == "measure":
        from lib.measure import engines

        engines.run(plan.runs(p, settings), p)
        store = plan.store_of(p)
        tables = table.frames((r, store.trace(r)) for r in store.all() if r.run.plan_id in asked)
    elif not table.is_published(p.profile):
        raise ProfileError(
            f"profile must be one with committed runs in mode replay (or mode measure), got {p.profile!r}"
        )
    else:
        tables = table.read(p.profile)
    runs = tables.runs[tables.runs.plan_id.isin(asked)]
    runs = runs.assign(setting=runs.plan_id.map(asked))
    good = runs[runs.status == "ok"]
    for _, run in runs[runs.status != "ok"].iterrows():
        print(f"failed: {run.setting} {run.workload} at {run.concurrency}: {run.status}, {run.reason}")
    if len(good):
        print(
            f"{p.profile}: {good.plan_id.nunique()} of {len(asked)} runs; settings {', '.join(dict.fromkeys(good.setting))}"
        )
    else:
        held = {
            name: ", ".join(map(str, sorted(set(tables.runs[name])))) for name in ("setting", "workload", "concurrency")
        }
        print(
            f"no records of profile {p.profile} for these parameters; available: {held if len(tables.runs) else 'none'}"
        )
    return Tables(
        good.reset_index(drop=True),
        *(t[t.run_id.isin(good.run_id)].reset_index(drop=True) for t in (tables.requests, tables.steps)),
    )
