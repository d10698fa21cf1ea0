"""Recommendations: the best setting, what to paste, the schedule, and the command line."""

from __future__ import annotations

import json

import pytest
from made_up_machine import NGRAM, PERIODIC, hand_made, machine, rank_one, requests_of

from lib import prediction, recommend, replay, requestlog
from lib.cells import Speculative
from lib.prediction import BEYOND, Costs
from lib.records import Store


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Store:
    return machine(tmp_path_factory.mktemp("machine"))


def test_the_best_setting_is_the_fastest_that_surely_pays():
    found = list(rank_one(hand_made()).values())
    assert recommend.best(found, 2).setting == "ngram"
    slow = list(rank_one(hand_made(drafter_ms=(40.0, 0.0))).values())
    assert recommend.best(slow, 2).setting == "vanilla"
    with pytest.raises(recommend.RecommendError, match="batch_size is 3"):
        recommend.best(found, 3)


def test_what_to_paste_is_valid_python_and_shell():
    prediction = rank_one(hand_made())["ngram"]
    call, command = recommend.paste(prediction, "some/model")
    seen = {}
    eval(call, {"LLM": lambda **kw: seen.update(kw)})
    assert seen["speculative_config"] == NGRAM.vllm()
    assert seen["max_num_seqs"] == 2
    config = command.split("--speculative-config '")[1].rstrip("'")
    assert json.loads(config) == NGRAM.vllm()
    plain = recommend.paste(rank_one(hand_made())["vanilla"], "some/model")
    assert "speculative" not in plain[0] + plain[1]


def test_our_own_drafters_come_with_their_environment():
    padded = recommend.candidates()["padded_ngram_g3"]
    found = prediction.rank(
        PERIODIC, hand_made(), batch_sizes=[2], settings={"vanilla": None, "padded_ngram_g3": padded}
    )
    call, command = recommend.paste(found[0], "some/model")
    assert "os.environ['SPECULATION_DRAFTER_OPTIONS']" in call
    assert command.startswith("SPECULATION_DRAFTER_OPTIONS='{")


def test_larger_graphs_come_with_their_flags_and_one_length():
    costs = falling()
    modes = [r.model_copy(update={"mode": m}) for r in costs.drafter.regimes for m in ("FULL", "PIECEWISE")]
    costs = recommend.replace(costs, drafter=costs.drafter.model_copy(update={"regimes": tuple(modes)}))
    streams = [replay.stream([7, 8, 9, 7, 8], [9, 7, 8] * 20 + [i] * 3) for i in range(8)]
    log = requestlog.Log(tuple(streams), (), ())
    told = {
        runner: recommend.answer(log, recommend.replace(costs, runner=runner), batch_sizes=[8])
        for runner in ("V1", "V2")
    }
    offered = {runner: {p.setting: p for p in found.predictions} for runner, found in told.items()}
    larger = {runner: {name for name, q in found.items() if q.graphs.any_step} for runner, found in offered.items()}
    padded = {f"padded_ngram_g{n}_full" for n in (3, 5, 7, 10)}
    assert larger == {"V1": padded | {f"ngram_g{n}_full" for n in (3, 5, 7, 10)}, "V2": padded}  # V2 fills vLLM's own
    asked = recommend.answer(log, costs, batch_sizes=[8], settings={"vanilla": None, "own_full": NGRAM}).predictions
    assert not [q for q in asked if q.graphs.any_step]
    assert not [p for p in recommend.answer(log, falling(), batch_sizes=[8]).predictions if p.graphs.any_step]
    larger, plain = (offered["V1"][name] for name in ("ngram_g7_full", "ngram_g7"))
    assert larger.speculative == plain.speculative and recommend.graph_arguments(plain) == {}
    call, command = recommend.paste(larger, "some/model")
    seen = {}
    eval(call, {"LLM": lambda **kw: seen.update(kw)})
    assert (seen["max_cudagraph_capture_size"], seen["compilation_config"]) == (512, {"cudagraph_mode": "FULL"})
    assert (
        "--max-cudagraph-capture-size 512" in command
        and """--compilation-config '{"cudagraph_mode": "FULL"}'""" in command
    )
    assert "keep one length" in recommend.schedule_advice(larger, costs)
    assert "attention backend" in recommend.graph_advice(larger, costs)
    row = next(r for r in told["V1"].as_json("m")["predictions"] if r["setting"] == "ngram_g7_full")
    assert row["graphs"] == {"max_cudagraph_capture_size": 512, "compilation_config": {"cudagraph_mode": "FULL"}}


def falling() -> Costs:
    """Verified tokens are dear, so that drafts should shrink as the batch grows."""
    return hand_made((20.0, 0.5), (20.0, 0.9))


def test_a_schedule_falls_with_the_batch_and_starts_at_one():
    streams = [replay.stream([7, 8, 9, 7, 8], [9, 7, 8] * 20 + [i] * 3) for i in range(8)]
    prediction = rank_one(falling(), streams, 8)["ngram"]
    ranges = recommend.schedule(prediction, falling())
    assert ranges[0][0] == 1
    assert [low for low, _, _ in ranges[1:]] == [high + 1 for _, high, _ in ranges[:-1]]
    lengths = [gamma for *_, gamma in ranges]
    assert len(lengths) > 1
    assert lengths == sorted(lengths, reverse=True)
    assert "num_speculative_tokens_per_batch_size" in recommend.schedule_advice(prediction, falling())


def test_schedule_advice_names_what_vllm_refuses():
    streams = [replay.stream([7, 8, 9, 7, 8], [9, 7, 8] * 20 + [i] * 3) for i in range(8)]
    prediction = rank_one(falling(), streams, 8)["ngram"]

    def advice(speculative):
        changed = recommend.replace(prediction, speculative=speculative)
        return recommend.schedule_advice(changed, falling())

    assert "vLLM refuses" in advice(Speculative(method="suffix", num_speculative_tokens=3))
    assert '"gamma_schedule": "1:' in advice(recommend.candidates()["padded_ngram_g3"])
    assert "no draft length" in advice(None)
    assert "no schedule is needed" in recommend.schedule_advice(prediction, hand_made((20.0, 0.0), (20.0, 0.0)))


def test_larger_graphs_are_advised_where_a_full_batch_outgrows_those_as_shipped():
    streams = [replay.stream([7, 8, 9, 7, 8], [9, 7, 8] * 20 + [i] * 3) for i in range(8)]
    costs, padded = falling(), recommend.candidates((7,))["padded_ngram_g7"]
    graphs = [r.model_copy(update={"mode": m}) for r in costs.drafter.regimes for m in ("FULL", "NONE")]
    on_gpu = recommend.replace(costs, drafter=costs.drafter.model_copy(update={"regimes": tuple(graphs)}))

    def advice(batch, speculative, costs=on_gpu):
        asked = rank_one(falling(), streams, 8)["ngram"]
        return recommend.graph_advice(recommend.replace(asked, batch_size=batch, speculative=speculative), costs)

    assert advice(64, padded) == ""  # 64 x 8 tokens are the largest graph
    told = advice(65, padded)
    assert "of ngram verifies 520 tokens" in told and "max_cudagraph_capture_size=528" in told  # 520 is not captured
    assert advice(65, None) == advice(65, Speculative(method="suffix", num_speculative_tokens=8)) == ""
    eager = costs.drafter.model_copy(update={"regimes": tuple(graphs[1:2])})
    assert advice(65, padded, recommend.replace(costs, drafter=eager)) == ""


# ---- errors and the command line ----


@pytest.fixture
def log_path(tmp_path):
    path = tmp_path / "requests.jsonl"
    lines = [
        json.dumps({"prompt_token_ids": s.prompt_token_ids.tolist(), "output_token_ids": s.output_token_ids.tolist()})
        for s in requests_of(5, 4)
    ]
    path.write_text("\n".join([*lines, '{"prompt_token_ids": [1]}']))
    return path


def test_the_command_prints_an_answer_and_writes_a_figure(folder, log_path, tmp_path, capsys):
    figure = tmp_path / "answer.png"
    arguments = [
        "--log",
        str(log_path),
        "--law",
        str(folder.folder),
        "--figure",
        str(figure),
        "--batch",
        "1,8",
    ]
    assert recommend.main(arguments) == 0
    out = capsys.readouterr().out
    assert figure.stat().st_size > 1000
    for text in (
        "12 requests, 480 output tokens",
        "line 13 is left out",
        "LLM(",
        "vllm serve",
        "verdict",
        "ngram_g3",
    ):
        assert text in out


def test_the_command_speaks_json(folder, log_path, tmp_path, capsys):
    arguments = [
        "--log",
        str(log_path),
        "--law",
        str(folder.folder),
        "--figure",
        str(tmp_path / "a.svg"),
        "--json",
    ]
    assert recommend.main([*arguments, "--batch", "4,100", "--hardware", "another machine"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == 12
    assert found["left_out"][0]["line"] == 13
    assert set(found["answers"]) == {"4", "100"}
    assert any("beyond the law's grid" in note for note in found["notes"])
    assert any("not on another machine" in note for note in found["notes"])
    assert {p["verdict"] for p in found["predictions"] if p["batch_size"] == 100} <= {BEYOND, "baseline"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"--law": "nowhere"}, "nowhere', allowed: a folder of records"),
        ({"--log": "nowhere.jsonl"}, "log is 'nowhere.jsonl', allowed"),
        ({"--batch": "0"}, "--batch is '0', allowed: whole numbers from 1"),
        ({"--batch": "many"}, "--batch is 'many'"),
        ({"--law-model": "gpt"}, "law model is 'gpt'"),
        ({"--requests": "0"}, "--requests is 0, allowed: whole numbers from 1"),
        ({"--figure": "x.gif"}, "--figure is 'x.gif', allowed: a file ending in .png or .svg"),
    ],
)
def test_bad_arguments_are_one_sentence_and_exit_code_2(changes, sentence, folder, log_path, tmp_path, capsys):
    values = {
        "--log": str(log_path),
        "--law": str(folder.folder),
        "--figure": str(tmp_path / "a.png"),
    } | changes
    assert recommend.main([part for pair in values.items() for part in pair]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1


def test_an_empty_log_is_one_sentence(folder, tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert recommend.main(["--log", str(empty), "--law", str(folder.folder)]) == 2
    assert "holds no usable request" in capsys.readouterr().err


def test_help_teaches_the_log_format(capsys):
    with pytest.raises(SystemExit) as stop:
        recommend.main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for text in ("completion", "messages", "output_token_ids", "too close to call", "Example"):
        assert text in out


def test_the_law_model_is_found_by_name():
    labels = ["Qwen2.5-0.5B", "Qwen2.5-7B", "opt-125m"]
    assert recommend._law_model(labels, None, "Qwen/Qwen2.5-7B-Instruct")[0] == "Qwen2.5-7B"
    assert recommend._law_model(labels, None, "some/other")[0] is None
    assert recommend._law_model(["opt-125m"], None, "some/other")[1] == [
        "The law was measured with opt-125m, not with some/other."
    ]
    assert recommend._law_model(labels, "opt-125m", None)[0] == "opt-125m"
