"""The settings by name and the cells that the notebooks measure."""

import made_up_records as made_up
import pytest

from lib import ladder, params, steptime, sweep
from lib.cells import engine_key
from lib.records import Provenance


def profile(**changes) -> params.Profile:
    return params.load("h200", changes)


def test_controls_run_in_the_engines_of_their_settings():
    p = profile(controls=["raw", "ignore_eos"], rungs=["vanilla", "ngram", "suffix"])
    cells = ladder.controls(p)
    names = {c.setting for c in cells}
    assert names == {"vanilla_raw", "ngram_raw", "vanilla_ignore_eos", "ngram_ignore_eos"}
    assert {(c.workload.form, c.ignore_eos) for c in cells} == {("raw", False), ("chat", True)}
    # no engine starts for them, and none of them is a cell that is measured anyway
    main = ladder.cells(p, ["vanilla", "ngram"])
    assert {engine_key(c) for c in cells} == {engine_key(c) for c in main}
    assert not {c.cell_id for c in cells} & {c.cell_id for c in main}
    assert not ladder.controls(profile(controls=[]))


def test_one_choice_of_the_padded_drafter_at_a_time():
    p = profile(gamma_schedule="1:7,128:0")
    plain = ladder.setting(p, "padded_ngram")[0].speculative
    for name, changed in (
        ("padded_ngram_repeat", {"fill": "repeat"}),
        ("padded_ngram_skip", {"when_empty": "skip"}),
        ("padded_ngram_schedule", {"gamma_schedule": "1:7,128:0"}),
        ("plain_ngram", {"fill": "none"}),
    ):
        speculative = ladder.setting(p, name)[0].speculative
        assert speculative.drafter_options == plain.drafter_options | changed
        assert speculative.model_copy(update={"drafter_options": plain.drafter_options}) == plain
    longer = ladder.setting(p, "padded_ngram_g12")[0].speculative
    assert longer == plain.model_copy(update={"num_speculative_tokens": 12})


def test_larger_graphs_hold_the_largest_step_of_drafts():
    p = params.load("h200")
    padded, captured = (ladder.setting(p, name)[0] for name in ("padded_ngram", "padded_ngram_captured"))
    gamma = padded.speculative.num_speculative_tokens
    assert captured.llm_arguments("")["max_cudagraph_capture_size"] == p.engine.max_num_seqs * (1 + gamma)
    assert captured.model_copy(update={"max_cudagraph_capture_size": None}) == padded
    assert "max_cudagraph_capture_size" not in padded.llm_arguments("")
    assert ladder.setting(params.load("cpu"), "padded_ngram_captured")[0].enforce_eager  # no graphs, nothing asked


def test_the_graph_of_a_full_batch_is_of_a_size_that_is_captured():
    assert [ladder.capture_size(batch, 7) for batch in (64, 65, 66, 256)] == [512, 528, 528, 2048]


def test_a_length_by_batch_keeps_every_step_in_a_full_graph():
    p = params.load("h200")
    padded, scheduled = (ladder.setting(p, name)[0] for name in ("padded_ngram", "padded_ngram_captured_schedule"))
    most = max(batch * (1 + g) for batch, g in ((127, 7), (256, 3)))
    assert scheduled.cudagraph_mode == "FULL" and scheduled.max_cudagraph_capture_size >= most
    options = padded.speculative.drafter_options | {"gamma_schedule": p.captured_gamma_schedule}
    assert scheduled.speculative == padded.speculative.model_copy(update={"drafter_options": options})
    fixed = ladder.setting(p, "padded_ngram_captured_full")[0]
    assert fixed == scheduled.model_copy(update={"speculative": padded.speculative})
    assert fixed.llm_arguments("")["compilation_config"] == {"cudagraph_mode": "FULL"}
    unfilled = ladder.setting(p, "plain_ngram_captured_full")[0]
    plain = ladder.setting(p, "plain_ngram")[0].speculative
    assert unfilled == fixed.model_copy(update={"speculative": plain})
    theirs = ladder.setting(p, "ngram")[0].speculative
    assert ladder.setting(p, "ngram_captured_full")[0] == fixed.model_copy(update={"speculative": theirs})
    assert ladder.setting(params.load("cpu"), "padded_ngram_captured_schedule")[0].cudagraph_mode is None


def test_wide_settings_are_measured_on_every_workload_and_seed():
    asked = {"vanilla": (1, 2), "padded_ngram_g3": (0,), "ngram": (0,)}
    p = profile(wide={4: asked}, num_prompts=8, repeats=3)
    added = {
        notebook: [c for c in ladder.notebook_cells(p, notebook) if c.batch_size == 4]
        for notebook in ("02", "03", "04")
    }
    everything = {(name, seed) for name in p.workloads for seed in p.seeds}
    for name, repeats in asked.items():
        own = [c for c in added["04"] if c.setting == name]
        assert {(c.workload.name, c.workload.seed) for c in own} == everything
        assert {c.engine.repeat for c in own} == set(repeats) and len(own) == len(everything) * len(repeats)
    assert {c.setting for c in added["02"]} == {c.setting for c in added["03"]} == {"vanilla", "ngram"}
    for change, words in (
        ({"wide": {999: {"ngram": [0]}}}, "wide holds 999"),
        ({"wide": {4: {"ngrm": [0]}}}, "'ngrm'.*ngram"),
        ({"wide": {4: {"ngram": [-1]}}}, "wide.*-1"),
    ):
        with pytest.raises(params.ParamsError, match=words):
            ladder.notebook_cells(profile(**change, num_prompts=8), "04")


def test_a_control_that_is_wide_too_is_asked_for_once():
    p = profile(
        rungs=["vanilla", "vanilla_v1", "ngram"], wide={64: {"vanilla_v1": (0,)}}, batch_sizes=[64], num_prompts=8
    )
    own = [c for c in ladder.notebook_cells(p, "04") if (c.setting, c.batch_size) == ("vanilla_v1", 64)]
    assert len(own) == len({c.cell_id for c in own}) == len(p.workloads) * len(p.seeds)


def at(asked, seconds, machine=None):
    """A record of a planned cell, ended so many seconds into the day, four seconds long."""
    minutes = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    when = Provenance(measured=f"2026-01-01T{minutes}Z", cpu="a CPU", gpu="a GPU", machine=machine)
    return made_up.record(asked, wall_s=4.0, provenance=when)


def test_a_wide_setting_is_told_round_by_round():
    p = profile().model_copy(update={"wide": {256: {"vanilla": (0, 1), "ngram": (0, 1)}}})
    planned = ladder.wide(p)
    vanilla, again = ([c for c in planned if c.setting == "vanilla" and c.engine.repeat == i] for i in (0, 1))
    early, late = ([c for c in planned if c.setting == "ngram" and c.engine.repeat == i] for i in (0, 1))
    found = [at(c, 5 * i) for i, c in enumerate(vanilla)] + [at(c, 300 + 5 * i) for i, c in enumerate(early)]
    found += [at(c, 1000 + 10 * i, "b") for i, c in enumerate([*again, *late])]  # on another machine
    swept = [c for c in ladder.spread(p, ["ngram"]) if c.batch_size == 256]
    one, two = ladder.wide_rounds(p, [*found, *(at(c, 600) for c in swept)], 256)
    both = [*one.records, *two.records]
    assert ladder.everywhere(p, [*found, *(at(c, 600) for c in swept)], "ngram", 256) == both
    for each, cells in ((one, early), (two, late)):
        assert (each.setting, {r.cell_id for r in each.records}) == ("ngram", {c.cell_id for c in cells})
    # a draft without vanilla in its own round is of no round
    alone = [r for r in found if r.cell.setting == "ngram"]
    assert ladder.wide_rounds(p, alone, 256) == [] == ladder.wide_rounds(p, found, 8)
    assert ladder.everywhere(p, alone, "ngram", 256) == [] == ladder.everywhere(p, found, "ngram", 8)


def test_what_is_wide_stays_out_of_the_batch_sweep():
    p = profile(wide={256: {"ngram": (0,)}})
    records = [at(c, 60) for c in (*ladder.wide(p), *ladder.spread(p, ["ngram"])) if c.setting == "ngram"]
    for batch, seeds in ((256, {1256}), (p.batch_sizes[0], set(p.seeds))):
        assert {r.cell.workload.seed for r in ladder.swept(p, records, "ngram", batch_size=batch)} == seeds
    assert {r.cell.workload.seed for r in ladder.named(records, "ngram", batch_size=256)} == {1256, *p.seeds}


def test_suffix_limits_that_a_profile_asks_for():
    p = profile(suffix={"draft_lengths": [8, 12]})
    asked = [c for c in ladder.notebook_cells(p, "03") if c.setting.startswith("suffix_g")]
    assert {(c.setting, c.engine.speculative.num_speculative_tokens) for c in asked} == {
        ("suffix_g8", 8),
        ("suffix_g12", 12),
    }
    assert {c.workload.name for c in asked} == set(p.sweep_workloads)


def test_arms_pair_with_vanilla_at_every_batch_size():
    p = profile(arms=["padded_ngram_g3"])
    measured = ladder.notebook_cells(p, "04")
    keys = {name: {(c.workload, c.batch_size) for c in measured if c.setting == name} for name in ("vanilla", *p.arms)}
    assert keys["padded_ngram_g3"] <= keys["vanilla"]
    assert {batch for _, batch in keys["padded_ngram_g3"]} == {*p.batch_sizes, *p.batch_sweep}


def test_shapes_take_the_acceptance_of_the_ladder():
    p = profile(synthetic={"architectures": ["Qwen2.5-7B"], "batch_sizes": [1, 4], "output_tokens": 32})
    drafts = {"drafts": 10, "drafted": 30, "accepted": (8, 4, 1)}
    held = [made_up.record(made_up.cell("padded_ngram", batch_size=64, seed=seed), **drafts) for seed in (0, 1)] + [
        made_up.record(made_up.cell("padded_ngram", batch_size=8), drafts=9, drafted=27, accepted=(1, 0, 0))
    ]
    made = ladder.synthetic_cells(p, held)
    assert [(c.setting, c.batch_size) for c in made] == [(s, b) for s in ladder.SYNTHETIC for b in (1, 4)]
    plain, drafting = made[0].engine, made[-1].engine
    assert drafting.speculative.synthetic_acceptance_rates == (0.8, 0.4, 0.1) and plain.speculative is None
    assert made[-1].draft_tokens == drafting.speculative.num_speculative_tokens == 3
    assert drafting.model_copy(update={"speculative": None}) == plain and plain.model.name == "Qwen2.5-7B"
    assert drafting.speculative.vllm()["rejection_sample_method"] == "synthetic"
    assert ladder.synthetic_cells(p, []) == []
    misspelt = p.model_copy(update={"synthetic": p.synthetic.model_copy(update={"setting": "paded_ngram"})})
    with pytest.raises(params.ParamsError, match="'paded_ngram'.*allowed"):
        ladder.synthetic_cells(misspelt, held)
    # they are no points of the step-time grid
    trace = made_up.trace([5.0] * 12, [2] * 12)
    assert steptime.rows(made_up.record(made_up.cell("synthetic")), trace) == []


def test_the_table_at_the_end_of_a_sweep():
    good = made_up.record(made_up.cell("ngram"), wall_s=30.0, tokens=90)
    failed = made_up.record(made_up.cell("ngram", seed=1), status="oom", counters=None)
    head, row = sweep.outcome([good, failed]).splitlines()
    assert head.split() == ["setting", "model", "ok", "failed", "minutes", "tokens/s"]
    assert row.split() == ["ngram", "SmolLM2-135M-Instruct", "1", "1", "0.5", "6"]
