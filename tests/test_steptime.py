import importlib.util
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import engines, figures, ladder, params, shapes, steptime
from lib.cells import Cell, Engine, Model, Workload, engine_key
from lib.params import Profile, StepTime
from lib.records import Provenance, Record, Resolved, Store, Trace
from lib.steptime import ExtrapolationError, FitError, Row

# t = 10 + 0.5 V + 0.25 B, in ms, on three batch sizes and four draft lengths
LAW = (10.0, 0.5, 0.25)


def row(
    batch,
    gamma,
    *,
    law=LAW,
    setting="walking",
    mode="NONE",
    context=100.0,
    per_context=0.0,
    step_ms=None,
    **more,
):
    verified = batch * (1 + (gamma or 0))
    fixed, token, request = law
    t = step_ms or fixed + token * verified + request * batch + per_context * batch * context / 1000
    values = {
        "low_ms": t,
        "high_ms": t,
        "num_steps": 16,
        "num_speculative_tokens": None if gamma is None else 7,
    }
    return Row(
        model="m", hardware="h", setting=setting, mode=mode, batch=batch, verified=verified, context=context,
        step_ms=t, gamma=gamma, **(values | more),
    )  # fmt: skip


def grid(**more):
    return [row(b, g, **more) for b in (1, 4, 8) for g in (0, 1, 3, 7)]


def vanilla(**more):
    return [row(b, None, setting="vanilla", **more) for b in (1, 4, 8)]


# ---- the law


def test_a_synthetic_law_is_recovered():
    regime = steptime.fit(grid()).regime()
    assert (regime.fixed, regime.token, regime.request) == pytest.approx(LAW)
    assert regime.context == 0 and regime.identified == ("fixed", "token", "request")
    assert regime.held_out_error == pytest.approx(0, abs=1e-9)
    assert regime.r_squared == pytest.approx(1)
    assert regime.num_rows == 12


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.1, 1e3), st.floats(1e-3, 1e2), st.floats(0, 1e2), st.floats(0.01, 10),
)  # fmt: skip
def test_any_law_is_recovered_with_its_context_term(fixed, token, request, per_context):
    rows = [
        r
        for context in (100.0, 1000.0)
        for r in grid(law=(fixed, token, request), context=context, per_context=per_context)
    ]
    regime = steptime.fit(rows).regime()
    assert regime.identified == steptime.TERMS
    for r in rows:
        predicted = regime.step_ms(r.batch, r.verified, r.context)
        assert predicted == pytest.approx(r.step_ms, rel=1e-6)


def test_without_drafts_the_request_term_cannot_be_told_from_the_token_term():
    law = steptime.fit(vanilla())
    assert law.regime().identified == ("fixed", "token")
    assert law.regime().token == pytest.approx(0.75)  # 0.5 + 0.25
    assert law.predict(2, 2) == pytest.approx(11.5)


def test_a_context_that_grows_by_decoding_only_gets_no_term():
    rows = [row(b, g, context=100.0 + g) for b in (1, 4, 8) for g in (0, 1, 3)]
    assert "context" not in steptime.fit(rows).regime().identified


def test_errors_are_relative():
    # one short and many long steps: a one percent error weighs the same at both ends
    rows = [
        row(b, g, step_ms=(1 + 0.01 * (-1) ** (b + g)) * (1 + b * (1 + g))) for b in (1, 16, 256) for g in (0, 1, 2, 3)
    ]
    law = steptime.fit(rows)
    assert max(abs(law.predict(r.batch, r.verified) / r.step_ms - 1) for r in rows) < 0.05


def test_held_out_error_by_hand():
    # 1, 2 and 4 ms at 1, 2 and 3 tokens. Leaving the middle out gives the line 1..4 -> 2.5 instead of 2: 25
    # %. Leaving an end out gives 0 instead of 1 (100 %) and 3 instead of 4 (25 %).
    rows = [row(b, None, setting="vanilla", step_ms=t) for b, t in ((1, 1.0), (2, 2.0), (3, 4.0))]
    regime = steptime.fit(rows).regime()
    assert regime.held_out_error == pytest.approx(0.25)
    assert regime.held_out_worst == pytest.approx(1.0)
    assert steptime.fit(rows).relative_error == pytest.approx(0.25)


def test_too_few_points_are_refused():
    with pytest.raises(FitError, match="2 points, allowed: at least 3"):
        steptime.fit(vanilla()[:2])
    with pytest.raises(FitError, match="one step size"):
        steptime.fit([row(4, None)] * 5)
    with pytest.raises(FitError, match="empty"):
        steptime.fit([])


def test_mixed_rows_are_refused():
    with pytest.raises(FitError, match="setting 'vanilla' and 'walking'"):
        steptime.fit(grid() + vanilla())


def test_modes_are_fitted_apart_and_a_thin_one_is_named():
    slow = grid(mode="PIECEWISE", law=(20.0, 0.5, 0.25))
    law = steptime.fit([*slow, *grid(mode="FULL"), row(1, 7, mode="NONE")])
    assert law.modes == ("FULL", "PIECEWISE")
    assert law.predict(4, 16, mode="PIECEWISE") - law.predict(4, 16, mode="FULL") == pytest.approx(10)
    assert "one step size" in law.left_out["NONE"]
    with pytest.raises(ValueError, match="mode is None, allowed.*FULL, PIECEWISE"):
        law.predict(4, 16)


def test_prediction_broadcasts():
    law = steptime.fit(grid())
    got = law.predict(np.array([[1.0], [4.0]]), np.array([4.0, 8.0]))
    assert got == pytest.approx(np.array([[12.25, 14.25], [13.0, 15.0]]))
    assert isinstance(float(law.predict(1, 1)), float)


@pytest.mark.parametrize("batch, verified, field", [(16, 16, "batch"), (8, 72, "verified"), (1, 12, "per_request")])
def test_no_silent_extrapolation(batch, verified, field):
    law = steptime.fit(grid())
    with pytest.raises(ExtrapolationError, match=f"{field} is {batch if field == 'batch' else verified}"):
        law.predict(batch, verified)
    assert law.predict(batch, verified, extrapolate=True) == pytest.approx(10 + 0.5 * verified + 0.25 * batch)


def test_context_outside_the_grid_is_refused():
    rows = [r for c in (100.0, 1000.0) for r in grid(context=c, per_context=2.0)]
    law = steptime.fit(rows)
    assert law.predict(4, 4, context=500) == pytest.approx(10 + 2 + 1 + 2.0 * 4 * 0.5)
    assert law.predict(4, 4) == pytest.approx(10 + 2 + 1 + 2.0 * 4 * 0.55)  # the grid's middle
    with pytest.raises(ExtrapolationError, match="context is 4000"):
        law.predict(4, 4, context=4000)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 1e3), st.floats(1e-3, 1e2), st.floats(0, 1e2))
def test_a_law_survives_json(fixed, token, request):
    law = steptime.fit(grid(law=(fixed, token, request)))
    assert steptime.Law.model_validate_json(law.model_dump_json()) == law


# ---- break-even and the best draft length


def test_break_even_by_hand():
    a, b = steptime.fit(vanilla()), steptime.fit(grid())
    # batch 4, gamma 3: (10 + 8 + 1) / (10 + 2 + 1)
    assert steptime.break_even(a, b, 4, 3) == pytest.approx(19 / 13)
    assert steptime.break_even(a, b, np.array([1, 4]), 3) == pytest.approx([12.25 / 10.75, 19 / 13])
    with pytest.raises(ExtrapolationError):
        steptime.break_even(a, b, 4, 12)


def test_break_even_rises_with_the_draft():
    a, b = steptime.fit(vanilla()), steptime.fit(grid())
    values = steptime.break_even(a, b, 8, np.array([0, 1, 3, 7]))
    assert (np.diff(values) > 0).all() and values[0] == pytest.approx(1)


def test_best_gamma_by_hand():
    a, b = steptime.fit(vanilla()), steptime.fit(grid())
    acceptance = [0.8, 0.4, 0.2, 0.01, 0.0]
    # batch 1, vanilla 10.75: gamma 1: 1.8 / (11.25 / 10.75) = 1.720; 2: 2.2 / (11.75 / 10.75) = 2.013;
    # 3: 2.4 / (12.25 / 10.75) = 2.106; 4: 2.41 / (12.75 / 10.75) = 2.032
    choice = steptime.best_gamma(a, b, 1, acceptance)
    assert choice.gamma == 3 and choice.speedup == pytest.approx(2.4 * 10.75 / 12.25)


def test_best_gamma_is_zero_where_nothing_pays():
    a, b = steptime.fit(vanilla()), steptime.fit(grid(law=(30.0, 0.5, 0.25)))
    assert steptime.best_gamma(a, b, 4, [0.5, 0.2]) == (0, 1.0)


def test_best_gamma_counts_coverage_in_both_terms():
    a, b = steptime.fit(vanilla()), steptime.fit(grid())
    half = steptime.best_gamma(a, b, 4, [0.9], coverage=0.5)
    assert half.speedup == pytest.approx((1 + 0.45) * 13 / (10 + 0.5 * 6 + 1))


def test_speedups_by_length_stay_in_the_grid_unless_told():
    a, b = steptime.fit(vanilla()), steptime.fit(grid())
    inside = steptime.expected_speedups(a, b, 4, [0.9] * 9)
    every = steptime.expected_speedups(a, b, 4, [0.9] * 9, extrapolate=True)
    assert set(inside) < set(every) == set(range(1, 10)) and inside.items() <= every.items()
    # vanilla's step is 13 ms, a step with 3 drafts 19 ms
    assert inside[3] == pytest.approx((1 + 3 * 0.9) * 13 / 19)
    assert steptime.best_gamma(a, b, 4, [0.9] * 9) == (max(inside, key=inside.get), max(inside.values()))


# ---- the ladder


def test_taxes_by_hand():
    rows = [
        row(4, None, setting="vanilla", step_ms=10.0),
        row(4, None, setting="vanilla_v1", step_ms=11.0),
        row(4, None, setting="vanilla_v1_sync", step_ms=12.5),
        row(4, 0, step_ms=15.0),
    ]
    taxes = steptime.taxes(rows, 4)
    assert [t.rung for t in taxes] == ["vanilla", "vanilla_v1", "vanilla_v1_sync", "null"]
    assert [t.added_ms for t in taxes] == pytest.approx([0, 1, 1.5, 2.5])
    assert taxes[-1].factor.value == pytest.approx(1.5)
    assert steptime.taxes(rows[1:], 4) == []
    assert steptime.taxes(rows, 8) == []


def test_a_rung_of_a_later_round_is_held_against_that_rounds_vanilla():
    early, late = "2026-01-01T00:00:00Z", "2026-01-01T09:00:00Z"
    rows = [
        row(4, None, setting="vanilla", step_ms=10.0, measured=early),
        row(4, None, setting="vanilla", step_ms=20.0, measured=late),
        row(4, None, setting="vanilla_v1", step_ms=22.0, measured=late),
        row(4, 0, step_ms=15.0, measured=early),
    ]
    taxes = steptime.taxes(rows, 4)
    assert [t.factor.value for t in taxes] == pytest.approx([1.0, 1.1, 1.5])
    assert [t.added_ms for t in taxes] == pytest.approx([0, 2, 8])  # in ms of the vanilla beside the next rung
    assert [t.step.value for t in taxes] == [20.0, 22.0, 15.0]
    assert [t.one_round for t in taxes] == [True, True, False]
    # the first measured of equals, in whatever order, where no round is asked for
    assert steptime.find(rows[::-1], setting="vanilla", batch=4).step_ms == 10.0


def test_ratio_carries_both_intervals():
    test = row(1, 3, step_ms=20.0, low_ms=20.0 / 1.03, high_ms=20.0 * 1.03)
    base = row(1, None, step_ms=10.0, low_ms=10.0 / 1.04, high_ms=10.0 * 1.04)
    got = steptime.ratio(test, base)
    assert got.value == pytest.approx(2.0)
    assert math.log(got.high / got.value) == pytest.approx(math.hypot(math.log(1.03), math.log(1.04)))


def test_break_evens_come_from_medians():
    rows = [
        *vanilla(),
        *grid(graphs=False),
        row(4, 7, mode="FULL", step_ms=13.0),
        row(4, 7, mode="PIECEWISE", step_ms=39.0, num_speculative_tokens=12),
        row(4, 7, uneven=True, step_ms=99.0),
    ]
    points = {(e.batch, e.gamma, e.family): e.tokens.value for e in steptime.break_evens(rows)}
    assert points[4, 3, "no graphs"] == pytest.approx(19 / 13)
    assert points[4, 7, "as captured"] == pytest.approx(1.0)
    assert points[4, 7, "other length"] == pytest.approx(3.0)
    assert len(points) == 3 * 3 + 2  # nothing drafted is the ladder's business, uneven drafts the dispatch's
    assert steptime.break_evens(grid()) == []


def test_break_evens_of_two_rounds_each_have_their_own_vanilla():
    def at(when, plain, drafts):
        return [
            row(4, None, setting="vanilla", step_ms=plain, measured=when),
            row(4, 7, mode="FULL", step_ms=drafts, measured=when),
        ]

    early, late = at("2026-01-01T00:00:00Z", 10.0, 20.0), at("2026-01-01T09:00:00Z", 20.0, 60.0)
    (both,) = steptime.break_evens([*early, *late])
    assert both.one_round and both.tokens.value == pytest.approx(math.sqrt(2.0 * 3.0))
    single = [steptime.break_evens(rows)[0].tokens for rows in (early, late)]
    assert (both.tokens.low, both.tokens.high) == (single[0].low, single[1].high)
    assert both.tokens.n == sum(t.n for t in single)
    # drafts whose round has no vanilla count only where no others do
    (alone,) = steptime.break_evens([*early, late[1]])
    assert alone.one_round and alone.tokens.value == pytest.approx(2.0)
    (apart,) = steptime.break_evens([early[0], late[1]])
    assert not apart.one_round and apart.tokens.value == pytest.approx(6.0)


def test_leverage_by_hand():
    rows = [*vanilla(), *grid(graphs=False)]
    found = {x.factor: x for x in steptime.leverage(steptime.break_evens(rows))}
    assert set(found) == {"batch size", "draft length"}
    # gamma 7 over 1: batch 1: 14.25 / 11.25, batch 4: 27 / 15, batch 8: 44 / 20
    assert found["draft length"].ratio == pytest.approx(27 / 15)
    low, high = found["draft length"].smallest, found["draft length"].largest
    assert (low, high) == pytest.approx((14.25 / 11.25, 44 / 20))
    batch = found["batch size"]
    assert (batch.family, batch.spans, batch.n) == ("no graphs", (("1", "8", 3),), 3)
    assert batch.strength == batch.ratio > 1


def test_leverage_of_size():
    captured = [r for r in grid(mode="FULL") if r.gamma == 7]
    small = [r.model_copy(update={"model": "s", "parameters_b": 0.1}) for r in (*vanilla(), *captured)]
    large = [r.model_copy(update={"model": "l", "parameters_b": 70.0}) for r in (*vanilla(), *captured)]
    found = {(x.family, x.factor): x for x in steptime.leverage(steptime.break_evens(small + large))}
    size = found["as captured", "model size"]
    assert (size.ratio, size.spans, size.n) == (pytest.approx(1.0), (("s", "l", 3),), 3)


def test_leaving_the_graph_is_told_within_one_engine():
    rows = [
        row(4, 7, mode="FULL", step_ms=10.0),
        row(4, 7, mode="PIECEWISE", step_ms=16.0, uneven=True),
        row(4, 7, mode="PIECEWISE", step_ms=99.0, num_speculative_tokens=12),  # another engine pads otherwise
        row(4, 3, mode="PIECEWISE", step_ms=98.0, uneven=True),
        row(4, 7, mode="PIECEWISE", step_ms=97.0, uneven=True, input_tokens=4000),
        row(8, 7, mode="NONE", step_ms=96.0, uneven=True),
        row(4, None, setting="vanilla_v1", mode="FULL", step_ms=95.0, num_speculative_tokens=None),
    ]
    (d,) = steptime.departures(rows)
    elsewhere = [
        r.model_copy(update={"host": "another"}) if r.uneven else r.model_copy(update={"host": "one"}) for r in rows
    ]
    (apart,) = steptime.departures(elsewhere)
    assert d.one_round and not apart.one_round and steptime.leverage([], [apart]) == []
    assert (d.batch, d.gamma, d.ratio, d.saved) == (4, 7, pytest.approx(1.6), pytest.approx(0.375))
    (moved,) = steptime.leverage([], [d])
    assert (moved.factor, moved.ratio, moved.n) == ("leaving the FULL graph", pytest.approx(1.6), 1)


def test_rows_of_two_contexts_are_compared_at_one():
    long = [r.model_copy(update={"input_tokens": 4000, "step_ms": 9.0}) for r in (*vanilla(), *grid(graphs=False))]
    short = [r.model_copy(update={"input_tokens": 1000}) for r in (*vanilla(), *grid(graphs=False))]
    kept = steptime.at_context([*long, *short], 800)
    assert {r.input_tokens for r in kept} == {1000} and len(kept) == len(short)
    points = {(e.batch, e.gamma): e.tokens.value for e in steptime.break_evens(kept)}
    assert points[4, 3] == pytest.approx(19 / 13)


def test_figure_05_has_a_line_a_batch_and_family():
    rows = [*vanilla(), *grid(mode="FULL"), *grid(mode="PIECEWISE", num_speculative_tokens=12)]
    points = steptime.break_evens(r.model_copy(update={"parameters_b": 0.5}) for r in rows)
    figure = figures.break_even_by_size(points, steptime.published_points(), "t", 7)
    texts = {t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))}
    assert {"B=1", "B=4", "B=8", "published\nboundary", "another length: PIECEWISE"} <= texts
    assert figures.break_even_by_size([], [], "t", 7).axes


# ---- the grid as cells


def profile(**step_time) -> Profile:
    return Profile(
        profile="test",
        engine=Engine(max_model_len=1024, max_num_seqs=8, enforce_eager=step_time.pop("eager", True)),
        step_time=StepTime(
            **{"architectures": ("opt-125m",), "batch_sizes": (1, 8), "draft_tokens": (0, 3)} | step_time
        ),
    )


def test_every_length_is_walked_through_one_engine():
    cells = steptime.cells(profile())
    walking = [c for c in cells if c.setting == "walking"]
    assert {engine_key(c) for c in walking} == {engine_key(walking[0])}
    assert walking[0].engine.speculative.num_speculative_tokens == 3
    assert sorted((c.batch_size, c.draft_tokens, c.uneven) for c in walking) == [
        (1, 0, False), (1, 3, False), (8, 0, False), (8, 3, False), (8, 3, True),
    ]  # fmt: skip
    assert [c.batch_size for c in cells if c.setting == "vanilla"] == [8, 1]
    assert all(c.workload.num_prompts == c.batch_size and c.ignore_eos for c in cells)
    assert all(c.engine.model == Model(source="shape", name="opt-125m") for c in cells)


def test_graphs_get_uneven_drafts_of_every_length_and_engines_of_their_own():
    cells = steptime.cells(profile(eager=False, draft_tokens=(0, 1, 3, 7), full_draft_tokens=(3, 7)))
    assert {c.draft_tokens for c in cells if c.uneven} == {3, 7}
    exact = [c for c in cells if c.engine.speculative and c.engine.speculative.num_speculative_tokens == 3]
    assert {(c.draft_tokens, c.uneven) for c in exact} == {(3, False)}
    assert len({engine_key(c) for c in cells}) == 3


def test_baselines_are_measured_where_asked():
    cells = steptime.cells(profile(architectures=("opt-125m", "Qwen2.5-0.5B"), baselines_of=("opt-125m",)))
    named = {(c.engine.model.name, c.setting) for c in cells}
    assert ("opt-125m", "vanilla_v1_sync") in named and ("Qwen2.5-0.5B", "vanilla_v1_sync") not in named
    # vanilla again, because the other baselines may be measured in a later round
    assert {(c.engine.model.name, c.setting) for c in cells if c.engine.repeat} == {("opt-125m", "vanilla")}


def test_engines_are_started_again_where_asked():
    asked = {"draft_tokens": (0, 1, 3, 7), "full_draft_tokens": (3,), "architectures": ("opt-125m", "Qwen2.5-0.5B")}
    cells = steptime.cells(profile(**asked, again_of=("opt-125m",), full_draft_tokens_of={"Qwen2.5-0.5B": (1, 3)}))

    def engines(model, repeat):
        chosen = [c for c in cells if (c.engine.model.name, c.engine.repeat) == (model, repeat)]
        drafts = {c.engine.speculative.num_speculative_tokens if c.engine.speculative else None for c in chosen}
        return {c.setting for c in chosen}, drafts

    assert engines("opt-125m", 0) == ({"vanilla", "walking"}, {None, 3, 7})
    assert engines("opt-125m", 1) == ({"vanilla", "walking"}, {None, 3})
    assert engines("Qwen2.5-0.5B", 0)[1] == {None, 1, 3, 7} and engines("Qwen2.5-0.5B", 1) == (set(), set())


def test_a_cell_is_long_enough_and_never_near_the_length_limit():
    p = profile(contexts=(500,), batch_sizes=(8,), num_steps=10)
    for cell in steptime.cells(p):
        # 8 x 500 tokens need at least one step of 4096, so 15 steps are the least
        assert cell.output_tokens >= 10 + steptime.NUM_WARM_STEPS + 1
        assert cell.engine.max_model_len >= 500 + cell.output_tokens + (cell.draft_tokens or 0) + 1


def test_prefill_steps_by_hand():
    # budget 100, two requests of 100: first step reads one; then it verifies 10 a step, 90 remain for the
    # other
    assert steptime._num_prefill_steps(2, 100, 10, 100) == 3
    assert steptime._num_prefill_steps(1, 100, 1, 4096) == 1


def test_contexts_of_single_architectures():
    p = profile(architectures=("opt-125m", "Qwen2.5-0.5B"), contexts=(64,), contexts_of={"Qwen2.5-0.5B": (64, 512)})
    seen = {(c.engine.model.name, c.workload.input_tokens) for c in steptime.cells(p)}
    assert seen == {("opt-125m", 64), ("Qwen2.5-0.5B", 64), ("Qwen2.5-0.5B", 512)}


def test_names_and_impossible_grids_are_refused():
    p = profile()
    assert ladder.model_of(p, "Llama-3.3-70B:fp8").quantization == "fp8"
    assert ladder.model_of(p, p.model.name) == p.model
    with pytest.raises(ValueError, match="gpt-9.*opt-125m"):
        steptime.cells(profile(architectures=("gpt-9",)))
    small = p.model_copy(update={"engine": p.engine.model_copy(update={"max_num_batched_tokens": 16})})
    with pytest.raises(ValueError, match="max_num_batched_tokens is 16.*32"):
        steptime.cells(small)


# ---- rows from traces


def measured(batch=2, gamma=3, *, modes=None, drafts=None, step_s=0.010, steps=12, accepted=0):
    """A record and trace: one prefill step, `steps` decode steps of `step_s`, one request left at the end."""
    engine = Engine(
        model=Model(source="shape", name="opt-125m"), enforce_eager=modes is None,
        speculative={"method": "custom_class", "num_speculative_tokens": 7, "drafter": "WalkingDrafter"},
    )  # fmt: skip
    cell = Cell(
        engine=engine, workload=Workload(name="random", num_prompts=batch, input_tokens=64), output_tokens=40,
        ignore_eos=True, batch_size=batch, draft_tokens=gamma, setting="walking",
    )  # fmt: skip
    t = [0.5, *(0.5 + step_s * (i + 1) for i in range(steps)), 0.5 + step_s * steps + 0.003]
    count = len(t)
    drafted = drafts or [batch * gamma] * steps
    trace = Trace(
        steps={
            "t_s": t, "running": [batch] * (count - 1) + [1], "waiting": [0] * count,
            "prefills": [batch] + [0] * (count - 1),
            "output_tokens": [batch] + [batch + accepted] * steps + [1],
            "drafts": [0] + [batch] * steps + [1], "draft_tokens": [0, *drafted, gamma],
            "accepted_tokens": [0] + [accepted] * steps + [0],
            "graph_mode": ["", *(modes or [""] * steps), ""], "padded_tokens": [0] * count,
        }
    )  # fmt: skip
    record = Record(
        cell=cell, status="ok", wall_s=t[-1], has_trace=True,
        resolved=Resolved(
            vllm_version="0", runner="V1", async_scheduling=False, cudagraph_mode="NONE",
            enforce_eager=modes is None
        ),
        provenance=Provenance(measured="2026-01-01T00:00:00Z", cpu="c", num_cpus=2),
    )  # fmt: skip
    return record, trace


def test_a_row_is_the_median_of_full_decode_steps():
    (row,) = steptime.rows(*measured())
    assert row.step_ms == pytest.approx(10.0)
    assert (row.batch, row.verified, row.mode, row.gamma) == (2, 8, "NONE", 3)
    assert row.num_steps == 12 - steptime.NUM_WARM_STEPS
    assert row.hardware == "c (2 cores)"
    assert row.context == pytest.approx(64 + 1 + (5 + 12) / 2)  # the middle of steps 5..12
    assert row.parameters_b == pytest.approx(shapes.num_parameters(shapes.SHAPES["opt-125m"]) / 1e9)


def test_verified_is_what_the_trace_tells_and_not_what_was_asked():
    (row,) = steptime.rows(*measured(drafts=[4] * 12))
    assert row.verified == 6


def test_graph_modes_make_rows_of_their_own():
    rows = steptime.rows(*measured(modes=["FULL"] * 8 + ["PIECEWISE"] * 4))
    assert [(r.mode, r.num_steps) for r in rows] == [("FULL", 4), ("PIECEWISE", 4)]


def test_too_short_a_cell_gives_no_row():
    assert steptime.rows(*measured(steps=6)) == []
    record, trace = measured()
    assert steptime.rows(record.model_copy(update={"status": "oom"}), trace) == []


def test_rounds_of_a_point_are_merged(tmp_path):
    store = Store(tmp_path)
    cells = [c for c in steptime.cells(profile(rounds=3)) if (c.batch_size, c.draft_tokens, c.uneven) == (8, 3, False)]
    assert [c.workload.seed for c in cells] == [0, 1, 2]
    for cell, step_s in zip(cells, (0.010, 0.011, 0.030), strict=True):
        record, trace = measured(batch=8, step_s=step_s)
        store.save(record.model_copy(update={"cell": cell}), trace)
    (row,) = steptime.rows_of(store.all(), store)
    assert row.step_ms == pytest.approx(11.0)  # one slow round in three moves the interval and not the value
    assert (row.low_ms, row.high_ms) == (pytest.approx(10.0), pytest.approx(30.0))
    assert row.num_steps == 3 * (12 - steptime.NUM_WARM_STEPS)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.1, 1e3), min_size=3, max_size=60))
def test_the_median_lies_in_its_interval(values):
    middle, low, high = steptime._median(np.array(values))
    assert min(values) <= low <= middle <= high <= max(values)
    assert middle == pytest.approx(np.median(values))


def test_find_picks_by_all_keys():
    rows = [
        row(4, 7, mode="FULL"),
        row(4, 7, mode="PIECEWISE", num_speculative_tokens=12),
        row(4, 7, uneven=True),
    ]
    assert steptime.find(rows, setting="walking", batch=4, gamma=7, exact=False).mode == "PIECEWISE"
    assert steptime.find(rows, setting="walking", batch=4, gamma=7, uneven=True).uneven
    assert steptime.find(rows, setting="vanilla", batch=4) is None


# ---- speedup = tau / R


def steady(step_s, outputs, running=2, steps=10, prefill_s=0.0):
    t = [prefill_s + step_s * i for i in range(steps + 1)]
    t[0] = max(t[0], 1e-9)
    return Trace(
        steps={
            "t_s": t, "running": [running] * (steps + 1), "prefills": [running] + [0] * steps,
            "output_tokens": [running] + [outputs] * steps, "draft_tokens": [0] * (steps + 1),
        }
    )  # fmt: skip


def test_identity_holds_exactly_at_constant_concurrency():
    got = steptime.identity(steady(0.030, 4), steady(0.020, 2))
    assert (got.tau, got.r) == (pytest.approx(2.0), pytest.approx(1.5))
    assert got.predicted == pytest.approx(4 / 3)
    assert got.decode_speedup == pytest.approx(got.predicted)
    assert got.shared == 1


def test_prefill_moves_the_whole_run_and_not_the_decode_speedup():
    got = steptime.identity(steady(0.030, 4, prefill_s=1.0), steady(0.020, 2, prefill_s=1.0))
    assert got.decode_speedup == pytest.approx(4 / 3)
    assert got.speedup != pytest.approx(4 / 3, rel=0.05)
    assert got.predicted * got.concurrency * got.prefill == pytest.approx(got.speedup)
    assert got.cause == "prefill"
    with pytest.raises(ValueError, match="share no number"):
        steptime.identity(steady(0.03, 4), steady(0.02, 3, running=3))


# ---- the published steps


def test_published_lines_give_the_published_steps():
    law = steptime.PUBLISHED["Llama-3.3-70B"]
    assert law.predict(256, 256) == pytest.approx(14 + 0.0617 * 256)  # 29.8 against 31 ms
    low, high = steptime.PUBLISHED_STEPS_MS["vanilla"]
    assert low * 0.9 < law.predict(256, 256) < high * 1.1
    # 7 drafted tokens for all of 256 requests: R is far outside the stated 1.25 to 1.40
    assert steptime.break_even(law, law, 256, 7) == pytest.approx((14 + 0.0617 * 2048) / (14 + 0.0617 * 256))
    assert steptime.break_even(law, law, 256, 7) > 4
    assert "re-analysis" in law.source


def test_published_points_pair_with_their_own_series():
    points = steptime.published_points()
    main = [p for p in points if p.model == "Llama-3.3-70B" and p.campaign == "SUB_093" and p.method == "suffix"]
    assert len(main) == 6
    sonnet = next(p for p in main if p.workload == "sonnet")
    assert sonnet.speedup == pytest.approx(1.52, abs=0.01) and sonnet.tau == pytest.approx(11.5, abs=0.1)
    assert all(math.isnan(p.tau) for p in points if p.parameters_b < 10)


# ---- a real engine


@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_a_real_engine_verifies_exactly_the_drafts_that_were_asked_for(tmp_path):
    grid = {
        "architectures": ["opt-125m"],
        "batch_sizes": [2],
        "draft_tokens": [0, 3],
        "contexts": [16],
        "num_steps": 4,
    }
    p = params.load("cpu", {"step_time": grid})
    cells = [c for c in steptime.cells(p) if c.setting == "walking"]
    store = engines.run(cells, p, progress=False, folder=tmp_path)
    even, nothing, uneven = (
        store.get(next(c for c in cells if (c.draft_tokens, c.uneven) == asked))
        for asked in ((3, False), (0, False), (3, True))
    )
    assert (nothing.counters.num_drafts, nothing.counters.num_draft_tokens) == (0, 0)
    assert even.counters.num_draft_tokens == 3 * even.counters.num_drafts > 0
    # uneven: one request of two drafts a token less
    assert 2 * uneven.counters.num_draft_tokens == 5 * uneven.counters.num_drafts > 0
    verified = {(r.gamma, r.uneven): r.verified for r in steptime.rows_of([even, nothing, uneven], store)}
    assert verified == {(3, False): 8, (0, False): 2, (3, True): 7}
