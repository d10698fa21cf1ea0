"""What an engine step costs: a linear model, fitted on measured runs of parrots, so that a replay's steps become time.

    wall = sum over steps of [constant + another where drafts are verified + verified tokens (hinges) + context]
         + sum over steps that read a prompt of [constant + all their tokens] + running requests

The steps of a run come from its replay, whose counts equal the engine's. Coefficients are not negative and minimise the
relative error of whole runs' walls (Lawson and Hanson, non-negative least squares).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from lib import results
from lib.answer import parrot_replay
from lib.results.run import Run

PROFILES = ("h200", "h200-sizes")
HINGES = (64, 256, 512)  # verified tokens from which a further one may cost more: arithmetic, then no graph
NAMES = (
    "steps", "drafting steps", "verified", *(f"verified above {h}" for h in HINGES), "context", "mixed steps",
    "mixed tokens", "running",
)  # fmt: skip
_PLAIN, _ENOUGH = ("steps", "verified", "mixed steps", "mixed tokens"), 12  # terms, and runs for all of NAMES
KEY = ["setting", "workload", "concurrency"]


def features(steps: Mapping[str, np.ndarray]) -> np.ndarray:
    """Sums over a replay's steps, in the order of NAMES; context in thousands of tokens."""
    running, prompt = (np.asarray(steps[n], float) for n in ("running", "prompt_tokens"))
    verified, mixed = running + np.asarray(steps["draft_tokens"], float), prompt > 0
    decode = verified[~mixed]
    above = [np.maximum(0, decode - hinge).sum() for hinge in HINGES]
    context = np.asarray(steps["context_tokens"], float).sum() / 1000
    mixed_tokens = (verified + prompt)[mixed].sum()
    drafting = (np.asarray(steps["draft_tokens"]) > 0)[~mixed].sum()
    return np.array([len(decode), drafting, decode.sum(), *above, context, mixed.sum(), mixed_tokens, running.sum()])


class StepCost(NamedTuple):
    """Seconds a unit of each of NAMES for one model and runner, and the range that it was fitted on."""

    model: str
    billions: float
    seconds: np.ndarray
    num_runs: int
    most_concurrency: int
    most_verified: int  # tokens verified in a step that decodes only
    most_context: float  # tokens of a running request, the mean of a run
    error: float  # the largest of `held_out`; NaN with one text

    def wall_s(self, steps: Mapping[str, np.ndarray]) -> float:
        return float(features(steps) @ self.seconds)


def replayed(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` of parrots with, of their replays, `features`, `verified` (tokens of the largest step) and `context` (mean
    tokens of a running request)."""
    made: dict[tuple, tuple[np.ndarray, int, float]] = {}
    rows = []
    for row in runs.itertuples():
        run = Run.model_validate_json(row.run)
        # repeats answer the same requests with the same drafts
        key = (row.setting, row.model, row.workload, row.concurrency, row.num_prompts, row.seed)
        if key not in made:
            limits = {"runner": row.resolved_runner, "block_size": int(row.resolved_block_size)}
            steps = parrot_replay.replay_of(run, parrot_replay.simulation_of(run, **limits)).steps
            context = steps["context_tokens"].sum() / max(steps["running"].sum(), 1)
            made[key] = features(steps), int((steps["running"] + steps["draft_tokens"]).max()), context
        rows.append(made[key])
    names = ("features", "verified", "context")
    return runs.assign(**{name: [row[i] for row in rows] for i, name in enumerate(names)})


def solve(runs: pd.DataFrame) -> np.ndarray:
    """Coefficients [len(NAMES)] from runs with `features` and `wall_s`; few runs bear only the plain terms."""
    walls, made = runs.wall_s.to_numpy(), np.zeros(len(NAMES))
    used = [i for i, name in enumerate(NAMES) if len(runs) >= _ENOUGH or name in _PLAIN]
    made[used] = nnls(np.stack(list(runs.features))[:, used] / walls[:, None], np.ones(len(walls)))[0]
    return made


def speedups(runs: pd.DataFrame, seconds: np.ndarray) -> pd.DataFrame:
    """Predicted and measured walls of vanilla over those of each setting, by KEY."""
    both = runs.assign(predicted=np.stack(list(runs.features)) @ seconds)
    mean = both.groupby(KEY)[["predicted", "wall_s"]].mean()
    base = mean.loc["vanilla"] if "vanilla" in mean.index else mean.iloc[:0].droplevel(0)
    tests = mean.drop("vanilla", errors="ignore").reset_index("setting")
    tests = tests[tests.index.isin(base.index)]
    ratios = base.loc[tests.index] / tests[["predicted", "wall_s"]]
    return ratios.rename(columns={"wall_s": "measured"}).assign(setting=tests.setting)


def held_out(runs: pd.DataFrame) -> pd.DataFrame:
    """Each text predicted by a fit on the other texts: `speedups`, or walls where there is no vanilla on this runner."""
    texts = sorted(set(runs.workload))
    parts = [pd.DataFrame(columns=["predicted", "measured", "setting"])]
    for text in texts if len(texts) > 1 else ():
        own, seconds = runs[runs.workload == text], solve(runs[runs.workload != text])
        if "vanilla" in set(runs.setting):
            parts.append(speedups(own, seconds))
        else:
            walls = own.assign(predicted=np.stack(list(own.features)) @ seconds, measured=own.wall_s)
            parts.append(walls.set_index(["workload", "concurrency"])[["predicted", "measured", "setting"]])
    return pd.concat(parts[1:] or parts)


@cache
def _tables() -> pd.DataFrame:
    """Every verbatim greedy run of a parrot, memory-less drafters only: a remembering one replays with its history."""
    runs = pd.concat([results.load(profile) for profile in PROFILES], ignore_index=True)
    runs = runs[(runs.status == "ok") & runs.verbatim.eq(True) & (runs.temperature == 0)]
    return runs[runs.suffix_cache.isna() | (runs.suffix_cache == "off")]


def models() -> dict[str, float]:
    """The measured models by billions of parameters, smallest first."""
    return (_tables().groupby("model").resolved_num_parameters.first() / 1e9).sort_values().to_dict()


@cache
def measured(model: str, runner: str = "V2") -> pd.DataFrame:
    """The runs of a model on a runner, `replayed`; of the session with most of them."""
    runs = _tables().query("model == @model and resolved_runner == @runner")
    return replayed(runs[runs.session == runs.session.mode().iloc[0]]) if len(runs) else runs


@cache
def cost(model: str, runner: str = "V2") -> StepCost | None:
    """The step cost of a measured model; None where it has no runs on this runner. V1 (suffix) borrows nothing from V2."""
    runs = measured(model, runner)
    if not len(runs):
        return None
    found = held_out(runs)
    error = (found.predicted / found.measured - 1).abs().max() if len(found) else float("nan")
    return StepCost(
        model,
        models()[model],
        solve(runs),
        len(runs),
        int(runs.concurrency.max()),
        int(runs.verified.max()),
        float(runs.context.max()),
        float(error),
    )
