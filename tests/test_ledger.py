"""The ledger: predicates on made-up tables that support, refute and leave undecided; every claim evaluates."""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import ledger
from lib.ledger import claims, evidence
from lib.ledger.predicates import PREDICATES, Finding
from lib.results.table import Tables

ROOT = Path(__file__).parents[1]
S, R, U = "supported", "refuted", "undecided"


def rows(*triples, **columns):
    """A table of speedups (value, low, high), and further columns."""
    table = (
        pd.DataFrame(list(triples), columns=["speedup", "speedup_low", "speedup_high"]) if triples else pd.DataFrame()
    )
    return table.assign(**columns)


def judge(name, table, **arguments):
    found = PREDICATES[name](table, **arguments)
    assert isinstance(found, Finding) and found.text
    return found.verdict


UP, DOWN, WIDE = (1.2, 1.1, 1.3), (0.8, 0.7, 0.9), (1.0, 0.8, 1.3)


@pytest.mark.parametrize(
    ("name", "held", "verdict"),
    [
        ("all_within", [UP, UP], S), ("all_within", [UP, DOWN], R), ("all_within", [UP, WIDE], U),
        ("any_within", [UP, DOWN], S), ("any_within", [DOWN, DOWN], R), ("any_within", [DOWN, WIDE], U),
        ("both_signs", [UP, DOWN], S), ("both_signs", [UP, UP], R), ("both_signs", [UP, WIDE], R),
    ],
)  # fmt: skip
def test_a_verdict_needs_the_whole_interval(name, held, verdict):
    bound = {"bound": 1.0} if name == "both_signs" else {"low": 1.0}
    assert judge(name, rows(*held), quantity="speedup", **bound) == verdict


def test_a_value_without_an_interval_is_taken_as_it_is():
    table = rows((1.2, math.nan, math.nan))
    assert judge("all_within", table, quantity="speedup", low=1.0) == S
    assert PREDICATES["all_within"](table, quantity="speedup", low=1.0)[2:5] == (1.2, 1.2, 1.2)


def test_all_within_tells_the_row_that_is_farthest_off():
    found = PREDICATES["all_within"](rows(UP, DOWN, (0.5, 0.4, 0.6)), quantity="speedup", low=1.0)
    assert (found.value, found.low, found.high, found.n) == (0.5, 0.4, 0.6, 3)


@pytest.mark.parametrize(("inside", "verdict"), [(9, S), (7, U), (3, R)])
def test_share_within(inside, verdict):
    table = pd.DataFrame({"step_cost": [1.3] * inside + [3.0] * (10 - inside)})
    assert judge("share_within", table, quantity="step_cost", low=1.25, high=1.4) == verdict


@pytest.mark.parametrize(("value", "verdict"), [(2.0, S), (5.0, R), (3.0, U)])
def test_close_by_value(value, verdict):
    table = pd.DataFrame({"workload": ["chat", "code"], "mean_acceptance_length": [2.0, 2.1 if value == 2 else 3.0]})
    assert judge("close", table, quantity="mean_acceptance_length", value=value, relative=0.1) == verdict


def test_close_by_column_and_by_aggregate():
    table = pd.DataFrame({"workload": ["chat", "code"], "speedup": [1.4, 0.8]})
    assert judge("close", table, quantity="speedup", value={"chat": 1.4, "code": 0.8}, within=0.01) == S
    assert judge("close", table, quantity="speedup", value={"chat": 1.4, "code": 1.4}, within=0.01) == U
    assert judge("close", table, quantity="speedup", of="max", value=1.4, within=0.01) == S
    assert judge("close", table, quantity="speedup", of="count", value=3, within=0) == R


@pytest.mark.parametrize(("order", "verdict"), [(["b", "a"], S), (["a", "b"], R), (["a", "c"], U), (["b", "none"], U)])
def test_ordered(order, verdict):
    table = rows(UP, DOWN, WIDE, workload=["a", "b", "c"])
    assert judge("ordered", table, quantity="speedup", by="workload", order=order) == verdict


def test_ordered_falls_with_one_group():
    table = rows(DOWN, UP, UP, DOWN, model=["s", "l"] * 2, concurrency=[1, 1, 8, 8])
    asked = {"quantity": "speedup", "by": "model", "order": ["s", "l"]}
    assert judge("ordered", table, each=["concurrency"], **asked) == R
    assert judge("ordered", table[table.concurrency == 1], each=["concurrency"], **asked) == S


def test_best():
    table = pd.DataFrame({"tokens": [3, 7, 7], "speed": [5.0, 4.0, 6.0]})
    assert judge("best", table, quantity="speed", by="tokens", value=7) == S
    assert judge("best", table, quantity="speed", by="tokens", value=3) == R


@pytest.mark.parametrize(
    ("y", "verdict"),
    [([1, 2, 4, 8, 16, 32], S), ([32, 16, 8, 4, 2, 1], R), ([1, 1, 1, 1, 1, 9], R), ([1, 3, 3, 4, 9, 9], U)],
)
def test_explains(y, verdict):
    table = pd.DataFrame({"k": [1, 2, 4, 8, 16, 32], "y": [float(v) for v in y]})
    share = 0.97 if verdict == U else 0.9
    assert judge("explains", table, x="k", y="y", at_least=share) == verdict


def test_explains_says_nothing_of_a_few_rows():
    assert judge("explains", pd.DataFrame({"k": [1.0, 2.0], "y": [1.0, 2.0]}), x="k", y="y") == U


def test_conditions_and_coverage():
    table = pd.DataFrame({"model": ["a", "a", "b"], "workload": ["x", "y", "x"], "runner": ["V1", "V1", "V2"]})
    assert judge("every", table, that="runner == 'V1'") == R
    assert judge("every", table[:2], that="runner == 'V1'") == S
    assert judge("some", table, that="runner == 'V2'") == S
    assert judge("some", table, that="runner == 'V3'") == R
    assert judge("covers", table, by="model", column="workload", at_least=2) == R
    assert judge("covers", table[:2], by="model", column="workload", at_least=2) == S
    assert judge("covers", table, column="runner", at_least=2) == S


def test_same():
    table = pd.DataFrame({"share": [0.85, 0.80], "prompts": [500, 500], "mode": ["FULL", "FULL"]})
    assert judge("same", table, columns=["prompts", "mode"]) == S
    assert judge("same", table, columns=["share", "prompts"]) == R
    assert judge("same", table, columns=["share"], tolerance=0.1) == S


def test_arithmetic():
    assert judge("arithmetic", None, expression="8 * 8", value=64) == S
    assert judge("arithmetic", None, expression="8 * 8", value=65) == R


# ---------------------------------------------------------------- rules of one claim each


def test_most_of_the_gain():
    table = rows((1.3,) * 3, (1.4,) * 3, setting=["first", "whole"], workload="chat")
    assert judge("most_of_the_gain", table, first="first", whole="whole") == S
    assert judge("most_of_the_gain", table.assign(speedup=[1.1, 1.4]), first="first", whole="whole") == R


@pytest.mark.parametrize(("after", "verdict"), [(UP, S), (DOWN, R), (WIDE, U)])
def test_rescues(after, verdict):
    table = rows(
        DOWN, after, UP, UP, setting=["a", "b"] * 2, workload=["code", "code", "chat", "chat"], concurrency=8, model="m"
    )
    assert judge("rescues", table, slow="a", test="b") == verdict
    assert judge("rescues", table[2:], slow="a", test="b") == U


@pytest.mark.parametrize(("speedups", "verdict"), [([0.5, 0.5], S), ([1.5, 1.5], R), ([0.5, 1.5], U)])
def test_two_series_that_disagree_decide_nothing(speedups, verdict):
    table = pd.DataFrame({"campaign": ["old", "SUB_093"], "speedup": speedups})
    assert judge("slower_in_both_series", table) == verdict


def test_a_linear_rule_that_is_an_identity():
    table = pd.DataFrame(
        {
            "setting": ["ngram", "suffix"],
            "num_speculative_tokens": [7, 32],
            "acceptance_rate": [0.5, 0.9],
            "mean_acceptance_length": [4.5, 9.0],
        }
    )
    assert judge("linear_rule", table) == R
    assert judge("linear_rule", table.assign(mean_acceptance_length=[4.5, 1 + 0.9 * 32])) == S


def test_a_crash_counts_if_nothing_else_changed():
    run = {"campaign": "c", "workload": "w", "method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    table = pd.DataFrame(
        [run | {"num_speculative_tokens": 7, "status": "ok"}, run | {"num_speculative_tokens": 12, "status": "crashed"}]
    )
    assert judge("fails_alone", table, at_least=10) == S
    table.loc[1, "prompt_lookup_max"] = 8
    assert judge("fails_alone", table, at_least=10) == U


def test_what_prompts_alone_could_give(tmp_path, monkeypatch):
    from lib.ledger import rules

    answers = pd.DataFrame({"workload": "chat", "prompt": [[1, 2, 3, 4]] * 4, "answer": [[1, 2, 3, 9, 9, 9]] * 4})
    answers.to_parquet(tmp_path / "answers.parquet")
    monkeypatch.setattr(rules, "ANSWERS", tmp_path / "answers.parquet")
    assert rules._copied([1, 2, 3, 4], [1, 2, 3, 9, 9, 9]) == (1, 6)
    table = pd.DataFrame({"workload": ["chat"], "setting": ["ngram"], "tokens_per_step": [2.0]})
    assert judge("prompt_alone_explains", table) == R
    assert judge("prompt_alone_explains", table.assign(tokens_per_step=1.1)) == U


# ---------------------------------------------------------------- evidence from runs


def made_up_runs():
    """Vanilla at 10 ms a step and a drafter at 20 ms that accepts one of two drafts each step, two requests of 12 tokens."""
    asked = {
        "session": "s", "model": "m", "workload": "chat", "concurrency": 2, "status": "ok", "seed": 0, "num_prompts": 2,
        "answers": "model", "form": "raw", "input_tokens": 8, "output_tokens": 12, "temperature": 0.0, "quantization": None,
        "dtype": None, "wall_s": 0.12, "num_output_tokens": 24, "tok_s": 200.0, "gpu_energy_j": 1.0,
        "mean_acceptance_length": 2.0, "acceptance_rate": 0.5, "resolved_num_parameters": 2e9,
        "resolved_vllm_version": "0.33.0", "resolved_async_scheduling": True, "resolved_cudagraph_mode": "FULL",
    }  # fmt: skip
    runs, requests, steps = [], [], []
    for name, per_step in (("vanilla", 1), ("drafter", 2)):
        own = {"run_id": name, "setting": name, "resolved_runner": f"V{per_step}", "gpu_busy_pct": 100 / per_step}
        own |= {"tokens_per_step": per_step, "num_drafts": 0, "num_accepted_tokens_per_pos": []}
        told = {"drafted_per_step": None, "accepted_per_step": None}
        if name == "drafter":
            own |= {"num_drafts": 12, "num_accepted_tokens_per_pos": [12, 0]}
            told = {"drafted_per_step": [2] * 6, "accepted_per_step": [1] * 6}
        runs.append(asked | own)
        for i in range(2):
            times = {"first_token_s": 0.01, "last_token_s": 0.12}
            requests.append({"run_id": name, "request": i, "num_output_tokens": 12} | times | told)
        for i in range(12 // per_step):
            step = {"t_s": 0.01 * per_step * (i + 1), "running": 2, "prefills": int(i == 0), "graph_mode": "FULL"}
            steps.append({"run_id": name} | step)
    return Tables(*map(pd.DataFrame, (runs, requests, steps)))


def test_evidence_of_made_up_runs():
    (row,) = evidence.measured(made_up_runs(), "drafter").to_dict("records")
    assert row["speedup"] == pytest.approx(1.0) and row["step_cost"] == pytest.approx(2.0)
    assert row["tokens_per_step"] == 2 and row["mean_acceptance_length"] == 2 and row["acceptance_rate"] == 0.5
    assert row["longest_draft"] == 2 and row["params_b"] == 2 and row["graph_full_share"] == 1
    assert (row["runner"], row["base_runner"]) == ("V2", "V1")
    assert row["acceptance_rise"] == -1  # the first of two drafts always, the second never
    assert evidence.measured(made_up_runs(), "no such setting").empty


def test_evidence_is_empty_where_nothing_was_measured():
    assert evidence.table("h200", ("no such setting",)).empty
    with pytest.raises(ValueError, match="source must be one of"):
        evidence.table("h201")


# ---------------------------------------------------------------- the ledger


VERDICTS = st.sampled_from([S, R, U])


@given(st.lists(VERDICTS, max_size=6), st.sampled_from(["every", "some", "agree"]))
def test_combining_findings(verdicts, scope):
    findings, decided = [Finding(v, "") for v in verdicts], set(verdicts) - {U}
    found = claims.combine(scope, findings)
    assert found == claims.combine(scope, findings[::-1])
    assert found == claims.combine(scope, [*findings, Finding(S, "", context=True), Finding(R, "", context=True)])
    mixed = {"every": R, "some": S, "agree": U}[scope]
    assert found == (mixed if len(decided) == 2 else decided.pop() if decided else U)


def test_confidence():
    study, ours = Finding(R, "", source="published"), Finding(R, "", source="h200")
    assert claims.confidence(R, [study]) == "low"
    assert claims.confidence(R, [ours, Finding(S, "", source="published")]) == "medium"
    assert claims.confidence(R, [study, ours]) == "high"
    assert claims.confidence(R, [study._replace(recount=True)]) == "high"
    assert claims.confidence(U, [Finding(U, "", source="h200")]) == ""


@pytest.fixture(scope="module")
def whole():
    return ledger.table()


@pytest.mark.filterwarnings("ignore::lib.results.table.Unreadable")
def test_every_claim_evaluates(whole):
    assert list(whole.columns) == claims.COLUMNS
    assert whole.id.tolist() == [f"C{i:02d}" for i in range(1, len(whole) + 1)] and len(whole) > 80
    assert set(whole.verdict) <= {S, R, U, claims.NOT_TESTABLE}
    decided = whole[whole.verdict.isin([S, R])]
    assert (decided.confidence != "").all() and ((decided.study != "") | (decided.measured != "")).all()
    assert (whole[~whole.index.isin(decided.index)].confidence == "").all()
    reasons = whole[whole.verdict == claims.NOT_TESTABLE].measured
    assert len(reasons) and (reasons.str.len() > 20).all()


def test_without_any_record_no_verdict_is_kept():
    empty = ledger.table(lookup=lambda source, settings, base: pd.DataFrame())
    assert set(empty[empty.verdict.isin([S, R])].measured) <= {""}  # arithmetic, and the source text, are left
    assert (empty.verdict.isin([S, R])).sum() < 5


def test_claims_are_sentences_in_the_studys_order():
    held = ledger.load()
    assert all(
        c.claim.endswith(".") and c.refuted_if.endswith(".") and not re.search(r"\.\s+[A-Z]", c.claim) for c in held
    )
    assert [c.section for c in held] == sorted(c.section for c in held)
    assert {c.section for c in held} == set(range(len(ledger.sections())))
    assert {t.predicate for c in held for t in c.tests} == set(PREDICATES)
    assert sum(c.carries for c in held) == 12


def test_claims_by_notebook():
    names = [f"0{n}" for n in range(1, 9)]
    assert sorted(i for n in names for i in ledger.tested_by(n).id) == [c.id for c in ledger.load()]
    assert ledger.tested_by("02_ngram.ipynb").equals(ledger.tested_by("02"))
    assert ledger.file_of("08") == "08_claims.ipynb" and ledger.file_of("77") == "77"
    assert 'href="08_claims.ipynb"' in ledger.page(ledger.table(c for c in ledger.load()[:9] if c.notebook == "08"))
    with pytest.raises(ValueError, match="claim id must be one of"):
        ledger.get("C999")


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_name_claims_that_exist(path):
    named = set(re.findall(r"\bC\d{2}\b", "".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"])))
    assert named <= {claim.id for claim in ledger.load()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tests": [{"is": "al_within", "quantity": "speedup"}]}, "did you mean 'all_within'"),
        (
            {"tests": [{"on": "published", "is": "all_within", "quantty": "speedup"}]},
            "arguments must be those of all_within",
        ),
        ({"tests": []}, "why must say"),
        ({"tests": [{"is": "arithmetic", "expression": "1", "value": 1, "context": True}]}, "why must say"),
        ({"notebook": "09"}, "notebook"),
        ({"verdict": "refuted"}, "verdict"),
    ],
)
def test_a_broken_claim_is_refused_in_one_sentence(tmp_path, change, message):
    entry = {
        "id": "C01", "section": 0, "claim": "Something is so.", "refuted_if": "It is not so.", "notebook": "08",
        "tests": [{"is": "arithmetic", "expression": "1", "value": 1}],
    }  # fmt: skip
    path = tmp_path / "claims.yaml"
    path.write_text(json.dumps({"claims": [entry]}))
    assert claims.read(path)[0].id == "C01"
    path.write_text(json.dumps({"claims": [entry | change]}))
    with pytest.raises(ValueError, match=message) as caught:
        claims.read(path)
    assert "C01" in str(caught.value) and "\n" not in str(caught.value)
    path.write_text(json.dumps({"claims": [entry, entry]}))
    with pytest.raises(ValueError, match="twice"):
        claims.read(path)


def test_a_test_picks_its_rows_and_can_be_turned_round():
    table = rows(UP, DOWN, setting=["a", "b"])
    asked = {"on": ["x"], "is": "all_within", "quantity": "speedup", "low": 1.0}

    def verdict(**more):
        return [f.verdict for f in claims.Test.model_validate(asked | more).findings(lambda *_: table)]

    assert verdict() == [R] and verdict(where={"setting": "a"}) == [S] and verdict(where="setting == 'a'") == [S]
    assert verdict(reverse=True) == [S] and verdict(where={"setting": ["c"]}) == [] and verdict(quantity="absent") == []
