import json

import pytest

from lib import shapes


def test_every_shape_has_a_published_size():
    assert {path.stem for path in shapes.FOLDER.glob("*.json")} == set(shapes.SHAPES)


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_counted_parameters_agree_with_the_published_ones(name):
    counted = shapes.num_parameters(shapes.SHAPES[name])
    assert counted / 1e9 == pytest.approx(shapes.PUBLISHED_PARAMETERS_B[name], rel=0.01)


def test_opt_counted_by_hand():
    attention = 4 * (768 * 768 + 768)
    mlp = 768 * 3072 + 3072 + 3072 * 768 + 768
    layer = attention + mlp + 2 * 2 * 768
    expected = 12 * layer + 2 * 768 + 50272 * 768 + 2050 * 768
    assert expected == 125_239_296
    assert shapes.num_parameters(shapes.SHAPES["opt-125m"]) == expected


def test_untying_adds_one_embedding():
    tied = shapes.SHAPES["Qwen2.5-0.5B"]
    untied = tied | {"tie_word_embeddings": False}
    assert shapes.num_parameters(untied) - shapes.num_parameters(tied) == 151936 * 896


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_heads_divide_evenly(name):
    config = shapes.SHAPES[name]
    heads = config["num_attention_heads"]
    assert "head_dim" in config or config["hidden_size"] % heads == 0
    assert heads % config.get("num_key_value_heads", heads) == 0


def test_unknown_names_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="gpt-9.*opt-125m"):
        shapes.write("gpt-9", tmp_path)
    with pytest.raises(ValueError, match="mamba.*llama"):
        shapes.num_parameters(shapes.SHAPES["opt-125m"] | {"model_type": "mamba"})


def test_written_folder_holds_the_config(tmp_path):
    folder = shapes.write("Llama-3.3-70B", tmp_path / "a" / "b")
    assert json.loads((folder / "config.json").read_text()) == shapes.SHAPES["Llama-3.3-70B"]
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 128009
