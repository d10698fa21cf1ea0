"""Architectures without weights: public configurations, written by hand, for step times and for nothing else.

A *shape* is a Hugging Face config that vLLM builds with `load_format="dummy"`. The nine are the models of
the study that is re-tested; their sizes follow from the config alone (`num_parameters`) and agree with the
published counts.
"""

from __future__ import annotations

import json
from pathlib import Path


def _qwen2(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int, tied: bool) -> dict:
    return {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocabulary,
        "tie_word_embeddings": tied, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "initializer_range": 0.02,
        "use_sliding_window": False, "bos_token_id": 151643, "eos_token_id": 151645,
    }  # fmt: skip


SHAPES: dict[str, dict] = {
    "opt-125m": {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "torch_dtype": "float16",
        "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "vocab_size": 50272, "word_embed_proj_dim": 768, "max_position_embeddings": 2048,
        "activation_function": "relu", "do_layer_norm_before": True, "tie_word_embeddings": True,
        "init_std": 0.02,
        "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1,
    },
    "Qwen2.5-0.5B": _qwen2(896, 4864, 24, 14, 2, 151936, True),
    "Qwen2.5-1.5B": _qwen2(1536, 8960, 28, 12, 2, 151936, True),
    "starcoder2-3b": {
        "architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "torch_dtype": "bfloat16",
        "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30, "num_attention_heads": 24,
        "num_key_value_heads": 2, "vocab_size": 49152, "tie_word_embeddings": True, "use_bias": True,
        "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 16384, "norm_epsilon": 1e-05,
        "rope_theta": 999999.4420358813, "sliding_window": 4096, "initializer_range": 0.018042,
        "bos_token_id": 0, "eos_token_id": 0,
    },
    "Qwen2.5-7B": _qwen2(3584, 18944, 28, 28, 4, 152064, False),
    "Phi-3-medium-14B": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "torch_dtype": "bfloat16",
        "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 10, "vocab_size": 32064, "tie_word_embeddings": False, "hidden_act": "silu",
        "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0, "sliding_window": 2047, "initializer_range": 0.02,
        "bos_token_id": 1, "eos_token_id": 32000, "pad_token_id": 32000,
    },
    "Qwen2.5-32B": _qwen2(5120, 27648, 64, 40, 8, 152064, False),
    "Llama-3.3-70B": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": False,
        "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "initializer_range": 0.02, "bos_token_id": 128000, "eos_token_id": 128009,
    },
    "Qwen2.5-72B": _qwen2(8192, 29568, 80, 64, 8, 152064, False),
}  # fmt: skip

# Billions, as the model cards state them (Phi-3: "14B" there, 13.96 by its weights' index).
PUBLISHED_PARAMETERS_B: dict[str, float] = {
    "opt-125m": 0.125,
    "Qwen2.5-0.5B": 0.49,
    "Qwen2.5-1.5B": 1.54,
    "starcoder2-3b": 3.03,
    "Qwen2.5-7B": 7.61,
    "Phi-3-medium-14B": 13.96,
    "Qwen2.5-32B": 32.5,
    "Llama-3.3-70B": 70.6,
    "Qwen2.5-72B": 72.7,
}


def _linear(rows: int, columns: int, bias: bool) -> int:
    return rows * columns + (columns if bias else 0)


def num_parameters(config: dict) -> int:
    """Parameters of a config's model, tied embeddings counted once.

    Knows the families of `SHAPES` (opt, qwen2, starcoder2, phi3, llama). Raises ValueError for another
    `model_type`.
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
        raise ValueError(f"model.name is {name!r}, allowed for source 'shape': {', '.join(SHAPES)}")
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
