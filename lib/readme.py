"""The README's answer and tables and the upstream report's, computed from committed records, never typed by hand.

`python -m lib readme` rewrites the text between the markers; a test holds the files against the records.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache
from pathlib import Path

import nbformat
import numpy as np

from lib import figures, ladder, metrics, params, records, stats, steptime, sweep
from lib.cells import engine_key
from lib.records import Reader, Record
from lib.stats import Estimate
from lib.table import Published

PATH = records.ROOT / "README.md"
SHOWN = ("ngram", "padded_ngram", "suffix", "padded_suffix", "full")
ORDER = ("h200", "cpu")  # the profile whose records answer, first that has any
CLOSED = "h200-closed"  # the same ladder where a batch thins out towards its end
TURNS = "h200-in-turn"  # engines that took turns, two at a time
SHAPES = ("h200", "h200x2")  # where step times of shapes were measured
BREAK_EVEN_LINE = (
    "Tokens per step that a drafter of 7 tokens must reach to break even, from measured step times (dummy weights but for "
    "the 135M; context 1,000, the 32B 512, the 70B and 72B 256; *: not in the FULL graph, whose largest size is 512 tokens; "
    "†: vanilla and drafts hours apart; x2: two GPUs, bf16). A value above 8 cannot be reached:"
)


@cache
def _committed(profile: str) -> Reader:
    """The committed records of a profile, read once."""
    return Published(records.data_folder(profile))


def measured_profile() -> tuple[params.Profile, list[Record]]:
    """The first profile of ORDER with committed records of the ladder, and those records."""
    for name in ORDER:
        p = params.load(name)
        store = _committed(name)
        held = [r for c in ladder.notebook_cells(p, "04") if (r := store.get(c)) is not None and r.status == "ok"]
        if held:
            return p, held
    raise ValueError(f"no committed record of profiles {', '.join(ORDER)}, allowed: at least one measured ladder")


def _main(p: params.Profile, held: list[Record], setting: str, workload: str | None = None) -> list[Record]:
    found = [r for r in ladder.named(held, setting) if r.cell.batch_size in p.batch_sizes]
    return [r for r in found if workload in (None, r.cell.workload.name)]


def ratios(p: params.Profile, held: list[Record], setting: str) -> dict[str, Estimate]:
    """Throughput over vanilla as shipped, by workload."""
    base = _main(p, held, "vanilla")
    return {w: stats.speedup(tests, base) for w in p.workloads if stats.pair(tests := _main(p, held, setting, w), base)}


def _span(found: dict[str, Estimate]) -> str:
    low, high = (f(found, key=lambda w: found[w].value) for f in (min, max))
    return f"{found[low]} ({low}) to {found[high]} ({high})"


def answer() -> str:
    """The block between the markers: three sentences, the table by workload, the noise floor, what was measured where."""
    p, held = measured_profile()
    by_setting = {s: found for s in SHOWN if (found := ratios(p, held, s))}
    batch, first = p.batch_sizes[0], held[0]
    machine = first.provenance.gpu or first.provenance.cpu
    where = f"{p.model.name}, {p.engine.dtype}, {machine}, vLLM {first.resolved.vllm_version}"
    lines = [f"*{where}; throughput as a multiple of vanilla as shipped, with 95 % intervals.*"]
    lines += [*by_requests(p, held), *_turns(), "", f"With {batch} requests in flight, unless said:", ""]
    sentences = {
        "full": "The published full configuration (suffix 32, PIECEWISE, gpu_memory_utilization 0.80) gives {}.",
        "ngram": "vLLM's own ngram drafter, as of this version, gives {}.",
        "suffix": "vLLM's own suffix drafter, its memory off, gives {}.",
        "padded_ngram": "The same ngram drafts **filled up to the length that the FULL CUDA graph was captured for** give {}.",
    }
    lines += [f"- {text.format(_span(by_setting[s]))}" for s, text in sentences.items() if s in by_setting]
    lines += _later_rounds(p, held) + larger_graphs(p, held) + _wide(p, held) + _closed(p) + departures()
    lines += ["", "| workload | " + " | ".join(figures.label_of(s) for s in by_setting) + " |"]
    lines.append("|---" * (len(by_setting) + 1) + "|")
    for w in p.workloads:
        lines.append(f"| {w} | " + " | ".join(str(found.get(w, "—")) for found in by_setting.values()) + " |")
    requests = sum(len(r.requests) for r in _main(p, held, "ngram"))
    lines += ["", f"n = {requests} requests a setting, {len(p.seeds)} prompt seeds. {noise(p)}"]
    if table := break_evens():
        lines += ["", BREAK_EVEN_LINE, "", *table]
        if own := _own_r(p, held, _committed(p.profile)):
            lines += ["", f"For comparison, {p.model.name} in the ladder itself, first round: {own}. Where the two differ the "
                      f"cause was not found: take a small model's values as uncertain by a factor of two."]  # fmt: skip
    if table := shaped():
        lines += ["", *table]
    return "\n".join(lines)


def by_requests(p: params.Profile, held: list[Record]) -> list[str]:
    """A table of throughput ratios over all workloads and seeds, by requests in flight, with the lowest and the highest
    workload; empty where no other batch size than the profile's was measured on all of them."""
    base = ladder.named(held, "vanilla")
    order = stats.rounds(base)
    found: dict[int, dict[str, list[Record]]] = {}
    for batch in sorted({*p.batch_sizes, *p.wide}):
        for name in (rung for rung in p.rungs if rung != "vanilla"):
            tests = ladder.everywhere(p, held, name, batch)
            if {t.cell.workload.name for t in tests} == set(p.workloads):
                found.setdefault(batch, {})[name] = tests
    if not set(found) - set(p.batch_sizes):
        return []
    shown = [rung for rung in p.rungs if any(rung in row for row in found.values())]
    table = ["| requests | " + " | ".join(figures.label_of(s) for s in shown) + " | identical engines |"]
    table.append("|---" * (len(shown) + 2) + "|")
    full = len(p.workloads) * len(p.seeds)
    for batch, row in found.items():
        entries = []
        for tests in (row.get(s, []) for s in shown):
            by_workload = [[t for t in tests if t.cell.workload.name == w] for w in p.workloads]
            values = [stats.speedup(some, base).value for some in by_workload if some]
            fewer = f", {len(tests)} cells" if len(tests) != full else ""
            entries.append(
                f"{stats.speedup(tests, base)}{figures.round_mark(tests, order)} ({min(values):.2f} to {max(values):.2f}{fewer})"
                if tests
                else "—"
            )
        own = [b for tests in row.values() for t in tests for b in stats.bases_of(t, base)]
        apart = [np.exp(_floor(own, over)) for over in ("batch", "workload")]
        told = "{:.2f} ({:.2f})".format(*apart) if np.isfinite(apart).all() else "—"
        table.append(f"| {batch} | " + " | ".join(entries) + f" | {told} |")
    return ["", f"By requests in flight, over all {len(p.workloads)} workloads and {len(p.seeds)} prompt seeds ({full} engine "
            f"cells an entry unless said; in brackets the lowest and the highest workload; ² and so on: the round, entries with "
            f"different marks are not to be compared; *identical engines*: how many times two identical vanilla engines of a "
            f"round differed, in brackets over one workload's seeds):", "", *table,
            *(["", told] if (told := _over_v1(p, held)) else [])]  # fmt: skip


def _over_v1(p: params.Profile, held: list[Record]) -> str:
    """What an entry's interval leaves out, and padded ngram over vanilla on the runner that it runs on, where one round holds
    both on all workloads; empty without."""
    base, found = ladder.named(held, "vanilla_v1"), []
    for batch in sorted(p.wide):
        tests = stats.beside(ladder.everywhere(p, held, "padded_ngram", batch), base)
        if {t.cell.workload.name for t in tests} == set(p.workloads):
            found.append(f"{stats.speedup(tests, base)} at {batch}")
    text = (
        f"A setting's cells are those of one engine a round, so the intervals do not hold what engines differ by. Vanilla as "
        f"shipped runs on vLLM's runner V2, all of these drafters on V1; over vanilla on V1, in the same round, padded ngram "
        f"gives {', '.join(found)}."
    )
    return text if found else ""


def _turns() -> list[str]:
    """What the profile of engines in turn measured; empty without its records."""
    p, store = params.load(TURNS), _committed(TURNS)
    held = [r for c in ladder.notebook_cells(p, "04") if (r := store.get(c)) is not None and r.status == "ok"]
    return (
        ["", f"Two engines at a time **in turn**, cell by cell (profile `{TURNS}`):", "", *in_turn(p, held, store)]
        if held
        else []
    )


def in_turn(p: params.Profile, held: list[Record], store: Reader) -> list[str]:
    """A table: for each two settings in `p.in_turn` the first one's throughput in multiples of the second's, by requests in
    flight, over all cells and in single ones; then what the cells are, and how many of their steps ran in FULL."""
    batches = sorted({r.cell.batch_size for r in held})
    found = ladder.in_turn(p, held)
    if not found:
        return []
    table = ["| the first over the second | " + " | ".join(map(str, batches)) + " |", "|---" * (len(batches) + 1) + "|"]
    for names, row in found.items():
        entries = [
            f"{row[b].ratio} ({min(row[b].single):.2f} to {max(row[b].single):.2f})" if b in row else "—"
            for b in batches
        ]
        table.append(f"| {' over '.join(map(figures.label_of, names))} | {' | '.join(entries)} |")
    everything = [both for row in found.values() for both in row.values()]
    cells = sorted({len(both.first) for both in everything})
    seeds = len({r.cell.workload.seed for both in everything for r in both.first})
    sizes = []
    for batch in batches:
        walls = [r.wall_s for r in held if r.cell.batch_size == batch]
        sizes.append(f"{p.prompts_at(batch)} of {min(walls):.1f} to {max(walls):.1f} s at {batch}")
    about = ["| setting | runner, scheduling | steps in FULL, by requests |", "|---" * 3 + "|"]
    for name in dict.fromkeys(name for names in found for name in names):
        how = next(r.resolved for r in held if r.cell.setting == name)
        shares = [_full_share(ladder.named(held, name, batch_size=b), store) for b in batches]
        scheduling = "asynchronous" if how.async_scheduling else "synchronous"
        about.append(f"| {figures.label_of(name)} | {how.runner}, {scheduling} | {', '.join(shares)} |")
    return [
        *table, "", f"{' to '.join(map(str, dict.fromkeys((cells[0], cells[-1]))))} engine cells a side and entry, {seeds} "
        f"prompt seed{'s' * (seeds > 1)}; in brackets the lowest and the highest single cell. Prompts and seconds a cell: "
        f"{', '.join(sizes)}.", "", *about,
    ]  # fmt: skip


def _full_share(tests: list[Record], store: Reader) -> str:
    shares = [metrics.graph_mode_shares(store.trace(r)) for r in tests if r.has_trace]
    known = [share for share in shares if share]
    return f"{100 * np.mean([share.get('FULL', 0.0) for share in known]):.0f} %" if known else "not told"


def _floor(bases: list[Record], over: str = "workload") -> float:
    """The noise floor of the vanilla arms among some records; NaN without two."""
    own = list({b.cell_id: b for b in bases}.values())
    arms = [ladder.named(own, "vanilla", repeat=i) for i in sorted({b.cell.engine.repeat for b in own})]
    return stats.noise_floor(arms, over=over, otherwise=float("nan"))


def _by_batch(p: params.Profile, held: list[Record], setting: str) -> str:
    """`1: 4.08 [..] / 3.04 [..] (n = 2), …`: the throughput ratio on each sweep workload at every batch size."""
    parts = []
    for batch in sorted({*p.batch_sizes, *p.batch_sweep}):
        where = [{"workload": w, "batch_size": batch} for w in p.sweep_workloads]
        pairs = [(ladder.swept(p, held, setting, **at), ladder.named(held, "vanilla", **at)) for at in where]
        if all(stats.pair(*both) for both in pairs):
            requests = sum(len(r.requests) for r in pairs[0][0])
            parts.append(
                f"**{batch}**: {' / '.join(str(stats.speedup(*both)) for both in pairs)} (n = {requests} each)"
            )
    return ", ".join(parts)


# What a later round measured again under another name: nearly the same drafts and graphs at the profile's batch size.
AGAIN = {
    "plain_ngram": "ngram drafts (by our drafter, unfilled)",
    "suffix_full_and_piecewise": "suffix at fixed KV blocks",
    "suffix_piecewise": "the same with PIECEWISE",
    "suffix_gmu80": "suffix with gpu_memory_utilization 0.80",
    "padded_ngram_schedule": "padded ngram (as *schedule*, the same drafts at this batch)",
    "padded_ngram_repeat": "padded ngram (filled with the draft's own continuation)",
    "padded_ngram_captured": "padded ngram with graphs captured up to its largest step",
    "padded_ngram_captured_full": "the same with FULL for any step",
    "padded_ngram_captured_schedule": "padded ngram with such graphs, FULL for any step (the same drafts at this batch)",
    "plain_suffix": "suffix drafts of at most 7 tokens (by our drafter, unfilled)",
    "padded_suffix_g32": "suffix drafts filled to 32 tokens (a full batch of them has no graph)",
    "full_gmu_default": "the full configuration at vLLM's own gpu_memory_utilization",
    "padded_ngram_g32": "ngram drafts filled to 32 tokens",
}


def _later_rounds(p: params.Profile, held: list[Record]) -> list[str]:
    """A line a later round of the profile: what it says of the same settings, and how its vanilla compares."""
    rounds, order = (stats.rounds(some) for some in (_main(p, held, "vanilla"), ladder.named(held, "vanilla")))
    first, lines = rounds[0] if rounds else [], []
    for other in rounds[1:]:
        number = stats.round_of(other[0], order) + 1
        if not stats.same_machine(first[0], other[0]):
            continue  # other cores
        pace, spans = [], []
        for w in p.workloads:  # on the prompts that both rounds measured
            asked = [{r.cell.workload for r in members if r.cell.workload.name == w} for members in (first, other)]
            rates = [
                [metrics.throughput_tok_s(r) for r in members if r.cell.workload in asked[0] & asked[1]]
                for members in (first, other)
            ]
            pace += [np.mean(rates[1]) / np.mean(rates[0])] if all(rates) else []
        for name, text in AGAIN.items():
            tests = [r for r in _main(p, held, name) if stats.same_round(r, other[0])]
            by_workload = {w: [r for r in tests if r.cell.workload.name == w] for w in p.workloads}
            found = {w: stats.speedup(t, other) for w, t in by_workload.items() if stats.pair(t, other)}
            spans += [f"{text} {_span(found)}"] if found else []
        if spans and pace:
            lines.append(
                f"- **Round {number}**, {_hours(first[0], other[0])} hours later (the same kind of machine; one engine cell a "
                f"workload of most settings, whose interval holds prompts only): vanilla at {min(pace):.2f} to "
                f"{max(pace):.2f} of the first round's vanilla, and over it {'; '.join(spans)}."
            )
    known = [number for number, members in enumerate(order, 1) if members[0].provenance.machine]
    since = f"from round {known[0]} on only" if known else "in no round"
    told = f"Records tell machines apart {since}; what slowed vanilla was not separated."
    return [*lines[:-1], f"{lines[-1]} {told}"] if lines else []


def larger_graphs(p: params.Profile, held: list[Record]) -> list[str]:
    """Lines: drafts with graphs up to the largest step and FULL for any step, against their own round's vanilla; filled, then
    unfilled."""
    base = ladder.named(held, "vanilla")
    order, lines = stats.rounds(base), []
    batches = sorted({*p.batch_sizes, *p.batch_sweep})
    where = " / ".join(p.sweep_workloads)
    settings = {
        "padded_ngram_captured_full": "- With graphs captured up to the largest step of drafts and FULL for any step "
        "(`max_cudagraph_capture_size`, `cudagraph_mode`), filled drafts",
        "plain_ngram_captured_full": "- With such graphs the same drafts *unfilled* (by our drafter)",
    }
    for name, text in settings.items():
        if tests := stats.beside([r for b in batches for r in ladder.swept(p, held, name, batch_size=b)], base):
            number = stats.round_of(tests[0], order) + 1
            found = _by_batch(p, [*tests, *base], name)
            lines.append(
                f"{text}, round {number}, {where}: {found}; one engine cell each, whose interval holds prompts only."
            )
    return lines


def _wide(p: params.Profile, held: list[Record]) -> list[str]:
    """A line a round that measured a setting with larger graphs on every workload at another batch size than the profile's;
    then what identical engines in turn differ by there."""
    lines = []
    bases = ladder.named(held, "vanilla")
    order = stats.rounds(bases)
    for batch in (b for b in p.wide if b not in p.batch_sizes):
        for name, tests, in_turn in ladder.wide_rounds(p, held, batch):
            if name in p.rungs:
                continue  # in the table by requests
            by_workload = {w: [t for t in tests if t.cell.workload.name == w] for w in p.workloads}
            found = {w: stats.speedup(t, bases) for w, t in by_workload.items() if t}
            lines.append(f"- **{batch} requests**, {_drafts(p, name)}: {_span(found)}, {stats.speedup(tests, bases)} over "
                         f"all {len(found)} workloads ({len(tests)} engine cells of round "
                         f"{stats.round_of(tests[0], order) + 1}{_order(tests, bases, in_turn)}).")  # fmt: skip
        for one, other in ladder.twins(p, held, batch):
            floor = np.exp(stats.noise_floor([one, other], over="workload"))
            lines.append(f"- **{batch} requests**, two identical vanilla engines **in turn**: {stats.speedup(one, other)} of "
                         f"each other over all workloads, up to {floor:.2f} times over a workload's seeds ({len(one)} engine "
                         f"cells each, round {stats.round_of(one[0], order) + 1}).")  # fmt: skip
    return lines


def _drafts(p: params.Profile, name: str) -> str:
    schedule = {"padded_ngram_schedule": p.gamma_schedule, "padded_ngram_captured_schedule": p.captured_gamma_schedule}
    if name not in schedule:
        return figures.label_of(name)
    (_, first), *later = (part.split(":") for part in schedule[name].split(","))
    return (
        f"{figures.label_of(name)} ({', '.join([f'{first} drafts', *(f'{n} from {b} requests on' for b, n in later)])})"
    )


def _order(tests: list[Record], bases: list[Record], in_turn: bool) -> str:
    """How the tests and their round's vanilla at that batch size lie in time, and how far its arms lie apart."""
    own = [b for b in bases if stats.same_round(b, tests[0]) and b.cell.batch_size == tests[0].cell.batch_size]
    apart = max(b.provenance.measured for b in own) < min(t.provenance.measured for t in tests)
    order = ", **cell by cell in turn with vanilla**" if in_turn else ", all after vanilla's" if apart else ""
    floor = _floor(own)
    told = (
        f"; identical vanilla engines of that round differ by up to {np.exp(floor):.2f} times over a workload's seeds"
    )
    return order + (told if np.isfinite(floor) else "")


def _hours(first: Record, later: Record) -> int:
    times = [datetime.fromisoformat(r.provenance.measured) for r in (first, later)]
    return round((times[1] - times[0]).total_seconds() / 3600)


def _own_r(p: params.Profile, held: list[Record], store: Reader) -> str:
    """R of padded ngram on the sweep workloads at every batch size, from the ladder's own steps; and of full batches alone."""
    parts = []
    for batch in sorted({*p.batch_sizes, *p.batch_sweep}):
        found = []
        for w in p.sweep_workloads:
            tests, bases = (ladder.swept(p, held, s, workload=w, batch_size=batch) for s in ("padded_ngram", "vanilla"))
            pairs = [(store.trace(t), store.trace(b)) for t, b in stats.pair(tests, bases)]
            if pairs:
                whole = [metrics.mean_step_ms(t, batch) / metrics.mean_step_ms(b, batch) for t, b in pairs]
                found.append(
                    f"{np.mean([metrics.step_time_ratio(*both) for both in pairs]):.2f} ({np.mean(whole):.2f})"
                )
        if found:
            parts.append(f"{' / '.join(found)} at {batch}")
    return (
        f"R of padded ngram (of its full batches), {' / '.join(p.sweep_workloads)}: {', '.join(parts)}" if parts else ""
    )


def _closed(p: params.Profile) -> list[str]:
    """The same settings in closed batches, if that profile has records: one line, else none."""
    other = params.load(CLOSED)
    store = _committed(CLOSED)
    held = [r for c in ladder.notebook_cells(other, "04") if (r := store.get(c)) is not None and r.status == "ok"]
    spans = [(s, found) for s in ("ngram", "padded_ngram") if (found := ratios(other, held, s))]
    if p.profile == CLOSED or not spans:
        return []
    text = "; ".join(f"{figures.label_of(s)} {_span(found)}" for s, found in spans)
    return [
        f"- In *closed* batches (no request follows one that ends; another H200, profile `{CLOSED}`): {text}. {noise(other)}"
    ]


@cache
def _rows() -> list[steptime.Row]:
    """Step times of every committed grid that was measured on a GPU."""
    found = []
    for name in SHAPES:
        store = _committed(name)
        grid = [r for r in store.all() if r.status == "ok" and r.cell.workload.name == "random"]
        found += steptime.rows_of(grid, store)
    return found


def departures() -> list[str]:
    """One line: what leaving the FULL graph multiplies a step by, model by model; none without such records."""
    by_model: dict[str, list[float]] = {}
    for d in steptime.departures(_rows()):
        if d.one_round:
            by_model.setdefault(d.model, []).append(d.ratio)
    if not by_model:
        return []
    text = ", ".join(f"{model} {min(x):.2f} to {max(x):.2f}" for model, x in by_model.items())
    return [f"- Leaving the FULL graph multiplies a step's time, in one engine and padded alike (one cell a side, at every "
            f"context measured), by: {text}."]  # fmt: skip


def break_evens(gamma: int = 7) -> list[str]:
    """A table: tokens per step that a drafter must reach, by model and batch size, the FULL graph kept where it can be."""
    points = [e for e in steptime.break_evens(steptime.at_context(_rows(), 1000)) if e.gamma == gamma]
    batches = sorted({e.batch for e in points})
    lines = ["| model | " + " | ".join(f"B={b}" for b in batches) + " |", "|---" * (len(batches) + 1) + "|"]
    for model in dict.fromkeys(e.model for e in points):
        cells = []
        for batch in batches:
            found = {e.family: e for e in points if (e.model, e.batch) == (model, batch)}
            e = found.get("as captured") or found.get("other length")
            mark = "" if e is None else "*" * (e.mode != "FULL") + "†" * (not e.one_round)
            cells.append(f"{e.tokens.value:.2f}{mark}" if e else "—")
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    if any(e.tokens.value < 1 for e in points):
        lines += ["", "Vanilla and drafts run in two engines: a value below 1 tells that vanilla as shipped, on runner V2, took "
                  "longer for a step than the V1 engine with drafts, not that drafts are free (notebook 05 has V1 without "
                  "speculation beside both)."]  # fmt: skip
    return lines if points else []


def shaped() -> list[str]:
    """A table: measured throughput ratio of full-length drafts on shapes, accepted by chance as the ladder's were."""
    p = params.load(SHAPES[0])
    store = _committed(p.profile)
    cells = ladder.synthetic_cells(p, store.all())
    held = [r for c in cells if (r := store.get(c)) is not None and r.status == "ok"]
    tests, bases = (ladder.named(held, name) for name in reversed(ladder.SYNTHETIC))
    if not stats.pair(tests, bases):
        return []
    batches = sorted({t.cell.batch_size for t in tests})
    lines = ["| model | " + " | ".join(f"B={b}" for b in batches) + " |", "|---" * (len(batches) + 1) + "|"]
    for model in dict.fromkeys(t.cell.engine.model.name for t in tests):
        own = [[r for r in some if r.cell.engine.model.name == model] for some in (tests, bases)]
        found = [[r for r in some if r.cell.batch_size == b] for b in batches for some in own]
        ratios = [
            f"{stats.speedup(t, v).value:.2f}" if stats.pair(t, v) else "—"
            for t, v in zip(found[::2], found[1::2], strict=True)
        ]
        lines.append(f"| {model} | " + " | ".join(ratios) + " |")
    rates = ", ".join(f"{r:.2f}" for r in cells[-1].engine.speculative.synthetic_acceptance_rates)
    return [
        f"Measured throughput over vanilla on *shapes* (dummy weights), every draft full length and accepted by chance as often "
        f"as the small model's padded ngram drafts on {p.synthetic.workload} ({rates} by position): what padded drafts would "
        f"give a larger model whose text repeats itself as much. One engine cell each.", "", *lines,
    ]  # fmt: skip


def noise(p: params.Profile) -> str:
    """One sentence on the A/A arm: identical engines, cell by cell and pooled by workload."""
    store = _committed(p.profile)
    cells = [c for c in ladder.notebook_cells(p, "01") if c.batch_size in p.batch_sizes]
    held = [r for c in cells if (r := store.get(c)) is not None and r.status == "ok"]
    arms = [ladder.named(held, "vanilla", repeat=i) for i in range(p.repeats)]
    if len([arm for arm in arms if arm]) < 2:
        return "The A/A arm was not measured."
    cell, pooled = (100 * (np.exp(stats.noise_floor(arms, over=what)) - 1) for what in ("cell", "workload"))
    return (
        f"Two identical vanilla engines differ by up to {cell:.0f} % in a single engine cell and by up to {pooled:.0f} % "
        f"over a workload's seeds; a ratio inside that is too close to call."
    )


def upstream() -> str:
    """The report's table: the same drafts plain and padded, by workload and batch size, with what was dispatched."""
    p, held = measured_profile()
    store, first = _committed(p.profile), held[0]
    lines = [
        f"{p.model.name}, {p.engine.dtype}, {first.provenance.gpu}, vLLM {first.resolved.vllm_version}, ngram "
        f"{p.ngram.num_speculative_tokens} ({p.ngram.prompt_lookup_min}..{p.ngram.prompt_lookup_max}). Throughput over "
        f"vanilla as shipped, 95 % intervals; share of decode steps that ran in the FULL graph. *All*: {len(p.workloads)} "
        f"workloads with {len(p.seeds)} prompt seeds; ² and so on: later rounds of measurement, whose vanilla ran at another "
        f"speed, so entries with different marks are not to be compared.",
        "",
        "| batch | workload | ngram | steps in FULL | padded | steps in FULL |",
        "|---|---|---|---|---|---|",
    ]
    base = ladder.named(held, "vanilla")
    order = stats.rounds(base)
    for batch in sorted({*p.batch_sizes, *p.batch_sweep}):
        sides = [ladder.everywhere(p, held, s, batch) for s in ("ngram", "padded_ngram")]
        swept = [ladder.swept(p, held, s, batch_size=batch) for s in ("ngram", "padded_ngram")]
        one_round = len({frozenset(stats.round_of(r, order) for r in side) for side in sides}) == 1
        for workload in ("all", *p.sweep_workloads):
            columns = []
            for side in sides if workload == "all" or (one_round and all(sides)) else swept:
                tests = [r for r in side if workload in ("all", r.cell.workload.name)]
                shares = [metrics.graph_mode_shares(store.trace(r)).get("FULL", 0.0) for r in tests if r.has_trace]
                ratio = (
                    f"{stats.speedup(tests, base)}{figures.round_mark(tests, order)}" if stats.pair(tests, base) else ""
                )
                fewer = len(tests) != len(p.seeds) * (len(p.workloads) if workload == "all" else 1)
                ratio += f" ({len(tests)} cell{'s' * (len(tests) > 1)})" if fewer and ratio else ""
                columns += [ratio, f"{100 * np.mean(shares):.0f} %"] if shares and ratio else ["—", "—"]
            lines.append(f"| {batch} | {workload} | " + " | ".join(columns) + " |")
    turned = [line for line in _wide(p, held) if "in turn" in line]
    runner = [f"- {told}"] if (told := _over_v1(p, held)) else []
    tail = ["", *runner, *_filled(p, held), *larger_graphs(p, held), *turned, *departures()]
    return "\n".join([*lines, *_turns(), *tail])


def _filled(p: params.Profile, held: list[Record]) -> list[str]:
    """One line: our drafter with its drafts filled over the same drafter with none filled, both of one round."""
    parts, largest, number = [], max(held[0].resolved.cudagraph_capture_sizes, default=0), None
    order = stats.rounds(ladder.named(held, "vanilla"))
    for batch in sorted({*p.batch_sizes, *p.batch_sweep}):
        ratios = []
        for workload in p.sweep_workloads:
            where = {"workload": workload, "batch_size": batch}
            filled, plain = (ladder.named(held, s, **where) for s in ("padded_ngram_repeat", "plain_ngram"))
            if stats.pair(filled, plain):
                ratios.append(f"{stats.speedup(filled, plain).value:.2f}")
                number = stats.round_of(filled[0], order) + 1
        if ratios:
            parts.append(f"{' / '.join(ratios)} at {batch}")
    text = (
        f"- The table compares vLLM's drafter with ours. Our drafter alone, filled (with the draft's own "
        f"continuation) over unfilled, in round {number}, single cells, {' / '.join(p.sweep_workloads)}: {', '.join(parts)}. "
        f"Beyond {largest // (1 + p.ngram.num_speculative_tokens)} requests a full batch has no graph either way."
    )
    return [text] if parts else []


FIGURES = {
    "01": "noise floor", "02": "draft length", "03": "02, 04", "04": "01, 03", "05": "05", "06": "06", "07": "map",
    "08": "re-analysis",
}  # fmt: skip


def _saved(path: Path) -> tuple[str, str, str, str]:
    """Question, answer, profile and reading time of a notebook, as its saved run tells them."""
    notebook = nbformat.read(path, as_version=4)
    title = notebook.cells[0].source
    question = title.splitlines()[0].split("·", 1)[1].strip()
    minutes = re.search(r"Cost: (\d+) minutes to read", title).group(1)
    tagged = {tag: c for c in notebook.cells for tag in c.metadata.get("tags", [])}
    profile = re.search(r'profile: str = "([\w-]+)"', tagged["parameters"].source).group(1)
    shown = [o.data["text/markdown"] for o in tagged["answer"].outputs if "data" in o]
    return question, "".join(shown).removeprefix("**Answer.** "), profile, minutes


def _minutes(profile: str, part: str) -> str:
    """What measuring a notebook's engine cells took, starts included; a dash without records."""
    p, store = params.load(profile), _committed(profile)
    held = [r for c in sweep.collection(p, [part])[part] if (r := store.get(c)) is not None and r.status == "ok"]
    starts = {engine_key(r.cell): r.engine_start_s or 0.0 for r in held}
    return f"{(sum(r.wall_s for r in held) + sum(starts.values())) / 60:.0f}" if held else "—"


def notebook_table() -> str:
    """The collection as a table: question, the saved run's answer, its profile, figures, and what each costs."""
    lines = [
        "| notebook | question | answer | records | figures | read, min | measure, min: cpu / h200 |",
        "|---" * 7 + "|",
    ]
    for path in sorted((records.ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        question, text, profile, minutes = _saved(path)
        part = path.name[:2]
        cost = (
            " / ".join(_minutes(name, part) for name in ("cpu", "h200"))
            if part in sweep.PARTS
            else "nothing of its own"
        )
        name = path.stem.replace("_", " ")
        lines.append(
            f"| [{name}](notebooks/{path.name}) | {question} | {text} | {profile} | {FIGURES[part]} | {minutes} | {cost} |"
        )
    return "\n".join(lines)


# file -> its computed blocks: the name in the markers, and what stands between them
COMPUTED = {
    PATH: {"computed": answer, "notebooks": notebook_table},
    records.ROOT / "UPSTREAM.md": {"computed": upstream},
}


def render(path: Path = PATH) -> str:
    """A file of COMPUTED with its blocks brought up to date. Raises ValueError without the markers."""
    text = path.read_text(encoding="utf-8")
    for name, made in COMPUTED[path].items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if begin not in text or end not in text:
            raise ValueError(f"{path.name} lacks its markers, allowed: {begin} … {end}")
        head, rest = text.split(begin, 1)
        text = f"{head}{begin}\n{made()}\n{end}{rest.split(end, 1)[1]}"
    return text
