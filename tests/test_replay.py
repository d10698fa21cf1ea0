"""Drafter replay: cases counted by hand, vLLM's own ngram function, and properties that hold for any log."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.answer import replay
from lib.results.run import Speculative

HAS_SUFFIX = importlib.util.find_spec("arctic_inference") is not None
HAS_VLLM = importlib.util.find_spec("vllm") is not None
needs_suffix = pytest.mark.skipif(not HAS_SUFFIX, reason="arctic_inference is not installed")

PERIODIC = replay.stream([7, 8, 9, 7, 8], [9, 7, 8, 9, 7, 8, 9, 7, 8], cap=5)


def ngram(gamma: int = 3, low: int = 2, high: int = 5) -> Speculative:
    return Speculative(method="ngram", num_speculative_tokens=gamma, prompt_lookup_min=low, prompt_lookup_max=high)


def suffix(gamma: int = 8, cached: int = 0, **changes) -> Speculative:
    return Speculative(
        method="suffix", num_speculative_tokens=gamma, suffix_decoding_max_cached_requests=cached, **changes
    )


def run(streams, speculative=None, max_num_seqs=8, detailed=False, **limits) -> replay.Replayed:
    return replay.Simulation(speculative, max_num_seqs=max_num_seqs, **limits).run(streams, detailed=detailed)


def draft(
    tokens: list[int], low: int, high: int, gamma: int, latest: bool = False, longest: int = 1 << 20
) -> list[int]:
    """The ngram draft after `tokens`, as the drafter of a simulation would leave it."""
    array = np.asarray(tokens, np.int32)
    start = replay.find_ngram(array, len(array), low, high, latest)
    room = min(gamma, longest - len(array))
    return [] if start < 0 or room <= 0 else tokens[start : start + room]


# ---- the ngram rule ----


def test_runner_v1_takes_the_earliest_match_and_v2_the_latest():
    tokens = [1, 2, 3, 4, 1, 2, 5, 6, 1, 2]
    assert draft(tokens, 2, 5, 3) == [3, 4, 1]
    assert draft(tokens, 2, 5, 3, latest=True) == [5, 6, 1]


def test_the_longest_match_wins_over_an_earlier_one():
    tokens = [1, 2, 9, 3, 1, 2, 4, 3, 1, 2]
    assert draft(tokens, 2, 5, 1) == [4]
    assert draft(tokens, 2, 2, 1) == [9]


@pytest.mark.parametrize(
    ("tokens", "low", "expected"),
    [
        ([1, 2, 3], 2, []),  # no match
        ([5], 1, []),  # nothing before the last token
        ([5, 5], 1, [5]),
        ([5, 5, 5], 2, [5]),  # matches may overlap themselves
        ([1, 2, 1], 2, []),  # one token matches, two are asked for
        ([1, 2, 1], 1, [2, 1]),
    ],
)
def test_short_contexts(tokens, low, expected):
    assert draft(tokens, low, 5, 4) == expected


def brute_force_v2(tokens: list[int], low: int, high: int, gamma: int) -> list[int]:
    """Runner V2's kernel read literally: the best (n, position) pair; free places hold the last token."""
    best = max(
        ((n, at) for n in range(low, high + 1) for at in range(len(tokens) - n) if tokens[at : at + n] == tokens[-n:]),
        default=None,
    )
    found = [] if best is None else tokens[best[0] + best[1] : best[0] + best[1] + gamma]
    return found + [tokens[-1]] * (gamma - len(found))


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 6),
)
def test_v2_rule_equals_a_literal_reading(tokens, low, more, gamma):
    found = draft(tokens, low, low + more, gamma, latest=True)
    assert found + [tokens[-1]] * (gamma - len(found)) == brute_force_v2(tokens, low, low + more, gamma)


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")
def test_v1_rule_equals_vllms_own_function(tmp_path):
    rng, cases = random.Random(0), []
    for _ in range(5000):
        low = rng.randint(1, 4)
        tokens = [rng.randrange(rng.choice([2, 4, 30])) for _ in range(rng.randint(1, 60))]
        cases.append((tokens, low, low + rng.randint(0, 4), rng.choice([20, 64, 2048]), rng.randint(1, 12)))
    script = """
import json, sys
import numpy as np
from vllm.v1.spec_decode.ngram_proposer import _find_longest_matched_ngram_and_propose_tokens as propose
for tokens, low, high, longest, gamma in json.load(open(sys.argv[1])):
    tokens = np.asarray(tokens, np.int32)
    found = propose(origin_tokens=tokens, min_ngram=low, max_ngram=high, max_model_len=longest, k=gamma)
    print("DRAFT", json.dumps(found.tolist()))
"""
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    theirs = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("DRAFT ")]
    ours = [draft(tokens, low, high, gamma, longest=longest) for tokens, low, high, longest, gamma in cases]
    assert theirs == ours
    assert sum(map(bool, ours)) > 1000


# ---- counted by hand ----


def test_a_periodic_output_is_drafted_in_one_go():
    done = run([PERIODIC], ngram())
    # step 1 reads the prompt and emits 9; then 7 8 9 recurs, 7 8 9 is drafted and accepted, and 7 is the
    # bonus token
    assert done.counters.num_engine_steps == done.counters.num_request_steps == 2
    assert (done.counters.num_drafts, done.counters.num_draft_tokens, done.counters.num_accepted_tokens) == (
        1,
        3,
        3,
    )
    assert done.counters.num_accepted_tokens_per_pos == (1, 1, 1)
    assert done.counters.num_output_tokens == 5
    assert done.counters.num_prompt_tokens == 5
    assert done.counters.num_output_tokens / done.counters.num_request_steps == 2.5
    assert done.counters.num_drafts / done.counters.num_request_steps == 0.5
    assert done.steps["running"].tolist() == [1, 1]
    assert done.steps["prefills"].tolist() == [1, 0]
    assert done.steps["uniform"].tolist() == [0, 1]
    assert done.steps["context_tokens"].tolist() == [0, 6]


def test_accepted_drafts_count_before_the_output_is_cut():
    done = run([PERIODIC._replace(num_output_tokens=2)], ngram())
    assert done.counters.num_output_tokens == 2
    assert done.counters.num_accepted_tokens == 3


def test_without_speculation_every_step_emits_one_token():
    done = run([PERIODIC])
    assert done.counters.num_request_steps == 5
    assert done.counters.num_drafts == 0
    assert done.steps["uniform"].tolist() == [0, 1, 1, 1, 1]


def test_a_rejected_draft_costs_a_step():
    # after 9, [7, 8, 9] is drafted; the record goes on with 7, 1
    done = run([replay.stream([7, 8, 9, 7, 8], [9, 7, 1, 1, 1, 1, 1], cap=3)], ngram(), detailed=True)
    assert done.per_step[0] == ([3], [1])
    assert done.counters.num_accepted_tokens_per_pos == (1, 0, 0)
    assert done.counters.num_request_steps == 2


def test_continuous_batching_admits_as_others_finish():
    streams = [replay.stream([1, 2], [3] * n) for n in (1, 3, 2)]
    done = run(streams, max_num_seqs=2)
    assert done.steps["running"].tolist() == [2, 2, 2]  # 0 and 1; then 1 and 2 twice
    assert done.requests["number"].tolist() == [0, 1, 2]
    assert done.requests["first_step"].tolist() == [0, 0, 1]
    assert done.requests["last_step"].tolist() == [0, 2, 2]


def test_the_token_budget_chunks_a_prompt():
    done = run([replay.stream(range(10), [1, 2])], max_num_batched_tokens=4)
    assert done.steps["prompt_tokens"].tolist() == [4, 4, 2, 0]
    assert done.steps["running"].tolist() == [0, 0, 1, 1]
    assert done.counters.num_engine_steps == 4
    assert done.counters.num_request_steps == 2


def test_drafts_take_part_in_the_token_budget():
    done = run([PERIODIC], ngram(), max_num_batched_tokens=5)
    assert done.counters.num_draft_tokens == 3
    done = run([PERIODIC], ngram(), max_num_batched_tokens=3, detailed=True)
    assert done.per_step[0] == ([2, 2], [2, 2])  # of 3 drafted tokens, 2 fit beside the request's own one


def test_near_the_model_length_the_whole_batch_drafts_zeros():
    # the long request is within gamma of 16 tokens from its first step on; the short one has no draft of its
    # own
    streams = [
        replay.stream(range(1, 13), [20, 21, 22, 23, 24]),
        replay.stream([30, 31], [0, 32, 33, 34, 35]),
    ]
    done = run(streams, ngram(gamma=5), max_model_len=16, detailed=True)
    # step 1 schedules 12 and 2 tokens: 12 + 5 > 16, so both draft five zeros; at most 16 - 12 - 1 = 3 tokens
    # of the long one fit then, two of them drafts, later one, later none, and it ends at 16 tokens; the short
    # one verifies all five
    assert done.per_step == {0: ([2, 1], [0, 0]), 1: ([5] * 4, [0] * 4)}
    assert done.requests["num_output_tokens"].tolist() == [4, 5]


def test_zeros_drafted_near_the_model_length_can_be_right():
    streams = [
        replay.stream(range(1, 13), [20, 21, 22, 23, 24]),
        replay.stream([30, 31], [5, 0, 0, 6, 7, 8, 9, 9, 9]),
    ]
    done = run(streams, ngram(gamma=5), max_model_len=16, detailed=True)
    assert done.per_step[1][1][0] == 2


def test_runner_v2_drafts_always_and_fills_with_the_last_token():
    done = run([replay.stream([1, 2, 3], [4, 4, 4, 5, 6, 7, 8])], ngram(gamma=2), runner="V2", detailed=True)
    # after the prompt: 4 is sampled, nothing recurs, 4 4 is filled in and both are right; then 5 is the bonus
    # token
    assert done.per_step[0][0][0] == 2
    assert done.per_step[0][1][0] == 2
    assert done.counters.num_drafts / done.counters.num_request_steps == pytest.approx(
        1 - 1 / done.counters.num_request_steps
    )


def test_the_prefix_cache_saves_prompt_tokens_in_whole_blocks():
    streams = [replay.stream(range(1, 11), [50 + i]) for i in range(2)]
    done = run(streams, max_num_seqs=1, block_size=4)
    assert done.steps["prompt_tokens"].tolist() == [10, 2]
    assert run(streams, max_num_seqs=1).steps["prompt_tokens"].tolist() == [10, 10]


def test_a_prompt_cached_but_for_its_last_token_gets_placeholder_drafts():
    streams = [replay.stream(range(1, 6), [50, 51, 52, 53, 54], cap=1) for _ in range(2)]
    done = run(streams, ngram(), max_num_seqs=1, block_size=4)
    assert (done.counters.num_drafts, done.counters.num_draft_tokens, done.counters.num_accepted_tokens) == (
        1,
        3,
        0,
    )


def test_newcomers_take_the_lowest_place_and_the_last_move_down():
    simulation = replay.Simulation(None, max_num_seqs=8)
    simulation._steps = {"running": []}
    made = {name: replay._Request(i, PERIODIC, 99, False) for i, name in enumerate("abcdef")}

    def order(names: str) -> str:
        simulation._place({made[n]: 1 for n in names})
        return "".join(next(n for n in made if made[n] is r) for r in simulation.slots)

    assert order("abcd") == "abcd"
    assert order("bdef") == "ebfd"  # a and c left, e and f take their places
    assert order("bd") == "db"  # e and f left: the last one moves into the first gap
    assert order("db") == "db"
    assert order("a") == "a"


def test_step_and_request_rows_agree():
    done = run([PERIODIC] * 5, ngram(), max_num_seqs=2)
    c = done.counters
    assert done.steps["output_tokens"].sum() == c.num_output_tokens == done.requests["num_output_tokens"].sum()
    assert done.steps["draft_tokens"].sum() == c.num_draft_tokens == done.requests["num_draft_tokens"].sum()
    assert done.steps["running"].sum() == c.num_request_steps == done.requests["num_steps"].sum()
    assert len(done.steps["running"]) == c.num_engine_steps


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: run([]), "streams must hold"),
        (lambda: run([replay.stream([], [1])]), "request 0 must have 1 to"),
        (lambda: run([replay.stream([1], [])]), "request 0 must have at least 1 output"),
        (lambda: run([replay.stream(range(9), [1])], max_model_len=9), "must have 1 to 8 prompt tokens"),
        (lambda: run([PERIODIC], max_num_seqs=0), "max_num_seqs must be at least 1, got 0"),
        (lambda: run([PERIODIC], Speculative(method="eagle", num_speculative_tokens=1)), "method must be ngram"),
    ],
)
def test_impossible_requests_are_one_sentence(make, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()


def test_streams_stop_at_the_end_token_or_the_cap():
    assert replay.stream([1], [5, 2, 7], eos=(2,)).num_output_tokens == 2
    assert replay.stream([1], [5, 6, 7, 2], cap=3, eos=(2,)).num_output_tokens == 3
    assert replay.stream([1], [5, 6]).num_output_tokens == 2


# ---- the suffix drafter ----


@needs_suffix
def test_suffix_remembers_finished_responses_only_with_memory():
    rng = random.Random(1)
    streams = [
        replay.stream([rng.randrange(500) for _ in range(20)], [rng.randrange(500) for _ in range(60)], cap=40)
        for _ in range(6)
    ]
    for cached, more in ((0, False), (100, True)):
        simulation = replay.Simulation(suffix(cached=cached), max_num_seqs=3)
        cold, warm = simulation.run(streams), simulation.run(streams)
        assert (warm.counters.num_accepted_tokens > cold.counters.num_accepted_tokens) is more
        if not more:
            assert warm.counters == cold.counters


@needs_suffix
def test_suffix_memory_holds_no_more_requests_than_asked():
    streams = [replay.stream([i, i + 1], [i] * 12, cap=6) for i in range(30)]
    simulation = replay.Simulation(suffix(cached=5), max_num_seqs=4)
    simulation.run(streams)
    assert len(simulation.drafter.cache.cached_requests) <= 5


# ---- properties ----

STREAMS = st.lists(
    st.builds(
        replay.stream,
        st.lists(st.integers(0, 4), min_size=2, max_size=20),
        st.lists(st.integers(0, 4), min_size=12, max_size=30),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=7,
)
METHODS = st.sampled_from([None, ngram(4)] + ([suffix(6), suffix(6, cached=50)] if HAS_SUFFIX else []))


@given(STREAMS, METHODS, st.integers(1, 5), st.sampled_from([16, 64, 8192]), st.sampled_from([None, 4]))
@settings(max_examples=150, deadline=None)
def test_counts_add_up(streams, speculative, max_num_seqs, budget, block_size):
    done = run(
        streams,
        speculative,
        max_num_seqs,
        max_num_batched_tokens=budget,
        block_size=block_size,
        max_model_len=64,
    )
    c = done.counters
    assert c.num_output_tokens == sum(s.num_output_tokens for s in streams)
    assert c.num_accepted_tokens <= c.num_draft_tokens
    assert c.num_drafts <= c.num_request_steps <= c.num_output_tokens
    assert sum(c.num_accepted_tokens_per_pos) == c.num_accepted_tokens
    assert list(c.num_accepted_tokens_per_pos) == sorted(c.num_accepted_tokens_per_pos, reverse=True)
    assert c.num_request_steps + c.num_accepted_tokens >= c.num_output_tokens  # cut at the stop
    assert done.steps["scheduled"].max() <= max_num_seqs
    verified = done.steps["scheduled"] - done.steps["prefills"] + done.steps["draft_tokens"]
    assert verified.max() <= budget


@given(STREAMS, st.just(ngram(4)), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_a_drafter_without_memory_does_not_see_the_batch(streams, speculative, max_num_seqs):
    alone, together = run(streams, speculative, 1), run(streams, speculative, max_num_seqs)
    change = {"num_engine_steps": alone.counters.num_engine_steps}
    assert together.counters.model_copy(update=change) == alone.counters


@given(STREAMS, METHODS)
@settings(max_examples=60, deadline=None)
def test_speculation_never_adds_request_steps(streams, speculative):
    assert run(streams, speculative).counters.num_request_steps <= run(streams).counters.num_request_steps
