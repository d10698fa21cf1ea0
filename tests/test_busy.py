import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import busy, figures
from lib.cells import Cell, Engine, Workload
from lib.records import Counters, Monitor, Provenance, Record, Store, Trace


def record(setting, wall_s, steps, tokens, *, busy_pct=None, energy_j=None, seed=0, cpu_pct=150.0):
    cell = Cell(
        engine=Engine(), workload=Workload(name="sonnet", num_prompts=2, input_tokens=64, seed=seed),
        output_tokens=32, batch_size=2, setting=setting,
    )  # fmt: skip
    return Record(
        cell=cell, status="ok", wall_s=wall_s,
        counters=Counters(
            num_output_tokens=tokens, num_prompt_tokens=128, num_engine_steps=steps,
            num_request_steps=2 * steps, request_steps_source="engine",
        ),
        monitor=Monitor(
            window_s=wall_s, num_samples=9, cpu_pct=cpu_pct, gpu_busy_pct=busy_pct, gpu_energy_j=energy_j,
            gpu_power_w=None if energy_j is None else energy_j / wall_s,
        ),
        provenance=Provenance(measured="2026-01-01T00:00:00Z"),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_a_rung_pools_its_cells_by_time(store):
    cells = [
        record("null", 1.0, 100, 200, busy_pct=90.0, energy_j=100.0),
        record("null", 3.0, 100, 200, busy_pct=50.0, energy_j=300.0, seed=1),
    ]
    rung = busy.rungs(cells, store, 2)["null"]
    assert rung.throughput_tok_s == pytest.approx(100.0)
    assert rung.step_ms == pytest.approx(20.0)
    assert rung.busy_pct == pytest.approx(60.0)  # (90 x 1 + 50 x 3) / 4
    assert [(one.busy_pct, one.wall_s, one.single) for one in rung.single] == [(90.0, 1.0, ()), (50.0, 3.0, ())]
    assert (rung.kernels_ms, rung.gap_ms) == (pytest.approx(12.0), pytest.approx(8.0))
    assert rung.joules_per_token == pytest.approx(1.0)
    assert rung.power_w == pytest.approx(100.0)
    assert rung.tau == pytest.approx(1.0)
    assert busy.rungs(cells, store, 8) == {}


def test_without_a_gpu_its_fields_are_absent_and_not_zero(store):
    rung = busy.rungs([record("vanilla", 1.0, 10, 20)], store, 2)["vanilla"]
    assert rung.busy_pct is None and rung.power_w is None and rung.joules_per_token is None
    assert rung.gap_ms != rung.gap_ms
    assert rung.cpu_pct == 150.0
    assert busy.causes({"vanilla": rung}) == []


def test_decode_steps_come_from_the_traces(store):
    r = record("vanilla", 1.0, 3, 6)
    store.save(r, Trace(steps={"t_s": [0.5, 0.52, 0.56], "running": [2, 2, 2], "prefills": [2, 0, 0],
                               "output_tokens": [2, 2, 2], "draft_tokens": [0, 0, 0]}))  # fmt: skip
    rung = busy.rungs([store.get(r.cell)], store, 2)["vanilla"]
    assert rung.decode_ms == pytest.approx(30.0)


def test_split_by_hand():
    # kernels stay at 8 ms, the gap grows from 2 to 8: 80 % to 50 %, all of it from the gap
    assert busy.split((8.0, 2.0), (8.0, 8.0)) == pytest.approx((-30.0, 0.0))
    # kernels and gap double: nothing changes, but each alone would have
    gaps, kernels = busy.split((8.0, 2.0), (16.0, 4.0))
    assert gaps + kernels == pytest.approx(0) and gaps < 0 < kernels


@given(*[st.floats(0.01, 100)] * 4)
def test_parts_add_up_to_the_change(b0, g0, b1, g1):
    gaps, kernels = busy.split((b0, g0), (b1, g1))
    assert gaps + kernels == pytest.approx(100 * b1 / (b1 + g1) - 100 * b0 / (b0 + g0), abs=1e-9)


def test_the_number_of_steps_cancels(store):
    few = busy.rungs([record("null", 1.0, 100, 400, busy_pct=80.0)], store, 2)["null"]
    many = busy.rungs([record("null", 4.0, 400, 400, busy_pct=80.0)], store, 2)["null"]
    assert (few.kernels_ms, few.gap_ms) == pytest.approx((many.kernels_ms, many.gap_ms))


def test_causes_step_over_a_missing_rung(store):
    found = busy.rungs(
        [record("vanilla", 1.0, 100, 200, busy_pct=90.0), record("null", 1.0, 100, 200, busy_pct=60.0),
         record("ngram", 1.0, 100, 200, busy_pct=50.0)], store, 2,
    )  # fmt: skip
    causes = busy.causes(found)
    assert [(c.rung, round(c.points)) for c in causes] == [("null", -30), ("ngram", -10)]


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text"))]


def test_figure_06_leaves_gpu_columns_out_where_there_is_no_gpu(store):
    cells = [record("vanilla", 1.0, 100, 200), record("null", 2.0, 100, 200)]
    labels = texts(figures.busy_ladder(busy.rungs(cells, store, 2), [], "t"))
    assert "CPU of the engine [%]" in labels and not any("busy" in label for label in labels)
    cells = [
        record("vanilla", 1.0, 100, 200, busy_pct=90.0, energy_j=1.0),
        record("null", 2.0, 100, 200, busy_pct=40.0, energy_j=1.0),
    ]
    found = busy.rungs(cells, store, 2)
    labels = texts(figures.busy_ladder(found, busy.causes(found), "t"))
    assert "GPU busy share [%]" in labels and "-50" in labels and "null drafter" in labels


def test_figure_06_without_a_record_is_empty_and_no_error():
    assert figures.busy_ladder({}, [], "t").axes
