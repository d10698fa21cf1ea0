"""A tiny architecture for tests with parrots."""

from __future__ import annotations

import json
from pathlib import Path


def config(
    family: str = "llama", hidden: int = 512, heads: int = 4, kv_heads: int = 2, head_dim: int = 128, **changes
) -> dict:
    return {
        "model_type": family, "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": 3,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": 32768,
        "rope_theta": 500000.0, "max_position_embeddings": 4096, **changes,
    }  # fmt: skip


def write_config(folder: Path, **shape) -> str:
    """A config.json to name in `model.name`; its file's name tells parrots apart."""
    path = folder / f"{'-'.join(str(v) for v in shape.values()) or 'tiny'}.json"
    path.write_text(json.dumps(config(**shape)))
    return str(path)
