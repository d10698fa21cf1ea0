"""A dozen random kills; tests/bench/bench_kills.py does a hundred."""

import pytest
from bench import bench_kills


@pytest.mark.parametrize("seed", [1, 2])
def test_a_store_survives_random_kills(seed, tmp_path):
    counts = bench_kills.compare(kills=6, num_cells=40, longest_s=0.1, seed=seed, folder=tmp_path)
    assert counts["begun"] >= 40
