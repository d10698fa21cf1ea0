"""A trial: what it plans, how it puts predicted beside measured, and one from calibration to verdict on the CPU engine."""

import importlib.util
import json

import pandas as pd
import parrots
import pytest
from made_up_records import NGRAM, record, run, trace

from lib.answer import recommend, stepcost, trial
from lib.measure import engines, forkserver, plan
from lib.results import table
from lib.results.run import Engine


def log(tmp_path, number=12):
    """Answers that repeat their prompt."""
    lines = [
        {"prompt_token_ids": list(range(i, i + 60)), "output_token_ids": list(range(i + 5, i + 45))}
        for i in range(0, 1000 * number, 1000)
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Llama-3.1-8B", "Llama-3.1-8B"), ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.3-70B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"), ("/some/where/config.json", "/some/where/config.json"),
    ],
)  # fmt: skip
def test_an_architecture_is_a_shape_or_a_config(name, shape):
    assert trial.architecture(name) == shape


def test_an_unknown_architecture_is_one_sentence(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(recommend.AdviceError, match="model must be one of .* got 'nobody/nothing'"):
        trial.architecture("nobody/nothing")


def test_a_trial_holds_vanilla_twice_and_every_request_fits(tmp_path):
    planned = trial.plan_of(log(tmp_path), model=parrots.write_config(tmp_path), concurrency=[1, 4, 64])
    p = planned.profile
    assert p.settings == ("vanilla", "ngram", "suffix") and p.repeats == {"vanilla": 2}
    assert p.concurrency == (1, 4) and p.engine["max_num_seqs"] == 4  # the log holds fewer than 64
    assert p.num_prompts == {1: 8, 4: 12} and p.input_tokens == 60 and p.output_tokens == 40
    with pytest.raises(recommend.AdviceError, match="concurrency must hold a number up to 12"):
        trial.plan_of(log(tmp_path), model=parrots.write_config(tmp_path), concurrency=[64])


def test_the_best_predicted_settings_are_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "_kind", lambda: "GPU")
    planned = trial.plan_of(log(tmp_path), model="Llama-3.1-8B", concurrency=[1, 8])
    best = planned.predicted[planned.predicted.concurrency == 8].nlargest(2, "speedup").setting
    assert set(planned.profile.settings) == {"vanilla", *best} and planned.profile.engine["dtype"] == "bfloat16"
    named = trial.plan_of(log(tmp_path), model="meta-llama/Llama-3.3-70B-Instruct", concurrency=[1], settings=["ngram"])
    assert named.profile.settings == ("vanilla", "ngram") and named.predicted.empty
    assert any("Nothing is predicted" in note for note in named.notes)


def test_the_model_itself_answers_the_prompts_of_a_log(tmp_path):
    planned = trial.plan_of(log(tmp_path), model="SmolLM2-135M-Instruct", real=True, concurrency=[1])
    assert planned.profile.model.source == "packaged" and planned.profile.answers == "model"


def test_predicted_stands_beside_measured():
    drafting = {"speculative_config": NGRAM}
    engines = [
        ("vanilla", Engine(), 10.0),
        ("vanilla", Engine(repeat=1), 10.4),
        ("ngram", Engine(arguments=drafting), 5.0),
    ]
    made = [record(run(s, engine=engine), wall_s=w, session="s") for s, engine, w in engines]
    tables = table.frames((r, trace([100], [2])) for r in made)
    load = int(tables.runs.concurrency.iloc[0])
    predicted = pd.DataFrame([{"setting": "ngram", "concurrency": load, "speedup": 1.9}])
    (row,) = trial.outcome(tables, predicted).itertuples()
    assert row.ratio == pytest.approx(10.2 / 5) and row.predicted == 1.9 and row.aa == pytest.approx(0.04)
    assert trial.outcome(tables._replace(runs=tables.runs[tables.runs.setting != "vanilla"]), predicted).empty


@pytest.fixture
def calibration(tmp_path):
    """A small calibration's profile, while its engines (and later ones alike) are forked from one process."""
    if not importlib.util.find_spec("vllm"):
        pytest.skip("the engine is not installed")
    shape = parrots.write_config(tmp_path, family="llama", hidden=256, heads=4, kv_heads=4, head_dim=64)
    small = {"num_prompts": 4, "output_tokens": 32, "input_tokens": 128, "profile": f"calibrate-{tmp_path.name}"} | {
        "settings": ("vanilla", "ngram"),
        "repeats": {},
    }
    p = trial.calibration_of(shape, concurrency=[4]).model_copy(update=small)
    with forkserver.open_fork_server(engines.environment(plan.runs(p)[0], p)):
        yield p


@pytest.mark.engine
def test_from_calibration_to_verdict(tmp_path, calibration):
    runs = trial.run(calibration).runs
    assert len(runs) == 6 and runs.verbatim.all()
    profiles, (name,) = (calibration.profile,), set(runs.model)
    assert stepcost.plain_runner(profiles) == "V1" and stepcost.cost(name, profiles=profiles).num_runs == 6
    advice = recommend.answer(log(tmp_path), settings=["ngram"], concurrency=[4], profiles=profiles)
    assert list(advice.table.setting) == ["vanilla", "ngram"] and advice.table.speedup.iloc[1] > 1
    planned = trial.plan_of(log(tmp_path), model=name, settings=["ngram"], concurrency=[4], calibration=profiles[0])
    mine = planned.profile.model_copy(update={"profile": f"trial-{tmp_path.name}"})
    (row,) = trial.outcome(trial.run(mine), planned.predicted).itertuples()
    assert row.predicted == pytest.approx(advice.table.speedup.iloc[1]) and row.ratio > 1
    # what the replay counted is what the engine did; the parrot says an end token more than the log
    assert row.tokens_per_step == pytest.approx(planned.predicted.tokens_per_step.iloc[1], rel=0.1)
