"""Writing a parrot: seconds against plain disk writes of as many bytes, and peak memory against one layer and the embeddings."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lib.measure import parrot
from lib.results.run import Model


def main(names: list[str]) -> None:
    import torch  # not in the time

    for name in names or ["SmolLM2-135M", "Qwen2.5-0.5B"]:
        config = parrot.config_of(Model(source="parrot", name=name))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "parrot"
            began = time.perf_counter()
            parrot.write(folder, config)
            took = time.perf_counter() - began
            size = sum(file.stat().st_size for file in folder.iterdir())
            block, began = bytes(2**20), time.perf_counter()
            with open(Path(scratch) / "plain", "wb") as file:
                for _ in range(size // 2**20):
                    file.write(block)
            plain = time.perf_counter() - began
        top = 4 * config["vocab_size"] * config["hidden_size"]
        layer = 2 * (4 * config["hidden_size"] ** 2 + 3 * config["hidden_size"] * config["intermediate_size"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 - before
        print(
            f"{name}: {size / 1e9:.2f} GB, {took / plain:.1f} times a plain write; peak memory {peak:.2f} GiB, "
            f"{peak * 2**30 / (top + layer):.1f} times embeddings and one layer ({'GPU' if torch.cuda.is_available() else 'CPU'})"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
