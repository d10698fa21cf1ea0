"""What README's computed tables say of records whose ratios are known."""

import made_up_records as made_up

from lib import ladder, params, readme
from lib.records import Provenance


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


def test_unfilled_drafts_are_set_beside_filled_ones_where_both_are_there():
    p = params.load("h200")

    def swept(name, wall_s, hour):
        cells = [c for c in ladder.spread(p, [name]) if c.batch_size == 8 and c.workload.name in p.sweep_workloads]
        return measured(cells, wall_s, hour)

    filled = swept("padded_ngram_captured_full", 2.0, 0) + swept("vanilla", 4.0, 0)
    assert readme.larger_graphs(p, filled[:2]) == []  # no vanilla
    (line,) = readme.larger_graphs(p, filled)
    assert "round 1, sonnet / code: **8**: 2.00 [" in line and "Unfilled" not in line
    plain = swept("plain_ngram_captured_full", 1.6, 9) + [
        r.model_copy(
            update={"cell": r.cell.model_copy(update={"engine": r.cell.engine.model_copy(update={"repeat": 1})})}
        )
        for r in swept("vanilla", 2.4, 9)
    ]
    *_, line = readme.larger_graphs(p, [*filled, *plain])
    # 2 s against 1.6 s; 1.5 times its vanilla against twice
    assert line == (
        "- Unfilled over filled on the same prompts, no round holding both: 1.25 to 1.25 (median 1.25, 2 cells) in tokens a "
        "second, 0.75 to 0.75 (median 0.75, 2 cells) relative to vanilla of each one's round."
    )


def test_without_another_batch_size_there_is_no_such_table():
    p = params.load("h200").model_copy(update={"wide": {}, "rungs": ("vanilla", "ngram")})
    held = [r for name in ("vanilla", "ngram") for r in measured(ladder.cells(p, [name]), 2.0)]
    assert readme.by_requests(p, held) == []
