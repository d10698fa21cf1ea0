"""What a notebook gets: the good runs of what its profile asks for, from committed tables or from this machine's."""

import pytest
from made_up_records import record, trace

from lib import measure
from lib.measure import engines, plan, profiles
from lib.results import settings, table
from lib.results.records import Store

ASKED = {"profile": "cpu", "settings": ["vanilla", "ngram"], "repeats": {"vanilla": 1}, "workloads": ["chat", "code"]}


@pytest.fixture
def p(tmp_path, monkeypatch) -> profiles.Profile:
    """A profile of eight runs, of which nothing is measured."""
    monkeypatch.setenv("SPECULATION_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(table, "data_folder", lambda profile: tmp_path / "data" / profile)
    monkeypatch.setattr(settings, "_shown", {})
    return measure.profile(ASKED)


def measured(p, runs, **changes) -> None:
    store = Store(plan.store_of(p).folder)
    for run in runs:
        store.save(record(run, **changes), None if changes else trace([1], [1]))


def test_replay_gives_the_good_runs_that_are_asked_for(p, capsys):
    runs = plan.runs(p)
    measured(p, runs)
    measured(p, runs[:1], status="oom", reason="out of memory", counters=None, requests=())
    table.publish("cpu")
    got = measure.collect(p, "replay", settings=["vanilla"])
    own = [r for r in runs if r.setting == "vanilla"][1:]
    assert set(got.runs.plan_id) == {r.plan_id for r in own} and set(got.runs.status) == {"ok"}
    assert set(got.requests.run_id) == set(got.steps.run_id) == set(got.runs.run_id)
    said = capsys.readouterr().out.splitlines()
    assert "failed: vanilla chat at 8: oom, out of memory" in said
    assert said[-1] == "cpu: 3 of 4 runs; settings vanilla"


def test_runs_bear_the_names_that_the_profile_asks_by(p):
    measured(p, plan.runs(p))
    table.publish("cpu")
    renamed = measure.profile(
        {**ASKED, "settings": [{"mine": {"extends": "ngram", "label": "my ngram"}}], "repeats": {}}
    )
    got = measure.collect(renamed, "replay").runs
    assert set(got.setting) == {"mine"} and len(got) == 4


def test_a_profile_without_committed_runs_fails_in_replay(p):
    with pytest.raises(
        profiles.ProfileError, match="profile must be one with committed runs in mode replay .* got 'cpu'"
    ):
        measure.collect(p)


def test_what_there_is_instead_is_named(p, capsys):
    measured(p, plan.runs(p, ["ngram"]))
    table.publish("cpu")
    assert measure.collect(p, settings=["vanilla"]).runs.empty
    said = capsys.readouterr().out
    assert "no records" in said and "ngram" in said and "chat, code" in said


def test_measure_runs_what_is_missing_first(p, monkeypatch):
    asked = []
    monkeypatch.setattr(engines, "run", lambda runs, p: (asked.extend(runs), measured(p, runs)))
    got = measure.collect(p, "measure", settings=["ngram"])
    assert asked == plan.runs(p, ["ngram"]) and set(got.runs.plan_id) == {r.plan_id for r in asked}
    assert not table.is_published("cpu")
