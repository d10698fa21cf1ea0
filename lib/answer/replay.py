"""Drafter replay: vLLM's ngram and suffix drafters over recorded token streams, without an engine.

Under greedy decoding a drafted token is accepted if and only if it equals the recorded one, so a plain run's
tokens tell what any drafter would have gained. The scheduler is simulated step by step (token budget, chunked
prefill, prefix cache, first come first served, the batch's order), because which requests run together
decides the batch of every step and what the suffix drafter remembers. The counters equal the engine's exactly
where the engine is deterministic, if the streams were recorded past their stop by at least one draft and one
token: the engine counts accepted drafts before it cuts the output, and the suffix memory keeps them.

Nothing here imports vLLM. The suffix drafter is the engine's own (`arctic_inference`), called the way vLLM
calls it.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numba import njit
from tqdm.auto import tqdm

from lib.results.records import Counters
from lib.results.run import Speculative


class Stream(NamedTuple):
    """One recorded request: ids of the prompt [P] and of the output [>= num_output_tokens], both int32.

    `num_output_tokens` is what the request delivers; ids beyond it are the continuation past the stop.
    """

    prompt_token_ids: np.ndarray
    output_token_ids: np.ndarray
    num_output_tokens: int


def stream(prompt: Sequence[int], output: Sequence[int], cap: int | None = None, eos: Iterable[int] = ()) -> Stream:
    """A `Stream` from plain ids; it stops at the first `eos` id, after `cap` tokens, or at the end."""
    ids = np.asarray(output, np.int32)
    stops = np.flatnonzero(np.isin(ids, list(eos)))
    length = min(len(ids), cap or len(ids), int(stops[0]) + 1 if len(stops) else len(ids))
    return Stream(np.asarray(prompt, np.int32), ids, length)


# ---- the ngram drafter ----


@njit(cache=True)
def match_length(tokens, end, num_tokens, max_n):
    """How many tokens up to index `end` equal the last tokens of tokens[:num_tokens], at most `max_n`."""
    n = 0
    while n < max_n and n <= end and tokens[end - n] == tokens[num_tokens - 1 - n]:
        n += 1
    return n


@njit(cache=True)
def find_ngram(tokens, num_tokens, min_n, max_n, latest):
    """Index after the longest match of the last min_n..max_n tokens of tokens[:num_tokens]; -1 without a
    match.

    Among equally long matches runner V1 takes the earliest, runner V2 (`latest`) the latest.
    """
    best, start = min_n - 1, -1
    for i in range(num_tokens - 1):
        end = num_tokens - 2 - i if latest else i
        n = match_length(tokens, end, num_tokens, max_n)
        if n > best:
            best, start = n, end + 1
            if n == max_n:  # nothing further on is longer, and ties go to the first one found
                break
    return start


@njit(cache=True)
def _draft_ngram(tokens, num_tokens, min_n, max_n, latest, most):
    """(drafted, matched): tokens that the ngram drafter proposes, and how many the record agrees with."""
    start = find_ngram(tokens, num_tokens, min_n, max_n, latest)
    if start < 0:
        return 0, 0
    drafted = min(most, num_tokens - start)
    matched = 0
    while (
        matched < drafted
        and num_tokens + matched < len(tokens)
        and tokens[start + matched] == tokens[num_tokens + matched]
    ):
        matched += 1
    return drafted, matched


class _Request:
    """A request's place in its stream. `num_tokens`: prompt and output so far, accepted drafts included."""

    __slots__ = (
        "id", "tokens", "num_prompt", "num_tokens", "limit", "num_computed", "num_sampled", "drafted",
        "matched", "first_step", "num_steps", "num_drafts", "num_draft_tokens", "num_accepted",
        "per_step",
    )  # fmt: skip

    def __init__(self, number: int, source: Stream, max_model_len: int, detailed: bool):
        self.id = number
        self.tokens = np.concatenate([source.prompt_token_ids, source.output_token_ids]).astype(np.int32, copy=False)
        self.num_prompt = self.num_tokens = len(source.prompt_token_ids)
        self.limit = min(source.num_output_tokens, max_model_len - self.num_prompt)
        self.num_computed = self.num_sampled = 0
        self.drafted = self.matched = 0  # of the draft that the next step verifies
        self.first_step = self.num_steps = self.num_drafts = self.num_draft_tokens = self.num_accepted = 0
        self.per_step: tuple[list[int], list[int]] | None = ([], []) if detailed else None

    def fill(self, total: int) -> None:
        """Fill the draft up to `total` tokens with the last token, as vLLM's runner V2 does."""
        found, start, last = self.drafted, self.num_tokens, self.tokens[self.num_tokens - 1]
        self.drafted = max(total, found)
        if self.matched == found:
            ahead = self.tokens[start + found : start + total]
            self.matched += _num_equal(ahead, np.full(len(ahead), last, np.int32))


def _num_equal(left: np.ndarray, right: np.ndarray) -> int:
    """How many of the first items are equal, up to the end of the shorter one."""
    size = min(len(left), len(right))
    other = np.flatnonzero(left[:size] != right[:size])
    return int(other[0]) if len(other) else size


class _Drafter:
    """Drafts nothing; what every drafter shares.

    `propose` gets the batch in the engine's order and leaves each request's draft for the next step.
    """

    def __init__(self, gamma: int, max_model_len: int):
        self.num_speculative_tokens, self.max_model_len = gamma, max_model_len

    def propose(self, batch: Sequence[_Request]) -> None:
        pass

    def drafting(self, batch: Sequence[_Request]) -> list[_Request]:
        """The requests that get a draft: those that sampled in this step and may grow."""
        return [r for r in batch if r.num_sampled and r.num_tokens < self.max_model_len]


class _Ngram(_Drafter):
    """vLLM's ngram drafter, by runner V1's rule or V2's (`latest`, and drafts filled up)."""

    def __init__(self, gamma: int, max_model_len: int, min_n: int, max_n: int, latest: bool):
        super().__init__(gamma, max_model_len)
        self.min_n, self.max_n, self.latest = min_n, max_n, latest

    def propose(self, batch: Sequence[_Request]) -> None:
        gamma = self.num_speculative_tokens
        for r in self.drafting(batch):
            most = min(gamma, self.max_model_len - r.num_tokens)
            r.drafted, r.matched = _draft_ngram(r.tokens, r.num_tokens, self.min_n, self.max_n, self.latest, most)
            if self.latest:
                r.fill(gamma)


class _Suffix(_Drafter):
    """vLLM's suffix drafter: `arctic_inference`'s cache, with its memory of earlier responses."""

    def __init__(self, gamma: int, max_model_len: int, depth: int, factor: float, min_prob: float, num_cached: int):
        try:
            from arctic_inference.suffix_decoding import SuffixDecodingCache
        except ImportError:
            raise ValueError("method suffix needs the package arctic-inference (make env)") from None
        super().__init__(gamma, max_model_len)
        self.depth, self.factor, self.min_prob = depth, factor, min_prob
        self.cache = SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=num_cached)

    def propose(self, batch: Sequence[_Request]) -> None:
        cache, drafting, gamma = self.cache, self.drafting(batch), self.num_speculative_tokens
        active = cache.active_requests
        for r in drafting:
            num = r.num_tokens
            if r.id not in active:
                if r.id in cache.cached_requests:
                    cache.evict_cached_response(r.id)
                cache.start_request(r.id, r.tokens[: r.num_prompt])
            cache.add_active_response(r.id, r.tokens[num - r.num_sampled : num])
            draft = cache.speculate(
                r.id,
                r.tokens[max(0, num - self.depth) : num],
                max_spec_tokens=min(gamma, self.max_model_len - num - 1),
                max_spec_factor=self.factor,
                min_token_prob=self.min_prob,
            ).token_ids
            matched = 0
            for drafted, said in zip(draft, r.tokens[num : num + len(draft)].tolist(), strict=False):
                if drafted != said:
                    break
                matched += 1
            r.drafted, r.matched = len(draft), matched
        for number in list(active - {r.id for r in batch}):
            cache.stop_request(number)


def _drafter(speculative: Speculative | None, runner: str, max_model_len: int) -> _Drafter:
    """The drafter of a speculative configuration; ValueError if its drafts need more than tokens."""
    s = speculative
    if s is None:
        return _Drafter(0, max_model_len)
    gamma = s.num_speculative_tokens
    if s.method in ("ngram", "ngram_gpu"):
        return _Ngram(gamma, max_model_len, s.prompt_lookup_min or 5, s.prompt_lookup_max or 5, runner == "V2")
    if s.method == "suffix":
        keys = ("max_tree_depth", "max_spec_factor", "min_token_prob", "max_cached_requests")
        return _Suffix(gamma, max_model_len, *(getattr(s, f"suffix_decoding_{key}") for key in keys))
    raise ValueError(f"method must be ngram, ngram_gpu or suffix in a replay, got {s.method!r}")


# ---- the simulation ----


class _PrefixCache:
    """Which blocks of prompt tokens the engine holds: chained hashes; beyond `num_blocks` the oldest go."""

    def __init__(self, block_size: int, num_blocks: int):
        self.block_size, self.num_blocks = block_size, num_blocks
        self.blocks: dict[int, None] = {}

    def _chain(self, tokens: np.ndarray, num_tokens: int) -> Iterator[int]:
        link = 0
        for start in range(0, num_tokens - self.block_size + 1, self.block_size):
            link = hash((link, tokens[start : start + self.block_size].tobytes()))
            yield link

    def hit(self, r: _Request) -> int:
        """Tokens of `r` that need no computing; the last one always does."""
        count = 0
        for link in self._chain(r.tokens, r.num_prompt - 1):
            if link not in self.blocks:
                break
            count += self.block_size
        return count

    def add(self, tokens: np.ndarray, num_tokens: int) -> None:
        for link in self._chain(tokens, num_tokens):
            self.blocks[link] = None
        while len(self.blocks) > self.num_blocks:
            del self.blocks[next(iter(self.blocks))]


STEP_COLUMNS = (
    "scheduled", "running", "prefills", "prompt_tokens", "output_tokens", "drafts", "draft_tokens",
    "accepted_tokens", "context_tokens", "uniform",
)  # fmt: skip
REQUEST_COLUMNS = (
    "num_prompt_tokens", "num_output_tokens", "first_step", "last_step", "num_steps", "num_drafts",
    "num_draft_tokens", "num_accepted_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Replayed:
    """What a replay counted.

    `steps`: one row an engine step, named as in a measured trace. `scheduled` requests took part, `running`
    of them emitted tokens, and the prompts of `prefills` of these ended in the step; `prompt_tokens`
    computed, `output_tokens` delivered, `drafts`, `draft_tokens` verified and `accepted_tokens`;
    `context_tokens` is the sum of the decoding requests' lengths; `uniform` is 1 if every request carried
    exactly 1 + gamma tokens, which a full CUDA graph needs.
    `requests`: one row a request, in order of finishing; `number` is its place in the log.
    `per_step`: {number: (drafted, accepted) of each of its steps with a draft} where asked for.
    """

    counters: Counters
    steps: dict[str, np.ndarray]
    requests: dict[str, np.ndarray]
    per_step: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)


class Simulation:
    """vLLM's scheduler and a drafter, fed with recorded streams. The suffix drafter's memory survives `run`.

    speculative: vLLM's speculative configuration, or None for a plain run. runner: "V1", or "V2" for its
    ngram rule.
    max_num_seqs: requests in flight together. max_num_batched_tokens: the token budget of a step. block_size
    and
    num_gpu_blocks: the prefix cache, empty at the start of each `run`; None switches it off.
    """

    def __init__(
        self,
        speculative: Speculative | None,
        *,
        max_num_seqs: int,
        max_model_len: int = 1 << 30,
        max_num_batched_tokens: int = 8192,
        runner: Literal["V1", "V2"] = "V1",
        block_size: int | None = None,
        num_gpu_blocks: int = 1 << 20,
    ):
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, got {max_num_seqs}")
        if max_num_batched_tokens < 1:
            raise ValueError(f"max_num_batched_tokens must be at least 1, got {max_num_batched_tokens}")
        self.drafter = _drafter(speculative, runner, max_model_len)
        self.max_num_seqs, self.max_model_len, self.budget = (
            max_num_seqs,
            max_model_len,
            max_num_batched_tokens,
        )
        # Runner V1 drafts zeros for the whole batch while a request is within gamma of the model length.
        self.checks_length = runner == "V1" and speculative is not None
        self.prefixes = _PrefixCache(block_size, num_gpu_blocks) if block_size else None
        self.slots: list[_Request] = []  # the runner's persistent batch, in order
        self.next_id = 0

    def run(
        self,
        streams: Iterable[Stream],
        *,
        progress: str = "",
        detailed: bool = False,
        cached: Iterable[Sequence[int]] = (),
    ) -> Replayed:
        """Replay `streams` (read lazily, at most `max_num_seqs` at a time) until all have finished.

        cached: prompts' beginnings that the prefix cache holds already.

        progress: a label for a progress bar over requests; empty: none. detailed: keep each request's
        per-step counts. Raises ValueError without a stream, or for a prompt that leaves no room for an output
        token.
        """
        self._counts = Counter()
        self._per_pos = [0] * self.drafter.num_speculative_tokens
        self._steps = {name: array("q" if name == "context_tokens" else "i") for name in STEP_COLUMNS}
        self._done = {name: array("q") for name in ("number", *REQUEST_COLUMNS)}
        self._per_step: dict[int, tuple[list[int], list[int]]] = {}
        self._first_id = self.next_id
        if self.prefixes:
            self.prefixes.blocks.clear()
            for ids in cached:
                self.prefixes.add(np.asarray(ids, np.int32), len(ids))
        requests, running = self._requests(streams, detailed), deque()
        queue = deque(
            itertools.islice(requests, 1)
        )  # the next one waiting; the others are built when they are looked at
        self._following = requests
        total = len(streams) if isinstance(streams, Sequence) else None
        with tqdm(total=total, desc=progress, unit="request", disable=not progress, file=sys.stderr) as bar:
            while running or queue:
                bar.update(self._step(running, queue))
        if not self._done["number"]:
            raise ValueError("streams must hold at least one request, got none")
        return Replayed(
            Counters(
                **self._counts,
                num_accepted_tokens_per_pos=tuple(self._per_pos),
            ),
            {name: np.frombuffer(values, values.typecode) for name, values in self._steps.items()},
            {name: np.frombuffer(values, values.typecode) for name, values in self._done.items()},
            self._per_step,
        )

    def _requests(self, streams: Iterable[Stream], detailed: bool) -> Iterator[_Request]:
        for source in streams:
            if not 0 < len(source.prompt_token_ids) < self.max_model_len:
                raise ValueError(
                    f"request {self.next_id - self._first_id} must have 1 to {self.max_model_len - 1} prompt "
                    f"tokens (max_model_len - 1), got {len(source.prompt_token_ids)}"
                )
            if source.num_output_tokens < 1:
                raise ValueError(f"request {self.next_id - self._first_id} must have at least 1 output token, got none")
            yield _Request(self.next_id, source, self.max_model_len, detailed)
            self.next_id += 1

    def _step(self, running: deque[_Request], queue: deque[_Request]) -> int:
        """One engine step: schedule, verify, draft, finish. Returns how many requests finished."""
        scheduled = self._schedule(running, queue)
        if not scheduled:
            raise ValueError(
                f"max_num_batched_tokens must be at least 1 + num_speculative_tokens "
                f"({1 + self.drafter.num_speculative_tokens}), got {self.budget}"
            )
        self._place(scheduled)
        longest = max(r.num_computed + n for r, n in scheduled.items())
        self._verify(scheduled)
        gamma = self.drafter.num_speculative_tokens
        if self.checks_length and longest + gamma > self.max_model_len:
            for r in (r for r in self.slots if r.num_sampled):
                r.drafted = gamma
                r.matched = _num_equal(r.tokens[r.num_tokens :], np.zeros(gamma, np.int32))
        else:
            self.drafter.propose(self.slots)
        over = [r for r in running if r.num_tokens - r.num_prompt >= r.limit]
        if over:
            step = len(self._steps["running"]) - 1
            for r in over:
                self._finish(r, step)
            for _ in range(len(running)):
                r = running.popleft()
                if r.num_tokens - r.num_prompt < r.limit:
                    running.append(r)
        return len(over)

    def _schedule(self, running: deque[_Request], queue: deque[_Request]) -> dict[_Request, int]:
        """Tokens of each request in this step: running ones first, then waiting ones as budget is left."""
        budget, longest, gamma = self.budget, self.max_model_len, self.drafter.num_speculative_tokens
        scheduled: dict[_Request, int] = {}
        prefilling = False
        for r in running:
            if budget <= 0:
                break
            num = min(r.num_tokens + r.drafted - r.num_computed, budget, longest - r.num_computed - 1)
            if num <= 0:
                continue
            prefilling |= r.num_computed < r.num_prompt
            verified = max(num + r.num_computed - r.num_tokens, 0)
            if verified < r.drafted:
                r.drafted, r.matched = verified, min(r.matched, verified)
            scheduled[r] = num
            budget -= num
            if self.prefixes and r.num_computed < r.num_prompt:
                self.prefixes.add(r.tokens, min(r.num_computed + num, r.num_prompt))
        while queue and budget > 0 and len(running) < self.max_num_seqs:
            r = queue[0]
            r.num_computed = self.prefixes.hit(r) if self.prefixes else 0
            num = r.num_prompt - r.num_computed
            padded = gamma and num == 1 and not prefilling and (scheduled or r.num_computed)
            if padded and r.num_computed + 2 + gamma <= longest:
                # Nothing is left of the prompt but its last token: placeholder drafts keep the batch uniform.
                if 1 + gamma > budget:
                    break
                num, r.drafted, r.matched = 1 + gamma, gamma, 0
            num = min(num, budget)
            scheduled[r] = num
            budget -= num
            r.first_step = len(self._steps["running"])
            running.append(queue.popleft())
            queue.extend(itertools.islice(self._following, 1))
            if self.prefixes:
                self.prefixes.add(r.tokens, min(r.num_computed + num, r.num_prompt))
        return scheduled

    def _place(self, scheduled: Mapping[_Request, int]) -> None:
        """The batch's order: newcomers take the lowest freed places, the last ones move into the gaps."""
        slots = self.slots
        free = [i for i, r in enumerate(slots) if r not in scheduled]
        if not free and len(slots) == len(scheduled):
            return
        held = {r.id for r in slots}
        gaps = deque(free)
        # New requests come before those that return after a step without budget, as in vLLM's runner.
        missing = [r for r in scheduled if r.id not in held]
        now = len(self._steps["running"])
        for r in sorted(missing, key=lambda r: r.first_step != now):
            if gaps:
                slots[gaps.popleft()] = r
            else:
                slots.append(r)
        empty = set(gaps)
        while gaps:
            while len(slots) - 1 in empty:
                empty.remove(len(slots) - 1)
                slots.pop()
            gap = gaps.popleft()
            if gap >= len(slots):
                break
            slots[gap] = slots.pop()
            empty.remove(gap)

    def _verify(self, scheduled: Mapping[_Request, int]) -> None:
        """Emit each request's accepted drafts and its bonus token, and count the step."""
        gamma, per_pos = self.drafter.num_speculative_tokens, self._per_pos
        prompt = output = prefills = drafts = draft_tokens = accepted = context = running = 0
        uniform = True
        for r, num in scheduled.items():
            before, drafted = r.num_computed, r.drafted
            r.num_computed = before + num
            if before < r.num_prompt:
                prompt += min(num, r.num_prompt - before)
                prefills += r.num_computed >= r.num_prompt
            else:
                context += r.num_tokens
            if num != 1 + gamma or before < r.num_prompt:
                uniform = False
            r.num_sampled = 0
            if r.num_computed < r.num_prompt:
                continue
            matched = r.matched
            emitted = min(matched + 1, len(r.tokens) - r.num_tokens)
            held = r.num_tokens - r.num_prompt
            r.num_sampled = emitted
            r.num_tokens += emitted
            r.num_computed -= drafted - matched
            r.num_steps += 1
            running += 1
            output += min(emitted, r.limit - held)
            if drafted:
                drafts += 1
                draft_tokens += drafted
                accepted += matched
                r.num_drafts += 1
                r.num_draft_tokens += drafted
                r.num_accepted += matched
                for position in range(matched):
                    per_pos[position] += 1
                if r.per_step is not None:
                    r.per_step[0].append(drafted)
                    r.per_step[1].append(matched)
                r.drafted = r.matched = 0
        values = (
            len(scheduled), running, prefills, prompt, output, drafts, draft_tokens, accepted, context,
            int(uniform),
        )  # fmt: skip
        for name, value in zip(STEP_COLUMNS, values, strict=True):
            self._steps[name].append(value)
        self._counts.update(
            num_prompt_tokens=prompt, num_output_tokens=output, num_drafts=drafts,
            num_draft_tokens=draft_tokens, num_accepted_tokens=accepted,
            num_engine_steps=1, num_request_steps=running,
        )  # fmt: skip

    def _finish(self, r: _Request, step: int) -> None:
        values = (
            r.id - self._first_id, r.num_prompt, min(r.num_tokens - r.num_prompt, r.limit), r.first_step,
            step, r.num_steps, r.num_drafts, r.num_draft_tokens, r.num_accepted,
        )  # fmt: skip
        for name, value in zip(("number", *REQUEST_COLUMNS), values, strict=True):
            self._done[name].append(value)
        if r.per_step is not None:
            self._per_step[r.id - self._first_id] = r.per_step
