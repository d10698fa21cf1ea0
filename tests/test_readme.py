"""What README's computed tables say of records whose ratios are known."""

import made_up_records as made_up

from lib import ladder, params, readme
from lib.records import Provenance, Store


def measured(cells, wall_s, hour=0):
    when = Provenance(measured=f"2026-01-01T{hour:02d}:00:00Z", cpu="a CPU")
    return [made_up.record(c, wall_s=wall_s, provenance=when) for c in cells]


def test_the_table_by_requests_holds_what_every_workload_has():
    asked = {"vanilla": (0, 1), "ngram": (0,), "suffix": (0,)}
    p = params.load("h200").model_copy(update={"wide": {8: asked}, "rungs": tuple(asked)})
    wide = {(name, repeat): [] for name in ("vanilla", "ngram", "suffix") for repeat in (0, 1)}
    for c in ladder.wide(p):
        wide[c.setting, c.engine.repeat].append(c)
    held = measured(wide["vanilla", 0], 4.0) + measured(wide["vanilla", 1], 5.0)
    slow = measured([c for c in wide["ngram", 0] if c.workload.name == "code"], 9.0)
    ngram = slow + measured([c for c in wide["ngram", 0] if c.workload.name != "code"][:-1], 3.0)  # one cell is missing
    lines = readme.by_requests(p, [*held, *ngram, *measured(wide["suffix", 0][:3], 1.0)])  # three workloads of six
    assert lines[3].startswith("| requests | ngram | identical engines |") and len(lines) == 6
    whole = (
        17 * 4.5 / (3 * 9.0 + 14 * 3.0)
    )  # equal outputs: the ratio of the summed times, vanilla's arms at their mean
    assert lines[5].startswith(f"| 8 | {whole:.2f} [")
    assert lines[5].endswith("(0.50 to 1.50, 17 cells) | 1.25 (1.25) |")


def test_one_vanilla_engine_tells_no_noise_floor():
    p = params.load("h200").model_copy(
        update={"wide": {8: {"vanilla": (0,), "ngram": (0,)}}, "rungs": ("vanilla", "ngram")}
    )
    held = [r for c in ladder.wide(p) for r in measured([c], {"vanilla": 4.0, "ngram": 2.0}[c.setting])]
    row = readme.by_requests(p, held)[5]
    assert row.startswith("| 8 | 2.00 [") and row.endswith("(2.00 to 2.00) | — |")


def test_larger_graphs_are_told_against_vanilla_of_their_own_round():
    p = params.load("h200")

    def swept(name, wall_s, hour):
        cells = [c for c in ladder.spread(p, [name]) if c.batch_size == 8 and c.workload.name in p.sweep_workloads]
        return measured(cells, wall_s, hour)

    filled, alone = swept("padded_ngram_captured_full", 2.0, 0), swept("plain_ngram_captured_full", 1.6, 9)
    assert readme.larger_graphs(p, filled) == []  # no vanilla
    (line,) = readme.larger_graphs(p, [*filled, *alone, *swept("vanilla", 4.0, 0)])
    assert "filled drafts, round 1, sonnet / code: **8**: 2.00 [" in line


def test_engines_in_turn_are_told_pair_by_pair(tmp_path):
    p = params.load("h200").model_copy(
        update={
            "batch_sizes": (8, 64), "batch_sweep": (), "wide": {}, "seeds": (0,),
            "in_turn": (("ngram", "vanilla"), ("vanilla:1", "vanilla:2"), ("suffix", "vanilla:3")),
        }
    )  # fmt: skip
    cells = ladder.cells(p, ["ngram"]) + ladder.cells(p, ["vanilla"], repeats=3)
    held = {(c.setting, c.engine.repeat, c.batch_size, c.workload.name): c for c in cells}

    def pair(one, other, wall_s, batch, only=p.workloads):
        made = []
        for w in only:
            a, b = (held[*engine, batch, w] for engine in (one, other))
            (first,), (second,) = measured([a], wall_s), measured([b], 4.0)
            made += [first.model_copy(update={"partner": b.cell_id}), second.model_copy(update={"partner": a.cell_id})]
        return made

    ngram, vanilla, twins = ("ngram", 0), ("vanilla", 0), (("vanilla", 1), ("vanilla", 2))
    found = pair(ngram, vanilla, 2.0, 8, ("sonnet", "chat", "code")) + pair(ngram, vanilla, 1.0, 8, ("mix-sh",))
    found += pair(ngram, vanilla, 8.0, 64) + pair(*twins, 4.0, 8)
    store = Store(tmp_path)
    traced = next(r for r in found if r.cell.setting == "ngram")
    modes = ["FULL", "NONE", "NONE", "NONE"] * 5
    store.save(traced, made_up.trace([1.0] * 20, [8] * 20, graph_mode=["", *modes]))
    found[found.index(traced)] = traced = store.get(traced.cell)
    lines = readme.in_turn(p, found, store)
    assert lines[0] == "| the first over the second | 8 | 64 |" and lines[4:6] == ["", lines[5]] and lines[6] == ""
    # 4 x 4 s against 3 x 2 s + 1 s
    assert (
        lines[2].startswith(f"| ngram over vanilla, as shipped | {16 / 7:.2f} [") and "(1.00 to 4.00)" not in lines[2]
    )
    assert "(2.00 to 4.00)" in lines[2] and "| 0.50 [" in lines[2]
    assert (
        lines[3].startswith("| vanilla, as shipped over vanilla, as shipped | 1.00 [1.00, 1.00]")
        and "| — |" in lines[3]
    )
    assert lines[5].startswith("4 to 6 engine cells a side and entry, 1 prompt seed;")
    assert "16 of 1.0 to 4.0 s at 8, 128 of 4.0 to 8.0 s at 64." in lines[5]
    # one ngram cell at 8 kept a trace
    assert lines[9] == "| ngram | V1, synchronous | 25 %, not told |"
    assert lines[10] == "| vanilla, as shipped | V1, synchronous | not told, not told |"
    assert readme.in_turn(p, [r for r in found if r.cell.setting == "ngram"], store) == []


def test_without_another_batch_size_there_is_no_such_table():
    p = params.load("h200").model_copy(update={"wide": {}, "rungs": ("vanilla", "ngram")})
    held = [r for name in ("vanilla", "ngram") for r in measured(ladder.cells(p, [name]), 2.0)]
    assert readme.by_requests(p, held) == []
