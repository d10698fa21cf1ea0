"""Public architectures without weights: `params/shapes/*.json`, Hugging Face configs written by hand.

A *shape* is built by vLLM with `load_format="dummy"` (step times and nothing else) or filled with weights that say a
given text (`lib.parrot`). Sizes follow from the config alone (`num_parameters`) and agree with the published counts.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent.parent / "params" / "shapes"

# Billions, as the model cards state them (Phi-3: "14B" there, 13.96 by its weights' index).
PUBLISHED_PARAMETERS_B: dict[str, float] = {
    "opt-125m": 0.125,
    "SmolLM2-135M": 0.1345,
    "Qwen2.5-0.5B": 0.49,
    "Qwen2.5-1.5B": 1.54,
    "starcoder2-3b": 3.03,
    "Qwen3-4B": 4.02,
    "Mistral-7B-v0.3": 7.25,
    "Qwen2.5-7B": 7.61,
    "Llama-3.1-8B": 8.03,
    "Phi-3-medium-14B": 13.96,
    "Qwen2.5-14B": 14.8,
    "Qwen3-14B": 14.8,
    "Qwen2.5-32B": 32.5,
    "Qwen3-32B": 32.8,
    "Llama-3.3-70B": 70.6,
    "Qwen2.5-72B": 72.7,
}

# Smallest first.
SHAPES: dict[str, dict] = {
    name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in PUBLISHED_PARAMETERS_B
}


def _linear(rows: int, columns: int, bias: bool) -> int:
    return rows * columns + (columns if bias else 0)


def num_parameters(config: dict) -> int:
    """Parameters of a config's model, tied embeddings counted once.

    Knows the families of `SHAPES`. Raises ValueError for another `model_type`.
    """
    kind, hidden, layers = config["model_type"], config["hidden_size"], config["num_hidden_layers"]
    heads, embedding = config["num_attention_heads"], config["vocab_size"] * config["hidden_size"]
    head = config.get("head_dim") or hidden // heads
    key_value = head * config.get("num_key_value_heads", heads)
    # biases: of the query/key/value projections, of the output projection and the MLP; weights of one norm;
    # projections up into the MLP (two where it is gated)
    known = {
        "opt": (True, True, 2, 1),
        "starcoder2": (True, True, 2, 1),
        "qwen2": (True, False, 1, 2),
        "phi3": (False, False, 1, 2),
        "llama": (False, False, 1, 2),
        "mistral": (False, False, 1, 2),
        "qwen3": (False, False, 1, 2),  # its norms of queries and keys, 2 x head_dim a layer, are left out
    }
    if kind not in known:
        raise ValueError(f"model_type is {kind!r}, allowed: {', '.join(known)}")
    qkv_bias, other_bias, norm, ups = known[kind]
    inner = config["ffn_dim"] if kind == "opt" else config["intermediate_size"]
    attention = _linear(hidden, heads * head, qkv_bias) + 2 * _linear(hidden, key_value, qkv_bias)
    attention += _linear(heads * head, hidden, other_bias)
    mlp = ups * _linear(hidden, inner, other_bias) + _linear(inner, hidden, other_bias)
    positions = (
        (config["max_position_embeddings"] + 2) * hidden if kind == "opt" else 0
    )  # OPT's table has an offset of 2
    body = layers * (attention + mlp + 2 * norm * hidden) + norm * hidden
    return body + positions + embedding * (1 if config["tie_word_embeddings"] else 2)


def config_of(name: str) -> dict:
    """The config of shape `name`; ValueError names the shapes there are."""
    if name not in SHAPES:
        raise ValueError(f"model.name is {name!r}, allowed for source 'dummy': {', '.join(SHAPES)}")
    return SHAPES[name]


def write(name: str, folder: Path | str) -> Path:
    """Write shape `name` as `config.json` and `generation_config.json` into `folder`, made if absent;
    returns it.

    vLLM loads the folder with `load_format="dummy"` and `skip_tokenizer_init=True`; prompts are then token
    ids.
    """
    folder, config = Path(folder), config_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    for file, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder
