"""Seeded builders of the six workloads, and prompts from a reader's own file.

The study's rules (published/workloads): lines are drawn uniformly with replacement; a chat prompt draws its persona,
then its lines, then its question; a code prompt is a stub with comment lines of 8 words from an 8-word pool. Here sizes
are real tokens: lines are added until the target is met, so a prompt is at most one line longer than its target.

Forms: `raw` is plain text without a chat template (the study's way); `chat` goes through the model's template.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol

from lib.measure import corpus, requestlog
from lib.results.run import Workload

# Shares of sonnet, chat and code, percent.
MIXES = {"mix-sh": (60, 20, 20), "mix-bal": (34, 33, 33), "mix-ch": (10, 20, 70)}
KINDS = ("sonnet", "chat", "code")

PERSONAS = (
    "You answer questions helpfully and briefly.",
    "You read poems closely and explain them.",
    "You teach literature to beginners.",
    "You help programmers with their work.",
)
QUESTIONS = (
    "Which themes run through these lines?",
    "Please sum up these lines.",
    "What did the poet want to say here?",
    "How good are these lines, and why?",
)
STUBS = (
    ("merge_sorted(first, second)", "Return one sorted list that holds the items of both sorted lists."),
    ("count_words(text)", "Return a dict from each word of the text to how often it occurs."),
    ("running_mean(values, width)", "Return the mean of each window of the given width."),
    ("is_balanced(text)", "Return True if every bracket of the text is closed in order."),
)


class WorkloadError(ValueError):
    """One sentence: the field, the value and what is allowed."""


class Tokenizer(Protocol):
    """What the builders need of a Hugging Face tokenizer."""

    def encode(self, text: str, **kwargs) -> list[int]: ...
    def apply_chat_template(self, messages: list[dict], **kwargs): ...


class Prompt(NamedTuple):
    """One prompt: its kind (`sonnet`, `chat`, `code`, `random`, `jsonl`) and its token ids."""

    kind: str
    token_ids: list[int]


def _render(messages: list[dict], form: str, tokenizer: Tokenizer) -> list[int]:
    if form == "chat":
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        return [int(i) for i in ids]
    if len(messages) == 1:
        return list(tokenizer.encode(messages[0]["content"]))
    # pseudo role markers typed as plain text, as the study did
    text = "".join(f"{m['role'].capitalize()}: {m['content']}\n" for m in messages) + "Assistant:\n"
    return list(tokenizer.encode(text))


def _counter(tokenizer: Tokenizer) -> Callable[[str], int]:
    """Tokens of a further line, never too few: its words on their own have at least as many as the line in its place."""

    @cache
    def count(word: str) -> int:
        return len(tokenizer.encode(word))

    return lambda line: sum(map(count, re.findall(r"\s*\S+", "\n" + line)))


def _fill(
    draw_line: Callable[[], str], render: Callable[[list[str]], list[int]], target: int, count: Callable[[str], int]
) -> tuple[list[str], list[int]]:
    """Lines drawn one by one until the rendered prompt has at least `target` tokens, and that prompt."""
    lines = [draw_line()]
    ids = render(lines)
    while (size := len(ids)) < target:
        # rendering after every line is slow: the lines' own counts say how many are missing at least
        while size < target:
            lines.append(draw_line())
            size += count(lines[-1])
        ids = render(lines)
    return lines, ids


def _sonnet(rng: random.Random, target: int, form: str, tokenizer: Tokenizer, count: Callable[[str], int]) -> list[int]:
    source = corpus.sonnet_lines()

    def render(lines: list[str]) -> list[int]:
        return _render([{"role": "user", "content": "\n".join(lines)}], form, tokenizer)

    return _fill(lambda: source[rng.randrange(len(source))], render, target, count)[1]


def _chat(rng: random.Random, target: int, form: str, tokenizer: Tokenizer, count: Callable[[str], int]) -> list[int]:
    source = corpus.sonnet_lines()
    persona = PERSONAS[rng.randrange(len(PERSONAS))]

    def render(lines: list[str], question: str) -> list[int]:
        user = "\n".join(lines) + "\n\n" + question
        return _render([{"role": "system", "content": persona}, {"role": "user", "content": user}], form, tokenizer)

    # the question is drawn after the lines: with the shortest one the size is met whichever it is
    shortest = min(QUESTIONS, key=count)
    lines, _ = _fill(lambda: source[rng.randrange(len(source))], lambda x: render(x, shortest), target, count)
    return render(lines, QUESTIONS[rng.randrange(len(QUESTIONS))])


def _code(rng: random.Random, target: int, form: str, tokenizer: Tokenizer, count: Callable[[str], int]) -> list[int]:
    signature, purpose = STUBS[rng.randrange(len(STUBS))]
    head = f'def {signature}:\n    """{purpose}"""\n'
    numbers = itertools.count(1)

    def draw() -> str:
        words = (corpus.CODE_WORDS[rng.randrange(len(corpus.CODE_WORDS))] for _ in range(8))
        return f"    # {next(numbers)}: {' '.join(words)}"

    def render(lines: list[str]) -> list[int]:
        return _render([{"role": "user", "content": head + "\n".join(lines) + "\n"}], form, tokenizer)

    return _fill(draw, render, target, count)[1]


_BUILDERS = {"sonnet": _sonnet, "chat": _chat, "code": _code}


def mix_counts(name: str, num_prompts: int) -> dict[str, int]:
    """How many sonnet, chat and code prompts a mix of `num_prompts` holds: largest remainders, exact in sum."""
    shares = [num_prompts * share / 100 for share in MIXES[name]]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(3), key=lambda i: (counts[i] - shares[i], i))
    for index in by_remainder[: num_prompts - sum(counts)]:
        counts[index] += 1
    return dict(zip(KINDS, counts, strict=True))


def build(workload: Workload, tokenizer: Tokenizer | None = None, vocab_size: int | None = None) -> list[Prompt]:
    """The prompts of a workload; same workload, same token ids, on every machine.

    `random` needs `vocab_size` only, all others a tokenizer. A mix is shuffled by its seed and shares no prompt with the
    single workloads. Raises WorkloadError, corpus.CorpusError.
    """
    name, seed, target = workload.name, workload.seed, workload.input_tokens
    if name == "random":
        if not vocab_size:
            raise WorkloadError("vocab_size is missing, allowed: the model's vocabulary size for workload 'random'")
        rng = random.Random(f"{seed}/random")
        low = min(1000, vocab_size // 2)  # the first ids are often special tokens
        return [
            Prompt("random", [rng.randrange(low, vocab_size) for _ in range(target)])
            for _ in range(workload.num_prompts)
        ]
    if tokenizer is None:
        raise WorkloadError(f"tokenizer is missing, allowed: the model's tokenizer for workload {name!r}")
    if name == "jsonl":
        return from_jsonl(workload, tokenizer)
    count = _counter(tokenizer)

    def draw(kind: str, rng: random.Random, number: int) -> list[Prompt]:
        return [Prompt(kind, _BUILDERS[kind](rng, target, workload.form, tokenizer, count)) for _ in range(number)]

    if name in KINDS:
        return draw(name, random.Random(f"{seed}/{name}"), workload.num_prompts)
    prompts = []
    for kind, number in mix_counts(name, workload.num_prompts).items():
        prompts += draw(kind, random.Random(f"{seed}/{name}/{kind}"), number)
    random.Random(f"{seed}/{name}/order").shuffle(prompts)
    return prompts


def from_jsonl(workload: Workload, tokenizer: Tokenizer) -> list[Prompt]:
    """A reader's own prompts, in order, `num_prompts` at most: those of a request log (`requestlog`). Raises WorkloadError."""
    try:
        log = requestlog.read(requestlog.locate(workload.path), tokenizer)
    except requestlog.LogError as error:
        raise WorkloadError(str(error)) from None
    return [Prompt("jsonl", pair.prompt) for pair in log.requests[: workload.num_prompts]]
