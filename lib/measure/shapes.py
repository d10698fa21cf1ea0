"""Public architectures without weights: `params/shapes/*.json`, Hugging Face configs written by hand.

Built by vLLM with `load_format="dummy"` (step times and nothing else), or filled with weights that say a given text
(`parrot`).
"""

from __future__ import annotations

import json
from pathlib import Path

from lib.results.records import ROOT, write_atomically

FOLDER = ROOT / "params" / "shapes"

SHAPES: dict[str, dict] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))
}


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
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    for file, content in (("config.json", config), ("generation_config.json", generation)):
        # another engine may be reading it
        write_atomically(folder / file, (json.dumps(content, indent=1) + "\n").encode())
    return folder
