"""Predicted against measured on the reader's own machine: a parrot of their architecture says their log, or their real
model answers its prompts; and the step cost of their own GPU, so that `recommend` has a verdict there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib import results
from lib.answer import recommend, stepcost
from lib.answer.recommend import AdviceError
from lib.measure import engines, machine, plan, profiles, shapes, weights
from lib.measure.profiles import Profile
from lib.results import table

CONCURRENCY = {"GPU": (1, 8, 32), "CPU": (1, 4)}
CALIBRATED = {"GPU": (1, 8, 32, 128), "CPU": (1, 4)}
DRAFTED = 48  # tokens of room for the longest draft of the menu and the end token


class Trial(NamedTuple):
    """What a trial would measure, and what is predicted for it (`recommend.table`; empty where nothing is priced)."""

    profile: Profile
    predicted: pd.DataFrame
    notes: list[str]


def _kind() -> str:
    return "GPU" if machine.count_gpus() else "CPU"


def architecture(name: str) -> str:
    """What a parrot takes: a shape's name, a path to a config.json, or a hub id, whose config.json is fetched unless it is
    a shape's (`meta-llama/Llama-3.1-8B-Instruct`: Llama-3.1-8B). Raises AdviceError."""
    short = name.rpartition("/")[2].lower()
    found = [s for s in shapes.SHAPES if name == s or re.match(re.escape(s.lower()) + r"(?![\w.])", short)]
    if found or name.endswith(".json"):
        return max(found, key=len) if found else name
    try:
        from huggingface_hub import hf_hub_download

        return hf_hub_download(name, "config.json")
    except Exception as error:  # no network, no such id, no right to read it
        raise AdviceError(
            f"model must be one of {', '.join(shapes.SHAPES)}, a path to a config.json or a hub id whose config can be "
            f"read, got {name!r} ({type(error).__name__})"
        ) from None


def _profile(name: str, model: dict, concurrency: Sequence[int] | None, base: str | None, **values) -> Profile:
    """The engine of profile `base` (default: h200 on a GPU, cpu without one) with everything else of its own."""
    held = profiles.load(base or {"GPU": "h200", "CPU": "cpu"}[_kind()])
    loads = list(concurrency or CONCURRENCY[_kind()])
    engine = held.engine | {"max_num_seqs": max(loads), "max_model_len": values.pop("max_model_len")}
    safe = re.sub(r"[^\w.-]+", "-", name)
    given = {
        "profile": safe,
        "model": model,
        "engine": engine,
        "env": held.env,
        "threads": held.threads,
        "concurrency": loads,
    }
    return profiles.validate({k: v for k, v in (given | values).items() if v is not None}, safe)


def plan_of(
    log: Path, *, model: str, settings: Iterable[str] | None = None, concurrency: Sequence[int] | None = None,
    real: bool = False, tokenizer: str | None = None, base: str | None = None, calibration: str | None = None,
) -> Trial:  # fmt: skip
    """What a trial of a log measures: vanilla twice, and `settings` or the two best predicted ones (ngram and suffix where
    nothing is priced). real: the model itself (a hub id, a folder or a packaged model), whose outputs are its own. Raises
    AdviceError, LogError, ProfileError."""
    streams, notes = recommend.read(log, tokenizer)
    loads = [n for n in concurrency or CONCURRENCY[_kind()] if n <= len(streams)]
    if not loads:
        raise AdviceError(
            f"concurrency must hold a number up to {len(streams)}, the log's requests, got {list(concurrency)}"
        )
    source = (calibration,) if calibration else stepcost.PROFILES if _kind() == "GPU" else ()
    predicted, chosen = pd.DataFrame(columns=recommend.COLUMNS), list(settings or ())
    if source:
        try:
            priced = recommend.model_of(model, source)
            menu, left_out = recommend.candidates(chosen or None, priced, source)
            predicted = recommend.table(streams, menu, priced, loads, source)
            notes += left_out
        except AdviceError as error:
            notes.append(f"Nothing is predicted: {error}.")
    if not chosen:
        saved = (
            np.log(predicted[predicted.setting != "vanilla"].speedup.astype(float)).groupby(predicted.setting).mean()
        )
        chosen = list(saved.nlargest(2).index) or ["ngram", "suffix"]
    prompts, answers = (
        [f(s) for s in streams] for f in (lambda s: len(s.prompt_token_ids), lambda s: s.num_output_tokens)
    )
    asked: dict = {"source": "parrot", "name": architecture(model)}
    if real:
        kind = "packaged" if model in weights.PACKAGED else "folder" if Path(model).is_dir() else "hub"
        asked = {"source": kind, "name": model}
    made = _profile(
        f"trial-{Path(log).stem}-{Path(model).stem}", asked, loads, base,
        max_model_len=max(prompts) + 2 * max(answers) + DRAFTED, settings=["vanilla", *chosen], repeats={"vanilla": 2},
        answers="model" if real else "recorded", workloads=["jsonl"], log=str(Path(log).resolve()),
        num_prompts={n: min(len(streams), max(8, 4 * n)) for n in loads}, seeds=[0], input_tokens=max(prompts),
        output_tokens=max(answers),
    )  # fmt: skip
    return Trial(made, predicted, notes)


def calibration_of(model: str, *, concurrency: Sequence[int] | None = None, base: str | None = None) -> Profile:
    """What the step cost of an architecture is fitted on: recorded texts, vanilla twice, ngram and suffix."""
    loads = list(concurrency or CALIBRATED[_kind()])
    return _profile(
        f"calibrate-{Path(model).stem}", {"source": "parrot", "name": architecture(model)}, loads, base,
        max_model_len=512 + 2 * 256 + DRAFTED, settings=["vanilla", "ngram", "suffix"], repeats={"vanilla": 2},
        answers="recorded", workloads=["edit", "chat", "code"], num_prompts={n: max(8, 2 * n) for n in loads}, seeds=[0],
        input_tokens=512, output_tokens=256,
    )  # fmt: skip


def run(p: Profile) -> results.Tables:
    """Measure what is missing of a profile; its tables. Raises what `engines.run` raises."""
    store = engines.run(plan.runs(p), p)
    asked = {r.plan_id for r in plan.runs(p)}
    return table.frames(pair for pair in table.all_of(store) if pair[0].run.plan_id in asked)


def outcome(tables: results.Tables, predicted: pd.DataFrame) -> pd.DataFrame:
    """Predicted beside measured, one row a setting and concurrency: `predicted`, `ratio` with `low`, `high`, `aa` (A/A
    variability), `tokens_per_step` and a verdict that counts what equal engines differ by."""
    runs, rows = tables.runs, []
    good = runs[runs.status == "ok"]
    for name in [s for s in dict.fromkeys(good.setting) if s != "vanilla"] if "vanilla" in set(good.setting) else ():
        found = results.compare(runs, name, by=["concurrency"], requests=tables.requests)
        rows.append(found.assign(setting=name))
    if not rows:
        return pd.DataFrame(columns=["setting", "concurrency", "predicted", "ratio", "low", "high", "aa", "verdict"])
    made = pd.concat(rows, ignore_index=True)
    steps = good.groupby(["setting", "concurrency"]).tokens_per_step.mean()
    made = made.join(steps, on=["setting", "concurrency"])
    made = made.merge(predicted[["setting", "concurrency", "speedup"]].rename(columns={"speedup": "predicted"}), "left")
    aa = made.aa.fillna(0)
    made["verdict"] = np.select(
        [made.low > 1 + aa, made.high < 1 - aa], [recommend.PAYS, recommend.SLOWER], recommend.SAME
    )
    columns = ["setting", "concurrency", "predicted", "ratio", "low", "high", "aa", "tokens_per_step", "verdict"]
    return made[columns].sort_values(["setting", "concurrency"], ignore_index=True)
