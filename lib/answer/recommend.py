"""Which setting pays for a reader's own requests: their drafts replayed exactly, their steps priced by a measured model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib import results
from lib.answer import stepcost
from lib.answer.replay import Replayed, Simulation, Stream, stream
from lib.measure import requestlog, weights
from lib.results import settings as menu
from lib.results.run import Model, Speculative
from lib.results.settings import nearest

CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BUDGET = 8192  # max_num_batched_tokens of the measured engines
COLUMNS = ["setting", "concurrency", "speedup", "low", "high", "tokens_per_step", "tok_s", "ms_per_token", "verdict"]
PAYS, SLOWER, SAME = "use", "don't", "unclear"


class AdviceError(ValueError):
    """One sentence: the field, what it got and what it must be."""


class Advice(NamedTuple):
    """The answer, the table behind it, and what a reader must know about both."""

    sentence: str
    table: pd.DataFrame  # one row a setting and concurrency, COLUMNS
    flags: dict[str, str]  # of the settings that the sentence names
    notes: list[str]


def runner_of(speculative: Speculative, env: Mapping[str, str]) -> str:
    """The runner that vLLM 0.33 gives a drafter: V2 for ngram, unless a variable forces V1; V1 for all others."""
    forced = env.get("VLLM_USE_V2_MODEL_RUNNER") == "0"
    return "V2" if speculative.method == "ngram" and not forced else "V1"


def candidates(names: Iterable[str] | None, model: str) -> tuple[dict[str, menu.Setting], list[str]]:
    """Settings of the menu that can be judged for a model, and one note for each asked one that cannot."""
    known, kept, notes = menu.menu(), {}, []
    for name in names or known:
        if name not in known:
            raise AdviceError(f"settings must be among {', '.join(known)}, got {name!r}{nearest(name, known)}")
        config, extra = (
            known[name].arguments.get("speculative_config"),
            set(known[name].arguments) - {"speculative_config"},
        )
        if not config:
            continue
        speculative = Speculative.model_validate(config)
        if speculative.method not in ("ngram", "suffix") or known[name].suffix_cache in ("cold", "warm"):
            why = "needs more than the tokens of a log"
        elif extra:
            why = f"also sets {', '.join(sorted(extra))}, whose cost is not measured"
        elif stepcost.cost(model, runner_of(speculative, known[name].env)) is None or known[name].env:
            why = f"has no measured step cost on {model}"
        else:
            kept[name] = known[name]
            continue
        if names:
            notes.append(f"{name} is left out: it {why}.")
    if not kept:
        raise AdviceError(f"settings must name one that can be judged for {model}; {' '.join(notes) or 'none can'}")
    return kept, notes


def _replay(speculative: Speculative | None, runner: str, streams: Sequence[Stream], concurrency: int) -> Replayed:
    simulation = Simulation(
        speculative, max_num_seqs=concurrency, max_num_batched_tokens=BUDGET, runner=runner, block_size=16
    )
    return simulation.run(streams)


def _row(done: Replayed, wall_s: float, concurrency: int) -> dict[str, float]:
    tokens, steps = done.counters.num_output_tokens, done.counters.num_request_steps
    busy = min(concurrency, len(done.requests["number"]))  # requests in flight but at the end
    return {"tokens_per_step": tokens / steps, "tok_s": tokens / wall_s, "ms_per_token": 1000 * wall_s * busy / tokens}


def table(
    streams: Sequence[Stream], chosen: Mapping[str, menu.Setting], model: str, concurrency: Sequence[int]
) -> pd.DataFrame:
    """Speedup over vanilla, one row a setting and concurrency. low, high: what the step cost's error on a text that it
    had not seen leaves open, or the A/A variability where that is larger."""
    base_cost = stepcost.cost(model, "V2")
    floors = results.variability(stepcost.measured(model, "V2")).aa
    rows = []
    for number in concurrency:
        base = _replay(None, "V2", streams, number)
        base_s = base_cost.wall_s(base.steps)
        rows.append({"setting": "vanilla", "concurrency": number, "speedup": 1.0} | _row(base, base_s, number))
        for name, setting in chosen.items():
            speculative = Speculative.model_validate(setting.arguments["speculative_config"])
            runner = runner_of(speculative, setting.env)
            cost = stepcost.cost(model, runner)
            if number * (1 + speculative.num_speculative_tokens) > cost.most_verified and runner == "V2":
                continue  # more to verify in a step than was measured; suffix seldom drafts so much
            done = _replay(speculative, runner, streams, number)
            wall_s = cost.wall_s(done.steps)
            open_ = float(np.nanmax([cost.error, base_cost.error if runner == "V1" else 0, floors.max()]))
            ratio = base_s / wall_s
            low, high = ratio / (1 + open_), ratio * (1 + open_)
            verdict = PAYS if low > 1 else SLOWER if high < 1 else SAME
            rows.append(
                {"setting": name, "concurrency": number, "speedup": ratio, "low": low, "high": high, "verdict": verdict}
                | _row(done, wall_s, number)
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def sentence(found: pd.DataFrame) -> tuple[str, list[str]]:
    """`Up to N requests in flight use X; beyond that leave speculation off`, and the setting that it names: of those that
    pay, the one that saves most over all loads."""
    good = found[found.verdict == PAYS]
    loads = sorted(set(found.concurrency))
    if good.empty:
        return f"Leave speculation off: nothing pays with {loads[0]} to {loads[-1]} requests in flight.", []
    name = str(np.log(good.speedup).groupby(good.setting).sum().idxmax())
    where = sorted(good[good.setting == name].concurrency)
    off = [n for n in loads if n not in where]
    if where == loads[: len(where)]:
        beyond = f"; with {off[0]} and more leave speculation off" if off else ", as far as log and measurements go"
        return (
            f"Up to {where[-1]} request{'s' if where[-1] > 1 else ''} in flight use {results.label(name)}{beyond}.",
            [name],
        )
    return (
        f"Use {results.label(name)} with {', '.join(map(str, where))} requests in flight, not with {', '.join(map(str, off))}.",
        [name],
    )


def flags(setting: menu.Setting, model: str = "MODEL") -> str:
    """The command that serves with a setting."""
    parts = [f"{key}={shlex.quote(value)}" for key, value in setting.env.items()] + [
        "vllm",
        "serve",
        shlex.quote(model),
    ]
    for key, value in setting.arguments.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        parts += [f"--{key.replace('_', '-')}", shlex.quote(text)]
    return " ".join(parts)


def answer(
    log: Path | str,
    *,
    model: str = "Llama-3.1-8B",
    concurrency: Sequence[int] | None = None,
    settings: Iterable[str] | None = None,
    tokenizer: str | None = None,
) -> Advice:
    """The advice for a JSONL request log (`requestlog`) served by a measured model; its text goes through
    `tokenizer` (a folder or hub id; SmolLM2's by default). Raises AdviceError, LogError.

    No verdict beyond what was measured: more requests in flight, or far longer contexts, than the model's runs had; none
    where the log holds fewer requests than are in flight.
    """
    known = stepcost.models()
    if model not in known:
        raise AdviceError(
            f"model must be one that was measured, {', '.join(known)}, got {model!r}{nearest(model, known)}"
        )
    if requestlog.holds_text(Path(log)):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokenizer or weights.locate(Model()))
    held = requestlog.read(log, tokenizer, vocab_size=1 << 31)
    streams = [stream(pair.prompt, pair.output) for pair in held.requests]
    chosen, notes = candidates(settings, model)
    cost, notes = stepcost.cost(model, "V2"), [*held.notes, *notes]
    asked = [n for n in concurrency or CONCURRENCY if n <= min(cost.most_concurrency, len(streams))]
    if left := [n for n in concurrency or () if n not in asked]:
        most = min(cost.most_concurrency, len(streams))
        notes.append(f"No verdict for {', '.join(map(str, left))} in flight: at most {most} for this log and model.")
    if not asked:
        raise AdviceError(
            f"concurrency must hold a number up to {min(cost.most_concurrency, len(streams))}, got {left}"
        )
    context = float(np.mean([len(s.prompt_token_ids) + s.num_output_tokens / 2 for s in streams]))
    if context > 2 * cost.most_context:
        raise AdviceError(
            f"log must have a mean context up to {2 * cost.most_context:.0f} tokens, twice what was measured, got {context:.0f}"
        )
    repeated = len(streams) - len({(s.prompt_token_ids.tobytes(), s.output_token_ids.tobytes()) for s in streams})
    if repeated:
        notes.append(f"{repeated} of {len(streams)} requests repeat another one.")
    found = table(streams, chosen, model, asked)
    told, named = sentence(found)
    if any(
        runner_of(Speculative.model_validate(s.arguments["speculative_config"]), s.env) == "V1" for s in chosen.values()
    ):
        notes.append(
            "suffix runs on vLLM's runner V1, whose steps the host paces: expect another ratio on another processor."
        )
    seen = set().union(*(stepcost.measured(model, runner).setting for runner in ("V1", "V2")))
    notes += [
        f"{results.label(n)} was not measured on {model}: its drafts are replayed, its steps priced."
        for n in named
        if n not in seen
    ]
    if any("suffix" in chosen[name].arguments["speculative_config"]["method"] for name in named):
        notes.append("suffix needs the package arctic-inference.")
    return Advice(told, found, {name: flags(chosen[name]) for name in named}, notes)
