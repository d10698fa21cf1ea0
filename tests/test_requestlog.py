"""A reader's own log: the kinds that are read, and one sentence for every line that is not."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib.measure import requestlog


class Words:
    """A tokenizer of words: each known word is its place in the list; 0 ends a text."""

    eos_token_id = 0
    words = ("<end>", "to", "be", "or", "not", "user", "assistant")

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.words.index(w) if w in self.words else 6 for w in text.split()]

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
    assert (log.bad, log.notes, log.missing_share) == ((), (), 0)


def test_ids_win_over_text(tmp_path):
    log = log_of(tmp_path, PLAIN | {"prompt_token_ids": [3], "output_token_ids": [4, 4]})
    assert log.requests[0].prompt == [3]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ({"prompt": "to be"}, "found fields prompt; looked for"),
        ({"prompt": "to be", "completion": ""}, "an answer with text"),
        ({"prompt": 5, "completion": "to be"}, "prompt must be text"),
        ({"completion": "to be"}, "found fields completion; looked for"),
        ({"messages": [{"role": "user", "content": "to"}]}, "an answer with text"),
        ({"messages": [{"content": "to"}], "completion": "or"}, "formed as OpenAI's chat messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "completion": "or"}, "type image_url"),
        ({"messages": [{"role": "user", "content": 5}], "completion": "or"}, "got other types"),
        ({"conversations": [{"from": "human", "value": "to be"}]}, "a turn by gpt"),
        ({"conversations": [{"from": "gpt", "value": "to be"}]}, "got []"),
        ({"messages": [{"role": "user", "content": "to"}], "response": {}}, "response must hold choices"),
        ({"messages": {}, "response": {"choices": [{"text": "be"}]}}, "must be chat turns"),
        ({"prompt": "to", "response": "be", "cache_hit": "True"}, "cache_hit must be False"),
        (
            {
                "messages": [{"role": "user", "content": "... (litellm_truncated skipped 9 chars) ..."}],
                "response": {"choices": [{"text": "be"}]},
            },
            "cut by LiteLLM",
        ),
        ({"type": "SPAN", "input": "to", "output": "be"}, "type must be GENERATION, got SPAN"),
        ({"request": [1], "response": 5}, "kind 'request and response'"),
        ({"id": 1, "custom_id": "a", "response": None, "error": {"message": "expired"}}, "200, got None (expired)"),
        ({"prompt": "to " * 1_000_000, "completion": "be"}, "characters at most, got 3000002"),
        ({"prompt_token_ids": [1] * 2_000_000, "output_token_ids": [1]}, "tokens at most, got 2000001"),
        ({"messages": "to be", "completion": "or"}, "messages must be chat turns"),
        ({"messages": [{"role": "system", "content": "be"}], "completion": "or"}, "no system turn, please"),
        ({"prompt_token_ids": [1, 7], "output_token_ids": [1]}, "prompt_token_ids must be within 0 to 6"),
        ({"prompt_token_ids": [1], "output_token_ids": [-1]}, "got -1"),
        ({"prompt_token_ids": [1]}, "found fields prompt_token_ids; looked for"),
        ({"prompt_token_ids": [1], "output_token_ids": [1.5]}, "output_token_ids must be a list of token ids"),
        ({"prompt_token_ids": [1], "output_token_ids": [True]}, "output_token_ids must be a list of token ids"),
        ({"prompt_token_ids": [1], "output_token_ids": []}, "output_token_ids must be a list of token ids"),
        ("[1, 2]", "found a list"),
        ("[" * 100_000, "must be one JSON object"),
        ('{"prompt": "to', "must be one JSON object"),
    ],
)
def test_a_bad_line_is_left_out_with_a_sentence(tmp_path, line, sentence):
    log = log_of(tmp_path, PLAIN, "", line, PLAIN)
    assert len(log.requests) == 2
    assert [b.number for b in log.bad] == [3]
    assert sentence in log.bad[0].reason
    assert any(note.startswith("1 of 3 are left out, as line 3") for note in log.notes)


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
    with pytest.raises(requestlog.LogError, match="a readable .jsonl or .json file"):
        requestlog.read(tmp_path / "nowhere.jsonl")


def said(log: requestlog.Log) -> list[tuple[list[int], list[int]]]:
    return [tuple(pair) for pair in log.requests]


USER, ANSWER = {"role": "user", "content": "to be"}, {"role": "assistant", "content": "or not"}
TURN = ([5, 1, 2, 6], [3, 4, 0])  # USER and ANSWER as ids


@pytest.mark.parametrize(
    "entry",
    [
        {"conversations": [{"from": "human", "value": "to be"}, {"from": "gpt", "value": "or not"}]},
        {"conversations": [USER, ANSWER]},
        {"request": {"messages": [USER]}, "response": {"choices": [{"message": ANSWER, "finish_reason": "stop"}]}},
        {"messages": [USER], "choices": [{"message": ANSWER}]},
        {"messages": [USER], "response": "or not"},
        {"messages": json.dumps([USER]), "response": json.dumps({"choices": [{"message": ANSWER}]})},
        {"messages": {}, "proxy_server_request": {"messages": [USER]}, "response": {"choices": [{"message": ANSWER}]}},
        {"type": "GENERATION", "input": [USER], "output": ANSWER, "usageDetails": {"output": 3}},
        {"type": "GENERATION", "input": {"messages": [USER]}, "output": "or not", "usage": None},
        {"type": "GENERATION", "input": json.dumps([USER]), "output": json.dumps(ANSWER), "modelParameters": {}},
        {"type": "GENERATION", "input": USER, "output": [ANSWER]},
        {"instruction": "to be", "output": "or not", "generator": "model"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "to "}, {"type": "text", "text": "be"}]}],
         "completion": "or not"},
        {"prompt_token_ids": TURN[0], "output_token_ids": TURN[1]},
        {"messages": [USER], "response": {
            "prompt_token_ids": TURN[0], "choices": [{"message": ANSWER, "token_ids": TURN[1]}]}},
    ],
)  # fmt: skip
def test_each_kind_of_log_gives_the_same_request(tmp_path, entry):
    log = log_of(tmp_path, entry, entry)
    assert said(log) == [TURN, TURN]
    assert not log.bad


def test_a_plain_prompt_of_any_kind_goes_without_the_chat_template(tmp_path):
    kinds = (
        {"prompt": "to be", "response": "or not"},
        {"request": {"prompt": "to be"}, "response": {"choices": [{"text": "or not"}]}},
        {"type": "GENERATION", "input": "to be", "output": "or not"},
    )
    assert said(log_of(tmp_path, *kinds)) == [([1, 2], [3, 4, 0])] * 3


def test_each_answer_of_a_conversation_is_a_request_after_what_went_before(tmp_path):
    turns = [{"from": who, "value": text} for who, text in (
        ("human", "to"), ("gpt", "be"), ("human", "or"), ("gpt", "not"), ("human", "to"),
    )]  # fmt: skip
    log = log_of(tmp_path, {"conversations": turns})
    assert said(log) == [([5, 1, 6], [2, 0]), ([5, 1, 6, 2, 5, 3, 6], [4, 0])]
    # a logged exchange is one request: its earlier answers have lines of their own
    chat = [{"role": "user" if t["from"] == "human" else "assistant", "content": t["value"]} for t in turns[:4]]
    assert said(log_of(tmp_path, {"messages": chat})) == said(log)[1:]


def test_every_choice_of_a_response_is_a_request(tmp_path):
    choices = [{"message": {"content": "to"}, "finish_reason": "length"}, {"message": {"content": "be"}}]
    log = log_of(tmp_path, {"messages": [USER], "choices": choices, "usage": {"completion_tokens": 90}})
    assert [pair.output for pair in log.requests] == [[1], [2, 0]]
    assert log.missing_share == 0  # the count is of both


def test_an_answer_that_is_json_stays_text(tmp_path):
    log = log_of(tmp_path, {"type": "GENERATION", "input": "to be", "output": '{"to": "be"}'})
    assert len(log.requests[0].output) == 3


class Letters(Words):
    """A tokenizer of characters."""

    def __len__(self) -> int:
        return 1 << 21

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) for c in text]

    def apply_chat_template(self, messages, **kwargs) -> list[int]:
        return self.encode("".join(f"{m['role']}:{m['content']};" for m in messages))


def spelled(tmp_path, *lines) -> list[tuple[str, str]]:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    pairs = requestlog.read(path, Letters()).requests
    return [("".join(map(chr, p.prompt)), "".join(map(chr, p.output)).rstrip("\0")) for p in pairs]


def test_tool_calls_are_decoded_text(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "stock", "arguments": '{"item":"nut"}'}},
    ]}  # fmt: skip
    asked = {"role": "user", "content": "how many"}
    later = [
        asked,
        call,
        {"role": "tool", "tool_call_id": "1", "content": "9"},
        {"role": "assistant", "content": "nine"},
    ]
    json_call = '{"name": "stock", "arguments": {"item":"nut"}}'  # its arguments as the model wrote them
    assert spelled(tmp_path, {"messages": [asked, call], "finish_reason": "tool_calls"}, {"messages": later}) == [
        ("user:how many;", json_call),
        (f"user:how many;assistant:{json_call};tool:9;", "nine"),
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_decoded_text(tmp_path, name):
    turn = {"role": "assistant", "content": "4", name: "2 and 2"}
    asked = {"role": "user", "content": "sum"}
    assert spelled(tmp_path, {"messages": [asked, turn]}) == [("user:sum;", "<think>\n2 and 2\n</think>\n\n4")]


def test_a_batch_is_joined_to_its_input(tmp_path):
    inputs, outputs = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked = {"a": "to be", "b": "or not"}
    inputs.write_text("\n".join(
        json.dumps({"custom_id": key, "body": {"model": "m", "messages": [{"role": "user", "content": text}]}})
        for key, text in asked.items()
    ))  # fmt: skip
    answer = {"status_code": 200, "body": {"choices": [{"message": {"content": "not"}}]}}
    failed = {"status_code": 400, "body": {"error": {"message": "too large"}}}
    lines = [{"id": key, "custom_id": key, "response": r} for key, r in (("b", answer), ("a", failed), ("c", answer))]
    outputs.write_text("\n".join(map(json.dumps, lines)))
    log = requestlog.read(outputs, Words(), prompts=inputs)
    assert said(log) == [([5, 3, 4, 6], [4, 0])]
    assert [line.number for line in log.bad] == [2, 3]
    assert "too large" in log.bad[0].reason
    assert "'c'" in log.bad[1].reason
    with pytest.raises(requestlog.LogError, match="--prompts"):
        requestlog.read(outputs, Words())
    with pytest.raises(requestlog.LogError, match="prompts must be a readable"):
        requestlog.read(outputs, Words(), prompts=tmp_path / "nowhere")


def test_the_share_of_decoded_tokens_that_a_log_lacks(tmp_path):
    used = [{"usage": {"completion_tokens": n}} for n in (2, 12)]  # PLAIN's answer has 3
    log = log_of(tmp_path, PLAIN | used[0], PLAIN | used[1], PLAIN)
    assert log.missing_share == 9 / 14
    assert any("64 % of the decoded tokens" in note for note in log.notes)
    langfuse = {
        "type": "GENERATION",
        "input": "to",
        "output": "be",
        "usageDetails": {"output": 2, "output_reasoning": 6},
    }
    assert log_of(tmp_path, langfuse).missing_share == 6 / 8
    assert log_of(tmp_path, PLAIN | {"usage": {"completion_tokens": None}}, PLAIN | {"usage": 5}).missing_share == 0


def test_a_far_longer_request_is_named(tmp_path):
    ids = {"prompt_token_ids": [1], "output_token_ids": [2]}
    notes = log_of(tmp_path, ids, ids, ids | {"output_token_ids": [2] * 40}, ids).notes
    assert any("1 requests are over 20 times" in note and "line 3" in note for note in notes)
    assert log_of(tmp_path, ids, ids | {"output_token_ids": [2] * 39}, ids).notes == ()


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("page", [lambda entries: entries, lambda entries: {"data": entries, "meta": {}}])
def test_one_array_and_a_page_of_an_api(tmp_path, indent, page):
    log = log_of(tmp_path, json.dumps(page([PLAIN, 5, PLAIN]), indent=indent))
    assert len(log.requests) == 2
    assert [line.number for line in log.bad] == [2]


LINES = "\n".join(json.dumps(PLAIN) for _ in range(3)).encode()
GZIPPED = gzip.compress(LINES, mtime=0)  # the same in every worker


@pytest.mark.parametrize(
    "data", [LINES, GZIPPED, b"\xef\xbb\xbf" + LINES, LINES.replace(b"\n", b"\r\n"), LINES + b"\n\n"]
)
def test_the_same_log_however_it_is_stored(tmp_path, monkeypatch, data):
    path = tmp_path / "log"
    path.write_bytes(data)
    expected = [([1, 2, 3, 4], [1, 2, 0])] * 3
    assert said(requestlog.read(path, Words())) == expected
    requestlog._stream.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert requestlog.holds_text(requestlog.Path("-"))  # and it can still be read
    assert said(requestlog.read("-", Words())) == expected


LETTERS = "\n".join(f'{{"prompt": "caf\u00e9 {i}", "completion": "to be"}}' for i in range(3))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (LETTERS.encode("latin-1"), "Latin-1"),
        (LETTERS.encode("latin-1") + b"\n" + LINES, "Latin-1"),
        (LETTERS.encode("utf-16"), "UTF-16"),
        (LETTERS.encode("utf-16-le"), "UTF-16"),
        (LETTERS.replace("\n", "\r").encode(), "CR alone"),
        (GZIPPED[:-20], "readable"),
    ],
)
def test_a_file_of_another_encoding_is_named_and_not_half_read(tmp_path, data, sentence):
    path = tmp_path / "log.jsonl"
    path.write_bytes(data)
    assert not requestlog.holds_text(path)
    with pytest.raises(requestlog.LogError, match=sentence):
        requestlog.read(path, Words())


def test_one_damaged_line_is_no_other_encoding(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(LETTERS.encode() + b'\n{"prompt": "caf\xc3 ", "completion": "to"}')
    assert [line.number for line in requestlog.read(path, Words()).bad] == [4]


@pytest.mark.parametrize(("line", "text"), [(PLAIN, True), ({"prompt_token_ids": [1], "output_token_ids": [2]}, False)])
def test_only_text_needs_a_tokenizer(tmp_path, line, text):
    path = tmp_path / "log.json"
    path.write_text(json.dumps([line, 5, {"other": 1}], indent=1))
    assert requestlog.holds_text(path) is text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["role", "content", "from", "value", "choices", "message", "text", "body", "usage", "status_code", "tool_calls",
         "function", "name", "type", "completion_tokens", "messages", "prompt", "custom_id", "reasoning_content"],
    ), inner, max_size=4), max_leaves=12,
)  # fmt: skip
FIELDS = sorted({field for _, fields, _ in requestlog.FORMATS for field in fields} | {"usage", "model", "temperature"})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(entry=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6))
def test_whatever_a_line_holds_it_costs_nothing_else_and_the_log_is_plain_data(tmp_path, entry):
    log = log_of(tmp_path, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, entry)
    assert said(log)[:5] == [([1, 2, 3, 4], [1, 2, 0])] * 5
    assert json.loads(json.dumps(dataclasses.asdict(log)))


@pytest.mark.parametrize(
    ("reason", "end"), [("stop", [0]), ("tool_calls", [0]), (None, [0]), ("length", []), ("abort", [])]
)
def test_an_answer_that_was_cut_has_no_end_token(tmp_path, reason, end):
    log = log_of(tmp_path, {"messages": [USER], "choices": [{"message": ANSWER, "finish_reason": reason}]})
    assert log.requests[0].output == [3, 4, *end]


@pytest.mark.parametrize(
    "entry",
    [
        {"request": {"messages": [USER], "temperature": 1}, "response": {"choices": [{"message": ANSWER}]}},
        {"type": "GENERATION", "input": [USER], "output": ANSWER, "modelParameters": '{"temperature": 0.5}'},
    ],
)
def test_sampling_and_model_are_read_where_each_kind_keeps_them(tmp_path, entry):
    named = entry | ({"providedModelName": "a"} if "type" in entry else {"model": "a"})
    log = log_of(tmp_path, named, named, PLAIN | {"model": "b"})
    assert [line.number for line in log.bad] == [3]
    assert any("2 outputs were sampled" in note for note in log.notes)
