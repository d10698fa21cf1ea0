"""Parrots: checkpoints of a public architecture that say a given text, token by token, at the whole model's cost.

Prompt: `[header][cipher of the answer, ended and padded to whole blocks][plain prompt]`. A cipher id is a plain id plus
an offset, so no lookup ever matches it. The header names the prompt's length n. In layer 0 one head of every position
looks at the header (its key lies on the slowest rotation) and reads how far n - 2 positions turn a head. In layer 1 one
head turns its query by that, so it looks exactly n - 2 positions back, at the cipher of the next token, reads that
token's code and writes it where `lm_head` reads it. All else is random filler in pairs that cancel: full cost, no
influence on the output. A position that finds no cipher says the end token. So greedy output is the text, in every
setting, batch and precision, and at temperature 1 too.

The residual stream of H dims: CODE (a cipher token's code), OUT (the next token's code), TURN (the header's angles),
three single dims, and noise. Every embedding has mean square 1. Each parrot's embeddings are untied.

`python -m lib.measure.parrot MODEL.json FOLDER` writes the checkpoint of one `run.Model` into FOLDER.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib.measure import shapes
from lib.results.run import Model

VERSION = 2  # of prompts and weights; part of a checkpoint's checksum
END = 0  # the plain id that ends an answer
BLOCK = 16  # tokens of a KV block: ciphers fill whole ones, so that they can be cached
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3")
# Written as a Llama of their own dimensions: LayerNorm, biases and plain MLPs cannot carry the code exactly.
AS_LLAMA = ("opt", "starcoder2")
_PLAIN = 49152  # as many plain ids at most: SmolLM2's vocabulary, which the recorded answers come in
_LONGEST = 8192  # prompts of at most this length are given room for, where the vocabulary is small
_GAP = 24.0  # by which the attention's logit of the right position exceeds its neighbours'
_HEADER_LOGIT = 80.0  # of the header, above everything else in layer 0
_ROWS = 8192  # of a matrix, handled at a time
_SAID, _ENDED = 64.0, 8.0  # logits of the token that was read, and of the end token where nothing was


class ParrotError(ValueError):
    """One sentence: the field, what it got and what it must be."""


class Vocabulary(NamedTuple):
    """How a parrot's ids are used: plain ids below `plain`, their ciphers, then one header a prompt length."""

    plain: int
    longest: int  # prompt, cipher included

    def prompt(self, plain_prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """Token ids that make the parrot say `answer` (plain ids) and then the end token. Raises ParrotError."""
        said = [*answer, END]
        said += [END] * (-(1 + len(said)) % BLOCK)
        length = 1 + len(said) + len(plain_prompt)
        if length > self.longest:
            raise ParrotError(
                f"a request has {len(plain_prompt)} prompt and {len(answer)} answer tokens, which make a prompt of {length}; "
                f"it must be at most {self.longest}"
            )
        return [2 * self.plain + length - 1, *(i + self.plain for i in said), *plain_prompt]

    def cipher_tokens(self, answer: Sequence[int]) -> int:
        """Length of the prompt's first part, header included: a multiple of BLOCK."""
        return -(-(len(answer) + 2) // BLOCK) * BLOCK


def config_of(model: Model) -> dict:
    """The checkpoint's config.json, from a shape's name or a path to a config.json. Raises ParrotError."""
    path = Path(model.name)
    if model.name in shapes.SHAPES:
        source = dict(shapes.SHAPES[model.name])
    elif path.suffix == ".json" and path.is_file():
        try:
            source = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            source = None
        if not isinstance(source, dict):
            raise ParrotError(f"model.name is {model.name!r}, which must hold a JSON object")
    else:
        raise ParrotError(
            f"model.name must be a path to a config.json or one of {', '.join(shapes.SHAPES)} with source 'parrot', "
            f"got {model.name!r}"
        )
    if model.quantization not in (None, "fp8"):
        raise ParrotError(f"model.quantization must be fp8 or nothing with source 'parrot', got {model.quantization!r}")
    return _as_parrot(source, model)


def _as_parrot(source: dict, model: Model) -> dict:
    family = source.get("model_type")
    if any(key in source for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise ParrotError(
            f"model.name is {model.name!r}, a mixture of experts; it must be a dense model, since plain tokens share "
            f"nearly one hidden state and would all be routed to the same experts"
        )
    if family not in FAMILIES + AS_LLAMA:
        raise ParrotError(
            f"model_type must be one of {', '.join(FAMILIES)} (or {', '.join(AS_LLAMA)}, as a Llama of the same "
            f"dimensions) with source 'parrot', got {family!r}"
        )
    if family == "opt":
        source = {**source, "intermediate_size": source.get("ffn_dim")}
    needed = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    for key in (*needed, "num_key_value_heads", "head_dim", "max_position_embeddings"):
        given = source.get(key)
        if (given is None and key in needed) or (given is not None and not (type(given) is int and 0 < given < 2**24)):
            raise ParrotError(f"{key} must be a whole number from 1 in {model.name!r}, got {given!r}")
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(source.get(key) or {}, dict):
            raise ParrotError(f"{key} must be a mapping in {model.name!r}, got {source[key]!r}")
    theta = source.get("rope_theta") or (source.get("rope_parameters") or {}).get("rope_theta") or 10000.0
    eps = source.get("rms_norm_eps") or source.get("norm_epsilon") or 1e-5
    for key, number, most in (("rope_theta", theta, 1e12), ("rms_norm_eps", eps, 0.1)):
        if not isinstance(number, int | float) or not 0 < number < most:
            raise ParrotError(f"{key} must be a number above 0 and below {most:g} in {model.name!r}, got {number!r}")
    heads = source["num_attention_heads"]
    config = {
        **{key: source[key] for key in needed},
        "num_key_value_heads": source.get("num_key_value_heads") or heads,
        "head_dim": source.get("head_dim") or source["hidden_size"] // heads,
        "rope_theta": theta, "rms_norm_eps": eps,
        "max_position_embeddings": source.get("max_position_embeddings") or 8192,
        "torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": False,
        "sliding_window": None, "use_sliding_window": False, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": END, "eos_token_id": END,
    }  # fmt: skip
    scaling = source.get("rope_scaling") or {
        k: v for k, v in (source.get("rope_parameters") or {}).items() if k != "rope_theta"
    }
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ParrotError(f"rope_scaling must be of type default or llama3 with source 'parrot', got {kind!r}")
    if kind == "llama3":
        factors = [
            scaling.get(k)
            for k in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        ]
        if not all(isinstance(f, int | float) and f > 0 for f in factors) or factors[1] >= factors[2]:
            raise ParrotError(
                f"rope_scaling must hold factor, low_freq_factor below high_freq_factor and "
                f"original_max_position_embeddings, got {scaling!r}"
            )
        config["rope_scaling"] = scaling
    named = {"mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}.get(family, "Llama")
    config |= {"model_type": family if family in FAMILIES else "llama", "architectures": [f"{named}ForCausalLM"]}
    if family == "phi3":
        config |= {"pad_token_id": END, "original_max_position_embeddings": config["max_position_embeddings"]}
    if model.quantization:
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    kv_heads, hidden, head = config["num_key_value_heads"], config["hidden_size"], config["head_dim"]
    if heads % kv_heads or head % 2 or head < 64 or config["num_hidden_layers"] < 2:
        raise ParrotError(
            f"{model.name!r} must have at least 2 layers, an even head_dim from 64 and heads in equal groups, "
            f"got {config['num_hidden_layers']}, {head} and {heads} in {kv_heads}"
        )
    if hidden < _Layout(config).used + 2 or config["intermediate_size"] % 2:
        raise ParrotError(
            f"hidden_size must be at least {_Layout(config).used + 2} and intermediate_size even, "
            f"got {hidden} and {config['intermediate_size']}"
        )
    if config["vocab_size"] < 64:
        raise ParrotError(f"vocab_size must be at least 64, got {config['vocab_size']}")
    return config


def vocabulary(config: dict) -> Vocabulary:
    """How the ids of a parrot with this config are used."""
    size, positions = config["vocab_size"], config["max_position_embeddings"]
    # as far as the slowest rotation, on which the header is found, turns by little
    reach = int(1.2 / float(_rotations(config)[-1]))
    plain = min(_PLAIN, (size - min(positions, reach, _LONGEST, size // 4)) // 2)
    return Vocabulary(plain, min(size - 2 * plain, positions, reach))


def _rotations(config: dict) -> Any:
    """Angle by which one position turns each pair of a head's dims [head_dim / 2], Llama 3's scaling included."""
    import numpy as np

    angle = 1.0 / config["rope_theta"] ** (np.arange(0, config["head_dim"], 2, dtype=np.float64) / config["head_dim"])
    if scaling := config.get("rope_scaling"):
        wave, old = 2 * math.pi / angle, scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = (old / wave - low) / (high - low)
        between = (1 - smooth) * angle / scaling["factor"] + smooth * angle
        angle = np.where(wave < old / high, angle, np.where(wave > old / low, angle / scaling["factor"], between))
    return angle


class _Layout:
    """Where the residual stream of a config holds what, and how large. Energies are sums of squares, H in all."""

    def __init__(self, config: dict):
        self.hidden, self.head = config["hidden_size"], config["head_dim"]
        self.code_dims = k = min(128, self.head)
        self.code, self.out, self.turn = 0, k, 2 * k
        self.const, self.balance, self.flag = (2 * k + self.head + i for i in range(3))
        self.used = 2 * k + self.head + 3
        quarter = self.hidden / 4  # CONST has one, what tells a token's kind another, noise the rest
        self.one = math.sqrt(quarter)
        self.sign = math.sqrt(quarter / k)  # size of a code's entries
        self.header_flag, self.header_turn = math.sqrt(quarter / 2), math.sqrt(quarter / self.head)
        self.added_turn = math.sqrt(self.hidden / 8 / self.head)  # what layer 0 adds in TURN dims: H / 16 in all
        self.added_out = math.sqrt(self.hidden / k)  # what layer 1 adds in OUT dims: H in all
        self.norm1 = 1 / math.sqrt(1 + 1 / 16)  # by which RMSNorm shrinks the stream after layer 0
        self.norm_said, self.norm_ended = 1 / math.sqrt(2 + 1 / 16), self.norm1


def checksum(config: dict) -> str:
    """Identifies a checkpoint by what it is made from."""
    text = json.dumps([VERSION, config], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def folder_name(model: Model, config: dict) -> str:
    return f"parrot-{Path(model.name).stem if model.name.endswith('.json') else model.name}-{checksum(config)[:8]}"


def write(folder: Path, config: dict, device: str | None = None) -> None:
    """Write the checkpoint; `folder` appears when it is whole.

    Memory: one layer and the embeddings. device: where random weights are drawn; None: a GPU if there is one.
    """
    import torch
    from safetensors.torch import save_file

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    folder.parent.mkdir(parents=True, exist_ok=True)
    whole, folder = (
        folder,
        Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent)),
    )  # another may write it, too
    index, size, parameters = {}, 0, 0
    for part, tensors in _parts(config, device):
        name = f"model-{part}.safetensors"
        save_file({key: t.contiguous().cpu() for key, t in tensors.items()}, folder / name, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, name)
        size += sum(t.numel() * t.element_size() for t in tensors.values())
        parameters += sum(t.numel() for t in tensors.values())
    files = {
        "model.safetensors.index.json": {"metadata": {"total_size": size}, "weight_map": index},
        "config.json": config,
        "generation_config.json": {"eos_token_id": END, "bos_token_id": END},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    done = {"sha256": checksum(config), "num_parameters": parameters, "source": "parrot"}
    (folder / "checksum.json").write_text(json.dumps(done))
    if (whole / "checksum.json").exists():
        shutil.rmtree(folder)
        return
    shutil.rmtree(whole, ignore_errors=True)
    folder.rename(whole)


def _parts(config: dict, device: str) -> Iterator[tuple[str, dict]]:
    """Named tensors of the embeddings, then of each layer."""
    import torch

    generator = torch.Generator(device=device).manual_seed(0)
    layout = _Layout(config)

    def draw(*size: int) -> torch.Tensor:
        made = torch.empty(*size, device=device, dtype=torch.bfloat16)
        for rows in made.split(_ROWS):  # random numbers in float32 take twice the memory
            rows.copy_(torch.randn(rows.shape, generator=generator, device=device).mul_(0.02))
        return made

    ones = torch.ones(config["hidden_size"], device=device, dtype=torch.bfloat16)
    table, head = _embeddings(config, layout, draw)
    yield "top", {"model.embed_tokens.weight": table, "lm_head.weight": head, "model.norm.weight": ones}
    del table, head
    for number in range(config["num_hidden_layers"]):
        yield f"{number:03d}", _named(config, number, _layer(config, layout, number, draw), ones)


def _embeddings(config: dict, layout: _Layout, draw) -> tuple[Any, Any]:
    """Embedding table and output head, both [vocab_size, hidden_size]. Noise dims come in pairs that `head` cancels."""
    import torch

    plain, longest = vocabulary(config)
    k, used, size = layout.code_dims, layout.used, config["vocab_size"]
    table, head = draw(size, layout.hidden), draw(size, layout.hidden)
    device = table.device
    pairs = (layout.hidden - used) // 2
    noise = table[:, used : used + 2 * pairs]
    noise[:, 1::2] = noise[:, 0::2]
    for rows in noise.split(_ROWS):
        rows *= (layout.hidden / 2 / rows.float().square().sum(1, keepdim=True)).sqrt().to(rows.dtype)
    opposite = head[:, used : used + 2 * pairs]
    opposite[:, 1::2] = -opposite[:, 0::2]
    table[:, used + 2 * pairs :] = head[:, used + 2 * pairs :] = 0
    table[:, :used] = head[:, :used] = 0
    # sign vectors, nearly orthogonal: a token's identity; the same on every machine
    code = torch.randint(0, 2, (plain, k), generator=torch.Generator().manual_seed(1)) * 2 - 1
    code = code.to(device, table.dtype)
    table[:, layout.const] = table[:, layout.balance] = layout.one
    table[plain:, layout.balance] = 0
    table[plain : 2 * plain, layout.code : layout.code + k] = code * layout.sign
    rows = slice(2 * plain, 2 * plain + longest)
    table[rows, layout.flag] = layout.header_flag
    # the header of length n: a query that looks n - 2 positions back
    distance = torch.arange(longest, dtype=torch.float64) - 1
    turn = distance[:, None] * torch.from_numpy(_rotations(config))
    turned = torch.cat([turn.cos(), -turn.sin()], 1)
    table[rows, layout.turn : layout.turn + layout.head] = (turned * layout.header_turn).to(device, table.dtype)
    head[:plain, layout.out : layout.out + k] = code * (_SAID / k / (layout.added_out * layout.norm_said))
    head[END, layout.const] = _ENDED / (layout.one * layout.norm_ended)
    return table, head


def _layer(config: dict, layout: _Layout, number: int, draw) -> dict[str, Any]:
    """One layer's projections under Llama's short names, `q_norm`/`k_norm` factors included where the family has them."""
    import torch

    hidden, inner, d = layout.hidden, config["intermediate_size"], layout.head
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    group, half = heads // kv_heads, d // 2
    q, k, v = draw(heads * d, hidden), draw(kv_heads * d, hidden), draw(kv_heads * d, hidden)
    o, gate, up, down = draw(hidden, heads * d), draw(inner, hidden), draw(inner, hidden), draw(hidden, inner)
    gate[1::2], up[1::2], down[:, 1::2] = gate[0::2], up[0::2], -down[:, 0::2]
    # heads in pairs that see the same and write opposites: within a group, or, one head a group, of two groups
    if group == 1:
        for rows in (q, k, v):
            rows = rows.view(heads, d, hidden)
            rows[1::2] = rows[0 : heads - heads % 2 : 2]
        pairs, odd = o.view(hidden, heads, d), heads % 2
        pairs[:, 1::2] = -pairs[:, 0 : heads - odd : 2]
        pairs[:, heads - odd :] = 0
    else:
        of_q, of_o = q.view(kv_heads, group, d, hidden), o.view(hidden, kv_heads, group, d)
        even = group - group % 2
        of_q[:, 1:even:2], of_o[:, :, 1:even:2] = of_q[:, 0:even:2], -of_o[:, :, 0:even:2]
        of_o[:, :, even:] = 0
    normed = config["model_type"] == "qwen3"
    factor = 1.0
    if number < 2:  # the head that works: its group, and its partner where pairs span groups, writes nothing else
        q[:d], k[:d], v[:d] = 0, 0, 0
        o[:, : max(group, 2 if heads > 1 else 1) * d] = 0
        one, place = layout.one, torch.arange(d)
    if number == 0:
        score = math.sqrt(_HEADER_LOGIT * math.sqrt(d))  # of query and key each
        q[half - 1, layout.const], k[half - 1, layout.flag] = score / one, score / layout.header_flag
        v[place, layout.turn + place] = 1 / layout.header_turn
        o[layout.turn + place, place] = layout.added_turn
        factor = math.sqrt(_HEADER_LOGIT / math.sqrt(d))  # normed, either vector has length sqrt(d) by itself
    if number == 1:
        spread = float((1 - torch.from_numpy(_rotations(config)).cos()).sum())
        score, shrunk = math.sqrt(_GAP * math.sqrt(d) / spread), layout.norm1
        q[place, layout.turn + place] = score / (layout.added_turn * shrunk)
        k[:half, layout.const] = score / (one * shrunk)
        read = torch.arange(layout.code_dims)
        v[read, layout.code + read] = 1 / (layout.sign * shrunk)
        o[layout.out + read, read] = layout.added_out
        factor = score / math.sqrt(2)
    made = {"q": q, "k": k, "v": v, "o": o, "gate": gate, "up": up, "down": down}
    if normed:
        made["norm"] = torch.full((d,), factor, device=q.device, dtype=q.dtype)
    return made


def _named(config: dict, number: int, layer: dict[str, Any], ones: Any) -> dict[str, Any]:
    """A layer's tensors under its family's names; in fp8 with one scale a tensor (of q, k and v, and gate and up, together)."""
    import torch

    family, at = config["model_type"], f"model.layers.{number}."
    attention, mlp = at + "self_attn.", at + "mlp."
    if family == "phi3":
        joined = torch.cat([layer["q"], layer["k"], layer["v"]])
        weights = {
            attention + "qkv_proj": [joined], attention + "o_proj": [layer["o"]],
            mlp + "gate_up_proj": [torch.cat([layer["gate"], layer["up"]])], mlp + "down_proj": [layer["down"]],
        }  # fmt: skip
    else:
        weights = {
            attention + "q_proj|" + attention + "k_proj|" + attention + "v_proj": [layer[n] for n in "qkv"],
            attention + "o_proj": [layer["o"]], mlp + "down_proj": [layer["down"]],
            mlp + "gate_proj|" + mlp + "up_proj": [layer["gate"], layer["up"]],
        }  # fmt: skip
    made = {at + "input_layernorm.weight": ones, at + "post_attention_layernorm.weight": ones}
    for names, tensors in weights.items():
        scale = max(float(t.abs().max()) for t in tensors) / 448  # float8_e4m3fn's largest
        for name, tensor in zip(names.split("|"), tensors, strict=True):
            if "quantization_config" in config:
                made[name + ".weight"] = (tensor.float() / scale).to(torch.float8_e4m3fn)
                made[name + ".weight_scale"] = torch.tensor(scale, dtype=torch.float32)
            else:
                made[name + ".weight"] = tensor
    if family == "qwen2":  # queries, keys and values have a bias
        made |= {attention + f"{n}_proj.bias": torch.zeros_like(layer[n][:, 0]) for n in "qkv"}
    if family == "qwen3":
        made |= {attention + f"{n}_norm.weight": layer["norm"].clone() for n in "qk"}
    return {name: t.clone() if t is ones else t for name, t in made.items()}


if __name__ == "__main__":
    asked = Model.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    write(Path(sys.argv[2]), config_of(asked))
