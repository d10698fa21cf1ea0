"""The command line: help that teaches, one-sentence errors, exit codes, plans, and the README's numbers."""

import json

import pytest

from lib import __main__ as cli
from lib import params, readme, sweep


def run(capsys, *arguments):
    code = cli.main(list(arguments))
    return code, *capsys.readouterr()


@pytest.mark.parametrize("command", ["reproduce", "publish", "snapshot", "status", "sweep", "readme", "recommend"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0 and len(capsys.readouterr().out) > 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "cpuu", "--dry-run"], ["cpuu", "cpu"]),
        (["sweep", "cpu", "--dry-run", "--only", "09"], ["--only", "09", "01"]),
        (["sweep", "cpu", "--dry-run", "--settings", "vanila"], ["--settings", "vanila", "vanilla"]),
        (["reproduce", "cpu", "--only", "99"], ["99", "01"]),
    ],
)
def test_errors_are_one_sentence_and_exit_2(arguments, words, capsys):
    code, _, err = run(capsys, *arguments)
    assert code == 2 and err.count("\n") == 1 and "Traceback" not in err
    assert [w for w in words if w not in err] == []


@pytest.mark.parametrize("profile", ["cpu", "h200", "h200-closed", "h200x2", "h100x8-llama70b", "own"])
def test_every_profile_has_a_plan(profile, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULATION_RUNS", str(tmp_path))  # nothing measured yet
    code, out, _ = run(capsys, "sweep", profile, "--dry-run", "--json")
    planned = json.loads(out)
    assert code == 0 and planned
    engine = params.load(profile).engine
    assert {e["num_gpus"] for e in planned} == {engine.tensor_parallel_size * engine.pipeline_parallel_size}


def test_a_plan_counts_each_cell_once():
    p = params.load("cpu")
    parts = sweep.collection(p)
    cells = sweep.choose(parts, None)
    ids = [c.cell_id for c in cells]
    assert len(ids) == len(set(ids)) == len({c.cell_id for part in parts.values() for c in part})


def test_settings_come_in_the_order_asked_and_repeats_last():
    p = params.load("h200")
    cells = sweep.choose(sweep.collection(p, ["01", "04"]), ["padded_ngram", "vanilla"])
    order = [(c.engine.repeat, c.setting) for c in cells]
    assert order == sorted(order, key=lambda o: (o[0], ["padded_ngram", "vanilla"].index(o[1])))


@pytest.mark.parametrize("path", readme.COMPUTED, ids=lambda path: path.name)
def test_computed_numbers_agree_with_the_records(path):
    assert readme.render(path) == path.read_text(encoding="utf-8"), "run python -m lib readme"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sweep", "cpu", "--dry-run", "--retry", "fail"), ["--retry", "'fail'", "failed, oom"]),
        (("sweep", "cpu", "--hosts", "8"), ["--hosts", "--dry-run"]),
        (("publish", "own"), ["profile", "'own'", "measured"]),
        (("reproduce", "own", "--mode", "replay"), ["profile", "'own'", "published"]),
    ],
)
def test_options_are_checked_before_anything_runs(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULATION_RUNS", str(tmp_path))
    code, out, err = run(capsys, *arguments)
    assert code == 2 and not out
    assert all(word in err for word in words) and err.count("\n") == 1
