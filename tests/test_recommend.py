"""Advice for a request log: what it says, what it refuses, and that its flags can be pasted."""

import json
import shlex

import pandas as pd
import pytest

from lib.answer import recommend
from lib.results import settings as menu


def log(tmp_path, requests):
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps({"prompt_token_ids": p, "output_token_ids": o}) for p, o in requests))
    return path


def copies(tmp_path, number=12):
    """Answers that repeat their prompt: every draft is right."""
    return log(
        tmp_path, [(list(range(i, i + 200)), list(range(i + 5, i + 150))) for i in range(0, 1000 * number, 1000)]
    )


def fresh(tmp_path, number=12):
    """Answers in which no token ever repeats."""
    return log(
        tmp_path, [(list(range(i, i + 100)), list(range(i + 200, i + 300))) for i in range(0, 1000 * number, 1000)]
    )


def test_copies_pay_and_fresh_text_does_not(tmp_path):
    good = recommend.answer(copies(tmp_path), settings=["ngram"], concurrency=[1, 8])
    assert set(good.table[good.table.setting == "ngram"].verdict) == {"use"} and "ngram" in good.flags
    assert "Up to 8 requests in flight use ngram" in good.sentence
    bad = recommend.answer(fresh(tmp_path), settings=["ngram"], concurrency=[1, 8])
    assert "use" not in set(bad.table.verdict) and not bad.flags and "leave speculation off" in bad.sentence.lower()


def test_no_verdict_with_more_in_flight_than_the_log_holds(tmp_path):
    advice = recommend.answer(copies(tmp_path), settings=["ngram"], concurrency=[8, 64])
    assert set(advice.table.concurrency) == {8} and any("64" in note for note in advice.notes)
    with pytest.raises(recommend.AdviceError, match="up to 12"):
        recommend.answer(copies(tmp_path), settings=["ngram"], concurrency=[64])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "Llama-9"}, "model must be one that was measured"),
        ({"settings": ["ngam"]}, "settings must be among"),
        ({"settings": ["suffix"], "model": "Qwen2.5-32B"}, "no measured step cost"),
        ({"settings": ["study"]}, "needs more than the tokens"),
    ],
)
def test_what_cannot_be_judged_is_one_sentence(tmp_path, options, words):
    with pytest.raises(recommend.AdviceError, match=words):
        recommend.answer(copies(tmp_path, 2), **options)


def test_far_longer_contexts_than_measured_are_refused(tmp_path):
    path = log(tmp_path, [(list(range(9000)), [1, 2, 3])] * 2)
    with pytest.raises(recommend.AdviceError, match="context"):
        recommend.answer(path, settings=["ngram"], concurrency=[1])


def table(*verdicts: tuple[str, int, float, str]) -> pd.DataFrame:
    return pd.DataFrame(verdicts, columns=["setting", "concurrency", "speedup", "verdict"])


def test_the_sentence_names_a_range_of_loads():
    found = table(("ngram", 1, 2.0, "use"), ("ngram", 8, 1.4, "use"), ("ngram", 64, 0.7, "don't"))
    told, named = recommend.sentence(found)
    assert told == "Up to 8 requests in flight use ngram; with 64 and more leave speculation off." and named == [
        "ngram"
    ]
    odd = table(("ngram", 1, 0.9, "don't"), ("ngram", 8, 1.4, "use"))
    assert recommend.sentence(odd)[0] == "Use ngram with 8 requests in flight, not with 1."


def test_flags_survive_a_shell():
    words = shlex.split(recommend.flags(menu.menu()["ngram_3"], "a model"))
    assert words[:3] == ["vllm", "serve", "a model"]
    assert json.loads(words[words.index("--speculative-config") + 1])["num_speculative_tokens"] == 3
