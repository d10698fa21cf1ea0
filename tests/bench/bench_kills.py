"""Random kills of a stand-in that stores records: python tests/bench/bench_kills.py [kills] [seed]

A child process works through runs whose records are made up; SIGKILL falls at a random moment, the next child
goes on. After the last kill one child finishes. What is in the store then equals, byte for byte, what a child stores
that nobody disturbs. `repeated` is work begun again over all work: at most one run a kill.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from lib.results.records import ROOT, Store

CHILD = ROOT / "tests" / "standin_runs.py"


def start(folder: Path, num_runs: int) -> subprocess.Popen:
    command = [sys.executable, str(CHILD), str(folder), str(num_runs)]
    child = subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
    child.stdout.readline()  # a child that has begun: from here on a kill means something
    return child


def files(folder: Path) -> dict[str, bytes]:
    """What counts in a store: records and traces, no temporary file."""
    return {f.name: f.read_bytes() for f in folder.glob("*.json*") if not f.name.startswith(".")}


def disturb(folder: Path, num_runs: int, kills: int, longest_s: float, seed: int) -> dict[str, int]:
    """Work through `num_runs` under `kills` random kills; returns counts of what happened."""
    rng, counts = random.Random(seed), {"kills": 0, "in mid-write": 0, "records before": 0}
    for _ in range(kills):
        child = start(folder, num_runs)
        try:
            child.wait(timeout=rng.uniform(0, longest_s))
        except subprocess.TimeoutExpired:
            counts["kills"] += 1
        child.kill()
        child.wait()
        child.stdout.close()
        counts["in mid-write"] += bool(list(folder.glob(".*.part")))
        for part in folder.glob(".*.part"):
            part.unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a damaged record would be set aside with a warning
            held = len(Store(folder))
        assert held >= counts["records before"], "a kill took a record away"
        counts["records before"] = held
    child = start(folder, num_runs)
    assert child.wait() == 0
    child.stdout.close()
    counts["begun"] = len(folder.with_suffix(".measured").read_text().split())
    return counts


def compare(kills: int, num_runs: int, longest_s: float, seed: int, folder: Path) -> dict[str, int]:
    """Counts of a disturbed run whose store equals an undisturbed one's; AssertionError if it does not."""
    quiet = folder / "quiet"
    quiet.mkdir()
    (folder / "disturbed").mkdir()
    child = start(quiet, num_runs)
    assert child.wait() == 0
    child.stdout.close()
    counts = disturb(folder / "disturbed", num_runs, kills, longest_s, seed)
    assert len(Store(quiet)) == num_runs
    assert files(folder / "disturbed") == files(quiet)
    assert counts["begun"] - num_runs <= counts["kills"], "more was measured again than was under way"
    return counts


def main(kills: str = "100", seed: str = "0") -> None:
    with tempfile.TemporaryDirectory() as folder:
        num_runs = 10 * int(kills)
        counts = compare(int(kills), num_runs, 0.15, int(seed), Path(folder))
    print(f"{counts['kills']} kills over {num_runs} runs: the store equals an undisturbed run's")
    print(f"repeated {(counts['begun'] - num_runs) / counts['begun']:.4f}  "
          f"kills in mid-write {counts['in mid-write'] / max(counts['kills'], 1):.2f}")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
