"""Drafters for vLLM's `custom_class`: two that measure, two that keep the FULL CUDA graph and pay.

    LLM(..., speculative_config={"method": "custom_class", "model": "lib.drafters.PaddedNgram",
                                 "num_speculative_tokens": 7})

vLLM imports this module inside its engine process by that path and builds the class from its `VllmConfig`
alone, so everything else comes through the environment:

- `SPECULATION_DRAFTER_OPTIONS`: JSON, the fields of `NgramOptions` or `SuffixOptions`
- `SPECULATION_DRAFTER_COUNTS`: file to publish `Counts` in (optional)
- `SPECULATION_WALK_FILE`: file that `set_walk` writes, for `WalkingDrafter`

As shipped, runner V1 replays its FULL graph only for a step in which every request carries exactly 1 + gamma
tokens; a shorter or an unequal draft sends the whole step to PIECEWISE. Where vLLM can capture FULL graphs for steps
of any composition (`cudagraph_mode="FULL"`), filling is not needed. `PaddedNgram` and `PaddedSuffix` find the
drafts that vLLM's own `ngram` and `suffix` find and fill each up to gamma tokens. The verification rejects
wrong filling like any wrong draft, so greedy output does not change. Nothing here imports vLLM; numba and
arctic_inference are imported when a class that needs them is built.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

OPTIONS = "SPECULATION_DRAFTER_OPTIONS"
COUNTS = "SPECULATION_DRAFTER_COUNTS"
WALK_FILE = "SPECULATION_WALK_FILE"


class OptionError(ValueError):
    """A drafter's option is missing, unknown or out of range; one sentence says which and what is allowed."""


# ---- options ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaddedOptions:
    """What both padded drafters take.

    `fill`: "last" repeats the request's last token, "repeat" goes round the draft itself (the continuation,
    if the text is in a loop), "none" leaves drafts as found. `when_empty`: in a step where no request has a
    draft, "fill" fills all the same, "skip" proposes nothing. `gamma_schedule`: "1:7,16:5,64:0" drafts 7
    tokens from 1 request on, 5 from 16, none from 64, equal over the batch; empty: num_speculative_tokens
    always. Runner V1 captures its FULL decode graph for num_speculative_tokens alone, so steps of another
    gamma, and skipped ones, run PIECEWISE: a schedule trades the graph for less to verify.
    """

    fill: str = "last"
    when_empty: str = "fill"
    gamma_schedule: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NgramOptions(PaddedOptions):
    """`PaddedNgram`: n-gram lengths to look up, both required (vLLM would silently take 5 and 5)."""

    prompt_lookup_min: int
    prompt_lookup_max: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuffixOptions(PaddedOptions):
    """`PaddedSuffix`: vLLM's `suffix_decoding_*` with its defaults; 0 cached requests: no memory."""

    max_tree_depth: int = 24
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1
    max_cached_requests: int = 10000


_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "fill": (lambda v: v in ("last", "repeat", "none"), "last, repeat, none"),
    "when_empty": (lambda v: v in ("fill", "skip"), "fill, skip"),
    "prompt_lookup_min": (lambda v: v >= 1, "a whole number from 1"),
    "prompt_lookup_max": (lambda v: v >= 1, "a whole number from 1"),
    "max_tree_depth": (lambda v: v >= 1, "a whole number from 1"),
    "max_spec_factor": (lambda v: v > 0, "a number above 0"),
    "min_token_prob": (lambda v: 0 <= v <= 1, "a number from 0 to 1"),
    "max_cached_requests": (lambda v: 0 <= v < 2**31, "a whole number from 0"),
    "gamma_schedule": (lambda v: True, "batch:gamma pairs like 1:7,16:5,64:0"),
}
_TYPES = {"int": int, "float": (int, float), "str": str}


Options = TypeVar("Options", bound=PaddedOptions)


def read_options(kind: type[Options], environment: Mapping[str, str] | None = None) -> Options:
    """`kind`'s options from the JSON in SPECULATION_DRAFTER_OPTIONS; raises OptionError."""
    text = (os.environ if environment is None else environment).get(OPTIONS, "{}")
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise OptionError(f"{OPTIONS} is {text!r}, allowed: a JSON object of options to values")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name, value in given.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise OptionError(f"{name} is no known option{hint}, allowed: {', '.join(fields)}")
        holds, allowed = _ALLOWED[name]
        kinds = _TYPES[fields[name].type]
        if isinstance(value, bool) or not isinstance(value, kinds) or not holds(value):
            raise OptionError(f"{name} is {value!r}, allowed: {allowed}")
    for name, field in fields.items():
        if name not in given and field.default is dataclasses.MISSING:
            raise OptionError(f"{name} is missing from {OPTIONS}, allowed: {_ALLOWED[name][1]}")
    options = kind(**given)
    if isinstance(options, NgramOptions) and options.prompt_lookup_min > options.prompt_lookup_max:
        raise OptionError(
            f"prompt_lookup_min is {options.prompt_lookup_min}, "
            f"allowed: at most prompt_lookup_max ({options.prompt_lookup_max})"
        )
    return options


def read_schedule(text: str, most: int) -> list[tuple[int, int]]:
    """Rising (batch size, gamma from it on) pairs of a `gamma_schedule`; gammas are at most `most`."""
    if not text:
        return [(1, most)]
    try:
        pairs = [(int(batch), int(gamma)) for batch, gamma in (pair.split(":") for pair in text.split(","))]
    except ValueError:
        raise OptionError(f"gamma_schedule is {text!r}, allowed: {_ALLOWED['gamma_schedule'][1]}") from None
    batches = [batch for batch, _ in pairs]
    if batches[0] != 1 or batches != sorted(set(batches)):
        raise OptionError(f"gamma_schedule is {text!r}, allowed: batch sizes that start at 1 and rise")
    if not all(0 <= gamma <= most for _, gamma in pairs):
        raise OptionError(f"gamma_schedule is {text!r}, allowed: gammas from 0 to num_speculative_tokens ({most})")
    return pairs


# ---- shared files ----------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """Cumulative counts of *verified* drafts since the engine's start.

    `num_drafts_real`: request-steps with at least one token that the drafter found. `num_real_tokens`,
    `num_filling_tokens`: tokens found and tokens filled; their sum is vLLM's own count of draft tokens.
    `num_accepted_filling_tokens`: accepted tokens that were filling (they are in vLLM's count of accepted
    tokens).
    """

    num_drafts_real: int
    num_real_tokens: int
    num_filling_tokens: int
    num_accepted_filling_tokens: int


def read_counts(path: Path | str) -> Counts | None:
    """What a padded drafter has published in `path` so far; None if no drafter has opened it."""
    try:
        values = np.fromfile(path, dtype=np.int64)
    except FileNotFoundError:
        return None
    return Counts(*values.tolist())


def _map_counts() -> np.ndarray:
    """int64 [4] that other processes see through the file; private memory where none is asked for."""
    path, length = os.environ.get(COUNTS), len(Counts._fields)
    if not path:
        return np.zeros(length, dtype=np.int64)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(handle, 8 * length)
    os.close(handle)
    counts = np.memmap(path, dtype=np.int64, mode="r+", shape=length)
    counts[:] = 0
    return counts


def set_walk(path: Path | str, draft_tokens: int, uneven: bool = False) -> None:
    """Tell a `WalkingDrafter` that maps `path` what to propose from its next step on.

    Creates the file, or changes its two int32 in place while an engine runs. Raises ValueError for a length
    below 0, and for unequal lengths of nothing.
    """
    if draft_tokens < 0:
        raise ValueError(f"draft_tokens is {draft_tokens}, allowed: from 0")
    if uneven and draft_tokens == 0:
        raise ValueError("uneven is True, allowed with draft_tokens 0: False")
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # never truncated: an engine may have it mapped
    try:
        os.pwrite(handle, np.array([draft_tokens, uneven], dtype=np.int32).tobytes(), 0)
    finally:
        os.close(handle)


# ---- drafters that measure -------------------------------------------------------------------------------


class NullDrafter:
    """Proposes nothing: what speculation costs before the first draft."""

    def __init__(self, vllm_config: Any) -> None:
        pass

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM asks every drafter; there is no model to load."""

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        """One empty draft a request."""
        return [[] for _ in sampled_token_ids]


class WalkingDrafter(NullDrafter):
    """Proposes as many tokens as `set_walk` asked for, at most gamma: one engine, every draft length.

    Uneven: the requests in odd places of the batch get the asked length, those in even places one less, so
    lengths differ within a step, and a single request gets less than the length. The ids count up from the
    last token: models hardly ever agree with them, so contexts grow as they do without speculation.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._most = vllm_config.speculative_config.num_speculative_tokens
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        path = os.environ.get(WALK_FILE)
        if not path:
            raise OptionError(f"{WALK_FILE} is missing, allowed: the path of the file that set_walk writes")
        if not Path(path).exists():
            set_walk(path, 0)
        self._walk = np.memmap(path, dtype=np.int32, mode="r", shape=2)

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        """`sampled_token_ids`: [rows][new tokens]; none (a prompt still being read) get an empty draft."""
        asked, uneven = self._walk.tolist()
        asked, size = min(asked, self._most), self._vocab_size
        return [
            [(new[-1] + 1 + i) % size for i in range(asked - (1 if uneven and row % 2 == 0 else 0))] if new else []
            for row, new in enumerate(sampled_token_ids)
        ]


# ---- recognising requests --------------------------------------------------------------------------------


@functools.cache
def _compiled(function: Callable) -> Callable:
    import numba

    return numba.njit(function)


def _history_keys(tokens, lengths, num_new, weights, before, after):
    """Keys of each row's history without and with its newest tokens: sums of weight x token, modulo 2^64.

    tokens [rows, max_model_len], lengths and num_new [rows], weights uint64 [max_model_len]; before, after:
    uint64 [rows], written. Multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is
    fast", 2014): with random weights two different histories of one length share a key with a chance below
    2^-40.
    """
    for row in range(lengths.shape[0]):
        if num_new[row] == 0:
            continue
        key = np.uint64(0)
        known = lengths[row] - num_new[row]
        for i in range(known):
            key += weights[i] * np.uint64(tokens[row, i])
        before[row] = key
        for i in range(known, lengths[row]):
            key += weights[i] * np.uint64(tokens[row, i])
        after[row] = key


class _Requests:
    """Tells which row of the batch holds which request: vLLM passes rows, and moves them at will.

    A request is recognised by its whole history (length and key): without its newest tokens it is the
    history that the step before left behind. That survives every move of rows, and requests with equal
    histories are interchangeable for a drafter. A request that missed a step (it was preempted; or the
    batch came so close to max_model_len that vLLM did not ask the drafter) comes back as a new one with a
    longer prompt.
    """

    def __init__(self, max_model_len: int) -> None:
        self._weights = np.random.default_rng(0).integers(0, 2**64, max_model_len, dtype=np.uint64)
        self._keys = _compiled(_history_keys)
        self._held: dict[tuple[int, int], list[int]] = {}  # (length, key) after the step before -> labels
        self._next = 0
        # numba compiles here and not in the engine's first step
        self.match(np.zeros((1, 1), np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32))

    def match(self, tokens: np.ndarray, lengths: np.ndarray, num_new: np.ndarray) -> tuple[list[int], set[int]]:
        """Labels of the rows, never used twice (-1: no new tokens), and the labels that are gone."""
        before = np.zeros(len(lengths), dtype=np.uint64)
        after = np.zeros(len(lengths), dtype=np.uint64)
        self._keys(tokens, lengths, num_new, self._weights, before, after)
        held, kept, labels = self._held, {}, []
        rows = zip(lengths.tolist(), num_new.tolist(), before.tolist(), after.tolist(), strict=True)
        for length, added, key, next_key in rows:
            if not added:
                labels.append(-1)
                continue
            if found := held.get((length - added, key)):
                label = found.pop(0)
            else:
                label = self._next
                self._next += 1
            labels.append(label)
            kept.setdefault((length, next_key), []).append(label)
        gone = {label for left in held.values() for label in left}
        self._held = kept
        return labels, gone


# ---- padded drafters -------------------------------------------------------------------------------------


class _Padded(NullDrafter):
    """Finds drafts (`_find`, a subclass's), fills them up to gamma, counts found and filled apart."""

    def __init__(self, vllm_config: Any, options: PaddedOptions) -> None:
        most = vllm_config.speculative_config.num_speculative_tokens
        self._max_model_len = vllm_config.model_config.max_model_len
        self._options = options
        self._schedule = read_schedule(options.gamma_schedule, most)
        self._requests = _Requests(self._max_model_len)
        self._counts = _map_counts()
        # of the step before: label -> tokens found, tokens proposed
        self._proposed: dict[int, tuple[int, int]] = {}

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        *args: Any,
        **kwargs: Any,
    ) -> list[list[int]]:
        """Drafts of one step, one list a row; a row without new tokens (a prompt still being read) gets none.

        `sampled_token_ids`: [rows][new tokens]; `num_tokens_no_spec`: int [>= rows], tokens of each row,
        the new ones included; `token_ids_cpu`: int [>= rows, max_model_len].
        """
        num_rows = len(sampled_token_ids)
        num_new = np.fromiter(map(len, sampled_token_ids), np.int32, num_rows)
        lengths = num_tokens_no_spec[:num_rows]
        labels, gone = self._requests.match(token_ids_cpu, lengths, num_new)
        self._count(labels, num_new.tolist())
        gamma = [gamma for batch, gamma in self._schedule if batch <= max(num_rows, 1)][-1]
        found = self._find(sampled_token_ids, num_new, lengths, token_ids_cpu, labels, gone, gamma)
        drafts = self._fill(found, sampled_token_ids, lengths.tolist(), gamma)
        self._proposed = {
            label: (len(row), len(draft)) for label, row, draft in zip(labels, found, drafts, strict=True) if draft
        }
        return drafts

    def _find(self, sampled, num_new, lengths, tokens, labels, gone, gamma) -> list[list[int]]:
        raise NotImplementedError

    def _fill(self, found, sampled, lengths, gamma) -> list[list[int]]:
        fill = self._options.fill
        if fill == "none" or gamma == 0 or (self._options.when_empty == "skip" and not any(found)):
            return found
        drafts = []
        for draft, added, length in zip(found, sampled, lengths, strict=True):
            lacks = gamma - len(draft)
            if lacks and added and length < self._max_model_len:
                if fill == "repeat" and draft:
                    draft = (draft * (gamma // len(draft) + 1))[:gamma]
                else:
                    draft = draft + [int(added[-1])] * lacks
            drafts.append(draft)
        return drafts

    def _count(self, labels: list[int], num_new: list[int]) -> None:
        """Count a draft when its request is in the next step: what was verified, as vLLM counts."""
        if not self._proposed:
            return
        drafts = real = filling = accepted_filling = 0
        for label, added in zip(labels, num_new, strict=True):
            if label not in self._proposed:
                continue
            found, proposed = self._proposed[label]
            drafts += found > 0
            real += found
            filling += proposed - found
            accepted_filling += max(0, added - 1 - found)  # of `added` tokens the last is the model's own
        self._counts += (drafts, real, filling, accepted_filling)


def _longest_earliest(tokens, lengths, num_new, low, high, gamma, max_model_len, drafts, num_drafted):
    """Drafts by row: what follows the earliest of the longest matches of the last low..high tokens.

    tokens [rows, max_model_len], lengths and num_new [rows]; drafts [rows, gamma] and num_drafted [rows],
    written. The rule of vLLM's runner V1 (`vllm.v1.spec_decode.ngram_proposer`); runner V2 takes the latest
    match instead.
    """
    step = 1 if low > 1 else 0  # a match of two tokens or more is looked for by its last two
    for row in range(lengths.shape[0]):
        num_drafted[row] = 0
        total = lengths[row]
        room = min(gamma, max_model_len - total)
        if num_new[row] == 0 or total <= low or room <= 0:
            continue
        text = tokens[row, :total]
        last, second = text[total - 1], text[total - 1 - step]
        ends, seconds = text[step : total - 1], text[: total - 1 - step]
        longest, end = 0, 0
        for start in range(0, len(ends), 64):
            # this loop has no branch, so the compiler vectorises it; most blocks hold no match
            block, behind = ends[start : start + 64], seconds[start : start + 64]
            hits = np.int32(0)
            for i in range(len(block)):
                hits += np.int32((block[i] == last) & (behind[i] == second))
            i = start - 1
            while hits and longest < high:
                i += 1
                if (ends[i] != last) | (seconds[i] != second):
                    continue
                hits -= 1
                here, n = i + step, 1 + step
                most = min(high, here + 1)
                while n < most and text[here - n] == text[total - 1 - n]:
                    n += 1
                if n > longest:
                    longest, end = n, here
            if longest == high:
                break
        if longest < low:
            continue
        room = min(room, total - 1 - end)
        num_drafted[row] = room
        for i in range(room):
            drafts[row, i] = text[end + 1 + i]


class PaddedNgram(_Padded):
    """vLLM's `ngram` drafts (runner V1), each filled up to gamma tokens. Options: `NgramOptions`."""

    def __init__(self, vllm_config: Any) -> None:
        self._draft_rows = _compiled(_longest_earliest)
        super().__init__(vllm_config, read_options(NgramOptions))
        one = np.ones(1, np.int32)  # numba compiles here and not in the engine's first step
        self._find([[0]], one, one, np.zeros((1, 1), np.int32), [0], set(), 1)

    def _find(self, sampled, num_new, lengths, tokens, labels, gone, gamma) -> list[list[int]]:
        num_rows, options = len(sampled), self._options
        drafts = np.zeros((num_rows, gamma), dtype=np.int32)
        num_drafted = np.zeros(num_rows, dtype=np.int32)
        self._draft_rows(
            tokens, lengths, num_new, options.prompt_lookup_min, options.prompt_lookup_max, gamma,
            self._max_model_len, drafts, num_drafted,
        )  # fmt: skip
        return [row[:n] for row, n in zip(drafts.tolist(), num_drafted.tolist(), strict=True)]


class PaddedSuffix(_Padded):
    """vLLM's `suffix` drafts (arctic_inference), each filled up to gamma tokens. Options: `SuffixOptions`."""

    def __init__(self, vllm_config: Any) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        options = read_options(SuffixOptions)
        self._cache = SuffixDecodingCache(
            max_tree_depth=options.max_tree_depth, max_cached_requests=options.max_cached_requests
        )
        super().__init__(vllm_config, options)

    def _find(self, sampled, num_new, lengths, tokens, labels, gone, gamma) -> list[list[int]]:
        cache, options, drafts = self._cache, self._options, []
        for row, (added, length, label) in enumerate(zip(sampled, lengths.tolist(), labels, strict=True)):
            if not added or length >= self._max_model_len:
                drafts.append([])
                continue
            if label not in cache.active_requests:
                cache.start_request(label, tokens[row, : length - len(added)])
            cache.add_active_response(label, list(added))
            room = min(gamma, self._max_model_len - length - 1)
            if room <= 0:
                drafts.append([])
                continue
            draft = cache.speculate(
                label,
                tokens[row, max(0, length - options.max_tree_depth) : length],
                max_spec_tokens=room,
                max_spec_factor=options.max_spec_factor,
                min_token_prob=options.min_token_prob,
            )
            drafts.append(list(draft.token_ids))
        for label in gone & cache.active_requests:
            cache.stop_request(label)
        return drafts
