"""Predicted speedups: a made-up machine whose law is known must be recovered, and its speedups predicted."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import made_up_records as made_up
import numpy as np
import pytest
from made_up_machine import (
    NGRAM,
    PERIODIC,
    PROMPT_MS,
    hand_made,
    machine,
    rank_one,
    requests_of,
    resolved,
    workload_record,
)

from lib import metrics, prediction, replay, stats, steptime
from lib.cells import Speculative
from lib.prediction import BEYOND, CLOSE, NOT, PAYS, Costs, judge
from lib.records import Store
from lib.stats import Estimate


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Store:
    return machine(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def costs(folder) -> Costs:
    return prediction.survey(folder.all(), folder).costs()


def test_costs_are_recovered_from_records(costs):
    regime = costs.vanilla.regimes[0]
    assert regime.step_ms(8, 8, 0) == pytest.approx(18)
    assert costs.drafter.regimes[0].step_ms(8, 32, 0) == pytest.approx(32)
    assert costs.prompt_ms == pytest.approx(PROMPT_MS, rel=0.02)
    assert costs.extra("ngram", np.array([8, 4]))[0] == pytest.approx(1.6, abs=0.05)
    assert costs.extra("ngram", np.array([8, 4]))[1] == pytest.approx(0.8, abs=0.05)
    assert costs.extra("vanilla", np.array([8]))[0] == pytest.approx(0, abs=1e-3)  # times are kept to microseconds
    assert costs.extra("unknown drafter", np.array([8]))[0] == pytest.approx(0, abs=1e-3)


def test_speedups_are_predicted_without_looking_at_the_workload(folder):
    found = prediction.comparisons(folder.all(), folder)
    assert {c.record.cell.workload.name for c in found} == {"sonnet", "chat", "code"}
    for c in found:
        assert c.prediction.speedup.value == pytest.approx(c.measured.value, rel=0.01)
        assert c.error == pytest.approx(c.prediction.speedup.value / c.measured.value - 1)
        identity = c.prediction.tau / c.prediction.r
        assert identity == pytest.approx(c.prediction.speedup.value, rel=0.15)  # the rest is prompts and tail
    score = prediction.accuracy(found, noise=0.0)
    assert (score.count, score.signs_told) == (3, 3)
    assert score.signs_right == 3
    assert score.mape_pct < 1


def test_the_error_of_another_seeds_measurement(folder):
    found = prediction.comparisons(folder.all(), folder)
    assert np.isnan(prediction.accuracy(found, 0.0).repeat_pct)  # one seed a workload
    cell = found[0].record.cell
    other = cell.model_copy(update={"workload": cell.workload.model_copy(update={"seed": 7})})
    pair = [
        replace(found[0], record=found[0].record.model_copy(update={"cell": c}), measured=Estimate(value, value, value, 1))
        for c, value in ((cell, 2.0), (other, 1.0))
    ]  # fmt: skip
    score = prediction.accuracy([*pair, *found[1:]], 0.0)
    assert score.repeat_pct == pytest.approx(100 * (0.5 + 1.0) / 2)
    assert (score.count, score.repeat_count) == (4, 2)
    assert score.repeated_mape_pct == pytest.approx(100 * np.mean([abs(c.error) for c in pair]))


def test_costs_of_a_round_come_from_its_own_runs(tmp_path):
    """A host that drafts more slowly in a later round: its cells are predicted from that round's runs."""
    store = machine(tmp_path)
    later = "2026-01-02T00:00:00Z"
    streams = requests_of(0, 4)
    for name in ("sonnet", "code"):
        for speculative, extra_ms in ((None, 0.0), (NGRAM, 2.0)):
            repeat = 1 if speculative is None else 0
            changed = NGRAM.model_copy(update={"prompt_lookup_min": 1}) if speculative else None
            record, trace = workload_record(name, changed, streams, repeat=repeat, extra_ms=extra_ms)
            moved = record.provenance.model_copy(update={"measured": later})
            store.save(record.model_copy(update={"provenance": moved}), trace)
    surveyed = prediction.survey(store.all(), store)
    first, last = ([r for r in store.all() if (r.provenance.measured == later) == is_last and r.cell.setting == "ngram"][0]
                   for is_last in (False, True))  # fmt: skip
    assert surveyed.of_round(first).costs().extra("ngram", np.array([8]))[0] == pytest.approx(1.6, abs=0.05)
    assert surveyed.of_round(last).costs().extra("ngram", np.array([8]))[0] == pytest.approx(16, abs=0.5)
    assert len(surveyed.of_round(last).observed) == 4
    for c in prediction.comparisons(store.all(), store):
        assert c.prediction.speedup.value == pytest.approx(c.measured.value, rel=0.01)


def test_a_prompt_beside_drafts_outgrows_the_largest_graph():
    """The graph mode of a step follows all its tokens: a prompt read beside drafts takes the step out of its graph."""
    costs = hand_made()
    full = costs.drafter.regimes[0].model_copy(update={"mode": "FULL"})
    others = [full.model_copy(update={"mode": mode, "fixed": ms}) for mode, ms in (("PIECEWISE", 20.0), ("NONE", 40.0))]
    costs = replace(costs, drafter=costs.drafter.model_copy(update={"regimes": (full, *others)}))
    for prompt, fixed in ((400, 20.0), (520, 40.0)):
        streams = [replay.stream([1] * length, [2, 3, 4]) for length in (8, prompt)]
        done = replay.Simulation(NGRAM, max_num_seqs=2, max_model_len=4096).run(streams)
        timed = prediction.time_steps(done, costs.drafter, costs, "ngram")
        reading = done.steps["prompt_tokens"] > 0
        assert reading.sum() == 1
        assert sum(part[reading].sum() for part in timed.parts.values()) == pytest.approx(fixed)
        assert timed.outside == 0
        larger = prediction.time_steps(done, costs.drafter, costs, "ngram", prediction.Graphs(largest=2048))
        assert sum(part[reading].sum() for part in larger.parts.values()) == pytest.approx(20.0)


def test_a_round_that_holds_only_the_left_out_workload_is_not_used_alone(tmp_path):
    store = machine(tmp_path)
    for speculative in (None, NGRAM.model_copy(update={"prompt_lookup_min": 1})):
        repeat = 1 if speculative is None else 0
        record, trace = workload_record(
            "sonnet", speculative, requests_of(0, 4), repeat=repeat, extra_ms=0.2 * (1 - repeat)
        )
        moved = record.provenance.model_copy(update={"measured": "2026-01-02T00:00:00Z"})
        store.save(record.model_copy(update={"provenance": moved}), trace)
    surveyed = prediction.survey(store.all(), store)
    last = next(r for r in store.all() if r.provenance.measured == "2026-01-02T00:00:00Z")
    assert surveyed.of_round(last) is surveyed
    assert all(abs(c.error) < 0.01 for c in prediction.comparisons(store.all(), store))


def test_models_without_another_workload_lend_each_other_nothing(folder):
    """Two models whose only real prompts are of the workload that is left out."""
    known = prediction.survey(folder.all(), folder)
    other = "Qwen2.5-0.5B"
    ((label, rows),) = known.grid.items()
    sonnet = [o for o in known.observed if o.workload == "sonnet"]

    def renamed(record):
        engine = record.cell.engine
        engine = engine.model_copy(update={"model": engine.model.model_copy(update={"name": other})})
        return record.model_copy(update={"cell": record.cell.model_copy(update={"engine": engine})})

    twins = [replace(o, record=renamed(o.record)) for o in sonnet]
    grid = {label: rows, other: [row.model_copy(update={"model": other}) for row in rows]}
    both = replace(known, grid=grid, observed=(*sonnet, *twins), parameters_b={label: 1.0, other: 2.0})
    costs = both.costs(label, without="sonnet")
    assert costs.extra_ms == {}
    assert any("drafting on the host is left out" in note for note in costs.notes)


def test_runs_with_real_prompts_are_points_for_a_law(tmp_path):
    store = Store(tmp_path)
    for batch in (2, 4, 8):
        asked = made_up.cell(batch_size=batch)
        store.save(made_up.record(asked, has_trace=True), made_up.trace([3.0 + batch] * 14, [batch] * 14))
    rows = prediction.rows_of_runs(Store(tmp_path).all(), store)
    assert sorted((r.batch, r.verified, r.step_ms) for r in rows) == [(b, b, pytest.approx(3.0 + b)) for b in (2, 4, 8)]
    assert steptime.fit(rows).predict(6, 6) == pytest.approx(9.0)


def test_graphs_are_those_that_were_captured():
    cell, known = workload_record("code", NGRAM, requests_of(0, 3))[0].cell, resolved()
    assert prediction.Graphs.of_cell(cell, None) == prediction.AS_SHIPPED
    small = known.model_copy(update={"cudagraph_capture_sizes": (1, 2, 16), "cudagraph_mode": "PIECEWISE"})
    assert prediction.Graphs.of_cell(cell, small) == prediction.Graphs(full=False, largest=16)
    asked = cell.model_copy(update={"engine": cell.engine.model_copy(update={"max_cudagraph_capture_size": 2048})})
    assert prediction.Graphs.of_cell(asked, known).largest == 2048
    forced = cell.model_copy(update={"engine": cell.engine.model_copy(update={"cudagraph_mode": "FULL"})})
    assert prediction.Graphs.of_cell(forced, None) == prediction.Graphs(any_step=True)
    assert prediction.Graphs.of_cell(cell, known.model_copy(update={"cudagraph_mode": "FULL"})).any_step


def test_a_full_graph_of_any_step_holds_uneven_drafts_up_to_its_size(costs):
    steps = {"uniform": np.array([1, 0, 0])}
    tokens = np.array([100.0, 100.0, 600.0])
    law = steptime.Law(
        model="m", hardware="h", setting="walking",
        regimes=tuple(costs.drafter.regimes[0].model_copy(update={"mode": m}) for m in ("FULL", "PIECEWISE", "NONE")),
    )  # fmt: skip
    shipped, forced = (
        prediction._modes(law, steps, tokens, g) for g in (prediction.AS_SHIPPED, prediction.Graphs(any_step=True))
    )
    assert list(shipped) == ["FULL", "PIECEWISE", "NONE"] and list(forced) == ["FULL", "FULL", "NONE"]


def test_graphs_for_any_step_hold_a_full_batch_and_never_less_than_as_shipped():
    assert prediction.Graphs.for_any_step(256, 7) == prediction.Graphs(full=True, largest=2048, any_step=True)
    assert prediction.Graphs.for_any_step(65, 7).largest == 528  # 520 is no size that vLLM captures
    assert prediction.Graphs.for_any_step(1, 7).largest == prediction.AS_SHIPPED.largest


def test_only_settings_with_graphs_for_any_step_have_uneven_drafts_priced_as_full():
    costs = hand_made()
    (regime,) = costs.drafter.regimes
    dear, cheap = (regime.model_copy(update={"mode": m, "fixed": ms}) for m, ms in (("PIECEWISE", 40.0), ("FULL", 4.0)))
    costs = replace(costs, drafter=costs.drafter.model_copy(update={"regimes": (dear, cheap)}))
    asked = {"batch_sizes": [4], "settings": {"ngram": NGRAM, "larger": NGRAM}, "any_step": {"larger"}}
    found = {p.setting: p for p in prediction.rank(requests_of(0, 9), costs, **asked)}
    assert found["ngram"].tau == found["larger"].tau
    assert found["larger"].r == pytest.approx(0.4)  # every step 4 ms, vanilla's 10
    assert found["ngram"].r > 1 and found["ngram"].graphs == prediction.AS_SHIPPED
    assert found["larger"].graphs == prediction.Graphs.for_any_step(4, NGRAM.num_speculative_tokens)


def test_memory_is_another_drafter_and_costs_as_much_if_unmeasured():
    suffix = Speculative(method="suffix", num_speculative_tokens=8)
    off = suffix.model_copy(update={"suffix_decoding_max_cached_requests": 0})
    assert (prediction.drafter_of(off), prediction.drafter_of(suffix)) == ("suffix", "suffix, memory on")
    costs = hand_made(extra_ms={"suffix": ((2.0, 3.0),), "vanilla": ((2.0, 1.0),)})
    assert costs.extra("suffix, memory on", np.array([2]))[0] == 3.0
    costs = hand_made(extra_ms={"suffix, memory on": ((2.0, 3.0),), "vanilla": ((2.0, 1.0),)})
    assert costs.extra("suffix", np.array([2]))[0] == 3.0


@pytest.mark.parametrize("again", [False, True])
def test_an_engine_that_was_started_again_remembers_nothing(tmp_path, again):
    """The same streams twice: answered before in one engine, new to the second of two."""
    pytest.importorskip("arctic_inference")
    store, streams = machine(tmp_path), requests_of(5, 19)
    suffix = Speculative(method="suffix", num_speculative_tokens=8)
    for order, name in enumerate(("mix-sh", "mix-ch")):
        store.save(*workload_record(name, None, streams))
        record, trace = workload_record(name, suffix, streams)
        store.save(record.model_copy(update={"order": order, "engine_start_s": 1.0 + order * again}), trace)
    found = {c.record.cell.workload.name: c for c in prediction.comparisons(store.all(), store)}
    first, second = (found[name].prediction.tau for name in ("mix-sh", "mix-ch"))
    assert second == first if again else second > 1.5 * first


def test_no_comparison_without_recorded_tokens(folder, tmp_path):
    store = Store(tmp_path)
    store.save(*workload_record("code", NGRAM, requests_of(0, 3)))
    assert prediction.comparisons(store.all(), store) == []
    assert prediction.accuracy([], 0.1).count == 0


def test_a_prediction_counted_by_hand():
    found = rank_one(hand_made())
    # plain: 5 steps of 10 ms; ngram: 2 steps of 12 ms; 10 tokens in all
    assert found["ngram"].speedup.value == pytest.approx(50 / 24)
    assert found["ngram"].throughput.value == pytest.approx(10 / 0.024)
    assert found["vanilla"].throughput.value == pytest.approx(10 / 0.050)
    assert found["ngram"].tau == 2.5
    assert found["ngram"].r == pytest.approx(1.2)
    assert found["ngram"].verdict == PAYS
    assert found["vanilla"].verdict == "baseline"


def test_the_extra_cost_of_a_drafter_is_added_to_each_step():
    found = rank_one(hand_made(extra_ms={"ngram": ((1.0, 2.0), (2.0, 3.0)), "vanilla": ((2.0, 1.0),)}))
    assert found["ngram"].speedup.value == pytest.approx(55 / 30)


def test_the_laws_error_widens_the_interval():
    sure, unsure = rank_one(hand_made(error=0.01))["ngram"], rank_one(hand_made(error=0.2))["ngram"]
    assert sure.speedup.low < sure.speedup.value < sure.speedup.high
    assert unsure.speedup.high - unsure.speedup.low > 5 * (sure.speedup.high - sure.speedup.low)


def test_several_processes_give_the_same_predictions(monkeypatch):
    alone = rank_one(hand_made())
    monkeypatch.setattr(prediction, "POOL_FROM", 0)
    assert repr(rank_one(hand_made())) == repr(alone)  # NaN does not equal itself


def test_traffic_and_the_best_setting_at_a_constant_batch():
    menu = {"vanilla": None, "ngram": NGRAM}
    found = prediction.traffic(PERIODIC, menu, 2)
    assert found["vanilla"] == prediction.Traffic(1.0, 0.0, True, "vanilla")
    assert found["ngram"] == prediction.Traffic(2.5, 3.0, True, "ngram")
    best = prediction.best_steady(found, 2, hand_made())
    assert (best.setting, best.inside) == ("ngram", True)
    assert best.speedup == pytest.approx(2.5 * 10 / 12)
    dear = hand_made(extra_ms={"ngram": ((2.0, 8.0),), "vanilla": ((2.0, 1.0),)})
    assert prediction.best_steady(found, 2, dear).speedup == pytest.approx(2.5 * 11 / 20)


def test_the_break_even_grid_is_r_and_empty_outside_the_law():
    tau = prediction.break_even_grid(hand_made((10.0, 1.0), (12.0, 0.5)), [2, 1000], [3])
    assert tau[0, 0] == pytest.approx((12 + 0.5 * 8) / 12)
    assert np.isnan(tau[0, 1])


def test_one_request_or_an_untested_law_gives_no_verdict():
    assert rank_one(hand_made(), PERIODIC[:1], 1)["ngram"].verdict == CLOSE
    assert rank_one(hand_made(error=None))["ngram"].verdict == CLOSE


def test_a_batch_beyond_the_grid_gets_no_verdict():
    found = rank_one(hand_made(), PERIODIC * 50, 100)["ngram"]
    assert found.outside > 0.5
    assert found.verdict == BEYOND


@pytest.mark.parametrize(
    ("speedup", "noise", "outside", "verdict"),
    [
        (Estimate(1.3, 1.2, 1.4, 9), 0.05, 0.0, PAYS),
        (Estimate(1.3, 1.2, 1.4, 9), 0.25, 0.0, CLOSE),
        (Estimate(0.7, 0.6, 0.8, 9), 0.05, 0.0, NOT),
        (Estimate(1.0, 0.9, 1.1, 9), 0.0, 0.0, CLOSE),
        (Estimate(1.3, 1.2, 1.4, 9), float("nan"), 0.0, PAYS),
        (Estimate(1.3, 1.2, 1.4, 9), 0.0, 0.5, BEYOND),
        (Estimate(1.3, float("nan"), float("nan"), 1), 0.0, 0.0, CLOSE),
    ],
)
def test_verdicts(speedup, noise, outside, verdict):
    assert judge(speedup, noise, outside) == verdict


def test_steady_speedup_is_tau_over_r():
    costs = hand_made((10.0, 1.0), (12.0, 0.5))
    value, inside = prediction.steady_speedup(2.0, 3.0, 8, costs)
    assert value == pytest.approx(2.0 * 18 / (12 + 0.5 * 32))
    assert inside
    assert not prediction.steady_speedup(2.0, 3.0, 4096, costs)[1]


def test_a_folder_without_a_law_is_refused(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(prediction.NoLawError, match="law holds no step times"):
        prediction.survey(store.all(), store).costs()


def test_an_unknown_law_model_is_refused(folder):
    with pytest.raises(prediction.NoLawError, match="law model is 'gpt', allowed: opt-125m"):
        prediction.survey(folder.all(), folder).costs("gpt")


def test_measured_ratio_and_metrics_are_those_of_the_collection(folder):
    """The made-up records obey the identities that real ones are checked for."""
    plain = [r for r in folder.all() if r.cell.setting == "vanilla" and not prediction.is_grid(r)]
    tests = [r for r in folder.all() if r.cell.setting == "ngram"]
    assert stats.speedup(tests, plain).value > 0
    assert all(metrics.tokens_per_step(r.counters) >= 1 for r in tests)


def test_the_noise_floor_is_that_of_the_nearest_measured_batch():
    found = replace(hand_made(), noise={1: 0.1, 64: 0.2, 256: 0.5})
    assert [found.noise_at(b) for b in (1, 4, 16, 100, 400)] == [0.1, 0.1, 0.2, 0.2, 0.5]
    assert found.noise_at(8) == 0.2  # as far from 1 as from 64: the larger one
    assert math.isnan(replace(hand_made(), noise={}).noise_at(8))


def test_arms_at_one_batch_say_nothing_of_another():
    """Identical engines agree at batch 2 and differ by a factor of two at batch 4."""
    held = []
    for batch, walls in ((2, (2.0, 2.0)), (4, (2.0, 4.0))):
        for repeat, wall_s in enumerate(walls):
            c = made_up.cell(batch_size=batch)
            c = c.model_copy(update={"engine": c.engine.model_copy(update={"repeat": repeat})})
            held.append(made_up.record(c, wall_s=wall_s, has_trace=True))
    store = SimpleNamespace(trace=lambda r: made_up.trace([1.0], [2]))
    noise = prediction.survey(held, store).noise
    ((label, floors),) = noise.items()
    assert floors == {2: pytest.approx(0.0), 4: pytest.approx(math.log(2))}
