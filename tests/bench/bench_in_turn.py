"""What taking turns is good for: python tests/bench/bench_in_turn.py

Two identical vanilla engines measure the same cells, one engine after the other and cell by cell in turn. Printed is by
what factor identical cells differ, typically (root mean square of the log ratio) and at most; nearer to 1 is better.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from lib import engines, ladder, metrics, params, stats

SMALL = {
    "num_prompts": 4,
    "output_tokens": 48,
    "input_tokens": 96,
    "seeds": [0, 1],
    "repeats": 4,
    "workloads": ["sonnet", "chat", "code"],
}


def main() -> None:
    p = params.load("cpu", SMALL | {"in_turn": [["vanilla:2", "vanilla:3"]]})
    with tempfile.TemporaryDirectory() as folder:
        cells = ladder.cells(p, ["vanilla"], batch_sizes=[2], repeats=4)
        held = engines.run(cells, p, folder=Path(folder)).all()
    arms = [ladder.named(held, "vanilla", repeat=i) for i in range(4)]
    for how, one, other in (("one engine after the other", *arms[:2]), ("in turn", *arms[2:])):
        pairs = [(a, b) for a in one for b in other if a.cell.workload == b.cell.workload]
        logs = np.log([metrics.throughput_tok_s(a) / metrics.throughput_tok_s(b) for a, b in pairs])
        turned = sum(stats.in_turn(a, b) for a, b in pairs)
        print(
            f"{how:27} {len(pairs)} pairs, {turned} in turn: typically {np.exp(np.sqrt(np.mean(logs**2))):.3f} times, "
            f"at most {np.exp(np.abs(logs).max()):.3f}"
        )


if __name__ == "__main__":
    main()
