"""vLLM's persistent batch as a drafter sees it: rows that are filled, freed, reused, moved and swapped."""

from __future__ import annotations

import dataclasses
import random

import numpy as np


@dataclasses.dataclass
class Request:
    """One request: number, tokens so far, draft to verify next, steps until its prompt is read."""

    number: int
    text: list[int]
    num_prompt: int
    draft: list[int] = dataclasses.field(default_factory=list)
    reading: int = 0


class PersistentBatch:
    """`step(drafts)` verifies the drafts of the step before and returns what vLLM would pass to `propose`.

    `unique` prompts make every history different; otherwise prompts repeat. Finished requests leave their
    tokens in their rows, new ones take the lowest free row, then the last rows move into the gaps; now and
    then two rows swap.
    """

    def __init__(self, seed: int, rows: int = 6, max_model_len: int = 64, vocab: int = 4, unique: bool = True):
        self.rng = random.Random(seed)
        self.num_rows, self.max_model_len, self.vocab, self.unique = rows, max_model_len, vocab, unique
        self.tokens = np.zeros((rows, max_model_len), dtype=np.int32)
        self.lengths = np.zeros(rows, dtype=np.int32)
        self.rows: list[Request | None] = []
        self.born = 0
        self.verified: list[tuple[int, int]] = []  # (request, draft length), one a verified draft

    def _put(self, row: int, request: Request) -> None:
        self.tokens[row, : len(request.text)] = request.text
        self.lengths[row] = len(request.text)

    def _new(self) -> Request:
        rng, number = self.rng, self.born
        self.born += 1
        loop = [rng.randrange(self.vocab) for _ in range(rng.randint(2, 4))]
        prompt = (loop * 6)[: rng.choice((8, 8, 8, 12))]  # equal lengths are common, as in a workload
        if self.unique:
            prompt[0] = 1000 + number
        return Request(number, prompt, len(prompt), reading=rng.choice((0, 0, 1, 2)))

    def step(self, drafts: list[list[int]]) -> list[list[int]]:
        """Sampled tokens by row; `tokens`, `lengths` and `rows` hold the state that goes with them."""
        rng = self.rng
        for request, draft in zip(self.rows, drafts, strict=False):
            request.draft = list(draft)
        free = [
            row
            for row, request in enumerate(self.rows)
            if rng.random() < 0.15 or len(request.text) + 8 > self.max_model_len
        ]
        for row in free:
            self.rows[row] = None
        for _ in range(rng.choice((0, 0, 1, 2)) if any(self.rows) else 2):
            if free:
                row = free.pop(0)
            elif len(self.rows) < self.num_rows:
                row = len(self.rows)
                self.rows.append(None)
            else:
                break
            self.rows[row] = self._new()
            self._put(row, self.rows[row])
        while free:
            while self.rows and self.rows[-1] is None:
                self.rows.pop()
            free = [row for row in free if row < len(self.rows)]
            if free:
                row = free.pop(0)
                self.rows[row] = self.rows.pop()
                self._put(row, self.rows[row])
        if len(self.rows) > 1 and rng.random() < 0.3:
            i, j = rng.sample(range(len(self.rows)), 2)
            self.rows[i], self.rows[j] = self.rows[j], self.rows[i]
            self._put(i, self.rows[i])
            self._put(j, self.rows[j])
        return [self._sample(row, request) for row, request in enumerate(self.rows)]

    def _sample(self, row: int, request: Request) -> list[int]:
        if request.reading:
            request.reading -= 1
            return []
        draft, request.draft = request.draft, []
        # the drafts to verify stand behind the known tokens until the new ones overwrite them
        self.tokens[row, len(request.text) : len(request.text) + len(draft)] = draft
        accepted = draft[: self.rng.randint(0, len(draft))]
        own = self.rng.randrange(self.vocab) if self.rng.random() < 0.4 else request.text[-3]
        sampled = [*accepted, own]
        if draft:
            self.verified.append((request.number, len(draft)))
        request.text += sampled
        self._put(row, request)
        return sampled
