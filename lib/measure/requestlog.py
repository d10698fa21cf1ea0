"""A reader's own requests, from the kinds of log that people have (`FORMATS`), as token ids.

Good entries are used whatever the others look like; bad ones are counted and listed, each with one sentence.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import statistics
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lib.results.records import ROOT

EXAMPLE = "figures/data/example_log.jsonl"
IDS = ("prompt_token_ids", "output_token_ids")
MOST_TOKENS = 1 << 17  # of one request: the longest context of the measured models
MOST_CHARACTERS = 8 * MOST_TOKENS  # not tokenised beyond
OUTLIER = 20  # times the median's tokens
ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "function_call": "assistant",
    "function_response": "tool", "observation": "tool", "developer": "system",
}  # fmt: skip


class LogError(ValueError):
    """A request log that cannot be used at all; one sentence says why and what is allowed."""


class Pair(NamedTuple):
    """One request: ids of its prompt and of what was answered, the end token included where there was one."""

    prompt: list[int]
    output: list[int]


class BadLine(NamedTuple):
    """A line that was left out: its number in the file (its place in a JSON array), and why in one sentence."""

    number: int
    reason: str


@dataclass(frozen=True)
class Log:
    """A request log: the usable requests, the lines left out, what a reader must know about the rest, and the share of the
    decoded tokens that it lacks (0 to 1, over the requests that state `usage.completion_tokens`)."""

    requests: tuple[Pair, ...]
    bad: tuple[BadLine, ...]
    notes: tuple[str, ...]
    missing_share: float = 0.0


class _Line(ValueError):
    """Why one line cannot be used."""


class _Good(NamedTuple):
    number: int
    pair: Pair
    asked: dict  # what the line says, as FORMATS makes it


def locate(name: str | None = None) -> Path:
    """A log's path, relative to the top folder; None is the example that ships with the collection."""
    return ROOT / (name or EXAMPLE)


def holds_text(path: Path) -> bool:
    """Whether some entry holds text, so that a tokenizer is needed; False where nothing can be read."""
    with contextlib.suppress(LogError):
        return any(_format(entry) not in (None, FORMATS[0]) for _, entry in _entries(path))
    return False


def read(
    path: Path | str, tokenizer: Any = None, *, vocab_size: int | None = None, prompts: Path | str | None = None
) -> Log:
    """A request log in order of arrival: JSON lines or one JSON array, gzipped or not; `-` is standard input.

    An entry is recognised by its fields (`FORMATS`). Of `messages` the last assistant turn is the answer unless
    `completion` is given; each assistant turn of `conversations` is a request, whose prompt is all that went before.
    Tool calls are rendered as JSON and reasoning between <think> and </think>, since the engine decoded them. Optional:
    `model`, `temperature`, `finish_reason`, `usage`. Text is tokenised with `tokenizer` (a Hugging Face one), chat
    through its template. `vocab_size` bounds the ids, default the tokenizer's. `prompts`: the input file of an OpenAI
    batch whose output `path` is. Raises LogError if nothing can be used.
    """
    path = Path(path)
    size = vocab_size or (len(tokenizer) if hasattr(tokenizer, "__len__") else None)
    inputs = [entry for _, entry in _entries(Path(prompts), "prompts")] if prompts else []
    batch = {str(entry.get("custom_id")): entry.get("body") for entry in inputs if isinstance(entry, dict)}
    bad: list[BadLine] = []
    good: list[_Good] = []
    for number, asked in ((n, asked) for n, entry in _entries(path) for asked in _requests(entry, batch)):
        try:
            good.append(_Good(number, _pair(asked, tokenizer, size), asked))
        except _Line as error:
            bad.append(BadLine(number, str(error)))
    models = Counter(str(g.asked.get("model")) for g in good)
    kept = max(models, key=models.get, default="")
    why = f"must be of one model, hence one tokenizer, a log ({kept} is kept), got "
    bad += [BadLine(g.number, f"{why}{g.asked.get('model')}") for g in good if str(g.asked.get("model")) != kept]
    bad.sort()
    good = [g for g in good if str(g.asked.get("model")) == kept]
    if not good:
        why = f"; line {bad[0].number}: {bad[0].reason}" if bad else ""
        raise LogError(f"{path.name} must hold at least one usable request, got none{why}")
    stated = [
        (decoded, len(g.pair.output)) for g in good if (decoded := _number(g.asked.get("usage"), "completion_tokens"))
    ]
    missing = sum(max(0, decoded - held) for decoded, held in stated) / (sum(decoded for decoded, _ in stated) or 1)
    return Log(tuple(g.pair for g in good), tuple(bad), tuple(_notes(good, bad, missing)), missing)


def _notes(good: list[_Good], bad: list[BadLine], missing: float) -> Iterator[str]:
    kinds = defaultdict(list)
    for line in bad:
        kinds[line.reason.partition(", got")[0]].append(line)
    for same in kinds.values():
        yield f"{len(same)} of {len(bad) + len(good)} are left out, as line {same[0].number}: {same[0].reason}."
    if len(good) == 1:
        yield "The log holds one request: nothing can be said about how much requests differ."
    if sampled := sum(_number(g.asked, "temperature") > 0 for g in good):
        yield f"{sampled} outputs were sampled (temperature above 0): their replay is a lower bound for greedy decoding."
    answers = [g.asked["answer"] for g in good if g.asked["answer"]]
    if called := sum(bool(_calls(a)) for a in answers):
        yield f"{called} answers call tools, rendered as JSON: the tokens around a call may differ from the engine's."
    if thought := sum(bool(_reasoning(a)) for a in answers):
        yield f"{thought} answers hold reasoning, put back between <think> and </think>."
    if missing > 0.05:
        share = f"{100 * missing:.0f} % of the decoded tokens (usage.completion_tokens)"
        yield f"{share} are not in the log: reasoning that was not kept, or another tokenizer."
    lengths = [len(g.pair.prompt) + len(g.pair.output) for g in good]
    most = OUTLIER * statistics.median(lengths)
    if far := [str(g.number) for g, length in zip(good, lengths, strict=True) if length > most]:
        yield f"{len(far)} requests are over {OUTLIER} times as long as the median one: line {', '.join(far[:5])}."


@cache
def _stream(path: Path) -> bytes:
    """What can be read once only, kept: standard input or a pipe."""
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()


def _entries(path: Path, field: str = "log") -> Iterable[tuple[int, Any]]:
    """Each entry of a file with its number; a _Line where it cannot be read. Raises LogError, at once."""
    try:
        data = path.read_bytes() if path.is_file() else _stream(path)
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        why = f"must be a readable .jsonl or .json file, or its .gz, got {str(path)!r}"
        raise LogError(f"{field} {why} ({getattr(error, 'strerror', None) or error})") from None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data[:64]:
        raise LogError(f"{field} must be UTF-8, got UTF-16 in {path.name}: convert it with iconv -f UTF-16 -t UTF-8")
    text = data.decode("utf-8-sig", "surrogateescape")
    with contextlib.suppress(ValueError, RecursionError):
        whole = json.loads(data)  # one array, one object, or a page of an API; JSON lines fail at their second
        whole = whole["data"] if isinstance(whole, dict) and isinstance(whole.get("data"), list) else whole
        return enumerate(whole if isinstance(whole, list) else [whole], start=1)
    lines = {number: line for number, line in enumerate(text.split("\n"), start=1) if line.strip()}
    if len(lines) == 1 and "\r" in text.strip():
        raise LogError(f"{field} must have lines that end with LF, got CR alone in {path.name}: use tr '\\r' '\\n'")
    # Latin-1: its letters stand alone, and most lines that hold any are no UTF-8; else single lines are damaged.
    other = [line for line in lines.values() if not line.isascii()]
    wrong = [line for line in other if NOT_UTF8.search(line)]
    if 2 * len(wrong) > len(other) and any(re.search("[ -~][\udca0-\udcff][ -~]", line) for line in wrong):
        raise LogError(f"{field} must be UTF-8, got Latin-1 in {path.name}: convert it with iconv -f LATIN1 -t UTF-8")
    return ((number, _parsed(line)) for number, line in lines.items())


NOT_UTF8 = re.compile("[\udc80-\udcff]")  # as surrogateescape decodes it


def _parsed(line: str) -> Any:
    if NOT_UTF8.search(line):
        return _Line("must be UTF-8, got other bytes")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return _Line("must be one JSON object, got something else")


def _opened(value: Any, *keys: str) -> Any:
    """What a log keeps as JSON in a string, known by its keys; an answer that is JSON by itself stays text."""
    with contextlib.suppress(ValueError, RecursionError, IndexError):
        held = json.loads(value) if isinstance(value, str) else None
        first = held[0] if isinstance(held, list) else held
        return held if isinstance(first, dict) and not first.keys().isdisjoint(keys) else value
    return value


def _turns(turns: Any, name: str = "messages") -> list[dict]:
    turns = _opened(turns, "role", "from")
    turns = [turns] if isinstance(turns, dict) and turns else turns
    if not (isinstance(turns, list) and turns and all(isinstance(m, dict) for m in turns)):
        raise _Line(f"{name} must be chat turns, [{{'role': ..., 'content': ...}}, ...], got {str(turns)[:40]}")
    return turns


# The functions of FORMATS: an entry, with the batch's input by custom_id, becomes requests: each a dict of ids, or of
# `messages` or `prompt` with the `answer` (a turn), beside what is known about it.


def _chat(entry: dict, batch: Mapping) -> Iterator[dict]:
    turns, answer = entry.get("messages"), entry | {"content": entry.get("completion")}
    if turns is not None and answer["content"] is None and _turns(turns)[-1].get("role") == "assistant":
        *turns, answer = _turns(turns)
    yield entry | {"messages": turns, "answer": answer}


def _conversation(entry: dict, batch: Mapping) -> Iterator[dict]:
    held = _turns(entry["conversations"], "conversations")
    turns = [{"role": t["from"], "content": t.get("value")} if "from" in t else t for t in held]
    answers = [i for i, turn in enumerate(turns) if ROLES.get(turn["role"], turn["role"]) == "assistant"]
    if not answers:
        raise _Line("conversations must hold a turn by gpt, got none")
    for i in answers:
        yield entry | {"messages": turns[:i], "answer": turns[i]}


def _exchange(entry: dict, batch: Mapping) -> Iterator[dict]:
    if str(entry.get("cache_hit")).lower() == "true":
        raise _Line("cache_hit must be False, since a cached answer is not decoded, got True")
    asked = entry | _opened(entry.get("request") or entry.get("proxy_server_request") or {}, "messages", "prompt")
    said = _opened(entry.get("response", entry), "choices")
    if "(litellm_truncated" in f"{asked.get('messages')}{said}":
        raise _Line("must be whole (LiteLLM's MAX_STRING_LENGTH_PROMPT_IN_DB bounds it), got a text cut by LiteLLM")
    if isinstance(said, str):
        said = entry | {"choices": [{"text": said, "finish_reason": entry.get("finish_reason")}]}
    if not said.get("choices"):
        raise _Line(f"response must hold choices, got {', '.join(said) or 'none'}")
    asked |= {"model": asked.get("model") or said.get("model")}
    for choice in said["choices"]:
        asked["finish_reason"] = choice.get("finish_reason")
        asked["usage"] = said.get("usage") if len(said["choices"]) == 1 else None  # it counts all choices
        ids = said.get("prompt_token_ids"), choice.get("token_ids")  # vLLM's return_token_ids
        answer = choice.get("message") or {"content": choice.get("text")}
        yield asked | (dict(zip(IDS, ids, strict=True), answer=None) if all(ids) else {"answer": answer})


def _batch(entry: dict, batch: Mapping) -> Iterator[dict]:
    said, key = entry.get("response") or {"body": entry}, str(entry["custom_id"])
    if said.get("status_code") != 200:
        raise _Line(f"status_code must be 200, got {said.get('status_code')} ({said['body']['error']['message']})")
    if key not in batch:
        raise _Line(f"prompts (--prompts) must be the batch's input, which holds each custom_id, got none for {key!r}")
    yield from _exchange({"request": batch[key], "response": said["body"]}, batch)


def _observation(entry: dict, batch: Mapping) -> Iterator[dict]:
    if entry["type"] != "GENERATION":
        raise _Line(f"type must be GENERATION, got {entry['type']}")
    asked, said = _opened(entry["input"], "role", "messages"), _opened(entry["output"], "role", "content", "tool_calls")
    if not isinstance(asked, dict) or "role" in asked:
        asked = {"prompt" if isinstance(asked, str) else "messages": asked}
    used = entry.get("usageDetails") or entry.get("usage") or {}
    decoded = sum(n for key, n in used.items() if key in ("output", "completion_tokens") or key.startswith("output_"))
    yield asked | {
        "answer": said[-1] if isinstance(said, list) else {"content": said} if isinstance(said, str) else said,
        "model": entry.get("model") or entry.get("providedModelName"),
        "temperature": (_opened(entry.get("modelParameters"), "temperature") or {}).get("temperature"),
        "usage": {"completion_tokens": decoded},
    }


def _instruction(entry: dict, batch: Mapping) -> Iterator[dict]:
    text = "\n\n".join(filter(None, (entry["instruction"], entry.get("input"))))
    answer, model = {"content": entry["output"]}, entry.get("generator")
    yield {"messages": [{"role": "user", "content": text}], "answer": answer, "model": model}


# Kind of log, the fields that an entry of it is known by, and what makes requests of it; the first that fits is taken.
FORMATS = (
    ("token ids", IDS, lambda entry, batch: [entry | {"answer": None}]),
    ("ShareGPT", ("conversations",), _conversation),
    ("OpenAI batch output", ("id", "custom_id"), _batch),
    ("request and response", ("request", "response"), _exchange),
    ("LiteLLM spend log", ("messages", "response"), _exchange),
    ("merged request and response", ("messages", "choices"), _exchange),
    ("prompt and response", ("prompt", "response"), _exchange),
    ("Langfuse observation", ("type", "input", "output"), _observation),
    ("chat", ("messages",), _chat),
    ("plain", ("prompt", "completion"), _chat),
    ("AlpacaEval", ("instruction", "output"), _instruction),
)


def _format(entry: Any) -> tuple | None:
    held = {name for name, value in entry.items() if value is not None} if isinstance(entry, dict) else set()
    return next((found for found in FORMATS if held.issuperset(found[1])), None)


def _requests(entry: Any, batch: Mapping) -> list[dict | _Line]:
    """The requests of an entry, or why it has none."""
    if isinstance(entry, _Line):
        return [entry]
    if not (found := _format(entry)):
        fields = f"fields {', '.join(list(entry)[:8])}" if isinstance(entry, dict) else f"a {type(entry).__name__}"
        kinds = "; ".join(f"{', '.join(fields)} ({name})" for name, fields, _ in FORMATS)
        return [_Line(f"found {fields}; looked for a JSON object with {kinds}")]
    try:
        return list(found[2](entry, batch))
    except _Line as error:
        return [error]
    except (AttributeError, TypeError, KeyError, IndexError):
        return [_Line(f"must be formed as a log of the kind {found[0]!r}, got other types in its fields")]


def _number(held: Any, name: str) -> float:
    value = held.get(name) if isinstance(held, dict) else None
    return value if isinstance(value, (int, float)) else 0


def _reasoning(turn: Mapping) -> str:
    held = turn.get("reasoning_content") or turn.get("reasoning")
    return held if isinstance(held, str) else ""


def _calls(turn: Mapping) -> list[str]:
    """A turn's tool calls as JSON; arguments that are text stay as the model wrote them."""
    parts = [(c["function"]["name"], c["function"].get("arguments") or {}) for c in turn.get("tool_calls") or ()]
    return [f'{{"name": "{name}", "arguments": {a if isinstance(a, str) else json.dumps(a)}}}' for name, a in parts]


def _text(turn: Mapping) -> str:
    """What a turn says: its content and its tool calls."""
    content = turn.get("content") or ""
    parts = [{"text": content}] if isinstance(content, str) else content
    if others := [part.get("type") for part in parts if not isinstance(part.get("text"), str)]:
        raise _Line(f"content must be text, got a part of type {others[0]}")
    return "\n".join(filter(None, ("".join(part["text"] for part in parts), *_calls(turn))))


def _pair(asked: dict | _Line, tokenizer: Any, vocab_size: int | None) -> Pair:
    """The ids of one request. Raises _Line."""
    if isinstance(asked, _Line):
        raise asked
    try:
        pair = _tokenized(asked, tokenizer) if asked["answer"] else Pair(*(_ids(asked, n, vocab_size) for n in IDS))
    except (AttributeError, TypeError, KeyError):
        raise _Line("turns must be formed as OpenAI's chat messages, got other types in their fields") from None
    if (length := len(pair.prompt) + len(pair.output)) > MOST_TOKENS:
        raise _Line(f"must be {MOST_TOKENS} tokens at most, got {length}")
    return pair


def _tokenized(asked: Mapping, tokenizer: Any) -> Pair:
    answer, prompt = _text(asked["answer"]), asked.get("prompt")
    if thought := _reasoning(asked["answer"]):
        answer = f"<think>\n{thought}\n</think>\n\n{answer}"
    if not answer:
        raise _Line("must have an answer with text: a 'completion', or a last turn by the assistant, got none")
    if tokenizer is None:
        raise _Line("must have prompt_token_ids and output_token_ids where no tokenizer is given, got text")
    turns = [] if asked.get("messages") is None else _turns(asked["messages"])
    chat = [{"role": ROLES.get(turn["role"], turn["role"]), "content": _text(turn)} for turn in turns]
    if not chat and not (isinstance(prompt, str) and prompt):
        raise _Line(f"prompt must be text, got {str(prompt)[:40]!r}")
    length = len(answer) + sum(len(turn["content"]) for turn in chat or [{"content": prompt}])
    if length > MOST_CHARACTERS:
        raise _Line(f"must be {MOST_CHARACTERS} characters at most, got {length}")
    options = {"add_generation_prompt": True, "return_dict": False, "tools": asked.get("tools") or None}
    try:
        ids = tokenizer.apply_chat_template(chat, tokenize=True, **options) if chat else tokenizer.encode(prompt)
        output = tokenizer.encode(answer, add_special_tokens=False)
    except Exception as error:  # a template raises whatever its author chose
        why = " ".join(str(error).split())[:120]
        raise _Line(f"messages do not fit the tokenizer or its chat template ({why})") from None
    end = getattr(tokenizer, "eos_token_id", None)
    if end is not None and (asked.get("finish_reason") or "stop") in ("stop", "tool_calls", "function_call"):
        output = [*output, end]  # text lacks the end token, which the engine decoded too
    return Pair([int(i) for i in ids], [int(i) for i in output])


def _ids(asked: Mapping, name: str, vocab_size: int | None) -> list[int]:
    ids, most = asked[name], min(vocab_size or 1 << 31, 1 << 31) - 1
    if not (isinstance(ids, list) and ids and all(type(i) is int for i in ids)):
        raise _Line(f"{name} must be a list of token ids, got {str(ids)[:40]}")
    if wrong := [i for i in ids if not 0 <= i <= most]:
        raise _Line(f"{name} must be within 0 to {most} (the vocabulary), got {wrong[0]}")
    return ids
