"""Recorded answers as workloads: what a parrot says (`lib.parrot`), with the prompt that makes it say so.

`recorded`: chat, code, edit, json and prose from `params/recorded/answers.parquet` (`make.py` beside it says how they were
made), or a reader's own JSONL log (`jsonl`). `published`: streams with the study's ngram counters (`lib.streams`).
Ids are relabelled by workload and seed, so that any text fits any vocabulary: identity is all that lookups need.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from lib.measure import parrot, weights
from lib.measure.workloads import WorkloadError
from lib.results.records import ROOT
from lib.results.run import RECORDED, Model, Workload

ANSWERS = ROOT / "params" / "recorded" / "answers.parquet"


class Request(NamedTuple):
    """One request: the prompt's ids, cipher included, and what the engine must answer, end token included unless cut."""

    prompt_token_ids: list[int]
    output_token_ids: list[int]
    num_cipher_tokens: int  # the prompt's first ones


@cache
def _recorded(name: str) -> list[tuple[list[int], list[int]]]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(ANSWERS)
    table = table.filter(pc.equal(table["workload"], name))
    return list(zip(table["prompt"].to_pylist(), table["answer"].to_pylist(), strict=True))


def _logged(workload: Workload) -> list[tuple[list[int], list[int]]]:
    """A reader's log; its text is tokenised as the recorded answers are, its ids may be of any vocabulary."""
    from lib.measure import requestlog

    path, tokenizer = requestlog.locate(workload.path), None
    if requestlog.holds_text(path):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(weights.locate(Model()))
    try:
        log = requestlog.read(path, tokenizer, vocab_size=1 << 31)
    except requestlog.LogError as error:
        raise WorkloadError(str(error)) from None
    # the log's own end token is the parrot's, which it says by itself
    end = getattr(tokenizer, "eos_token_id", None)
    return [(prompt, answer[:-1] if answer[-1] == end else answer) for prompt, answer in log.requests]


def _ids(pairs: list[tuple[list[int], list[int]]]) -> np.ndarray:
    return np.unique(np.concatenate([part for pair in pairs for part in pair]))


def _drawn(
    workload: Workload, pairs: list[tuple[list[int], list[int]]], num_ids: int
) -> list[tuple[list[int], list[int]]]:
    """`num_prompts` of the pairs, by the seed, under ids of the seed's own: a drafter's memory of another seed is no help."""
    if workload.num_prompts > len(pairs):
        raise WorkloadError(
            f"num_prompts must be at most {len(pairs)}, what workload {workload.name!r} holds, got {workload.num_prompts}"
        )
    rng = random.Random(f"{workload.seed}/{workload.name}")
    known, chosen = _ids(pairs), None
    if len(known) >= num_ids:  # a small vocabulary: only what is drawn must fit
        chosen = rng.sample(pairs, workload.num_prompts)
        known = _ids(chosen)
    if len(known) >= num_ids:
        raise WorkloadError(
            f"vocab_size must leave a parrot {len(known) + 1} ids for {workload.num_prompts} requests of workload "
            f"{workload.name!r}, it leaves {num_ids}"
        )
    labels = np.asarray(rng.sample(range(1, num_ids), len(known)))
    chosen = chosen or rng.sample(pairs, workload.num_prompts)
    return [tuple(labels[np.searchsorted(known, part)].tolist() for part in pair) for pair in chosen]


def build(
    workload: Workload, vocabulary: parrot.Vocabulary, output_tokens: int, reverse: bool = False
) -> list[Request]:
    """The requests of a workload for a parrot; same workload and vocabulary, same ids, on every machine.

    A prompt keeps its last `input_tokens` tokens, an answer its first `output_tokens`.
    reverse: prompts and answers backwards, to warm up with (as much to draft, nothing that an answer holds).
    Raises WorkloadError, parrot.ParrotError.
    """
    if workload.answers == "published":
        from lib.measure import streams

        pairs = streams.published(
            workload.name, workload.num_prompts, seed=workload.seed, num_ids=vocabulary.plain,
            prompt_tokens=workload.input_tokens, output_tokens=output_tokens,
        )  # fmt: skip
    elif workload.name == "jsonl":
        pairs = _drawn(workload, _logged(workload), vocabulary.plain)
    elif workload.name in RECORDED:
        pairs = _drawn(workload, _recorded(workload.name), vocabulary.plain)
    else:
        raise WorkloadError(
            f"workload must be one of {', '.join(RECORDED)} or jsonl with recorded answers, got {workload.name!r}"
        )
    return [_request(p, a, workload.input_tokens, output_tokens, vocabulary, reverse) for p, a in pairs]


def _request(
    prompt: Sequence[int],
    answer: Sequence[int],
    most_in: int,
    most_out: int,
    vocabulary: parrot.Vocabulary,
    reverse: bool,
) -> Request:
    prompt, answer = list(prompt)[-most_in:], list(answer)[:most_out]
    if reverse:
        prompt, answer = prompt[::-1], answer[::-1]
    said = answer if len(answer) == most_out else [*answer, parrot.END]
    return Request(vocabulary.prompt(prompt, answer), said, vocabulary.cipher_tokens(answer))


def divergence(requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> str:
    """One sentence on the first request whose output is not its text; empty if all are verbatim."""
    for number, (request, output) in enumerate(zip(requests, outputs, strict=True)):
        expected, got = request.output_token_ids, list(output)
        if expected != got:
            place = next((i for i, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]), None)
            if place is None:
                return f"request {number} must say {len(expected)} tokens, got {len(got)}"
            return f"request {number} must say {expected[place]} at position {place}, got {got[place]}"
    return ""
