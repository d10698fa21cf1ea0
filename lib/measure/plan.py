"""What a profile measures: its runs, what is still missing of them, and how long that takes."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from lib.measure.profiles import Profile, ProfileError
from lib.results import records
from lib.results.records import Record, Store
from lib.results.run import Engine, Model, Run, Workload, engine_key
from lib.results.settings import Setting, merged, nearest

FAILURES = ("oom", "timeout", "crashed", "invalid")
_GRAPHS = ("cudagraph_mode", "max_cudagraph_capture_size")


def engine_of(p: Profile, model: Model, setting: Setting, repeat: int = 0) -> Engine:
    """The engine of a setting: the profile's arguments under the setting's.

    An eager engine has no CUDA graphs, and the CPU engine's KV cache has a size of its own, so what a setting says of
    these is left out there.
    """
    arguments, env = merged(p.engine, setting.arguments), p.env | setting.env
    if p.engine.get("enforce_eager"):
        compilation = {k: v for k, v in arguments.pop("compilation_config", {}).items() if k not in _GRAPHS}
        arguments = {k: v for k, v in arguments.items() if k not in _GRAPHS}
        arguments |= {"compilation_config": compilation} if compilation else {}
    if "VLLM_CPU_KVCACHE_SPACE" in env:
        arguments.pop("gpu_memory_utilization", None)
    return Engine(model=model, arguments=arguments, env=env, repeat=repeat)


def runs(p: Profile, settings: Iterable[str] | None = None) -> list[Run]:
    """Models x settings x repeats x concurrencies x seeds x workloads. Repeats come after all settings, so that identical
    engines stand first and last; a setting that is another one on this engine (no graphs) is left out.

    Raises ProfileError for a setting that the menu lacks.
    """
    names, menu, digest = list(settings or p.settings), p.menu, None
    for name in names:
        if name not in menu:
            raise ProfileError(f"settings must be among {', '.join(menu)}, got {name!r}{nearest(name, menu)}")
    if p.log and "jsonl" in p.workloads:
        digest = records.digest_of(records.ROOT / p.log)
    made: dict[str, Run] = {}
    for model in p.models:
        for repeat in range(max((p.repeats.get(n, 1) for n in names), default=1)):
            for name in (n for n in names if repeat < p.repeats.get(n, 1)):
                engine = engine_of(p, model, menu[name], repeat)
                for concurrency in p.concurrency:
                    number, seeds = p.at(concurrency)
                    for seed in seeds:
                        for workload in p.workloads:
                            log = {"path": p.log, "digest": digest} if workload == "jsonl" else {}
                            asked = Workload(
                                name=workload, answers=p.answers, form=p.form, num_prompts=number,
                                input_tokens=p.input_tokens, seed=seed, **log,
                            )  # fmt: skip
                            run = Run(
                                setting=name, engine=engine, workload=asked, concurrency=concurrency,
                                output_tokens=p.output_tokens, ignore_eos=p.ignore_eos,
                                suffix_cache=menu[name].suffix_cache,
                            )  # fmt: skip
                            made.setdefault(run.plan_id, run)
    return list(made.values())


def missing(asked: Iterable[Run], store: Store, retry: Iterable[str] = ("interrupted",)) -> list[list[Run]]:
    """Runs still to be measured, one list an engine: no record yet, or a failed one whose status is in `retry`.

    Within an engine a cold suffix cache comes before a warm one, and runs keep the order they were asked in.
    """
    groups: dict[str, list[Run]] = {}
    for run in asked:
        held = store.get(run)
        if held is None or (held.status != "ok" and held.status in retry):
            groups.setdefault(engine_key(run), []).append(run)
    return [sorted(group, key=lambda r: r.suffix_cache == "warm") for group in groups.values()]


def store_of(p: Profile, *, owner: bool = False) -> Store:
    """What was measured of a profile on this machine: runs/<profile>/records."""
    return Store(records.runs_folder(p.profile) / "records", owner=owner)


def overview(groups: list[list[Run]], held: pd.DataFrame) -> pd.DataFrame:
    """A plan as a table, one row an engine, with minutes as runs of the same model took in `held`; NaN without any."""
    rows = []
    good = (
        held[held.status == "ok"]
        if len(held)
        else pd.DataFrame(columns=["model", "concurrency", "wall_s", "engine_start_s"])
    )
    for group in groups:
        engine = group[0].engine
        alike = good[good.model == engine.model.name]
        walls = alike.groupby("concurrency").wall_s.mean()
        seconds = alike.engine_start_s.max() + sum(walls.get(r.concurrency, float("nan")) for r in group)
        rows.append({
            "setting": group[0].setting, "model": engine.model.name, "repeat": engine.repeat, "gpus": engine.num_gpus,
            "runs": len(group), "minutes": round(seconds / 60, 1),
        })  # fmt: skip
    return pd.DataFrame(rows, columns=["setting", "model", "repeat", "gpus", "runs", "minutes"])


def outcome(ended: Iterable[Record]) -> pd.DataFrame:
    """How runs ended, by model and setting."""
    rows = [{"model": r.run.engine.model.name, "setting": r.run.setting, "ok": r.status == "ok", "failed": r.status != "ok",
             "minutes": (r.wall_s or 0) / 60} for r in ended]  # fmt: skip
    return (
        pd.DataFrame(rows, columns=["model", "setting", "ok", "failed", "minutes"])
        .groupby(["model", "setting"])
        .sum()
        .round(1)
    )
