"""Parrots without an engine: prompts, vocabularies, checkpoints, recorded answers, and what is refused."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import parrots
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.measure import parrot, plan, profiles, recorded, shapes, weights
from lib.results.run import RECORDED, Model, Workload

TINY = parrot.Vocabulary(plain=1000, longest=400)
IDS = st.lists(st.integers(1, 999), min_size=1, max_size=120)


@given(prompt=IDS, answer=IDS)
def test_the_cipher_of_each_token_stands_as_far_back_as_the_header_says(prompt, answer):
    ids = TINY.prompt(prompt, answer)
    distance = ids[0] - 2 * TINY.plain - 1  # the header of length n is 2 * plain + n - 1; it looks n - 2 back
    assert distance == len(ids) - 2
    for step, said in enumerate([*answer, parrot.END]):
        assert ids[len(ids) - 1 + step - distance] == said + TINY.plain
    assert ids[-len(prompt) :] == prompt
    assert TINY.cipher_tokens(answer) == len(ids) - len(prompt)
    assert TINY.cipher_tokens(answer) % parrot.BLOCK == 0
    assert not set(ids[: -len(prompt)]) & set(range(TINY.plain))


def test_a_request_that_is_too_long_is_refused():
    with pytest.raises(parrot.ParrotError, match="300 prompt and 200 answer tokens.*must be at most 400"):
        TINY.prompt([1] * 300, [1] * 200)


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_every_shape_can_be_a_parrot(name):
    config = parrot.config_of(Model(source="parrot", name=name))
    ids = parrot.vocabulary(config)
    assert 2 * ids.plain + ids.longest <= config["vocab_size"]
    assert ids.plain >= 8000 and ids.longest >= 2048
    assert config["num_hidden_layers"] == shapes.SHAPES[name]["num_hidden_layers"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"family": "gemma3"}, ["model_type must be one of llama, mistral, qwen2, qwen3, phi3", "gemma3"]),
        ({"num_experts": 8}, ["mixture of experts", "must be a dense model"]),
        ({"intermediate_size": None}, ["intermediate_size must be a whole number", "None"]),
        ({"head_dim": 32}, ["head_dim from 64", "32"]),
        ({"hidden": 128}, ["hidden_size must be at least", "128"]),
        ({"rope_scaling": {"rope_type": "yarn"}}, ["rope_scaling must be of type default or llama3", "yarn"]),
        ({"vocab_size": 3}, ["vocab_size must be at least", "3"]),
        ({"vocab_size": 10**12}, ["vocab_size must be a whole number", "1000000000000"]),
        ({"head_dim": "128"}, ["head_dim must be a whole number", "'128'"]),
        ({"rope_theta": float("inf")}, ["rope_theta must be a number above 0", "inf"]),
        ({"rope_scaling": "linear"}, ["rope_scaling must be a mapping", "'linear'"]),
        ({"rope_scaling": {"rope_type": "llama3"}}, ["rope_scaling must hold factor", "llama3"]),
    ],
)
def test_a_config_that_cannot_be_a_parrot_is_refused_in_one_sentence(changes, words, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(parrots.config(**changes)))
    with pytest.raises(parrot.ParrotError) as error:
        parrot.config_of(Model(source="parrot", name=str(path)))
    assert all(word in str(error.value) for word in words)


PARROT = {"model": {"source": "parrot", "name": "SmolLM2-135M"}, "answers": "recorded", "workloads": ["edit"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"source": "parrot", "name": "Llama-9"}}, ["model.name must be", "Llama-3.1-8B", "Llama-9"]),
        ({"model": PARROT["model"] | {"quantization": "awq"}}, ["quantization must be fp8", "awq"]),
        ({"engine": {"max_model_len": 210}}, ["engine.max_model_len must", "210"]),
        ({"engine": {"max_model_len": 100000}}, ["engine.max_model_len must be at most the model's 8192", "100000"]),
        ({"answers": "published"}, ["edit", "sonnet"]),
        ({"answers": "model", "workloads": ["code"]}, ["answers must be", "parrot"]),
        ({"workloads": ["jsonl"]}, ["log must name", "None"]),
        ({"workloads": ["jsonl"], "log": "figures"}, ["log must name", "'figures'"]),
    ],
)
def test_an_impossible_profile_is_refused_before_an_engine_starts(changes, words):
    with pytest.raises(profiles.ProfileError) as error:
        profiles.load("cpu", PARROT | changes)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


# 128 bits of each workload's ids: the same on every machine
FROZEN = dict(map(str.split, (recorded.ANSWERS.parent / "checksums.txt").read_text().splitlines()))


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers_are_frozen(name):
    pairs = recorded._recorded(name)
    assert len(pairs) >= 256
    digest = hashlib.sha256()
    for pair in pairs:
        for part in pair:
            digest.update(np.asarray([len(part), *part], np.int32).tobytes())
    assert digest.hexdigest()[:32] == FROZEN[name]


def test_requests_keep_their_lengths_and_hold_no_id_of_another_seed():
    vocabulary = parrot.Vocabulary(plain=49152, longest=8192)

    def built(seed: int) -> list[recorded.Request]:
        workload = Workload(name="edit", answers="recorded", num_prompts=16, input_tokens=512, seed=seed)
        return recorded.build(workload, vocabulary, 640)

    one, again, other = built(0), built(0), built(1)
    assert one == again != other
    assert len({len(r.prompt_token_ids) for r in one}) > 8
    assert all(r.output_token_ids[-1] == parrot.END for r in one)
    shared = {i for r in one for i in r.output_token_ids} & {i for r in other for i in r.output_token_ids}
    assert len(shared) < 0.1 * len({i for r in one for i in r.output_token_ids})


def test_lengths_are_cut_and_a_cut_answer_has_no_end():
    workload = Workload(name="prose", answers="recorded", num_prompts=4, input_tokens=20, seed=0)
    for request in recorded.build(workload, parrot.Vocabulary(plain=49152, longest=8192), 30):
        assert len(request.output_token_ids) == 30 and parrot.END not in request.output_token_ids
        assert len(request.prompt_token_ids) == request.num_cipher_tokens + 20


def test_a_log_of_ids_is_a_workload(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [{"prompt_token_ids": [900000 + i, 7], "output_token_ids": [7, 8, 900000 + i]} for i in range(3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    workload = Workload(name="jsonl", answers="recorded", num_prompts=3, input_tokens=64, path=str(path))
    made = recorded.build(workload, TINY, 64)
    for request in made:
        first, second = request.prompt_token_ids[request.num_cipher_tokens :]
        assert request.output_token_ids == [second, request.output_token_ids[1], first, parrot.END]


def test_a_log_of_text_needs_no_tokenizer_of_the_caller(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"prompt": "Name a colour.", "completion": "red, red, red"}) + "\n")
    workload = Workload(name="jsonl", answers="recorded", num_prompts=1, input_tokens=64, path=str(path))
    (request,) = recorded.build(workload, TINY, 64)
    said = request.output_token_ids
    assert said.count(parrot.END) == 1 and len(set(said)) < len(said)


def test_a_changed_config_is_another_run(tmp_path):
    def asked(**changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(parrots.config(**changes)))
        p = profiles.load("cpu", PARROT | {"model": {"source": "parrot", "name": str(path)}})
        return plan.runs(p, ["vanilla"])[0].plan_id

    assert asked() == asked() != asked(hidden=1024)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{", ""])
def test_a_file_that_is_no_config_is_refused(content, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(parrot.ParrotError, match="must hold a JSON object"):
        parrot.config_of(Model(source="parrot", name=str(path)))


def test_two_that_prepare_one_parrot_both_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULATION_MODEL_CACHE", str(tmp_path / "cache"))
    model = Model(source="parrot", name=parrots.write_config(tmp_path))
    with ThreadPoolExecutor(2) as both:
        folders = set(both.map(weights.locate, [model, model]))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [Path(folders.pop()).name]


def test_more_requests_than_a_workload_holds_are_refused():
    workload = Workload(name="chat", answers="recorded", num_prompts=5000, input_tokens=64)
    with pytest.raises(ValueError, match=r"num_prompts must be at most \d+.*got 5000"):
        recorded.build(workload, parrot.Vocabulary(49152, 8192), 64)


def test_a_vocabulary_that_is_too_small_is_refused():
    workload = Workload(name="chat", answers="recorded", num_prompts=400, input_tokens=64)
    with pytest.raises(ValueError, match="vocab_size must leave a parrot.*400 requests.*it leaves 1000"):
        recorded.build(workload, TINY, 64)
    few = recorded.build(workload.model_copy(update={"num_prompts": 1}), TINY._replace(longest=2000), 64)
    assert max(few[0].output_token_ids) < TINY.plain


def test_divergence_names_request_position_expected_and_got():
    requests = [recorded.Request([5], [1, 2, 0], 1)] * 2
    assert recorded.divergence(requests, [[1, 2, 0], [1, 2, 0]]) == ""
    assert recorded.divergence(requests, [[1, 2, 0], [1, 9, 0]]) == "request 1 must say 2 at position 1, got 9"
    assert recorded.divergence(requests, [[1, 2], [1, 2, 0]]) == "request 0 must say 3 tokens, got 2"


def test_a_half_written_checkpoint_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULATION_MODEL_CACHE", str(tmp_path / "cache"))
    model = Model(source="parrot", name=parrots.write_config(tmp_path))
    folder = tmp_path / "cache" / parrot.folder_name(model, parrot.config_of(model))
    folder.mkdir(parents=True)
    (folder / "model-top.safetensors").write_bytes(b"half")
    assert weights.locate(model) == str(folder)
    held = {path.name for path in folder.iterdir()}
    assert {"config.json", "checksum.json", "model.safetensors.index.json", "model-002.safetensors"} <= held
    assert weights.checksum(str(folder)) == parrot.checksum(parrot.config_of(model))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_filler_cancels_and_fills_every_dim():
    import torch

    config = parrot._as_parrot(parrots.config(), Model(source="parrot", name="tiny"))
    parts = dict(parrot._parts(config, "cpu"))
    table, head = (parts["top"][f"{name}.weight"].double() for name in ("model.embed_tokens", "lm_head"))
    ids, layout = parrot.vocabulary(config), parrot._Layout(config)
    used = slice(1, 2 * ids.plain + ids.longest)
    assert torch.allclose(table[used].square().mean(1), torch.ones(used.stop - 1, dtype=table.dtype), rtol=0.02)
    noise = slice(layout.used, None)
    assert (table[used, noise] != 0).double().mean() > 0.99
    assert (table[:, noise] @ head[:64, noise].T).abs().max() < 1e-9
    attention = {n: parts["002"][f"model.layers.2.self_attn.{n}_proj.weight"].double() for n in "qo"}
    d = layout.head
    assert torch.equal(attention["q"][:d], attention["q"][d : 2 * d])
    assert torch.equal(attention["o"][:, :d], -attention["o"][:, d : 2 * d])
    up, down = (parts["002"][f"model.layers.2.mlp.{n}_proj.weight"] for n in ("up", "down"))
    assert torch.equal(up[0::2], up[1::2]) and torch.equal(down[:, 0::2], -down[:, 1::2])


def test_fp8_weights_have_scales():
    import torch

    config = parrot._as_parrot(parrots.config(), Model(source="parrot", name="tiny", quantization="fp8"))
    part = dict(parrot._parts(config, "cpu"))["001"]
    weight, scale = (part[f"model.layers.1.self_attn.q_proj.{name}"] for name in ("weight", "weight_scale"))
    assert weight.dtype == torch.float8_e4m3fn and scale.dtype == torch.float32
    assert weight.float().abs().max() <= 448
