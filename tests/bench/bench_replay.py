"""Drafter replay: tokens a second, and how time grows with the log: python tests/bench/bench_replay.py [longest log]

A made-up log, drawn lazily: requests of 300 prompt and 300 output tokens strung together from a bank of phrases, so
that texts repeat themselves and each other. `growth` is time a token over that of the ten times shorter log: 1 is linear.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator

import numpy as np

from lib.cells import Speculative
from lib.replay import Simulation, Stream

LENGTH, NUM_PHRASES, VOCABULARY, BATCH = 300, 4000, 50_000, 64
SETTINGS = {
    "ngram": Speculative(method="ngram", num_speculative_tokens=7, prompt_lookup_min=2, prompt_lookup_max=5),
    "suffix, memory off": Speculative(
        method="suffix", num_speculative_tokens=32, suffix_decoding_max_cached_requests=0
    ),
    "suffix, memory on": Speculative(method="suffix", num_speculative_tokens=32),
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
    print(
        f"{'setting':20} {'log, tokens':>12} {'tokens/s':>10} {'M tokens/min':>13} {'growth':>7} {'tau':>5} {'peak GB':>8}"
    )
    for name, speculative in SETTINGS.items():
        before, length = None, 10_000
        while length <= longest:
            done = Simulation(speculative, max_num_seqs=BATCH).run(streams(length))
            count = done.counters.num_output_tokens
            each = done.wall_s / count
            growth = f"{each / before:7.2f}" if before else f"{'-':>7}"
            tau = count / done.counters.num_request_steps
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(
                f"{name:20} {count:12,} {1 / each:9,.0f} {60e-6 / each:12.1f} {growth} {tau:5.2f} {peak:8.2f}",
                flush=True,
            )
            before, length = each, length * 10


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
