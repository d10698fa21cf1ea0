"""Drafter replay: tokens a second, and how time grows with the log: python tests/bench/bench_replay.py [longest log]

A made-up log, drawn lazily: requests of 300 prompt and 300 output tokens strung together from a bank of phrases, so
that texts repeat themselves and each other. `growth` is time a token over that of the ten times shorter log: 1 is linear.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator

import numpy as np

from lib.answer.replay import Simulation, Stream
from lib.results.run import Speculative

LENGTH, NUM_PHRASES, VOCABULARY, BATCH = 300, 4000, 50_000, 64
SETTINGS = {
    "ngram": Speculative(method="ngram", num_speculative_tokens=7, prompt_lookup_min=2, prompt_lookup_max=5),
    "suffix, cache off": Speculative(method="suffix", num_speculative_tokens=32, suffix_decoding_max_cached_requests=0),
    "suffix, cache on": Speculative(method="suffix", num_speculative_tokens=32),
}


def streams(num_tokens: int) -> Iterator[Stream]:
    """Requests with `num_tokens` output tokens in all; each repeats some of the phrases it has used before."""
    rng = np.random.default_rng(0)
    phrases = [rng.integers(VOCABULARY, size=rng.integers(2, 13)).astype(np.int32) for _ in range(NUM_PHRASES)]
    for _ in range(num_tokens // LENGTH):
        used: list[int] = []
        parts: list[np.ndarray] = []
        size = 0
        while size < 2 * LENGTH:
            again = used and rng.random() < 0.4
            chosen = used[rng.integers(len(used))] if again else int(rng.zipf(1.3)) % NUM_PHRASES
            used.append(chosen)
            parts.append(phrases[chosen])
            size += len(phrases[chosen])
        tokens = np.concatenate(parts)[: 2 * LENGTH]
        yield Stream(tokens[:LENGTH], tokens[LENGTH:], LENGTH)


def main(longest: int = 1_000_000) -> None:
    for speculative in SETTINGS.values():  # compiles outside the timing
        Simulation(speculative, max_num_seqs=BATCH).run(streams(3000))
    head = ("log, tokens", "tokens/s", "M tokens/min", "growth", "tau", "peak GB")
    print(f"{'setting':20} " + " ".join(f"{word:>12}" for word in head))
    for name, speculative in SETTINGS.items():
        before, length = None, 10_000
        while length <= longest:
            start = time.perf_counter()
            done = Simulation(speculative, max_num_seqs=BATCH).run(streams(length))
            count = done.counters.num_output_tokens
            each = (time.perf_counter() - start) / count
            growth = f"{each / before:.2f}" if before else "-"
            tau = count / done.counters.num_request_steps
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            row = (f"{count:,}", f"{1 / each:,.0f}", f"{60e-6 / each:.1f}", growth, f"{tau:.2f}", f"{peak:.2f}")
            print(f"{name:20} " + " ".join(f"{word:>12}" for word in row), flush=True)
            before, length = each, length * 10


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
