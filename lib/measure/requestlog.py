"""A reader's own requests: JSONL logs of prompts and completions, plain or chat, as token ids.

Good lines are used whatever the others look like; bad ones are counted and listed, each with one sentence.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from lib.results.records import ROOT

EXAMPLE = "figures/data/example_log.jsonl"


class LogError(ValueError):
    """A request log that cannot be used at all; one sentence says why and what is allowed."""


class Pair(NamedTuple):
    """One request: ids of its prompt and of what was answered, the end token included where there was one."""

    prompt: list[int]
    output: list[int]


class BadLine(NamedTuple):
    """A line that was left out: its number in the file, and why in one sentence."""

    number: int
    reason: str


@dataclass(frozen=True)
class Log:
    """A request log: the usable requests, the lines left out, and what a reader must know about the rest."""

    requests: tuple[Pair, ...]
    bad: tuple[BadLine, ...]
    notes: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        """Output tokens of the usable requests."""
        return sum(len(r.output) for r in self.requests)


def locate(name: str | None = None) -> Path:
    """A log's path, relative to the top folder; None is the example that ships with the collection."""
    return ROOT / (name or EXAMPLE)


def holds_text(path: Path) -> bool:
    """Whether some usable line lacks ids, so that a tokenizer is needed."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return any((b'"completion"' in x or b'"assistant"' in x) and b'"output_token_ids"' not in x for x in file)


class _Line(ValueError):
    """Why one line cannot be used."""


def read(path: Path | str, tokenizer: Any = None, *, vocab_size: int | None = None, progress: bool = False) -> Log:
    """A JSONL request log: one JSON object a line, in order of arrival.

    A line holds either ids (`prompt_token_ids` and `output_token_ids`, which win), or text: `prompt` and
    `completion`, or `messages` (chat turns; the last assistant turn is the completion unless `completion` is
    given). Optional: `model`, `temperature`, `finish_reason`. Text is tokenised with `tokenizer` (a Hugging
    Face one), chat through its template. `vocab_size` bounds the ids, default the tokenizer's. Raises
    LogError if nothing can be used.
    """
    path = Path(path)
    if not path.is_file():
        raise LogError(f"log must be a readable .jsonl file, got {str(path)!r}")
    size = vocab_size or (len(tokenizer) if hasattr(tokenizer, "__len__") else None)
    bad: list[BadLine] = []
    good: list[tuple[int, Pair, str | None]] = []
    sampled = 0
    with path.open("rb") as file:
        lines = tqdm(file, desc="reading", unit="line", disable=not progress, file=sys.stderr)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                entry = _entry(line)
                good.append((number, _request_of(entry, tokenizer, size), entry.get("model")))
                sampled += _is_sampled(entry)
            except _Line as error:
                bad.append(BadLine(number, str(error)))
    models = Counter(model for *_, model in good)
    if len(models) > 1:
        kept = models.most_common(1)[0][0]
        bad += [
            BadLine(
                number,
                f"must be of one model, hence one tokenizer, a log ({kept!r} is kept), got {model!r}",
            )
            for number, _, model in good
            if model != kept
        ]
        good = [line for line in good if line[2] == kept]
    if not good:
        why = f"; line {bad[0].number}: {bad[0].reason}" if bad else ""
        raise LogError(f"{path.name} must hold at least one usable request, got none{why}")
    notes = []
    if bad:
        notes.append(f"{len(bad)} of {len(bad) + len(good)} lines are left out.")
    if len(good) == 1:
        notes.append("The log holds one request: nothing can be said about how much requests differ.")
    if sampled:
        notes.append(
            f"{sampled} outputs were sampled (temperature above 0): greedy decoding repeats itself more, so "
            "their replay is a lower bound for greedy requests."
        )
    return Log(tuple(s for _, s, _ in good), tuple(sorted(bad)), tuple(notes))


def _entry(line: bytes) -> dict:
    try:
        entry = json.loads(line)
    except ValueError:
        raise _Line("must be one JSON object, got something else") from None
    if not isinstance(entry, dict):
        raise _Line(f"must be a JSON object, got a {type(entry).__name__}")
    return entry


def _is_sampled(entry: Mapping) -> bool:
    temperature = entry.get("temperature")
    return isinstance(temperature, (int, float)) and temperature > 0


def _request_of(entry: Mapping, tokenizer: Any, vocab_size: int | None) -> Pair:
    """The ids of one log line. Raises _Line."""
    if "prompt_token_ids" in entry or "output_token_ids" in entry:
        prompt = _ids(entry, "prompt_token_ids", vocab_size)
        return Pair(prompt, _ids(entry, "output_token_ids", vocab_size))
    messages, completion = entry.get("messages"), entry.get("completion")
    if messages is not None:
        if not (isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages)):
            raise _Line("messages must be chat turns: [{'role': ..., 'content': ...}, ...]")
        if completion is None and messages[-1].get("role") == "assistant":
            messages, completion = messages[:-1], messages[-1].get("content")
    if not isinstance(completion, str) or not completion:
        raise _Line("must have text in 'completion', or a last turn by the assistant; got neither")
    if tokenizer is None:
        raise _Line("must have prompt_token_ids and output_token_ids where no tokenizer is given, got text")
    try:
        if messages is not None:
            prompt = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        elif isinstance(text := entry.get("prompt"), str) and text:
            prompt = tokenizer.encode(text)
        else:
            raise _Line("must have text in 'prompt', or chat turns in 'messages'; got neither")
    except _Line:
        raise
    except Exception as error:  # a template raises whatever its author chose
        raise _Line(
            f"messages do not fit the tokenizer's chat template ({' '.join(str(error).split())[:120]})"
        ) from None
    output = tokenizer.encode(completion, add_special_tokens=False)
    end = getattr(tokenizer, "eos_token_id", None)
    if end is not None and entry.get("finish_reason", "stop") == "stop":
        output = [*output, end]  # text lacks the end token, which the engine decoded too
    return Pair([int(i) for i in prompt], [int(i) for i in output])


def _ids(entry: Mapping, name: str, vocab_size: int | None) -> list[int]:
    ids = entry.get(name)
    if not isinstance(ids, list) or not ids:
        raise _Line(f"{name} must be a list of token ids, got none")
    if not all(type(i) is int for i in ids):
        raise _Line(f"{name} must hold token ids, got something else than whole numbers")
    low, high = min(ids), max(ids)
    if low < 0 or high >= min(vocab_size or 1 << 31, 1 << 31):
        wrong = low if low < 0 else high
        raise _Line(f"{name} must be within 0 to {(vocab_size or 1 << 31) - 1} (the vocabulary), got {wrong}")
    return ids
