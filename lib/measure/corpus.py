"""Source text: sonnet lines out of a pinned package, and the 8-word pool of the code workload. No text is committed.

`aiperf` carries Shakespeare's complete works as one asset, installs in seconds without its dependencies and is pinned by
version and checksum. Its text has no punctuation, which the study's own file had; line and word counts agree.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = "aiperf"
ASSET = "aiperf/dataset/generator/assets/shakespeare.txt"
SHA256 = "e0e13a826912a4a81bb3a582aa73c4af0675bdeee6ddf6d505efb63d562d496f"
NUM_LINES = 518  # the first 37 sonnets, 14 lines each
CODE_WORDS = ("python", "code", "function", "list", "dict", "loop", "return", "test")


class CorpusError(RuntimeError):
    """The asset is missing or not the pinned one."""


def asset_path() -> Path:
    """Where the installed package keeps the asset, found without importing it. Raises CorpusError."""
    try:
        path = Path(str(metadata.distribution(PACKAGE).locate_file(ASSET)))
    except metadata.PackageNotFoundError:
        raise CorpusError(
            f"corpus asset {ASSET} is missing, allowed: the pinned package {PACKAGE} installed without dependencies "
            f"(make env)"
        ) from None
    if not path.exists():
        raise CorpusError(f"corpus asset {ASSET} is missing from {PACKAGE}, allowed: the pinned version (make env)")
    return path


@cache
def sonnet_lines() -> tuple[str, ...]:
    """The first 37 sonnets, 518 lines, numbers and headings left out. Raises CorpusError."""
    data = asset_path().read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise CorpusError(
            f"corpus asset {ASSET} has SHA-256 {found[:12]}…, allowed: {SHA256[:12]}… (the pinned version)"
        )
    lines = (line.strip() for line in data.decode("utf-8").splitlines()[1:])
    return tuple(line for line in lines if line and not line.isdigit())[:NUM_LINES]
