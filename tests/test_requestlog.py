"""A reader's own log: what is read, and one sentence for every line that is not."""

from __future__ import annotations

import json

import pytest

from lib.measure import requestlog


class Words:
    """A tokenizer of words: each known word is its place in the list; 0 ends a text."""

    eos_token_id = 0
    words = ("<end>", "to", "be", "or", "not", "user", "assistant")

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.words.index(w) for w in text.split()]

    def apply_chat_template(self, messages, **kwargs) -> list[int]:
        if messages[0]["role"] not in ("user", "assistant"):
            raise RuntimeError("no system turn, please")
        return [i for m in messages for i in self.encode(f"{m['role']} {m['content']}")] + [6]


def log_of(tmp_path, *lines) -> requestlog.Log:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return requestlog.read(path, Words())


PLAIN = {"prompt": "to be or not", "completion": "to be"}


def test_a_plain_and_a_chat_line(tmp_path):
    chat = {"messages": [{"role": "user", "content": "to be"}, {"role": "assistant", "content": "or not"}]}
    log = log_of(tmp_path, PLAIN, chat, PLAIN | {"finish_reason": "length"})
    assert [s.prompt for s in log.requests] == [[1, 2, 3, 4], [5, 1, 2, 6], [1, 2, 3, 4]]
    assert [s.output for s in log.requests] == [[1, 2, 0], [3, 4, 0], [1, 2]]
    assert (log.bad, log.notes, log.num_tokens) == ((), (), 8)


def test_ids_win_over_text(tmp_path):
    log = log_of(tmp_path, PLAIN | {"prompt_token_ids": [3], "output_token_ids": [4, 4]})
    assert log.requests[0].prompt == [3]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ({"prompt": "to be"}, "text in 'completion'"),
        ({"prompt": "to be", "completion": ""}, "text in 'completion'"),
        ({"completion": "to be"}, "text in 'prompt'"),
        ({"messages": [{"role": "user", "content": "to"}]}, "text in 'completion'"),
        ({"messages": "to be", "completion": "or"}, "messages must be chat turns"),
        ({"messages": [{"role": "system", "content": "be"}], "completion": "or"}, "no system turn, please"),
        ({"prompt_token_ids": [1, 7], "output_token_ids": [1]}, "prompt_token_ids must be within 0 to 6"),
        ({"prompt_token_ids": [1], "output_token_ids": [-1]}, "got -1"),
        ({"prompt_token_ids": [1]}, "output_token_ids must be a list"),
        ({"prompt_token_ids": [1], "output_token_ids": [1.5]}, "something else than whole numbers"),
        ({"prompt_token_ids": [1], "output_token_ids": [True]}, "something else than whole numbers"),
        ("[1, 2]", "got a list"),
        ('{"prompt": "to', "must be one JSON object"),
    ],
)
def test_a_bad_line_is_left_out_with_a_sentence(tmp_path, line, sentence):
    log = log_of(tmp_path, PLAIN, "", line, PLAIN)
    assert len(log.requests) == 2
    assert [b.number for b in log.bad] == [3]
    assert sentence in log.bad[0].reason
    assert "1 of 3 lines are left out." in log.notes


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(json.dumps(PLAIN).encode() + b'\n{"prompt": "\xff\xfe"}\n')
    assert [b.number for b in requestlog.read(path, Words()).bad] == [2]


def test_lines_of_another_model_are_left_out(tmp_path):
    log = log_of(tmp_path, PLAIN | {"model": "a"}, PLAIN | {"model": "b"}, PLAIN | {"model": "a"})
    assert len(log.requests) == 2
    assert log.bad[0].number == 2
    assert "one tokenizer" in log.bad[0].reason


def test_sampled_outputs_are_kept_and_named(tmp_path):
    log = log_of(tmp_path, PLAIN | {"temperature": 0.7}, PLAIN | {"temperature": 0})
    assert len(log.requests) == 2
    assert any("1 outputs were sampled" in note and "lower bound" in note for note in log.notes)


def test_one_request_is_named(tmp_path):
    assert any("one request" in note for note in log_of(tmp_path, PLAIN).notes)


def test_text_without_a_tokenizer_is_a_bad_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(PLAIN) + "\n" + json.dumps({"prompt_token_ids": [1], "output_token_ids": [2]}))
    log = requestlog.read(path)
    assert len(log.requests) == 1
    assert "no tokenizer is given" in log.bad[0].reason


@pytest.mark.parametrize("lines", [(), ("", "  "), ({"prompt": "to"},)])
def test_a_log_without_a_usable_request_is_refused(tmp_path, lines):
    with pytest.raises(requestlog.LogError, match="at least one usable request"):
        log_of(tmp_path, *lines)


def test_a_missing_log_is_refused(tmp_path):
    with pytest.raises(requestlog.LogError, match="readable .jsonl file"):
        requestlog.read(tmp_path / "nowhere.jsonl")
