"""Drafters: options, vLLM's own drafts, filling and its counts, requests found again in moved rows."""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from persistent_batch import PersistentBatch

from lib import drafters

pytest.importorskip("numba")
HAS_SUFFIX = importlib.util.find_spec("arctic_inference") is not None
HAS_VLLM = importlib.util.find_spec("vllm") is not None
needs_suffix = pytest.mark.skipif(not HAS_SUFFIX, reason="arctic_inference is not installed")
needs_vllm = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")
ROOT = Path(__file__).resolve().parent.parent
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}


def config(gamma: int = 3, max_model_len: int = 64, vocab_size: int = 100) -> SimpleNamespace:
    """What a drafter reads of vLLM's VllmConfig."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=gamma),
        model_config=SimpleNamespace(max_model_len=max_model_len, get_vocab_size=lambda: vocab_size),
    )


@pytest.fixture
def build(monkeypatch):
    """Builds a drafter as vLLM would: all but the config comes through the environment."""

    def make(kind, gamma: int = 3, max_model_len: int = 64, counts=None, **options):
        if kind is drafters.PaddedNgram:
            options = LOOKUP | options
        monkeypatch.setenv(drafters.OPTIONS, json.dumps(options))
        monkeypatch.setenv(drafters.COUNTS, str(counts or ""))
        return kind(config(gamma, max_model_len))

    return make


def propose(drafter, *texts: list[int], num_new: int = 1, max_model_len: int = 64) -> list[list[int]]:
    """One step with one row a text, the last `num_new` tokens of each just sampled."""
    tokens = np.zeros((len(texts) + 2, max_model_len), dtype=np.int32)
    lengths = np.zeros(len(texts) + 2, dtype=np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)], lengths[row] = text, len(text)
    return drafter.propose([text[-num_new:] for text in texts], lengths, tokens, slot_mappings=None)


# ---- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "prompt_lookup_min is missing from SPECULATION_DRAFTER_OPTIONS, allowed: a whole number from 1"),
        ({"prompt_lookup_min": 2}, "prompt_lookup_max is missing"),
        (LOOKUP | {"prompt_lookup_min": 0}, "prompt_lookup_min is 0, allowed: a whole number from 1"),
        (LOOKUP | {"prompt_lookup_min": 9}, "prompt_lookup_min is 9, allowed: at most prompt_lookup_max (4)"),
        (LOOKUP | {"prompt_lookup_max": "5"}, "prompt_lookup_max is '5', allowed: a whole number from 1"),
        (LOOKUP | {"prompt_lookup_max": True}, "prompt_lookup_max is True, allowed: a whole number from 1"),
        (LOOKUP | {"fill": "zeros"}, "fill is 'zeros', allowed: last, repeat, none"),
        (LOOKUP | {"when_empty": "never"}, "when_empty is 'never', allowed: fill, skip"),
        (
            LOOKUP | {"promt_lookup_min": 2},
            "promt_lookup_min is no known option (did you mean 'prompt_lookup_min'?)",
        ),
        (LOOKUP | {"gamma_schedule": "7"}, "gamma_schedule is '7', allowed: batch:gamma pairs"),
        (LOOKUP | {"gamma_schedule": "2:3"}, "allowed: batch sizes that start at 1 and rise"),
        (LOOKUP | {"gamma_schedule": "1:3,1:2"}, "allowed: batch sizes that start at 1 and rise"),
        (LOOKUP | {"gamma_schedule": "1:4"}, "allowed: gammas from 0 to num_speculative_tokens (3)"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(monkeypatch, options, message):
    monkeypatch.setenv(drafters.OPTIONS, json.dumps(options))
    with pytest.raises(drafters.OptionError) as error:
        drafters.PaddedNgram(config())
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["", "[1]", "{'fill': 'last'}"])
def test_options_must_be_a_json_object(text):
    with pytest.raises(drafters.OptionError, match="allowed: a JSON object"):
        drafters.read_options(drafters.SuffixOptions, {drafters.OPTIONS: text})


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_tree_depth", 0), ("max_spec_factor", 0), ("min_token_prob", 1.5), ("max_cached_requests", -1)],
)
def test_suffix_options_are_checked(option, value):
    with pytest.raises(drafters.OptionError, match=f"{option} is {value}, allowed: "):
        drafters.read_options(drafters.SuffixOptions, {drafters.OPTIONS: json.dumps({option: value})})


def test_defaults_are_vllms_and_whole_numbers_pass_as_fractions():
    assert drafters.read_options(drafters.SuffixOptions, {}) == drafters.SuffixOptions()
    text = json.dumps({"max_spec_factor": 2, "max_cached_requests": 0})
    options = drafters.read_options(drafters.SuffixOptions, {drafters.OPTIONS: text})
    assert (options.max_spec_factor, options.max_cached_requests, options.fill) == (2, 0, "last")


def test_importing_the_module_imports_neither_vllm_nor_numba():
    code = "import sys, lib.drafters; print([m for m in ('vllm', 'torch', 'numba') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# ---- drafters that measure -------------------------------------------------------------------------------


def test_the_null_drafter_proposes_nothing():
    assert drafters.NullDrafter(config()).propose([[1], [], [2, 3]], None, None) == [[], [], []]


def walking(monkeypatch, path, gamma: int = 4):
    monkeypatch.setenv(drafters.WALK_FILE, str(path))
    drafter = drafters.WalkingDrafter(config(gamma, vocab_size=10))
    return lambda *sampled: [len(d) for d in drafter.propose(list(sampled), None, None, slot_mappings=None)]


def test_the_walking_drafter_follows_its_file(monkeypatch, tmp_path):
    path = tmp_path / "walk"
    lengths = walking(monkeypatch, path)
    assert lengths([5], [6]) == [0, 0]  # nobody has asked for anything yet
    for asked, uneven, expected in [
        (3, False, [3, 3, 0, 3]), (0, False, [0, 0, 0, 0]), (9, False, [4, 4, 0, 4]),
        (3, True, [2, 3, 0, 3]), (1, True, [0, 1, 0, 1]), (9, True, [3, 4, 0, 4]),
    ]:  # fmt: skip
        drafters.set_walk(path, asked, uneven)
        assert lengths([5], [6, 7], [], [8]) == expected


def test_another_process_moves_the_walking_drafter(monkeypatch, tmp_path):
    path = tmp_path / "walk"
    lengths = walking(monkeypatch, path)
    code = "import sys; from lib import drafters; drafters.set_walk(sys.argv[1], 2)"
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=True)
    assert lengths([5]) == [2]


def test_walked_tokens_lie_in_the_vocabulary(monkeypatch, tmp_path):
    drafters.set_walk(tmp_path / "walk", 4)
    monkeypatch.setenv(drafters.WALK_FILE, str(tmp_path / "walk"))
    assert drafters.WalkingDrafter(config(4, vocab_size=10)).propose([[8]], None, None) == [[9, 0, 1, 2]]


def test_walking_refuses_what_it_cannot_do(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="draft_tokens is -1, allowed: from 0"):
        drafters.set_walk(tmp_path / "walk", -1)
    with pytest.raises(ValueError, match="uneven is True, allowed with draft_tokens 0: False"):
        drafters.set_walk(tmp_path / "walk", 0, uneven=True)
    monkeypatch.delenv(drafters.WALK_FILE, raising=False)
    with pytest.raises(drafters.OptionError, match="SPECULATION_WALK_FILE is missing"):
        drafters.WalkingDrafter(config())


# ---- ngram drafts ----------------------------------------------------------------------------------------


def by_definition(text: list[int], low: int, high: int, gamma: int, longest: int) -> list[int]:
    """What follows the earliest of the longest earlier occurrences of the text's last low..high tokens."""
    for n in range(min(high, len(text) - 1), low - 1, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                follows = text[start + n : start + n + gamma]
                return follows[: max(0, longest - len(text))]
    return []


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([1, 2, 3, 4, 1, 2, 5, 6, 1, 2], [3, 4, 1]),  # two matches of two: the earliest
        ([7, 1, 2, 8, 1, 2, 9, 7, 1, 2], [8, 1, 2]),  # the longer match wins
        ([9, 1, 2, 8, 7, 1, 2, 5, 7, 1, 2], [5, 7, 1]),
        ([1, 2, 3], []),
        ([5, 5], []),  # one token before the last: no match of two
        ([5, 5, 5], [5]),  # matches overlap, and only known tokens are drafted
        ([1, 2, 1, 2, 1, 2], [1, 2]),
    ],
)
def test_ngram_drafts_counted_by_hand(build, text, draft):
    assert propose(build(drafters.PaddedNgram, fill="none"), text) == [draft]


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=300), min_size=1, max_size=4),
    low=st.integers(1, 4),
    more=st.integers(0, 3),
    gamma=st.integers(1, 6),
    room=st.integers(0, 5),
)
def test_ngram_drafts_follow_the_definition(texts, low, more, gamma, room):
    longest = max(map(len, texts)) + room
    kernel = drafters._compiled(drafters._longest_earliest)
    tokens = np.zeros((len(texts), longest), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    lengths = np.array([len(text) for text in texts], np.int32)
    drafts, counts = np.zeros((len(texts), gamma), np.int32), np.zeros(len(texts), np.int32)
    kernel(tokens, lengths, np.ones_like(lengths), low, low + more, gamma, longest, drafts, counts)
    found = [draft[:n].tolist() for draft, n in zip(drafts, counts, strict=True)]
    assert found == [by_definition(text, low, low + more, gamma, longest) for text in texts]


# ---- filling ---------------------------------------------------------------------------------------------

LOOP, FRESH, SHORT = [1, 2, 3, 4, 5, 1, 2], [1, 2, 3, 4], [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize(
    ("options", "texts", "drafts"),
    [
        ({"fill": "none"}, [LOOP, FRESH, SHORT], [[3, 4, 5], [], [1, 2]]),
        ({"fill": "last"}, [LOOP, FRESH, SHORT], [[3, 4, 5], [4, 4, 4], [1, 2, 2]]),
        ({"fill": "repeat"}, [LOOP, FRESH, SHORT], [[3, 4, 5], [4, 4, 4], [1, 2, 1]]),
        ({"when_empty": "fill"}, [FRESH, FRESH], [[4, 4, 4], [4, 4, 4]]),
        ({"when_empty": "skip"}, [FRESH, FRESH], [[], []]),
        ({"when_empty": "skip"}, [FRESH, LOOP], [[4, 4, 4], [3, 4, 5]]),
        ({"gamma_schedule": "1:3,2:1,3:0"}, [LOOP], [[3, 4, 5]]),
        ({"gamma_schedule": "1:3,2:1,3:0"}, [LOOP, FRESH], [[3], [4]]),
        ({"gamma_schedule": "1:3,2:1,3:0"}, [LOOP, FRESH, SHORT], [[], [], []]),
    ],
)
def test_filling_counted_by_hand(build, options, texts, drafts):
    assert propose(build(drafters.PaddedNgram, **options), *texts) == drafts


def test_a_prompt_still_being_read_gets_no_draft(build):
    drafter = build(drafters.PaddedNgram)
    tokens = np.array([LOOP, LOOP], np.int32)
    assert drafter.propose([[], [2]], np.array([7, 7], np.int32), tokens) == [[], [3, 4, 5]]


def test_nothing_is_drafted_at_the_end_of_the_context(build):
    drafter = build(drafters.PaddedNgram, max_model_len=len(LOOP))
    assert propose(drafter, LOOP, max_model_len=len(LOOP)) == [[]]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    fill=st.sampled_from(["last", "repeat"]),
    empty=st.sampled_from(["fill", "skip"]),
)
def test_every_request_of_a_step_gets_gamma_tokens_or_none_does(seed, fill, empty):
    batch, gamma = PersistentBatch(seed), 3
    os.environ[drafters.OPTIONS] = json.dumps(LOOKUP | {"fill": fill, "when_empty": empty})
    padded = drafters.PaddedNgram(config(gamma))
    os.environ[drafters.OPTIONS] = json.dumps(LOOKUP | {"fill": "none"})
    plain = drafters.PaddedNgram(config(gamma))
    del os.environ[drafters.OPTIONS]
    drafts: list[list[int]] = []
    for _ in range(40):
        sampled = batch.step(drafts)
        drafts = padded.propose(sampled, batch.lengths, batch.tokens)
        found = plain.propose(sampled, batch.lengths, batch.tokens)
        assert all(draft[: len(real)] == real for draft, real in zip(drafts, found, strict=True))
        lengths = {len(draft) for draft, new in zip(drafts, sampled, strict=True) if new}
        assert len(lengths) <= 1 and lengths <= ({gamma} if empty == "fill" or any(found) else {0})


# ---- counts ----------------------------------------------------------------------------------------------


def test_counts_by_hand(build, tmp_path):
    counts = tmp_path / "counts"
    assert drafters.read_counts(counts) is None
    drafter = build(drafters.PaddedNgram, counts=counts)
    assert drafters.read_counts(counts) == (0, 0, 0, 0)
    assert propose(drafter, SHORT, FRESH) == [[1, 2, 2], [4, 4, 4]]
    assert drafters.read_counts(counts) == (0, 0, 0, 0)  # proposed, not yet verified
    # the first request accepts all three (one of them filling), the second none; a third one starts
    tokens = np.zeros((3, 64), np.int32)
    rows = [[*FRESH, 9], [*SHORT, 1, 2, 2, 9], FRESH]
    for row, text in enumerate(rows):
        tokens[row, : len(text)] = text
    drafter.propose([[9], [1, 2, 2, 9], [4]], np.array([5, 10, 4], np.int32), tokens)
    assert drafters.read_counts(counts) == drafters.Counts(
        num_drafts_real=1, num_real_tokens=2, num_filling_tokens=4, num_accepted_filling_tokens=1
    )
    propose(drafter, [9, 9])  # all others have ended: what was proposed for them was never verified
    assert drafters.read_counts(counts) == (1, 2, 4, 1)


def test_a_new_engine_counts_from_zero(build, tmp_path):
    first = build(drafters.PaddedNgram, counts=tmp_path / "counts")
    propose(first, LOOP)
    propose(first, [*LOOP, 9])
    assert drafters.read_counts(tmp_path / "counts") == (1, 3, 0, 0)
    build(drafters.PaddedNgram, counts=tmp_path / "counts")
    assert drafters.read_counts(tmp_path / "counts") == (0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_counts_add_up_to_what_was_verified(build, tmp_path, seed):
    drafter = build(drafters.PaddedNgram, counts=tmp_path / "counts")
    batch, drafts = PersistentBatch(seed), []
    for _ in range(60):
        drafts = drafter.propose(batch.step(drafts), batch.lengths, batch.tokens)
    counts = drafters.read_counts(tmp_path / "counts")
    assert counts.num_real_tokens + counts.num_filling_tokens == sum(n for _, n in batch.verified)
    assert 0 < counts.num_drafts_real < len(batch.verified)


# ---- recognising requests --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), gamma=st.integers(0, 4))
def test_a_request_keeps_its_label_wherever_it_moves(seed, gamma):
    batch, requests = PersistentBatch(seed), drafters._Requests(64)
    label_of: dict[int, int] = {}
    drafts: list[list[int]] = []
    alive: set[int] = set()
    for _ in range(60):
        sampled = batch.step(drafts)
        num_new = np.array([len(new) for new in sampled], np.int32)
        labels, gone = requests.match(batch.tokens, batch.lengths[: len(sampled)], num_new)
        for request, label, new in zip(batch.rows, labels, sampled, strict=True):
            assert (label == -1) == (not new)
            if new:
                assert label_of.setdefault(request.number, label) == label
        now = {label for label in labels if label >= 0}
        assert gone == alive - now
        alive = now
        drafts = [[1] * gamma if new else [] for new in sampled]
    assert len(set(label_of.values())) == len(label_of)


@pytest.mark.parametrize("seed", range(10))
def test_equal_histories_keep_separate_labels(seed):
    batch, requests = PersistentBatch(seed, vocab=1, unique=False), drafters._Requests(64)
    for _ in range(60):
        sampled = batch.step([])
        num_new = np.array([len(new) for new in sampled], np.int32)
        labels, _ = requests.match(batch.tokens, batch.lengths[: len(sampled)], num_new)
        counted = collections.Counter(label for label in labels if label >= 0)
        assert set(counted.values()) <= {1}


def test_a_new_prompt_that_goes_on_from_a_finished_request_is_new():
    requests, one = drafters._Requests(64), np.ones(1, np.int32)
    text = np.array([[1, 2, 3, 4, 5, 6, 7, 8]], np.int32)
    first, _ = requests.match(text, np.array([4], np.int32), one)
    second, gone = requests.match(text, np.array([8], np.int32), one)  # the prompt holds the first one's answer
    assert first != second and gone == set(first)


# ---- suffix drafts ---------------------------------------------------------------------------------------


def suffix_by_number(cache, options, gamma, max_model_len):
    """The protocol of vLLM's suffix proposer, told the true number of every request."""

    def propose(batch: PersistentBatch, sampled: list[list[int]]) -> list[list[int]]:
        drafts = []
        for row, (request, new) in enumerate(zip(batch.rows, sampled, strict=True)):
            length = int(batch.lengths[row])
            if not new or length >= max_model_len:
                drafts.append([])
                continue
            if request.number not in cache.active_requests:
                cache.start_request(request.number, batch.tokens[row, : request.num_prompt])
            cache.add_active_response(request.number, new)
            pattern = batch.tokens[row, max(0, length - options.max_tree_depth) : length]
            draft = cache.speculate(
                request.number, pattern, max_spec_tokens=min(gamma, max_model_len - length - 1),
                max_spec_factor=options.max_spec_factor, min_token_prob=options.min_token_prob,
            )  # fmt: skip
            drafts.append(list(draft.token_ids))
        for number in cache.active_requests - {request.number for request in batch.rows}:
            cache.stop_request(number)
        return drafts

    return propose


@needs_suffix
@pytest.mark.parametrize("cached", [0, 3, 10000])
@pytest.mark.parametrize("seed", range(8))
def test_suffix_drafts_do_not_depend_on_rows(build, seed, cached):
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    gamma, options = (
        5,
        drafters.SuffixOptions(max_cached_requests=cached, max_tree_depth=8, max_spec_factor=2.0),
    )
    plain = build(
        drafters.PaddedSuffix,
        gamma=gamma,
        fill="none",
        max_cached_requests=cached,
        max_tree_depth=8,
        max_spec_factor=2.0,
    )
    reference = suffix_by_number(SuffixDecodingCache(8, cached), options, gamma, 64)
    batch, drafts, found = PersistentBatch(seed), [], 0
    for _ in range(80):
        sampled = batch.step(drafts)
        drafts = plain.propose(sampled, batch.lengths, batch.tokens, slot_mappings=None)
        assert drafts == reference(batch, sampled)
        found += sum(map(len, drafts))
        assert len(plain._cache.active_requests) == sum(bool(new) for new in sampled)
    assert found > 100


@needs_suffix
def test_padded_suffix_fills_and_counts(build, tmp_path):
    drafter = build(drafters.PaddedSuffix, counts=tmp_path / "counts", max_cached_requests=0)
    loop = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    drafts = propose(drafter, loop, [7, 8, 9])
    assert drafts == [[5, 6, 1], [9, 9, 9]]
    propose(drafter, [*loop, 5], [7, 8, 9, 3])
    assert drafters.read_counts(tmp_path / "counts") == (1, 3, 3, 0)


# ---- against vLLM itself, in processes of their own ------------------------------------------------------

NGRAM_SCRIPT = """
import json, os, random
from types import SimpleNamespace as N
import numpy as np
from vllm.v1.spec_decode.ngram_proposer import _find_longest_matched_ngram_and_propose_tokens as theirs
from lib import drafters
rng = random.Random(1)
for low, high, gamma, longest in ((2, 5, 7, 96), (1, 3, 3, 80), (5, 5, 12, 96), (1, 1, 1, 64)):
    lookup = {"prompt_lookup_min": low, "prompt_lookup_max": high}
    os.environ[drafters.OPTIONS] = json.dumps(lookup | {"fill": "none"})
    speculative = N(num_speculative_tokens=gamma)
    ours = drafters.PaddedNgram(N(speculative_config=speculative, model_config=N(max_model_len=longest)))
    for _ in range(500):
        rows, vocab = rng.randint(1, 8), rng.choice((1, 2, 3, 8))
        tokens = np.array([[rng.randrange(vocab) for _ in range(longest)] for _ in range(rows)], np.int32)
        lengths = np.array([rng.randint(1, longest) for _ in range(rows)], np.int32)
        sampled = [[int(tokens[i, lengths[i] - 1])] for i in range(rows)]
        expected = [theirs(tokens[i, :n], low, high, longest, gamma).tolist() for i, n in enumerate(lengths)]
        assert ours.propose(sampled, lengths, tokens) == expected
print("equal")
"""

SUFFIX_SCRIPT = """
import json, os
from types import SimpleNamespace as N
from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer
from lib import drafters
from persistent_batch import PersistentBatch
for cached in (0, 4, 10000):
    options = dict(max_tree_depth=8, max_spec_factor=2.0, min_token_prob=0.1, max_cached_requests=cached)
    speculative = N(num_speculative_tokens=5, **{f"suffix_decoding_{k}": v for k, v in options.items()})
    config = N(speculative_config=speculative, model_config=N(max_model_len=64))
    theirs = SuffixDecodingProposer(config)
    os.environ[drafters.OPTIONS] = json.dumps(options | {"fill": "none"})
    ours = drafters.PaddedSuffix(config)
    for seed in range(10):
        batch, drafts, found = PersistentBatch(seed), [], 0
        batch.born = 1000 * (seed + 1)
        for _ in range(60):
            sampled = batch.step(drafts)
            ids = [str(request.number) for request in batch.rows]
            index = {name: row for row, name in enumerate(ids)}
            view = N(
                req_ids=ids, req_id_to_index=index, num_tokens_no_spec=batch.lengths,
                token_ids_cpu=batch.tokens, num_prompt_tokens=[request.num_prompt for request in batch.rows],
            )
            drafts = ours.propose(sampled, batch.lengths, batch.tokens)
            assert drafts == theirs.propose(5, view, sampled), (cached, seed)
            found += sum(map(len, drafts))
        assert found > 50
print("equal")
"""


def run_python(*arguments: str) -> str:
    quiet = {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    env = os.environ | quiet | {"PYTHONPATH": os.pathsep.join([".", "tests"])}
    command = [sys.executable, *arguments]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.strip().splitlines()[-1]


@needs_vllm
def test_ngram_drafts_are_vllms_own():
    assert run_python("-c", NGRAM_SCRIPT) == "equal"


@needs_vllm
@needs_suffix
def test_suffix_drafts_are_vllms_own():
    assert run_python("-c", SUFFIX_SCRIPT) == "equal"


@pytest.fixture(scope="module")
def engine_run():
    """Runs a real float32 CPU engine in a process of its own, once a configuration: ids and counters."""
    held: dict[str, dict] = {}

    def run(method: str, **options) -> dict:
        name = json.dumps([method, options])
        if name not in held:
            held[name] = json.loads(run_python("tests/drafter_engine.py", method, json.dumps(options)))
        return held[name]

    return run


ENGINES = [
    ("PaddedNgram", {}),
    ("PaddedNgram", {"fill": "none"}),
    ("PaddedSuffix", {"max_cached_requests": 0}),
]


@needs_vllm
@needs_suffix
@pytest.mark.engine
@pytest.mark.parametrize(("kind", "options"), ENGINES)
def test_output_ids_are_vanillas_and_counts_are_honest(engine_run, kind, options):
    vanilla, ours = engine_run("vanilla"), engine_run(kind, **options)
    assert ours["ids"] == vanilla["ids"]
    drafted = ours["vllm:spec_decode_num_draft_tokens"]
    assert drafted > 0
    counts = drafters.Counts(*ours["counts"])
    assert counts.num_real_tokens + counts.num_filling_tokens == drafted
    assert (counts.num_filling_tokens == 0) == (options.get("fill") == "none")


@needs_vllm
@pytest.mark.engine
def test_plain_drafts_are_counted_as_vllm_counts_its_own(engine_run):
    theirs, ours = engine_run("ngram"), engine_run("PaddedNgram", fill="none")
    assert ours["ids"] == theirs["ids"]
    keys = [key for key in theirs if key.startswith("vllm:")]
    assert keys and [ours[key] for key in keys] == [theirs[key] for key in keys]
    assert tuple(ours["counts"]) == (
        theirs["vllm:spec_decode_num_drafts"], theirs["vllm:spec_decode_num_draft_tokens"], 0, 0
    )  # fmt: skip
