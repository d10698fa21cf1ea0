import json

import pytest

from lib.measure import shapes


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_heads_divide_evenly(name):
    config = shapes.SHAPES[name]
    heads = config["num_attention_heads"]
    assert "head_dim" in config or config["hidden_size"] % heads == 0
    assert heads % config.get("num_key_value_heads", heads) == 0


def test_unknown_names_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="gpt-9.*opt-125m"):
        shapes.write("gpt-9", tmp_path)


def test_written_folder_holds_the_config(tmp_path):
    folder = shapes.write("Llama-3.3-70B", tmp_path / "a" / "b")
    assert json.loads((folder / "config.json").read_text()) == shapes.SHAPES["Llama-3.3-70B"]
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 128009


def test_whoever_reads_a_config_while_it_is_written_again_reads_it_whole(tmp_path):
    folder = shapes.write("opt-125m", tmp_path)
    with open(folder / "config.json") as reader:
        shapes.write("opt-125m", tmp_path)
        assert json.load(reader) == shapes.SHAPES["opt-125m"]
