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
        ({"model": "Qwen3-30B-A3B"}, "a dense one"),
        ({"model": "Mixtral-8x7B"}, "a dense one"),
        ({"model": "meta-llama/Llama-3.3-70B-Instruct"}, "a size between"),
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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Llama-3.1-8B", "Llama-3.1-8B"), ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("qwen/qwen2.5-14b", "Qwen2.5-14B"), ("mistralai/Mistral-Small-24B-Base-2501", 24.0), ("Llama-2-13b-chat", 13.0),
    ],
)  # fmt: skip
def test_a_name_means_a_measured_model_or_a_size(name, meant):
    assert recommend.model_of(name) == meant


def test_an_interpolated_size_is_said(tmp_path):
    advice = recommend.answer(copies(tmp_path), model="org/Big-20B", settings=["ngram"], concurrency=[1, 8])
    assert any("interpolated between Qwen2.5-14B and Qwen2.5-32B" in note for note in advice.notes)
    assert "org/Big-20B" in advice.flags["ngram"]


def load(setting: str, concurrency: int, tok_s: float, low: float = 1, high: float = 1, speedup: float = 1) -> dict:
    return {
        "setting": setting, "concurrency": concurrency, "tok_s": tok_s, "ms_per_token": 1000 * concurrency / tok_s,
        "speedup": speedup, "low": low, "high": high,
    }  # fmt: skip


def test_a_rate_becomes_requests_in_flight_by_littles_law():
    found = pd.DataFrame([
        load("vanilla", 1, 100), load("vanilla", 4, 200), load("ngram", 1, 200, 1.8, 2.2, 2), load("ngram", 4, 400, 1.8, 2.2, 2),
    ])  # fmt: skip
    at = recommend.at_rate(found, rate=2, num_tokens=100).set_index("setting")  # 200 tokens a second
    assert at.in_flight["vanilla"] == pytest.approx(4) and at.ms_per_token["vanilla"] == pytest.approx(20)
    assert at.in_flight["ngram"] == pytest.approx(1) and at.speedup["ngram"] == pytest.approx(4)
    assert at.low["ngram"] == pytest.approx(3.6)
    idle = recommend.at_rate(found, rate=0.5, num_tokens=100).set_index("setting")
    assert idle.in_flight["vanilla"] == pytest.approx(0.5) and idle.ms_per_token["vanilla"] == pytest.approx(10)
    told, named = recommend.rate_sentence(recommend.at_rate(found, 3, 100), 3)
    assert "vanilla cannot serve: at most 2" in told and named == ["ngram"]
    told, named = recommend.rate_sentence(recommend.at_rate(found, 9, 100), 9)
    assert told.startswith("No setting serves 9 requests a second: at most 4") and not named


def test_a_mixed_log_is_split_by_kind(tmp_path):
    mixed = [(list(range(i, i + 200)), list(range(i + 5, i + 150))) for i in range(0, 6000, 1000)]
    mixed += [(list(range(i, i + 100)), list(range(i + 200, i + 300))) for i in range(10000, 12000, 1000)]
    advice = recommend.answer(log(tmp_path, mixed), settings=["ngram"], concurrency=[1])
    found = advice.kinds.set_index("kind")
    assert found.requests.to_dict() == {"drafts rarely right": 2, "mostly copied": 6}
    assert found.share["mostly copied"] == pytest.approx(0.75) and found.token_share.sum() == pytest.approx(1)
    assert any("The log is mixed" in note for note in advice.notes)
    alike = recommend.answer(copies(tmp_path), settings=["ngram"], concurrency=[1])
    assert not any("The log is mixed" in note for note in alike.notes)


def test_a_log_whose_requests_differ_leaves_more_open(tmp_path):
    alike = recommend.answer(copies(tmp_path), settings=["ngram"], concurrency=[1]).table.iloc[1]
    mixed = [(list(range(i, i + 200)), list(range(i + 5, i + 150))) for i in range(0, 6000, 1000)]
    mixed += [(list(range(i, i + 100)), list(range(i + 200, i + 300))) for i in range(10000, 16000, 1000)]
    differ = recommend.answer(log(tmp_path, mixed), settings=["ngram"], concurrency=[1]).table.iloc[1]
    assert differ.high / differ.low > 1.2 * alike.high / alike.low > 1


def test_of_settings_that_gain_alike_the_measured_one_is_named():
    found = table(("a", 1, 2.0, "use"), ("b", 1, 2.06, "use"), ("c", 1, 1.5, "use"))
    assert recommend.sentence(found)[1] == ["b"]
    assert recommend.sentence(found, measured=["a", "c"])[1] == ["a"]
    assert recommend.sentence(found, measured=["c"])[1] == ["b"]


def test_a_log_without_most_of_its_decoded_tokens_gets_no_verdict(tmp_path):
    path = copies(tmp_path)
    lines = [json.loads(line) | {"usage": {"completion_tokens": 400}} for line in path.read_text().splitlines()]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(recommend.AdviceError, match="64 % are missing"):
        recommend.answer(path, settings=["ngram"], concurrency=[1])
