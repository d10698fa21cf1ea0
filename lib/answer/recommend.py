"""Which setting pays for a reader's own requests: their drafts replayed exactly, their steps priced by a measured model."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib import results
from lib.answer import stepcost
from lib.answer.replay import Replayed, Simulation, Stream, stream
from lib.answer.stepcost import PROFILES
from lib.measure import requestlog, weights
from lib.results import settings as menu
from lib.results import stats
from lib.results.run import Model, Speculative
from lib.results.settings import nearest

CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BUDGET = 8192  # max_num_batched_tokens of the measured engines
COLUMNS = ["setting", "concurrency", "speedup", "low", "high", "tokens_per_step", "tok_s", "ms_per_token", "verdict"]
PAYS, SLOWER, SAME = "use", "don't", "unclear"
# Requests by their tokens per step; a model's time is best spent by serving kinds that differ apart.
KINDS = {"drafts rarely right": (0, 1.25), "some drafts right": (1.25, 2), "mostly copied": (2, np.inf)}


class AdviceError(ValueError):
    """One sentence: the field, what it got and what it must be."""


class Advice(NamedTuple):
    """The answer, the tables behind it, and what a reader must know about them."""

    sentence: str
    table: pd.DataFrame  # one row a setting and concurrency, COLUMNS
    flags: dict[str, str]  # of the settings that the sentence names
    notes: list[str]
    kinds: pd.DataFrame  # one row a kind of request: share of requests and of tokens, tokens per step
    rate: pd.DataFrame  # one row a setting: requests in flight and ms per token at the asked rate; empty without one


def runner_of(setting: menu.Setting, profiles: tuple[str, ...] = PROFILES) -> str:
    """The runner that vLLM 0.33 gives a drafter: V2 for ngram, unless a variable forces V1; V1 for all others, and for all
    where the profiles were measured on nothing else (a CPU)."""
    forced = setting.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0" or stepcost.plain_runner(profiles) == "V1"
    return "V2" if setting.speculative.method == "ngram" and not forced else "V1"


def model_of(name: str, profiles: tuple[str, ...] = PROFILES) -> str | float:
    """The measured model that a name means (`meta-llama/Llama-3.1-8B-Instruct`: Llama-3.1-8B), or its size in billions.
    Raises AdviceError."""
    known = stepcost.models(profiles=profiles)
    short = name.rpartition("/")[2].lower()
    for measured in sorted(known, key=len, reverse=True):
        if re.match(re.escape(measured.rpartition("/")[2].removesuffix(".json").lower()) + r"(?!\w|\.\d)", short):
            return measured
    size = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", short)
    if size and not re.search(r"\d+x\d|[-_]a\d", short) and stepcost.cost(float(size[1]), profiles=profiles):
        return float(size[1])
    sizes = [f"{billions:.1f}B" for billions in known.values()]
    raise AdviceError(
        f"model must be one that was measured, {', '.join(known)}, or a dense one whose name holds a size between "
        f"{sizes[0]} and {sizes[-1]}, got {name!r}{nearest(name, known)}"
    )


def candidates(
    names: Iterable[str] | None, model: str | float, profiles: tuple[str, ...] = PROFILES
) -> tuple[dict[str, menu.Setting], list[str]]:
    """Settings of the menu that can be judged for a model, and one note for each asked one that cannot."""
    known, kept, notes = menu.menu(), {}, []
    for name in names or known:
        if name not in known:
            raise AdviceError(f"settings must be among {', '.join(known)}, got {name!r}{nearest(name, known)}")
        setting, extra = known[name], set(known[name].arguments) - {"speculative_config"}
        if not setting.speculative:
            continue
        if setting.speculative.method not in ("ngram", "suffix") or setting.suffix_cache in ("cold", "warm"):
            why = "needs more than the tokens of a log"
        elif extra:
            why = f"also sets {', '.join(sorted(extra))}, whose cost is not measured"
        elif setting.env or stepcost.cost(model, runner_of(setting, profiles), profiles) is None:
            why = f"has no measured step cost on {model}"
        else:
            kept[name] = setting
            continue
        if names:
            notes.append(f"{name} is left out: it {why}.")
    if not kept:
        raise AdviceError(f"settings must name one that can be judged for {model}; {' '.join(notes) or 'none can'}")
    return kept, notes


def replayed(speculative: Speculative | None, runner: str, streams: Sequence[Stream], concurrency: int) -> Replayed:
    """The replay of a log on the measured engines' limits, `concurrency` requests in flight; None: vanilla."""
    simulation = Simulation(
        speculative, max_num_seqs=concurrency, max_num_batched_tokens=BUDGET, runner=runner, block_size=16
    )
    return simulation.run(streams)


def _row(done: Replayed, wall_s: float, concurrency: int) -> dict[str, float]:
    tokens, steps = done.counters.num_output_tokens, done.counters.num_request_steps
    busy = min(concurrency, len(done.requests["number"]))  # requests in flight but at the end
    return {"tokens_per_step": tokens / steps, "tok_s": tokens / wall_s, "ms_per_token": 1000 * wall_s * busy / tokens}


def table(
    streams: Sequence[Stream],
    chosen: Mapping[str, menu.Setting],
    model: str | float,
    concurrency: Sequence[int],
    profiles: tuple[str, ...] = PROFILES,
) -> pd.DataFrame:
    """Speedup over vanilla, one row a setting and concurrency. low, high: what remains open: the step cost's error on what
    it had not seen, or the A/A variability where that is larger, and the spread of the log's own requests (bootstrap)."""
    base_cost = stepcost.cost(model, profiles=profiles)
    rows, spreads = [], {}
    for number in concurrency:
        base = replayed(None, stepcost.plain_runner(profiles), streams, number)
        base_s = base_cost.wall_s(base.steps)
        rows.append({"setting": "vanilla", "concurrency": number, "speedup": 1.0} | _row(base, base_s, number))
        for name, setting in chosen.items():
            runner, speculative = runner_of(setting, profiles), setting.speculative
            cost = stepcost.cost(model, runner, profiles)
            if number * (1 + speculative.num_speculative_tokens) > cost.most_verified and runner == "V2":
                continue  # more to verify in a step than was measured; suffix seldom drafts so much
            done = replayed(speculative, runner, streams, number)
            if name not in spreads:
                found = stats.bootstrap([_per_request(done).to_numpy()], lambda sums: sums[..., 0] / sums[..., 1])
                spreads[name] = found.low / found.value, found.high / found.value
            wall_s = cost.wall_s(done.steps)
            open_ = 1 + max(cost.open(number), base_cost.open(number))
            ratio = base_s / wall_s
            low, high = ratio * spreads[name][0] / open_, ratio * spreads[name][1] * open_
            verdict = PAYS if low > 1 else SLOWER if high < 1 else SAME
            rows.append(
                {"setting": name, "concurrency": number, "speedup": ratio, "low": low, "high": high, "verdict": verdict}
                | _row(done, wall_s, number)
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _per_request(done: Replayed) -> pd.DataFrame:
    """Output tokens and steps of each request, in the log's order."""
    made = pd.DataFrame(done.requests).set_index("number").sort_index()
    return made[["num_output_tokens", "num_steps"]]


def kinds(streams: Sequence[Stream], setting: menu.Setting) -> pd.DataFrame:
    """How much of a log each of KINDS is: `requests`, `share` of them, `token_share`, `tokens_per_step` under a setting."""
    made = _per_request(replayed(setting.speculative, runner_of(setting), streams, 1))
    edges = [low for low, _ in KINDS.values()] + [np.inf]
    kind = pd.cut(made.num_output_tokens / made.num_steps, edges, right=False, labels=list(KINDS))
    sums = made.groupby(kind, observed=True).agg(
        requests=("num_steps", "size"), tokens=("num_output_tokens", "sum"), steps=("num_steps", "sum")
    )
    return pd.DataFrame({
        "requests": sums.requests, "share": sums.requests / len(made), "token_share": sums.tokens / sums.tokens.sum(),
        "tokens_per_step": sums.tokens / sums.steps,
    }).rename_axis("kind").reset_index()  # fmt: skip


def at_rate(found: pd.DataFrame, rate: float, num_tokens: float) -> pd.DataFrame:
    """What each setting needs for `rate` requests a second of `num_tokens` output tokens (mean): `in_flight` by Little's
    law, `ms_per_token`, and `speedup`, `low`, `high` in time per token over vanilla at its own load; NaN in flight where
    the setting cannot serve so much. Between measured loads, throughput is interpolated on logarithmic scales."""
    rows = []
    for name, own in found.groupby("setting", sort=False):
        own, wanted = own.sort_values("concurrency"), rate * num_tokens
        most = own.tok_s.cummax()
        if wanted > most.iloc[-1]:
            rows.append({"setting": name, "most_rate": most.iloc[-1] / num_tokens})
            continue
        # a busy engine has one request at a time or more; below that it idles between requests
        flight = np.exp(np.interp(np.log(max(wanted, own.tok_s.iloc[0])), np.log(most), np.log(own.concurrency)))
        at = {
            c: np.interp(np.log(flight), np.log(own.concurrency), own[c])
            for c in ("ms_per_token", "speedup", "low", "high")
        }
        ms = at["ms_per_token"]
        rows.append({
            "setting": name, "in_flight": wanted * ms / 1000, "ms_per_token": ms, "most_rate": most.iloc[-1] / num_tokens,
            "low": at["low"] / at["speedup"], "high": at["high"] / at["speedup"],
        })  # fmt: skip
    made = pd.DataFrame(rows, columns=["setting", "in_flight", "ms_per_token", "most_rate", "low", "high"])
    made["speedup"] = made.loc[made.setting == "vanilla", "ms_per_token"].iloc[0] / made.ms_per_token
    return made.assign(low=made.low * made.speedup, high=made.high * made.speedup)


def sentence(found: pd.DataFrame, measured: Iterable[str] = ()) -> tuple[str, list[str]]:
    """`Up to N requests in flight use X; beyond that leave speculation off`, and the setting that it names: of those that
    pay, the one that saves most over all loads; a `measured` one if it is within 5 % of that."""
    good = found[found.verdict == PAYS]
    loads = sorted(set(found.concurrency))
    if good.empty:
        return f"Leave speculation off: nothing pays with {loads[0]} to {loads[-1]} requests in flight.", []
    saved = np.log(good.speedup).groupby(good.setting).sum().sort_values(ascending=False)
    near = [name for name in saved[saved > saved.iloc[0] - 0.05 * len(loads)].index if name in set(measured)]
    name = (near or [saved.index[0]])[0]
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


def rate_sentence(loads: pd.DataFrame, rate: float) -> tuple[str, list[str]]:
    """What to use at a request rate, and the setting that it names: of those that surely lower the time per token the one
    that lowers it most, or the one that serves what vanilla cannot."""
    can = loads.dropna(subset="in_flight").sort_values("ms_per_token")
    if can.empty:
        best = loads.loc[loads.most_rate.idxmax()]
        most = f"at most {best.most_rate:.3g} with {results.label(best.setting)}, as far as log and measurements go"
        return f"No setting serves {rate:g} requests a second: {most}.", []
    plain, good = can[can.setting == "vanilla"], can[(can.setting != "vanilla") & (can.low.isna() | (can.low > 1))]
    if good.empty:
        return f"At {rate:g} requests a second leave speculation off.", []
    best = good.iloc[0]
    with_ = f"{best.ms_per_token:.1f} ms a token with {best.in_flight:.0f} in flight"
    without = (
        f"{plain.ms_per_token.iloc[0]:.1f} ms with {plain.in_flight.iloc[0]:.0f} without it"
        if len(plain)
        else f"which vanilla cannot serve: at most {loads.set_index('setting').most_rate['vanilla']:.3g}"
    )
    return f"At {rate:g} requests a second use {results.label(best.setting)}: {with_}, {without}.", [best.setting]


def overview(found: pd.DataFrame) -> pd.DataFrame:
    """A table to read: one row a load, the speedup and verdict of each setting, and vanilla's ms per token."""
    plain = found[found.setting == "vanilla"].set_index("concurrency").ms_per_token.round(1).rename("vanilla, ms/token")
    said = found[found.setting != "vanilla"].assign(said=lambda t: t.speedup.map("{:.2f} ".format) + t.verdict)
    wide = said.pivot(index="concurrency", columns="setting", values="said")[list(dict.fromkeys(said.setting))]
    return wide.join(plain).rename_axis("in flight").reset_index()


def flags(setting: menu.Setting, model: str = "MODEL") -> str:
    """The command that serves with a setting."""
    parts = [
        *(f"{key}={shlex.quote(value)}" for key, value in setting.env.items()),
        "vllm",
        "serve",
        shlex.quote(model),
    ]
    for key, value in setting.arguments.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        parts += [f"--{key.replace('_', '-')}", shlex.quote(text)]
    return " ".join(parts)


def read(
    log: Path | str, tokenizer: str | None = None, prompts: Path | str | None = None
) -> tuple[list[Stream], list[str]]:
    """A log's requests as streams, and what its reader must know; text goes through `tokenizer` (a folder or hub id;
    SmolLM2's by default). Raises AdviceError where most of what was decoded is not in the log, LogError."""
    if requestlog.holds_text(Path(log)):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokenizer or weights.locate(Model()))
    held = requestlog.read(log, tokenizer, vocab_size=1 << 31, prompts=prompts)
    if held.missing_share > 0.5:
        lacks = f"{100 * held.missing_share:.0f} % are missing ({' '.join(held.notes)})"
        raise AdviceError(f"log must hold most of the tokens that were decoded, got one of which {lacks}")
    streams = [stream(pair.prompt, pair.output) for pair in held.requests]
    repeated = len(streams) - len({(s.prompt_token_ids.tobytes(), s.output_token_ids.tobytes()) for s in streams})
    return streams, [*held.notes, *([f"{repeated} of {len(streams)} requests repeat another one."] if repeated else [])]


def answer(
    log: Path | str,
    *,
    model: str | None = None,
    concurrency: Sequence[int] | None = None,
    settings: Iterable[str] | None = None,
    tokenizer: str | None = None,
    rate: float | None = None,
    profiles: tuple[str, ...] = PROFILES,
    prompts: Path | str | None = None,
) -> Advice:
    """The advice for a request log (`read`) served by `model` (`model_of`; Llama-3.1-8B by default, or the only one there
    is), its steps priced by the runs of `profiles`; rate: also for so many requests a second (`at_rate`). Raises
    AdviceError, LogError.

    No verdict beyond what was measured: more requests in flight, or far longer contexts, than the model's runs had; none
    where the log holds fewer requests than are in flight.
    """
    model = model or ("Llama-3.1-8B" if profiles == PROFILES else next(iter(stepcost.models(profiles=profiles))))
    priced = model_of(model, profiles)
    (streams, notes), (chosen, left_out) = read(log, tokenizer, prompts), candidates(settings, priced, profiles)
    cost, notes = stepcost.cost(priced, profiles=profiles), [*notes, *left_out]
    most = min(cost.most_concurrency, len(streams))
    asked = [n for n in concurrency or CONCURRENCY if n <= most]
    if left := [n for n in concurrency or () if n > most]:
        notes.append(f"No verdict for {', '.join(map(str, left))} in flight: at most {most} for this log and model.")
    if not asked:
        raise AdviceError(f"concurrency must hold a number up to {most}, got {left}")
    context = float(np.mean([len(s.prompt_token_ids) + s.num_output_tokens / 2 for s in streams]))
    if context > 2 * cost.most_context:
        raise AdviceError(
            f"log must have a mean context up to {2 * cost.most_context:.0f} tokens, twice what was measured, got {context:.0f}"
        )
    found = table(streams, chosen, priced, asked, profiles)
    seen = {s for r in ("V1", "V2") if isinstance(priced, str) for s in stepcost.measured(priced, r, profiles).setting}
    told, named = sentence(found, seen)
    parts = kinds(streams, chosen[named[0]] if named else next(iter(chosen.values())))
    if (parts.token_share > 0.1).sum() > 1:
        share = "; ".join(
            f"{100 * k.token_share:.0f} % {k.kind} ({k.tokens_per_step:.1f} a step)" for k in parts.itertuples()
        )
        notes.append(
            f"The log is mixed, by output tokens: {share}. Kinds that are served apart have answers of their own."
        )
    loads = pd.DataFrame()
    if rate is not None:
        loads = at_rate(found, rate, float(np.mean([s.num_output_tokens for s in streams])))
        told, named = rate_sentence(loads, rate)
    if isinstance(priced, float):
        notes.append(f"{model} was not measured: its step cost is interpolated {cost.model}.")
    elif priced != model:
        notes.append(f"{model} is priced as {priced}.")
    if "V1" in {runner_of(s) for s in chosen.values()}:
        notes.append(
            "suffix runs on vLLM's runner V1, whose steps the host paces: expect another ratio on another processor."
        )
    notes += [
        f"{results.label(n)} was not measured on {priced}: its drafts are replayed, its steps priced."
        for n in named
        if seen and n not in seen
    ]
    if any(chosen[name].speculative.method == "suffix" for name in named):
        notes.append("suffix needs the package arctic-inference.")
    served = "MODEL" if model == priced else model
    return Advice(told, found, {name: flags(chosen[name], served) for name in named}, notes, parts, loads)
