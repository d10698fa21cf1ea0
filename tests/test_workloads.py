"""Workloads: same seed, same ids; sizes met within a line; mixes as stated; nothing shared."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.measure import corpus, workloads
from lib.results.run import Workload


class Words:
    """A tokenizer of whitespace words: unit tests need none of the real model's."""

    def encode(self, text, **_):
        return [hash_of(word) for word in text.split(" ")]

    def apply_chat_template(self, messages, **_):
        return [0, *(i for m in messages for i in [1, *self.encode(m["content"]), 2])]


def hash_of(word):
    return int.from_bytes(word.encode()[:6], "little")


def make(name, **changes):
    return Workload(**{"name": name, "num_prompts": 10, "input_tokens": 120, "form": "chat"} | changes)


@pytest.mark.parametrize("name", [*workloads.KINDS, *workloads.MIXES])
@pytest.mark.parametrize("form", ["raw", "chat"])
def test_same_seed_same_ids_and_size_within_a_line(name, form):
    a, b = (workloads.build(make(name, form=form), Words()) for _ in range(2))
    assert a == b
    other = workloads.build(make(name, form=form, seed=1), Words())
    assert {tuple(p.token_ids) for p in a}.isdisjoint(tuple(p.token_ids) for p in other)
    slack = (
        max(len(Words().encode(q)) for q in workloads.QUESTIONS) + 16
    )  # the chat question comes after the size is met
    assert all(120 <= len(p.token_ids) <= 120 + slack for p in a)


@pytest.mark.parametrize("name", workloads.MIXES)
def test_a_mix_shares_no_prompt_with_the_single_workloads(name):
    singles = {tuple(p.token_ids) for kind in workloads.KINDS for p in workloads.build(make(kind), Words())}
    mixed = workloads.build(make(name), Words())
    assert singles.isdisjoint(tuple(p.token_ids) for p in mixed)
    kinds = [p.kind for p in mixed]
    assert {kind: kinds.count(kind) for kind in workloads.KINDS} == workloads.mix_counts(name, 10)


def test_mix_counts_of_the_study():
    assert workloads.mix_counts("mix-sh", 500) == {"sonnet": 300, "chat": 100, "code": 100}
    assert workloads.mix_counts("mix-bal", 500) == {"sonnet": 170, "chat": 165, "code": 165}
    assert workloads.mix_counts("mix-ch", 500) == {"sonnet": 50, "chat": 100, "code": 350}


@given(st.sampled_from(sorted(workloads.MIXES)), st.integers(1, 300))
def test_mix_counts_sum_and_stay_near_their_share(name, n):
    counts = workloads.mix_counts(name, n)
    assert sum(counts.values()) == n
    for share, count in zip(workloads.MIXES[name], counts.values(), strict=True):
        assert abs(count - n * share / 100) < 1


def test_code_uses_the_eight_words_only():
    (prompt,) = workloads.build(make("code", num_prompts=1, form="raw"), Text())
    comments = [line for line in prompt.token_ids[0].splitlines() if line.startswith("    # ")]
    assert comments
    for number, line in enumerate(comments, start=1):
        head, words = line.removeprefix("    # ").split(": ")
        assert int(head) == number and len(words.split()) == 8
        assert set(words.split()) <= set(corpus.CODE_WORDS)


class Text:
    """Keeps the text itself as the only 'token', and grows with its length so that the size rule still ends."""

    def encode(self, text, **_):
        return [text, *([0] * text.count(" "))]


def test_random_prompts_have_exactly_the_length():
    prompts = workloads.build(make("random", input_tokens=50), vocab_size=2000)
    assert {len(p.token_ids) for p in prompts} == {50}
    assert all(1000 <= i < 2000 for p in prompts for i in p.token_ids)
    with pytest.raises(workloads.WorkloadError, match="vocab_size"):
        workloads.build(make("random"))


def test_the_corpus_is_the_first_37_sonnets():
    lines = corpus.sonnet_lines()
    assert len(lines) == 518 == len(set(lines))
    assert not any(line.isdigit() for line in lines)


def test_a_changed_or_missing_asset_is_named(tmp_path, monkeypatch):
    corpus.sonnet_lines.cache_clear()
    changed = tmp_path / "asset.txt"
    changed.write_text("not the works")
    monkeypatch.setattr(corpus, "asset_path", lambda: changed)
    with pytest.raises(corpus.CorpusError, match="SHA-256"):
        corpus.sonnet_lines()
    monkeypatch.undo()
    monkeypatch.setattr(corpus, "PACKAGE", "no-such-package")
    with pytest.raises(corpus.CorpusError, match="missing"):
        corpus.sonnet_lines()
    monkeypatch.undo()
    corpus.sonnet_lines.cache_clear()


def test_own_prompts(tmp_path):
    file = tmp_path / "own.jsonl"
    rows = [{"prompt": "one two"}, {"messages": [{"role": "user", "content": "three"}]}, {"prompt": "more"}]
    rows = [row | {"completion": "four"} for row in rows]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    prompts = workloads.build(make("jsonl", path=str(file), num_prompts=2), Words())
    assert [len(p.token_ids) for p in prompts] == [2, 4]


def test_bad_own_prompts_are_one_sentence(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text("{}\n")
    with pytest.raises(workloads.WorkloadError, match="must hold at least one usable request"):
        workloads.build(make("jsonl", path=str(file)), Words())
    with pytest.raises(workloads.WorkloadError, match="readable"):
        workloads.build(make("jsonl", path=str(tmp_path / "none.jsonl")), Words())


class Glued(Words):
    """Like a real tokenizer, fewer tokens for a text than for its parts, and one in front of whatever is encoded."""

    def encode(self, text, **_):
        return [0, *super().encode(text.replace("\n", " ").replace(", ", ","))]


@pytest.mark.parametrize("tokenizer", [Words(), Glued()])
@pytest.mark.parametrize("name", workloads.KINDS)
def test_no_line_is_drawn_beyond_the_one_that_meets_the_size(name, tokenizer, monkeypatch):
    """The generator stands after the last line (and a chat's question), so the next prompt tells of a line too many."""

    def by_the_line(draw_line, render, target, count):
        lines = [draw_line()]
        while len(render(lines)) < target:
            lines.append(draw_line())
        return lines, render(lines)

    quick = workloads.build(make(name, num_prompts=40), tokenizer)
    monkeypatch.setattr(workloads, "_fill", by_the_line)
    assert workloads.build(make(name, num_prompts=40), tokenizer) == quick
