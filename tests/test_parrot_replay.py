"""Committed runs of parrots: what is drafted and accepted is a property of the text, to the last digit."""

import parrot_replay
import pytest

from lib import results
from lib.results.run import Run

COUNTED = ["num_output_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"]


def runs(profile: str):
    """One run of each model, drafter without memory, text and number of requests in flight up to 64."""
    held = results.load(profile).query(
        "status == 'ok' and temperature == 0 and workload != 'random' and concurrency <= 64"
    )
    held = held[(held.num_drafts > 0) & held.suffix_cache.isin([None, "off"])]
    return held.drop_duplicates(["model", "setting", "workload", "concurrency"]).sort_values("run_id")


@pytest.mark.parametrize("profile", ["h200", "h200-sizes"])
def test_committed_runs_are_verbatim_and_count_what_the_replay_counts(profile):
    held = runs(profile)
    assert len(held) >= 4 and held.verbatim.all()
    for r in held.itertuples():
        asked = Run.model_validate_json(r.run)
        simulation = parrot_replay.simulation_of(
            asked, runner=r.resolved_runner, block_size=int(r.resolved_block_size), num_gpu_blocks=int(r.resolved_num_gpu_blocks)
        )  # fmt: skip
        counted = parrot_replay.replay_of(asked, simulation).counters
        got = {name: getattr(counted, name) for name in COUNTED}
        want = {name: getattr(r, name) for name in COUNTED}
        want["num_accepted_tokens_per_pos"] = tuple(want["num_accepted_tokens_per_pos"])
        assert got == want, (r.setting, r.workload, r.concurrency)
