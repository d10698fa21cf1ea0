"""Drafting time a step, ours against vLLM's own `ngram` and `suffix`: python tests/bench/bench_drafters.py

Contexts of 1,000 to 2,000 tokens, 7 drafted. Two texts: `prose` hardly repeats (a drafter reads every context to its
end), `code` repeats itself with changes. Ratios are medians over steps taken in turns; below 1 we are faster.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.v1.spec_decode.ngram_proposer import NgramProposer
from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

from lib import drafters

GAMMA, LOOKUP, MAX_MODEL_LEN, BATCHES, STEPS = 7, (2, 5), 2048, (1, 8, 64, 256), 30
SUFFIX = {"max_tree_depth": 24, "max_spec_factor": 1.0, "min_token_prob": 0.1, "max_cached_requests": 0}


def config() -> SimpleNamespace:
    """What the four drafters read of vLLM's VllmConfig."""
    suffix = {f"suffix_decoding_{name}": value for name, value in SUFFIX.items()}
    speculative = SimpleNamespace(
        num_speculative_tokens=GAMMA, prompt_lookup_min=LOOKUP[0], prompt_lookup_max=LOOKUP[1], **suffix
    )
    return SimpleNamespace(
        speculative_config=speculative,
        model_config=SimpleNamespace(max_model_len=MAX_MODEL_LEN),
        scheduler_config=SimpleNamespace(max_num_seqs=max(BATCHES)),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )


def text(kind: str, rng: np.random.Generator) -> np.ndarray:
    """int32 [max_model_len]: ids drawn by Zipf's law, or 64-token blocks of such ids with every tenth id changed."""
    ids = rng.zipf(1.2, MAX_MODEL_LEN) % 49152
    if kind == "code":
        blocks = ids[: 8 * 64].reshape(8, 64)
        ids = blocks[rng.integers(0, 8, MAX_MODEL_LEN // 64)].ravel()
        ids = np.where(rng.random(MAX_MODEL_LEN) < 0.1, rng.integers(0, 49152, MAX_MODEL_LEN), ids)
    return ids.astype(np.int32)


def compare(ours: Callable, theirs: Callable, tokens: np.ndarray, lengths: np.ndarray) -> tuple[float, float]:
    """Median ms a step of both, over steps that add one token to every context; the drafts must agree."""
    ours_ms, theirs_ms = [], []
    for _ in range(STEPS):
        lengths += 1
        sampled = [[int(row[length - 1])] for row, length in zip(tokens, lengths, strict=True)]
        start = time.perf_counter()
        found = ours(sampled)
        middle = time.perf_counter()
        expected = theirs(sampled)
        end = time.perf_counter()
        ours_ms.append(1e3 * (middle - start))
        theirs_ms.append(1e3 * (end - middle))
        for draft, real in zip(found, expected, strict=True):
            assert len(draft) == GAMMA and draft[: len(real)] == real
    return float(np.median(ours_ms[3:])), float(np.median(theirs_ms[3:]))


def main() -> None:
    lookup = dict(zip(("prompt_lookup_min", "prompt_lookup_max"), LOOKUP, strict=True))
    print("drafter        text   batch  ours ms  vLLM's ms  ratio")
    for kind in ("prose", "code"):
        rng = np.random.default_rng(0)
        tokens = np.stack([text(kind, rng) for _ in range(max(BATCHES))])
        for batch in BATCHES:
            lengths = rng.integers(1000, 2000 - STEPS, batch).astype(np.int32)
            rows = tokens[:batch].copy()
            names = [str(i) for i in range(batch)]
            view = SimpleNamespace(
                req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
                num_tokens_no_spec=lengths, num_prompt_tokens=lengths.copy(), token_ids_cpu=rows,
            )  # fmt: skip
            os.environ[drafters.OPTIONS] = json.dumps(lookup)
            ngram, their_ngram = drafters.PaddedNgram(config()), NgramProposer(config())
            os.environ[drafters.OPTIONS] = json.dumps(SUFFIX)
            suffix, their_suffix = drafters.PaddedSuffix(config()), SuffixDecodingProposer(config())
            for name, ours, theirs in (
                ("padded ngram", ngram, lambda s: their_ngram.propose(GAMMA, s, lengths, rows)),  # noqa: B023
                ("padded suffix", suffix, lambda s: their_suffix.propose(GAMMA, view, s)),  # noqa: B023
            ):
                first = lengths.copy()
                mine, vllms = compare(lambda s: ours.propose(s, lengths, rows), theirs, rows, lengths)  # noqa: B023
                lengths[:] = first
                print(f"{name:13s}  {kind:5s}  {batch:5d}  {mine:7.3f}  {vllms:9.3f}  {mine / vllms:5.2f}")


if __name__ == "__main__":
    main()
