"""Half a dozen random kills; tests/bench/bench_kills.py does a hundred."""

from bench import bench_kills


def test_a_store_survives_random_kills(tmp_path):
    counts = bench_kills.compare(kills=6, num_runs=40, longest_s=0.1, seed=1, folder=tmp_path)
    assert counts["begun"] >= 40
