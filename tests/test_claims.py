"""The ledger: whole rows, computed verdicts, and rules that decide made-up cases as their docstrings say."""

import json
import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lib import claims, ladder, params, reanalysis, rules
from lib.cells import WORKLOADS, Cell, Model, Workload
from lib.params import StepTime
from lib.records import Counters, Monitor, Provenance, Record, Request, Resolved, Store, Trace
from lib.rules import Bench, Evidence, Finding
from lib.stats import Estimate

NAN = float("nan")
VERDICTS = st.sampled_from(claims.VERDICTS)
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.fixture
def cpu():
    return params.load("cpu")


@pytest.fixture
def gpu():
    values = {"profile": "gpu", "batch_sizes": [8], "num_prompts": 4, "engine": {"max_model_len": 2048}}
    return params.validate(values, "test")


def steps_of(step_ms, running, modes=None, drafted=0, count=20):
    """The columns of a trace: the first step prefills, all others decode."""
    return {
        "t_s": [(i + 1) * step_ms / 1000 for i in range(count)],
        "running": [running] * count,
        "waiting": [0] * count,
        "prefills": [running] + [0] * (count - 1),
        "output_tokens": [running] * count,
        "drafts": [running if drafted else 0] * count,
        "draft_tokens": [drafted] * count,
        "accepted_tokens": [0] * count,
        "graph_mode": modes or [""] * count,
        "padded_tokens": [0] * count,
    }


class Maker:
    """Writes made-up records of a profile; `bench` reads them back."""

    def __init__(self, profile, folder, hardware=None):
        self.profile, self.store, self.hardware = profile, Store(folder), hardware

    def add(
        self,
        setting,
        workload="sonnet",
        *,
        wall=10.0,
        output=1000,
        drafts=0,
        drafted=0,
        accepted=0,
        positions=(),
        seed=0,
        repeat=0,
        reuse=False,
        busy=None,
        joules=None,
        step_ms=None,
        running=4,
        modes=None,
        tokens=None,
        drafted_per_step=None,
        resolved=(),
        batch=None,
        day=1,
    ):
        profile = self.profile.model_copy(update={"reuse_prompts": reuse})
        asked = {"workloads": [workload], "seeds": [seed], "batch_sizes": batch and [batch]}
        cell = ladder.cells(profile, [setting], repeats=repeat + 1, **asked)[-1]
        steps = output - accepted
        requests = tuple(
            Request(
                num_prompt_tokens=10,
                num_output_tokens=output // 4,
                first_token_s=0.0,
                last_token_s=wall,
                finish_reason="length",
                output_hash=str(i),
                drafted_per_step=drafted_per_step,
                accepted_per_step=drafted_per_step,
            )
            for i in range(4)
        )
        settled = {
            "vllm_version": "0.32.0",
            "runner": "V1",
            "async_scheduling": True,
            "cudagraph_mode": "FULL_AND_PIECEWISE",
            "num_parameters": 135_000_000,
        } | dict(resolved)
        record = Record(
            cell=cell.model_copy(update={"keep_tokens": tokens is not None}),
            status="ok",
            wall_s=wall,
            counters=Counters(
                num_output_tokens=output,
                num_prompt_tokens=40,
                num_drafts=drafts,
                num_draft_tokens=drafted,
                num_accepted_tokens=accepted,
                num_accepted_tokens_per_pos=positions,
                num_engine_steps=steps,
                num_request_steps=steps,
                request_steps_source="engine",
            ),
            requests=requests,
            resolved=Resolved(**settled),
            monitor=None
            if busy is None
            else Monitor(window_s=wall, num_samples=9, gpu_busy_pct=busy, gpu_energy_j=joules),
            provenance=Provenance(measured=f"2026-01-{day:02d}T00:00:00Z", gpu=self.hardware, cpu="a CPU"),
        )
        trace = None
        if step_ms is not None or tokens is not None:
            prompts, outputs = ([[*t] for t in part] for part in tokens) if tokens else (None, None)
            steps = steps_of(step_ms or 1.0, running, modes)
            trace = Trace(steps=steps, prompt_token_ids=prompts, output_token_ids=outputs)
        self.store.save(record, trace)
        return self

    def add_step_times(self, setting, step_ms, gamma, batch=4):
        """An engine cell of random prompts, as the step-time grid has them."""
        walking = setting == "walking"
        cell = Cell(
            engine=ladder.setting(self.profile, setting)[0],
            workload=Workload(name="random", form="raw", num_prompts=batch, input_tokens=16),
            output_tokens=64,
            ignore_eos=True,
            batch_size=batch,
            draft_tokens=gamma if walking else None,
            setting=setting,
        )
        counters = Counters(
            num_output_tokens=80,
            num_prompt_tokens=64,
            num_engine_steps=20,
            num_request_steps=80,
            request_steps_source="engine",
        )
        record = Record(
            cell=cell,
            status="ok",
            wall_s=1.0,
            counters=counters,
            resolved=Resolved(
                vllm_version="0.32.0", runner="V1", async_scheduling=False, cudagraph_mode="FULL_AND_PIECEWISE"
            ),
            provenance=Provenance(measured="2026-01-01T00:00:00Z", gpu=self.hardware),
        )
        self.store.save(record, Trace(steps=steps_of(step_ms, batch, ["FULL"] * 20, drafted=batch * gamma * walking)))

    @property
    def bench(self):
        return Bench(self.profile, Store(self.store.folder))


@pytest.fixture
def on_cpu(cpu, tmp_path):
    return Maker(cpu, tmp_path / "cpu")


@pytest.fixture
def on_gpu(gpu, tmp_path):
    return Maker(gpu, tmp_path / "gpu", "NVIDIA H200")


def judge(claim_id, *makers):
    """The claim's findings from made-up records alone, as verdicts."""
    row = claims.row(claim_id, Evidence(m.bench for m in makers))
    return [f.verdict for f in row.findings if f.source in {m.profile.profile for m in makers}]


# ---------------------------------------------------------------- the ledger as a whole


def test_ids_count_up():
    found = [claim.id for claim in claims.load()]
    assert found == [f"C{i:02d}" for i in range(1, len(found) + 1)]
    assert len(found) > 80


def test_every_rule_is_used_and_says_how_it_decides():
    used = {call.rule for claim in claims.load() for call in claim.rules}
    assert used == set(rules.RULES)
    for name, function in rules.RULES.items():
        assert re.search(r"[Ss]upported|[Rr]efuted", function.__doc__), name


def test_claims_are_one_sentence_each():
    for claim in claims.load():
        assert claim.claim.endswith(".") and claim.refuted_if.endswith("."), claim.id
        assert not re.search(r"\.\s+[A-Z]", claim.claim), claim.id
    assert len({claim.claim for claim in claims.load()}) == len(claims.load())


def test_sections_come_in_order():
    sections = [claim.section for claim in claims.load()]
    assert sections == sorted(sections) and set(sections) == set(range(11))


def test_without_records_a_measured_claim_is_undecided_and_nothing_breaks():
    rows = claims.ledger(Evidence([]))
    lone = [r for r in rows if r.claim.kind == "measured" and not r.findings]
    assert lone and all(r.verdict == "undecided" and r.evidence == "no record yet" for r in lone)
    table = claims.counts(rows)
    assert table.loc["all", "all"] == len(rows) == table["all"].iloc[:-1].sum()
    assert table.loc["all"].iloc[:3].sum() == len(rows)
    assert len(claims.frame(rows)) == len(rows)
    for r in rows:
        assert r.claim.id in claims.plain(rows)


def test_the_text_is_the_same_twice():
    first, second = (claims.plain(claims.ledger(Evidence([]))) for _ in range(2))
    assert first == second
    assert max(len(line) for line in first.splitlines()) <= 118


def test_not_testable_claims_say_why():
    for claim in claims.load():
        assert (claim.kind == "not_testable") == bool(claim.why)


@pytest.mark.parametrize(
    ("claim_id", "verdict"),
    [("C02", "supported"), ("C04", "refuted"), ("C05", "supported"), ("C13", "refuted"), ("C20", "refuted"),
     ("C23", "refuted"), ("C24", "refuted"), ("C28", "refuted"), ("C30", "refuted"), ("C32", "refuted"),
     ("C39", "refuted"), ("C48", "refuted"), ("C57", "undecided"), ("C63", "supported"), ("C67", "refuted"),
     ("C73", "supported"), ("C74", "refuted"), ("C86", "refuted"), ("C87", "refuted")],
)  # fmt: skip
def test_verdicts_from_the_studys_own_numbers(claim_id, verdict):
    assert claims.row(claim_id, Evidence([])).verdict == verdict


def test_helpers_for_the_other_notebooks():
    assert "C30" in claims.tested_by("02") == claims.tested_by("02_ngram.ipynb")
    assert sorted(c for n in range(1, 9) for c in claims.tested_by(f"0{n}")) == [c.id for c in claims.load()]
    text = claims.markdown(["C30"], Evidence([]))
    assert text.startswith("- **C30** ") and "**Refuted.**" in text
    with pytest.raises(ValueError, match="claim id is 'C999', allowed: C01 to"):
        claims.get("C999")


def test_table_links_both_ways():
    page = claims.table(claims.ledger(Evidence([]), ["C10", "C30"])).as_raw_html()
    for path in NOTEBOOKS:
        if path.name.startswith(("02", "08")):
            assert f'href="{path.name}"' in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_name_claims_that_exist(path):
    cells = json.loads(path.read_text())["cells"]
    named = set(re.findall(r"\bC\d{2}\b", "".join("".join(c["source"]) for c in cells)))
    assert named <= {claim.id for claim in claims.load()}


# ---------------------------------------------------------------- reading claims.yaml


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": [{"rule": "no_such_rule"}]}, "rule is 'no_such_rule'"),
        ({"rules": [{"rule": "published_count", "expect": 1}]}, "rule published_count has arguments"),
        ({"kind": "measured"}, "at least one rule that reads records"),
        ({"kind": "not_testable"}, "no rules, and a why"),
        ({"notebook": "09"}, "notebook"),
        ({"verdict": "refuted"}, "verdict"),
        ({"section": 12}, "section"),
    ],
)
def test_a_broken_claim_is_refused_in_one_sentence(tmp_path, change, message):
    entry = {
        "id": "C01",
        "section": 0,
        "claim": "Something is so.",
        "refuted_if": "It is not so.",
        "kind": "reanalysis",
        "notebook": "08",
        "rules": [{"rule": "published_count", "expected": 156}],
    }
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([entry]))
    assert claims.read(path)[0].id == "C01"
    path.write_text(yaml.safe_dump([entry | change]))
    with pytest.raises(ValueError, match=message) as caught:
        claims.read(path)
    assert "C01" in str(caught.value) and "\n" not in str(caught.value)
    path.write_text(yaml.safe_dump([entry, entry]))
    with pytest.raises(ValueError, match="twice"):
        claims.read(path)


# ---------------------------------------------------------------- deciding


@given(st.lists(VERDICTS, max_size=6), st.sampled_from(["every", "some", "agree"]))
def test_combining_findings(verdicts, scope):
    findings = [Finding(v, "cpu", "") for v in verdicts]
    found, decided = claims.combine(scope, findings), set(verdicts) - {"undecided"}
    assert found == claims.combine(scope, findings[::-1])
    if len(decided) < 2:
        assert found == (decided.pop() if decided else "undecided")
    else:
        assert found == {"every": "refuted", "some": "supported", "agree": "undecided"}[scope]


@pytest.mark.parametrize(
    ("estimate", "verdict"),
    [((1.2, 1.1, 1.3, 5), "supported"), ((1.2, 0.9, 1.5, 5), "undecided"), ((0.8, 0.7, 0.9, 5), "refuted"),
     ((1.2, NAN, NAN, 1), "supported"), ((NAN, NAN, NAN, 0), "undecided")],
)  # fmt: skip
def test_within(estimate, verdict):
    assert rules.within(Estimate(*estimate), low=1.0) == verdict


@given(st.floats(0.1, 10), st.floats(0.01, 0.5), st.floats(0.1, 10), st.floats(0.01, 0.5))
def test_a_ratio_of_estimates_holds_its_value_and_is_wider_than_either(a, wide_a, b, wide_b):
    first = Estimate(a, a * (1 - wide_a), a * (1 + wide_a), 9)
    second = Estimate(b, b * (1 - wide_b), b * (1 + wide_b), 5)
    ratio = rules.over(first, second)
    assert ratio.low < ratio.value < ratio.high and ratio.n == 5
    assert ratio.value == pytest.approx(a / b)
    assert ratio.high / ratio.value > first.high / first.value


def test_spread():
    assert rules.spread([2.0, 2.0, 2.0])[:3] == (2.0, 2.0, 2.0)
    assert rules.spread([1.0, 3.0]).value == 2.0
    assert rules.spread([5.0]).n == 1


# ---------------------------------------------------------------- what a machine may decide


def test_a_cpu_decides_no_claim_about_speed(on_cpu):
    for workload in WORKLOADS:
        on_cpu.add("vanilla", workload, wall=10, step_ms=10.0)
        for setting, wall in (("ngram", 5.0), ("suffix", 20.0), ("suffix_cold", 20.0), ("full", 20.0)):
            on_cpu.add(setting, workload, wall=wall, drafts=300, drafted=900, accepted=500, step_ms=20.0)
    evidence = Evidence([on_cpu.bench])
    speed = [name for name, f in rules.RULES.items() if f.__doc__.startswith(("GPU only", "GPU decides"))]
    assert len(speed) > 15
    for claim in claims.load():
        for call in claim.rules:
            if call.rule in speed:
                assert {f.verdict for f in call.findings(evidence)} <= {"undecided"}, claim.id


def test_records_are_found_by_what_was_asked_for(on_cpu, cpu):
    on_cpu.add("ngram", drafts=1, drafted=7, accepted=1).add("ngram", repeat=1).add("ngram", "mix-ch", reuse=True)
    bench = on_cpu.bench
    assert len(bench.records("ngram")) == len(bench.records("ngram_g7")) == 2
    assert [r.cell.workload.name for r in bench.records("ngram", reused=True)] == ["mix-ch"]
    assert bench.records("ngram_g3") == bench.records("suffix_piecewise") == bench.records("no such setting") == []
    other = Bench(cpu.model_copy(update={"form": "raw"}), bench.store)
    assert other.records("ngram") == []


def test_a_lost_trace_is_no_error(on_gpu):
    on_gpu.add("vanilla", step_ms=1.0).add("ngram", drafts=300, drafted=900, accepted=500, step_ms=2.0)
    for path in on_gpu.store.folder.glob("*.trace.json.gz"):
        path.unlink()
    assert judge("C24", on_gpu) == []
    assert claims.ledger(Evidence([on_gpu.bench]))


# ---------------------------------------------------------------- rules on drafting: any machine


@pytest.mark.parametrize(("accepted", "verdict"), [(10, "supported"), (400, "refuted")])
def test_code_with_ngram(on_cpu, accepted, verdict):
    on_cpu.add("ngram", "code", drafts=300, drafted=2100, accepted=accepted)
    assert judge("C30", on_cpu) == [verdict]


@pytest.mark.parametrize(("chat", "verdict"), [(100, "refuted"), (600, "supported")])
def test_chat_against_sonnet(on_cpu, chat, verdict):
    on_cpu.add("ngram", "sonnet", drafts=300, drafted=2100, accepted=300)
    on_cpu.add("ngram", "chat", drafts=300, drafted=2100, accepted=chat)
    assert judge("C48", on_cpu) == [verdict]


def test_k_ratio_and_acceptance_ratio(on_cpu):
    on_cpu.add("ngram", "code", drafts=100, drafted=700, accepted=7)  # K 1.07, a 1 %
    on_cpu.add("suffix", "code", drafts=100, drafted=400, accepted=160)  # K 2.6, a 40 %
    assert judge("C36", on_cpu) == ["supported"]  # 2.43
    assert judge("C52", on_cpu) == ["supported"]  # 40 times
    on_cpu.add("ngram", "chat", drafts=100, drafted=700, accepted=200).add(
        "suffix", "chat", drafts=100, drafted=300, accepted=100
    )
    assert judge("C36", on_cpu) == ["refuted"]


def test_k_is_not_what_a_step_gains(on_cpu):
    on_cpu.add("ngram", output=1000, drafts=50, drafted=350, accepted=200)  # K 5, tokens per step 1.25
    assert judge("C26", on_cpu) == ["refuted"]


@pytest.mark.parametrize(("positions", "verdict"), [((50, 40, 36, 34), "supported"), ((90, 45, 20, 9), "refuted")])
def test_conditional_acceptance(on_cpu, positions, verdict):
    on_cpu.add("ngram", drafts=100, drafted=700, accepted=sum(positions), positions=positions)
    on_cpu.add("ngram", seed=1, drafts=100, drafted=700, accepted=sum(positions), positions=positions)
    assert judge("C29", on_cpu) == [verdict]


@pytest.mark.parametrize(("drafted", "verdict"), [(900, "refuted"), (600, "undecided")])
def test_suffix_limit(on_cpu, drafted, verdict):
    on_cpu.add("suffix", drafts=300, drafted=900, accepted=500)
    on_cpu.add("suffix_g12", drafts=300, drafted=drafted, accepted=drafted * 5 // 9)
    assert judge("C17", on_cpu) == [verdict]


@pytest.mark.parametrize(("accepted", "verdict"), [(100, "supported"), (400, "refuted")])
def test_long_drafts_and_short_lookups(on_cpu, accepted, verdict):
    on_cpu.add("ngram", drafts=100, drafted=700, accepted=300)
    on_cpu.add("ngram_min1", drafts=100, drafted=700, accepted=accepted)
    on_cpu.add("ngram_g12", drafts=100, drafted=1200, accepted=2 * accepted)
    assert judge("C82", on_cpu) == judge("C80", on_cpu)[:1] == [verdict]


@pytest.mark.parametrize(("warm", "verdict"), [(900, "refuted"), (500, "supported")])
def test_memory_of_other_requests(on_cpu, warm, verdict):
    for seed in (0, 1):
        on_cpu.add("suffix", seed=seed, drafts=300, drafted=900, accepted=500)
        on_cpu.add("suffix_warm", seed=seed, drafts=300, drafted=900, accepted=warm)
    assert judge("C15", on_cpu) == [verdict]


@pytest.mark.parametrize(("answered", "verdict"), [(900, "refuted"), (500, "supported")])
def test_mix_memory(on_cpu, answered, verdict):
    for seed in (0, 1):
        for setting in ("suffix", "suffix_cold"):
            for workload in ("sonnet", "chat", "code", "mix-ch"):
                on_cpu.add(setting, workload, seed=seed, drafts=300, drafted=900, accepted=500)
        on_cpu.add("suffix", "mix-ch", seed=seed, reuse=True, drafts=300, drafted=900, accepted=500)
        on_cpu.add("suffix_warm", "mix-ch", seed=seed, reuse=True, drafts=300, drafted=900, accepted=answered)
    gains = [rules.memory_gain(on_cpu.bench, "mix-ch", reused=reused).value for reused in (False, True)]
    assert gains == [pytest.approx(1.0), pytest.approx({900: 5.0, 500: 1.0}[answered])]  # (1000/100) / (1000/500)
    assert judge("C10", on_cpu) == [verdict]


def test_memory_gain_is_paired_by_prompt(on_cpu):
    on_cpu.add("suffix", drafts=300, drafted=900, accepted=400, drafted_per_step=(1,) * 100)
    on_cpu.add("suffix_warm", drafts=300, drafted=900, accepted=600, drafted_per_step=(1,) * 150)
    gain = rules.memory_gain(on_cpu.bench, reused=False, warm=True)
    assert gain == Estimate(pytest.approx(1.5), pytest.approx(1.5), pytest.approx(1.5), 4)  # 600 steps over 400


@pytest.mark.parametrize(("output", "verdict"), [((7, 8) * 30, "refuted"), ((1, 2) * 30, "undecided")])
def test_ngram_beyond_the_prompt(on_cpu, output, verdict):
    prompt = (1, 2, 1, 2, 1, 2)
    tokens = [prompt] * 4, [output] * 4
    on_cpu.add("ngram", drafts=40, drafted=80, accepted=40, drafted_per_step=(2,) * 10, tokens=tokens)
    assert judge("C14", on_cpu) == [verdict]


def test_where_accepted_drafts_come_from(on_cpu):
    loops = [tuple(range(100, 130))] * 4, [(5, 6, 7) * 10] * 4
    quotes = [tuple(range(100, 140))] * 4, [tuple(range(100, 140))] * 4
    on_cpu.add("vanilla", "code", tokens=loops).add("vanilla", "sonnet", tokens=quotes)
    assert judge("C53", on_cpu) == ["supported"]
    assert judge("C46", on_cpu) == ["supported"]
    assert "100 % [100, 100]" in claims.row("C46", Evidence([on_cpu.bench])).evidence


def test_what_the_engine_changes_by_itself(on_cpu):
    on_cpu.add("vanilla", resolved={"runner": "V2"}.items()).add("ngram", drafts=1, drafted=1)
    assert judge("C12", on_cpu) == ["refuted"]
    assert "runner V2 -> V1" in claims.row("C12", Evidence([on_cpu.bench])).evidence


@pytest.mark.parametrize(("version", "verdict"), [("0.32.0", "supported"), ("1.6.dev0+g858b6df7a", "undecided")])
def test_a_release_runs_suffix(on_cpu, version, verdict):
    on_cpu.add("suffix", drafts=5, drafted=9, accepted=2, resolved={"vllm_version": version}.items())
    assert judge("C01", on_cpu) == [verdict]
    assert judge("C71", on_cpu) == ["supported"]


# ---------------------------------------------------------------- rules on speed: GPUs only


def fill(maker, walls, **more):
    """walls[setting][workload]: wall time; vanilla takes 10 s everywhere."""
    for workload in sorted({w for by in walls.values() for w in by}):
        maker.add("vanilla", workload, wall=10.0, **more)
    for setting, by in walls.items():
        for workload, wall in by.items():
            maker.add(setting, workload, wall=wall, drafts=300, drafted=900, accepted=500, **more)


@pytest.mark.parametrize(("padded", "own", "any_"), [(5.0, "supported", "refuted"), (20.0, "supported", "supported")])
def test_small_models(on_gpu, padded, own, any_):
    fill(on_gpu, {"ngram": {"sonnet": 20.0}, "padded_ngram": {"sonnet": padded}})
    assert judge("C21", on_gpu) == [own]
    assert judge("C22", on_gpu) == [any_]


def test_a_large_model_says_nothing_about_small_ones(on_gpu):
    large = {"resolved": {"num_parameters": 14_000_000_000}.items()}
    fill(on_gpu, {"ngram": {"sonnet": 5.0}}, **large)
    assert judge("C21", on_gpu) == []


@pytest.mark.parametrize(("step_ms", "verdict"), [(1.3, "supported"), (2.0, "refuted")])
def test_step_cost(on_gpu, step_ms, verdict):
    on_gpu.add("vanilla", step_ms=1.0).add("ngram", drafts=300, drafted=900, accepted=500, step_ms=step_ms)
    assert judge("C24", on_gpu) == [verdict]
    assert list(rules._costs(on_gpu.bench, ["ngram"]).values()) == [pytest.approx(step_ms)]


def test_fewer_steps_and_slower(on_gpu):
    fill(on_gpu, {"ngram": {"code": 20.0, "sonnet": 5.0}})
    assert judge("C13", on_gpu) == judge("C23", on_gpu) == ["refuted"]
    assert judge("C83", on_gpu) == judge("C02", on_gpu) == ["supported"]
    assert judge("C64", on_gpu) == ["refuted"]


def test_ladder(on_gpu):
    walls = {
        "ngram": 8.0,
        "suffix": 6.0,
        "suffix_piecewise": 9.0,
        "suffix_full_and_piecewise": 6.0,
        "full": 6.0,
    }
    fill(on_gpu, {s: {"sonnet": w} for s, w in walls.items()})
    assert judge("C34", on_gpu) == ["refuted"]  # PIECEWISE is the slower step
    assert judge("C38", on_gpu) == ["refuted"]
    assert judge("C33", on_gpu) == ["refuted"]  # 25 % of 67 %
    assert judge("C35", on_gpu) == []  # ngram slows nothing down


def test_rescue(on_gpu):
    fill(on_gpu, {"ngram": {"code": 20.0}, "full": {"code": 5.0}})
    assert judge("C35", on_gpu) == ["supported"]


@pytest.mark.parametrize(("wall", "verdict"), [(5.0, "refuted"), (20.0, "supported")])
def test_best_draft_length(on_gpu, wall, verdict):
    fill(on_gpu, {"ngram": {"sonnet": 10.0}, "ngram_g3": {"sonnet": wall}})
    assert judge("C16", on_gpu) == [verdict]


def test_graphs(on_gpu):
    modes = ["FULL"] * 10 + ["PIECEWISE"] * 10
    on_gpu.add("vanilla", step_ms=1.0).add("suffix", drafts=300, drafted=900, accepted=500, step_ms=2.0, modes=modes)
    assert judge("C18", on_gpu) == ["refuted"]
    assert judge("C37", on_gpu) == ["supported"]


@pytest.mark.parametrize(("wall", "verdict"), [(10.2, "refuted"), (20.0, "supported")])
def test_one_setting_moves_vanilla(on_gpu, wall, verdict):
    on_gpu.add("vanilla", wall=10.0).add("vanilla_gmu80", wall=wall)
    on_gpu.add("vanilla_piecewise", wall=wall)
    assert judge("C84", on_gpu) == judge("C85", on_gpu) == [verdict]


@pytest.mark.parametrize(("small", "verdict"), [(3.0, "supported"), (1.2, "refuted")])
def test_step_cost_by_size(on_gpu, gpu, small, verdict):
    for name, cost in (("opt-125m", small), ("Qwen2.5-7B", 1.5)):
        shape = gpu.model_copy(update={"model": Model(source="shape", name=name)})
        grid = StepTime(draft_tokens=(0, 7), batch_sizes=(4,))
        maker = Maker(shape.model_copy(update={"step_time": grid}), on_gpu.store.folder, "NVIDIA H200")
        for setting, ms in (("vanilla", 1.0), ("walking", cost)):
            maker.add_step_times(setting, ms, gamma=7)
    assert judge("C54", on_gpu) == [verdict]


@pytest.mark.parametrize(("still", "verdict"), [(75.0, "refuted"), (98.0, "supported")])
def test_busy_share(on_gpu, still, verdict):
    on_gpu.add("vanilla", wall=10, busy=99.0, joules=100.0).add("null", wall=12, busy=still)
    on_gpu.add("suffix", wall=5, busy=70.0, joules=60.0, drafts=300, drafted=900, accepted=500)
    assert judge("C76", on_gpu) == [verdict]
    assert judge("C75", on_gpu) == judge("C78", on_gpu) == ["supported"]


def test_noise_floor_stands_between_a_ratio_and_a_gain(on_gpu):
    on_gpu.add("vanilla", wall=10.0).add("vanilla", wall=12.0, repeat=1)
    on_gpu.add("ngram", wall=9.5, drafts=300, drafted=900, accepted=500)
    assert judge("C21", on_gpu) == ["undecided"]


def test_a_noisy_batch_size_leaves_the_others_their_own_floor(on_gpu):
    own = on_gpu.profile.batch_sizes[0]
    for batch, again in ((own, 10.2), (256, 20.0)):
        on_gpu.add("vanilla", wall=10.0, batch=batch).add("vanilla", wall=again, repeat=1, batch=batch)
        on_gpu.add("ngram", wall=8.0, drafts=300, drafted=900, accepted=500, batch=batch)
    bench = on_gpu.bench
    assert bench.faster(bench.speedups(bench.records("ngram"))) == [("sonnet", own)]
    assert bench.noise_at(7) == max(bench.noise.values()) == pytest.approx(math.log(2))
    assert judge("C21", on_gpu) == ["refuted"]


def test_a_ratio_is_formed_within_a_round(on_gpu):
    on_gpu.add("vanilla", wall=10.0).add("ngram", wall=5.0, drafts=300, drafted=900, accepted=500, step_ms=1.0, day=2)
    assert on_gpu.bench.speedups(on_gpu.bench.records("ngram")) == {}
    assert judge("C21", on_gpu) == [] and rules._costs(on_gpu.bench, ["ngram"]) == {}


def test_k_explains_the_speedup(on_gpu):
    for i, workload in enumerate(WORKLOADS):
        on_gpu.add("vanilla", workload, wall=10.0)
        on_gpu.add("ngram", workload, wall=10 / (1 + i), drafts=100, drafted=700, accepted=100 * i)
    assert judge("C25", on_gpu) == ["supported"]


def test_reanalysis_names_no_profile():
    for claim in claims.load():
        if claim.kind == "reanalysis":
            assert set(claims.row(claim.id, Evidence([])).sources) <= {"published", "arithmetic"}
    assert reanalysis.published_count.__name__ not in rules.ON_RECORDS
