"""What an engine step costs: a linear model, fitted on measured steps of parrots, so that a replay's steps become time.

    wall = sum over steps of [constant + another where drafts are verified + verified tokens (hinges) + context]
         + sum over steps that read a prompt of [constant + all their tokens] + running requests

Each run is cut into windows of equal numbers of steps: within a run contexts grow and requests leave, which tells terms
apart that whole runs cannot. Coefficients are not negative and minimise the relative error of the windows' times (Lawson
and Hanson, non-negative least squares); every run weighs the same. A size between two measured ones has coefficients
between theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from lib import results
from lib.results import records, table

PROFILES = ("h200", "h200-sizes")
HINGES = (64, 256, 512)  # verified tokens from which a further one may cost more: arithmetic, then no graph
NAMES = (
    "steps", "drafting steps", "verified", *(f"verified above {h}" for h in HINGES), "context", "mixed steps",
    "mixed tokens", "running",
)  # fmt: skip
_PLAIN, _ENOUGH = ("steps", "verified", "mixed steps", "mixed tokens"), 11  # terms, and runs for all of NAMES
WINDOWS = 20  # of a run
KEY = ["setting", "workload", "concurrency"]


def features(steps: Mapping[str, np.ndarray]) -> np.ndarray:
    """Sums over steps, in the order of NAMES; context in thousands of tokens."""
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

    model: str  # of an interpolated size: `between A and B`
    billions: float
    seconds: np.ndarray
    num_runs: int
    most_concurrency: int
    most_verified: int  # tokens verified in a step that decodes only
    most_context: float  # tokens of a running request, the mean of a run
    error: (
        float  # the largest on texts, concurrencies and sizes that a fit had not seen; NaN where none can be left out
    )
    aa: Mapping[int, float]  # A/A variability by concurrency

    def wall_s(self, steps: Mapping[str, np.ndarray]) -> float:
        return float(features(steps) @ self.seconds)

    def open(self, concurrency: int) -> float:
        """How far off a predicted time may be: the larger of `error` and the A/A variability at the nearest concurrency."""
        near = min(self.aa, key=lambda c: abs(np.log(c / concurrency)), default=None)
        return float(np.nanmax([self.error, self.aa.get(near, 0.0), 0.0]))


def measured_steps(requests: pd.DataFrame, steps: pd.DataFrame, cached: bool) -> dict[str, np.ndarray]:
    """Of one run's steps: `seconds` and what `features` wants. cached: prompts begin with a parrot's cipher, whose whole
    blocks of 16 the engine did not compute again."""
    ends, number = steps.t_s.to_numpy(), len(steps)
    first, last = (np.searchsorted(ends, t - 1e-6).clip(0, number - 1) for t in
                   (requests.first_token_s.to_numpy(), requests.last_token_s.to_numpy()))  # fmt: skip
    prompt, output = (requests[n].to_numpy(float) for n in ("num_prompt_tokens", "num_output_tokens"))
    new = prompt - 16 * np.ceil((output + 1) / 16) if cached else prompt
    before = np.roll(steps.output_tokens.cumsum() - np.bincount(last, prompt + output, number).cumsum(), 1)
    before[0] = 0
    return {
        "seconds": np.diff(ends, prepend=0.0),
        "running": steps.running.to_numpy(float),
        "draft_tokens": steps.draft_tokens.to_numpy(float),
        "prompt_tokens": np.bincount(first, new, number),
        "context_tokens": np.bincount(first, prompt, number).cumsum() + before,
    }


def windowed(tables: results.Tables, number: int = WINDOWS) -> pd.DataFrame:
    """The tables' runs that have steps, and of each, in `number` windows: `features` [number, len(NAMES)] and `seconds`
    [number]; of the whole run `verified` (tokens of the largest step) and `context` (mean tokens of a running request)."""
    requests, steps = (dict(tuple(t.groupby("run_id"))) for t in tables[1:])
    rows = []
    for run in tables.runs[tables.runs.run_id.isin(steps)].itertuples():
        made = measured_steps(requests[run.run_id], steps[run.run_id], run.answers != "model")
        parts = np.array_split(np.arange(len(made["seconds"])), min(number, len(made["seconds"])))
        cut = [{name: values[part] for name, values in made.items()} for part in parts]
        rows.append({
            "run_id": run.run_id, "features": np.stack([features(part) for part in cut]),
            "seconds": np.array([part["seconds"].sum() for part in cut]),
            "verified": int((made["running"] + made["draft_tokens"]).max()),
            "context": made["context_tokens"].sum() / max(made["running"].sum(), 1),
        })  # fmt: skip
    return tables.runs.merge(pd.DataFrame(rows, columns=["run_id", "features", "seconds", "verified", "context"]))


def solve(runs: pd.DataFrame) -> np.ndarray:
    """Coefficients [len(NAMES)] from runs with `features` and `seconds`; few runs bear only the plain terms."""
    made, told = np.concatenate(list(runs.features)), np.concatenate(list(runs.seconds))
    weight = np.concatenate([np.full(len(s), len(s) ** -0.5) for s in runs.seconds])
    used = [i for i, name in enumerate(NAMES) if len(runs) >= _ENOUGH or name in _PLAIN]
    seconds = np.zeros(len(NAMES))
    seconds[used] = nnls(made[:, used] * (weight / told)[:, None], weight)[0]
    return seconds


def predicted(runs: pd.DataFrame, seconds: np.ndarray) -> pd.DataFrame:
    """Predicted and measured seconds of whole runs, the mean over repeats, by KEY."""
    walls = [
        {"predicted": (f @ seconds).sum(), "measured": s.sum()}
        for f, s in zip(runs.features, runs.seconds, strict=True)
    ]
    return runs[KEY].assign(**pd.DataFrame(walls, index=runs.index)).groupby(KEY).mean()


def speedups(runs: pd.DataFrame, seconds: np.ndarray) -> pd.DataFrame:
    """Predicted and measured speedups over vanilla, by workload and concurrency; seconds where this runner has no vanilla."""
    mean = predicted(runs, seconds)
    tests = mean.drop("vanilla", errors="ignore").reset_index("setting")
    if "vanilla" not in mean.index.get_level_values("setting"):
        return tests
    base = mean.loc["vanilla"]
    tests = tests[tests.index.isin(base.index)]
    return (base.loc[tests.index] / tests[["predicted", "measured"]]).assign(setting=tests.setting)


def held_out(runs: pd.DataFrame, by: str = "workload") -> pd.DataFrame:
    """`speedups` of each text by a fit on the other texts; by `concurrency`, of each one that lies between others."""
    values = sorted(set(runs[by]))
    values = values[1:-1] if by == "concurrency" else values if len(values) > 1 else []
    parts = [speedups(runs[runs[by] == v], solve(runs[runs[by] != v])) for v in values]
    return pd.concat(parts) if parts else pd.DataFrame(columns=["setting", "predicted", "measured"], dtype=float)


def worst(found: pd.DataFrame) -> float:
    """The largest relative error; NaN without any."""
    return float((found.predicted / found.measured - 1).abs().max())


@cache
def _tables(profiles: tuple[str, ...]) -> pd.DataFrame:
    """Every good greedy run of the profiles, `windowed`: committed ones, or those of a profile measured on this machine.
    Memory-less drafters only: a remembering one replays with its history."""
    parts = []
    for name in profiles:
        own = records.Store(records.runs_folder(name) / "records")
        tables = table.read(name) if table.is_published(name) else table.frames(table.all_of(own))
        runs = tables.runs.query("status == 'ok' and temperature == 0")
        runs = runs[runs.verbatim.ne(False) & (runs.suffix_cache.isna() | (runs.suffix_cache == "off"))]
        parts.append(windowed(tables._replace(runs=runs)))
    return pd.concat(parts, ignore_index=True)


@cache
def plain_runner(profiles: tuple[str, ...] = PROFILES) -> str:
    """The runner of the profiles' vanilla engines, meant wherever none is named: V2 on a GPU with vLLM 0.33, V1 on a CPU."""
    return _tables(profiles).query("setting == 'vanilla'").resolved_runner.mode().iloc[0]


def models(runner: str | None = None, profiles: tuple[str, ...] = PROFILES) -> dict[str, float]:
    """The models measured on a runner by billions of parameters, smallest first."""
    runs = _tables(profiles)
    runs = runs[runs.resolved_runner == (runner or plain_runner(profiles))]
    return (runs.groupby("model").resolved_num_parameters.first() / 1e9).sort_values().to_dict()


@cache
def measured(model: str, runner: str | None = None, profiles: tuple[str, ...] = PROFILES) -> pd.DataFrame:
    """The runs of a model on a runner, `windowed`; of the session with most of them."""
    runs = _tables(profiles)
    runs = runs[(runs.model == model) & (runs.resolved_runner == (runner or plain_runner(profiles)))]
    return runs[runs.session == runs.session.mode().iloc[0]] if len(runs) else runs


@cache
def cost(model: str | float, runner: str | None = None, profiles: tuple[str, ...] = PROFILES) -> StepCost | None:
    """The step cost of a measured model, or of a size in billions between two measured ones; None where this runner has no
    runs of it. V1 (suffix) borrows nothing from V2."""
    if not isinstance(model, str):
        return _between(model, runner, profiles)
    runs = measured(model, runner, profiles)
    if not len(runs):
        return None
    spread = results.variability(runs).groupby("concurrency").aa.max()
    return StepCost(
        model, models(runner, profiles)[model], solve(runs), len(runs), int(runs.concurrency.max()),
        int(runs.verified.max()), float(runs.context.max()), worst(pd.concat([held_out(runs), held_out(runs, "concurrency")])),
        spread.to_dict(),
    )  # fmt: skip


def mixed(low: StepCost, high: StepCost, billions: float) -> tuple[np.ndarray, float]:
    """Coefficients of a size between two, linear in the number of parameters, and the share of the larger."""
    share = (billions - low.billions) / (high.billions - low.billions)
    return (1 - share) * low.seconds + share * high.seconds, share


def _between(billions: float, runner: str | None, profiles: tuple[str, ...]) -> StepCost | None:
    """Its error: that of the two sizes, and what the nearer one was off when its own neighbours predicted it, as far as
    this size is from a measured one."""
    held = [cost(name, runner, profiles) for name in models(runner, profiles)]
    pair = next(((a, b) for a, b in zip(held, held[1:], strict=False) if a.billions <= billions <= b.billions), None)
    if pair is None:
        return None
    low, high = pair
    seconds, share = mixed(low, high, billions)
    inner = [three for three in zip(held, held[1:], held[2:], strict=False) if three[1] in pair]
    error = (1 - share) * low.error + share * high.error
    if inner:
        a, b, c = min(inner, key=lambda three: abs(three[1].billions - billions))
        known, middle = mixed(a, c, b.billions)
        off = worst(speedups(measured(b.model, runner, profiles), known))
        error += off * min(1, share * (1 - share) / (middle * (1 - middle)))
    return StepCost(
        f"between {low.model} and {high.model}", billions, seconds, low.num_runs + high.num_runs,
        min(low.most_concurrency, high.most_concurrency), min(low.most_verified, high.most_verified),
        min(low.most_context, high.most_context), error,
        {c: max(p.aa.get(c, 0.0) for p in pair) for p in pair for c in p.aa},
    )  # fmt: skip
