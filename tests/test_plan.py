"""The plan of a profile: which runs, in which order, what of them is missing; settings are data."""

import json

import made_up_records as made_up
import pytest

from lib import measure, results
from lib.measure import engines, machine, plan, profiles
from lib.results import records, settings, table
from lib.results.records import Provenance, Store
from lib.results.run import Engine, Run, Workload, engine_key

CPU = {"settings": ["vanilla", "ngram"], "repeats": {"vanilla": 1}, "workloads": ["chat"], "seeds": [0]}


def cpu(**changes) -> profiles.Profile:
    return profiles.load("cpu", CPU | changes)


# ---- which runs ----


def test_a_plan_is_the_product_of_what_is_asked():
    p = cpu(workloads=["chat", "code"], concurrency=[8, 1], seeds={8: [0], 1: [1, 2]}, num_prompts={8: 8, 1: 2})
    runs = plan.runs(p)
    assert len(runs) == len({r.plan_id for r in runs}) == 2 * 2 * (1 + 2)
    asked = {(r.concurrency, r.workload.seed, r.workload.num_prompts) for r in runs}
    assert asked == {(8, 0, 8), (1, 1, 2), (1, 2, 2)}
    assert {r.setting for r in plan.runs(p, ["ngram"])} == {"ngram"}


def test_repeats_are_engines_of_their_own_and_come_last():
    p = cpu(repeats={"vanilla": 3, "ngram": 2})
    assert [(r.setting, r.engine.repeat) for r in plan.runs(p)] == [
        ("vanilla", 0), ("ngram", 0), ("vanilla", 1), ("ngram", 1), ("vanilla", 2),
    ]  # fmt: skip
    assert len({engine_key(r) for r in plan.runs(p)}) == 5


def test_every_model_gets_every_setting():
    models = [{"source": "dummy", "name": name} for name in ("opt-125m", "SmolLM2-135M")]
    runs = plan.runs(cpu(model=models))
    assert [(r.engine.model.name, r.setting) for r in runs] == [
        (m["name"], s) for m in models for s in ("vanilla", "ngram")
    ]


def test_a_setting_s_arguments_stand_over_the_profile_s():
    p = cpu(engine={"max_num_seqs": 4}, concurrency=[4],
            settings=[{"mine": {"extends": "ngram", "max_num_seqs": 6, "env": {"A": "1"}}}])  # fmt: skip
    (run,) = plan.runs(p)
    assert run.engine.arguments["max_num_seqs"] == 6 and run.engine.arguments["max_model_len"] == 1024
    assert run.engine.env["A"] == "1" and "VLLM_CPU_KVCACHE_SPACE" in run.engine.env
    assert run.engine.speculative.prompt_lookup_max == 5


def test_a_setting_that_is_another_on_this_engine_is_left_out():
    names = ["vanilla", "ngram", "ngram_full", "suffix_cold", "study"]
    assert [r.setting for r in plan.runs(cpu(settings=names))] == ["vanilla", "ngram", "suffix_cold"]  # no graphs here
    gpu = plan.runs(profiles.load("h200", {"settings": names}), names)
    assert {r.setting for r in gpu} == set(names)
    (full,) = {engine_key(r): r.engine for r in gpu if r.setting == "ngram_full"}.values()
    assert full.arguments["compilation_config"] == {"cudagraph_mode": "FULL"}


def test_a_name_is_no_part_of_what_is_asked():
    assert made_up.run("a").plan_id == made_up.run("b").plan_id
    others = (made_up.run(output_tokens=11), made_up.run(seed=1), made_up.run(speculative=made_up.NGRAM))
    assert len({r.plan_id for r in (made_up.run(), *others)}) == 4


# ---- what is missing ----


def test_what_is_held_is_not_missing_and_failures_are_on_request(tmp_path):
    asked = plan.runs(cpu(repeats={"vanilla": 2}))
    store = Store(tmp_path)
    assert [len(g) for g in plan.missing(asked, store)] == [1, 1, 1]
    store.save(made_up.record(asked[0]))
    store.save(made_up.record(asked[1], status="oom", counters=None))
    store.save(made_up.record(asked[2], status="interrupted", counters=None))
    assert plan.missing(asked, store) == [[asked[2]]]
    assert plan.missing(asked, store, retry=("oom",)) == [[asked[1]]]


def test_a_warm_cache_follows_its_cold_run_on_the_same_engine(tmp_path):
    asked = plan.runs(cpu(settings=["suffix_warm", "suffix_cold"], workloads=["chat", "code"]))
    (group,) = plan.missing(asked, Store(tmp_path))
    assert [(r.suffix_cache, r.workload.name) for r in group] == [
        ("cold", "chat"), ("cold", "code"), ("warm", "chat"), ("warm", "code"),
    ]  # fmt: skip


def test_minutes_are_estimated_from_runs_of_the_same_model():
    asked = [made_up.run(seed=i) for i in range(3)]
    past = [made_up.record(made_up.run(seed=9), wall_s=40.0, engine_start_s=60.0)]
    held = table.frames((r, None) for r in past).runs
    (row,) = plan.overview([asked], held).itertuples()
    assert (row.setting, row.runs, row.gpus, row.minutes) == ("vanilla", 3, 1, 3.0)  # 60 s and three times 40 s
    assert plan.overview([asked], table.frames([]).runs).minutes.isna().all()


def test_the_table_at_the_end_of_a_sweep():
    good = made_up.record(made_up.run("ngram"), wall_s=30.0)
    failed = made_up.record(made_up.run("ngram", seed=1), status="oom", wall_s=None, counters=None)
    assert plan.outcome([good, failed]).reset_index().values.tolist() == [["SmolLM2-135M-Instruct", "ngram", 1, 1, 0.5]]


# ---- settings are data ----


OWN = {"mine": {"extends": "ngram", "label": "my ngram", "color": "#123456",
                "speculative_config": {"num_speculative_tokens": 2}}}  # fmt: skip
NAMES = ["vanilla", "mine"]


@pytest.fixture(params=["profile", "menu"])
def own(request, tmp_path, monkeypatch) -> profiles.Profile:
    """A profile with a setting of one's own, defined there or in settings.yaml."""
    monkeypatch.setattr(settings, "_shown", {})
    if request.param == "profile":
        return measure.profile({"profile": "cpu", **CPU, "settings": ["vanilla", OWN]})
    (file := tmp_path / "settings.yaml").write_text(settings.PATH.read_text() + f"\n{json.dumps(OWN)[1:-1]}\n")
    monkeypatch.setattr(settings, "_definitions", lambda: settings.read_yaml(file))
    return measure.profile({"profile": "cpu", **CPU, "settings": NAMES})


def test_a_setting_of_one_s_own_is_known_everywhere(own):
    asked = plan.runs(own)
    assert [r.setting for r in asked] == NAMES and asked[1].engine.speculative.num_speculative_tokens == 2
    assert asked == plan.runs(cpu(settings=["vanilla", OWN]))
    assert (results.label("mine"), results.color("mine")) == ("my ngram", "#123456")
    when = Provenance(measured="2026-01-01T00:00:00Z", session="s")
    held = [made_up.record(r, wall_s=w, provenance=when) for r, w in zip(asked, (10.0, 5.0), strict=True)]
    assert results.compare(table.frames((r, None) for r in held).runs, "mine").ratio.tolist() == [2.0]


def test_an_unknown_setting_is_shown_by_its_name():
    assert (results.label("no such"), results.color("no such")) == ("no such", settings.GREY)


def test_extends_takes_over_all_but_the_label_and_merges_mappings():
    made = settings.resolve({
        "a": {"label": "A", "color": "#111111", "speculative_config": {"method": "ngram", "x": 1}, "env": {"E": "1"}},
        "b": {"extends": "a", "speculative_config": {"x": 2}},
        "c": {"extends": "b", "label": "C", "env": {"F": "2"}},
    })  # fmt: skip
    assert (made["b"].label, made["c"].label, made["c"].color) == ("b", "C", "#111111")
    assert made["c"].arguments == {"speculative_config": {"method": "ngram", "x": 2}}
    assert made["a"].env == {"E": "1"} and made["c"].env == {"E": "1", "F": "2"}


@pytest.mark.parametrize(
    ("definitions", "words"),
    [
        ({"a": {"extends": "b"}, "b": {"extends": "a"}}, ["settings.", ".extends", "extends itself"]),
        ({"a": {"extends": "a"}}, ["settings.a.extends", "extends itself"]),
        ({"ngram": {}, "a": {"extends": "ngrm"}}, ["settings.a.extends", "did you mean 'ngram'"]),
        ({"a": {"suffix_cache": "hot"}}, ["settings.a.suffix_cache", "'hot'"]),
        ({"a": {"env": {"A": 1}}}, ["settings.a.env.A", "got 1"]),
        ({"a": 3}, ["settings.a", "mapping", "got 3"]),
    ],
)
def test_definitions_that_cannot_be_are_one_sentence(definitions, words):
    with pytest.raises(settings.SettingError) as error:
        settings.resolve(definitions)
    assert "\n" not in str(error.value) and [w for w in words if w not in str(error.value)] == []


def one(**arguments) -> Run:
    workload = Workload(name="chat", num_prompts=1, input_tokens=8)
    return Run(setting="mine", engine=Engine(arguments=arguments), workload=workload, concurrency=1, output_tokens=8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_num_seq": 8}, ["settings.mine.max_num_seq ", "did you mean 'max_num_seqs'"]),
        (
            {"speculative_config": {"method": "ngrm", "num_speculative_tokens": 3}},
            ["settings.mine.speculative_config.method", "did you mean 'ngram'"],
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_token": 3}},
            ["settings.mine.speculative_config.num_speculative_token ", "did you mean 'num_speculative_tokens'"],
        ),
        ({"compilation_config": {"cudagraph_mod": "FULL"}}, ["compilation_config.cudagraph_mod ", "'cudagraph_mode'"]),
    ],
)
def test_what_vllm_does_not_know_is_refused_before_an_engine_starts(arguments, words):
    with pytest.raises(settings.SettingError) as error:
        machine.check([one(), one(**arguments)])
    assert "\n" not in str(error.value) and [w for w in words if w not in str(error.value)] == []


@pytest.mark.parametrize("profile", ["cpu", "h200", "h200-sizes", "h200x2", "own"])
def test_the_committed_settings_are_vllm_s(profile, monkeypatch):
    monkeypatch.setattr(machine, "count_gpus", lambda: 8)
    p = profiles.load(profile)
    machine.check(plan.runs(p, p.menu))


def test_machine_checks_name_what_is_missing(monkeypatch):
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    monkeypatch.setattr(machine, "count_cpus", lambda: 2)
    with pytest.raises(machine.MachineError, match=r"tensor_parallel_size.*present \(2\), got 4"):
        machine.check([one(tensor_parallel_size=4)])
    there = machine.importlib.util.find_spec
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda n: None if n == "arctic_inference" else there(n))
    with pytest.raises(machine.MachineError, match="arctic-inference"):
        machine.check([one(speculative_config={"method": "suffix", "num_speculative_tokens": 8})])
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(machine.MachineError, match="replay where vLLM is not installed"):
        machine.check([one()])


def test_a_log_s_content_is_part_of_what_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "ROOT", tmp_path)
    monkeypatch.setattr(records, "ROOT", tmp_path)
    ids = []
    for content in ("a", "a", "b"):
        (tmp_path / "log.jsonl").write_text(content)
        model = {"source": "parrot", "name": "SmolLM2-135M"}
        p = cpu(model=model, answers="recorded", workloads=["jsonl"], log="log.jsonl", settings=["vanilla"])
        ids.append(plan.runs(p)[0].plan_id)
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(("size", "said"), [(6, True), (24, False), (None, False)])
def test_a_largest_graph_given_in_sequences_is_named_before_engines_start(size, said, capsys):
    """6 requests of 1 + 3 tokens are 24 in a step."""
    p = profiles.validate({
        "profile": "x", "concurrency": [6], "settings": ["ngram_3"], "workloads": ["chat"],
        "engine": {"max_num_seqs": 6} | ({"max_cudagraph_capture_size": size} if size else {}),
    }, "x")  # fmt: skip
    engines.announce([plan.runs(p)])
    assert (
        "verifies up to 24 tokens, more than max_cudagraph_capture_size (6, in tokens)" in capsys.readouterr().err
    ) == said
