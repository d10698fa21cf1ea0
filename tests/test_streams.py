"""Streams as published: the study's counters, the same ids everywhere, nothing repeated by accident."""

import hashlib
import importlib.util
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.ledger import published
from lib.measure import streams
from lib.results.records import ROOT

WORKLOADS = list(streams.RECIPES)
_spec = importlib.util.spec_from_file_location("streams_fit", ROOT / "params" / "recorded" / "streams_fit.py")
_spec.loader.exec_module(streams_fit := importlib.util.module_from_spec(_spec))


def assert_as_published(pairs, workload, within, runner="V1"):
    """Drafts, drafted and accepted tokens per output token; V2 fills up every step's draft, so of it accepted ones only."""
    got, aim = streams_fit.rates(pairs, runner), streams_fit.target(workload)
    for name in ("accepted",) if runner == "V2" else streams_fit.Rates._fields:
        assert getattr(got, name) == pytest.approx(getattr(aim, name), rel=within), (workload, runner, name)


def test_every_workload_but_chat_has_a_recipe():
    assert {*WORKLOADS, "chat"} == {*published.SINGLES, *published.MIXES}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_counters_are_the_studys(workload):
    pairs = streams.published(workload, 256)
    for runner in ("V1", "V2"):
        assert_as_published(pairs, workload, 0.02, runner)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("seed", "length"), [(1, 512), (2, 512), (0, 256), (0, 1024)])
def test_counters_hold_for_other_seeds_and_lengths(workload, seed, length):
    pairs = streams.published(workload, 128, seed=seed, prompt_tokens=length, output_tokens=length)
    assert_as_published(pairs, workload, 0.04)


def test_target_is_the_committed_cell():
    cell = published.main_cell("sonnet", "ngram")
    assert streams_fit.target("sonnet").accepted == cell.num_accepted_tokens / cell.num_output_tokens


def test_v2_drafts_in_every_step():
    got = streams_fit.rates(streams.published("code", 32), "V2")
    assert got.drafts == pytest.approx(1 - got.accepted, rel=0.02)
    assert got.drafted == pytest.approx(streams_fit.NGRAM.num_speculative_tokens * got.drafts, rel=0.02)


def test_a_fit_that_starts_at_the_table_stays_there():
    found = streams_fit.fit("code", num_requests=256, rounds=2)
    assert found == pytest.approx(streams.RECIPES["code"], abs=0.02)


def test_ids_never_change():
    pairs = [streams.published(name, 3, seed=5) for name in WORKLOADS]
    assert hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:16] == "3216786ab412b479"


def test_more_requests_begin_with_the_same_ones_and_another_seed_changes_all():
    few, many, other = (streams.published("mix-bal", n, seed=s) for n, s in ((3, 0), (5, 0), (3, 1)))
    assert many[:3] == few
    assert not any(pair in other for pair in few)


@settings(max_examples=60, deadline=None)
@given(
    workload=st.sampled_from(WORKLOADS),
    seed=st.integers(),
    prompt_tokens=st.integers(streams.MIN_PROMPT, 1500),
    output_tokens=st.integers(1, 500),
    spare=st.integers(0, 1000),
)
def test_tokens_repeat_only_on_purpose(workload, seed, prompt_tokens, output_tokens, spare):
    num_ids = prompt_tokens + output_tokens + spare
    [(prompt, answer)] = streams.published(
        workload, 1, seed=seed, num_ids=num_ids, prompt_tokens=prompt_tokens, output_tokens=output_tokens
    )
    assert (len(prompt), len(answer)) == (prompt_tokens, output_tokens)
    assert all(0 <= token < num_ids for token in prompt + answer)
    newline = prompt[0]
    assert prompt[-1] == newline
    assert max(Counter(token for token in prompt if token != newline).values()) == 1
    new = Counter(token for token in answer if token not in set(prompt))
    assert all(count == 1 for count in new.values())
    # What is no new token goes on as in the prompt, begins a line, or closes one that was broken off.
    follows = set(zip(prompt, prompt[1:], strict=False))
    for before, token in zip([newline, *answer], answer, strict=False):
        assert token in new or before in new or (before, token) in follows


def test_an_answer_may_be_longer_than_its_prompt():
    assert_as_published(streams.published("code", 64, prompt_tokens=256, output_tokens=1024), "code", 0.04)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": "poem"}, "workload must be one of sonnet, code, mix-sh, mix-bal, mix-ch, got 'poem'"),
        ({"workload": "chat"}, "got 'chat': its mean counters describe no request, because a few that repeat"),
        ({"num_requests": 0}, "num_requests must be at least 1, got 0"),
        ({"prompt_tokens": 63}, "prompt_tokens must be at least 64, got 63"),
        ({"output_tokens": 0}, "output_tokens must be at least 1, got 0"),
        ({"num_ids": 1023}, r"num_ids must be at least prompt_tokens \+ output_tokens \(1024\), got 1023"),
    ],
)
def test_bad_input_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        streams.published(**{"workload": "sonnet", "num_requests": 1} | change)
