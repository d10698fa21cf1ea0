"""The command line: help that teaches, one-sentence errors, exit codes, plans, publishing, and the README's numbers."""

import json

import pytest
from made_up_records import record, trace
from typer.testing import CliRunner

from lib import __main__ as cli
from lib import readme
from lib.measure import plan, profiles
from lib.results import table
from lib.results.records import Store

COMMANDS = ["reproduce", "sweep", "publish", "status", "readme"]


def run(*arguments: str):
    result = CliRunner().invoke(cli.app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty place for runs and published tables."""
    monkeypatch.setenv("SPECULATION_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(table, "data_folder", lambda profile: tmp_path / "data" / profile)
    return Store(tmp_path / "runs" / "cpu" / "records")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    result = run(command, "--help")
    assert result.exit_code == 0 and len(result.stdout) > 200


def test_the_help_lists_every_command():
    told = run("--help").stdout
    assert [c for c in COMMANDS if c not in told] == [] and "130 interrupted" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sweep", "cpuu", "--dry-run"), ["'cpuu'", "did you mean 'cpu'"]),
        (("sweep", "cpu", "--dry-run", "--settings", "vanila"), ["'vanila'", "did you mean 'vanilla'"]),
        (("sweep", "cpu", "--dry-run", "--retry", "fail"), ["--retry", "failed, oom", "'fail'"]),
        (("reproduce", "cpu", "--only", "99"), ["--only", "01", "'99'"]),
        (("reproduce", "own", "--mode", "replay"), ["profile", "published", "'own'"]),
        (("publish", "own"), ["profile", "measured", "'own'"]),
        (("status", "no_such_profile"), ["'no_such_profile'"]),
        (("status", "settings"), ["settings.yaml", "profile must be given"]),
    ],
)
def test_errors_are_one_sentence_and_exit_2(arguments, words, home):
    result = run(*arguments)
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    assert [w for w in words if w not in result.stderr] == []


@pytest.mark.parametrize("profile", ["cpu", "h200", "h200-sizes", "h100x8-llama70b", "own"])
def test_every_profile_has_a_plan(profile, home):
    result = run("sweep", profile, "--dry-run", "--json")
    planned = json.loads(result.stdout)
    p = profiles.load(profile)
    assert result.exit_code == 0 and sum(e["runs"] for e in planned) == len(plan.runs(p))
    assert {e["gpus"] for e in planned} == {p.engine.get("tensor_parallel_size", 1)}
    assert {e["setting"] for e in planned} <= set(p.settings)


def test_a_plan_lacks_what_is_held(home):
    p = profiles.load("cpu")
    first = plan.runs(p)[0]
    home.save(record(first))
    planned = json.loads(run("sweep", "cpu", "--dry-run", "--json").stdout)
    assert sum(e["runs"] for e in planned) == len(plan.runs(p)) - 1
    told = run("status", "cpu").stdout
    assert "vanilla" in told and f"1 of the {len(plan.runs(p))} runs" in told
    assert json.loads(run("status", "cpu", "--json").stdout) == {"vanilla": {"ok": 1}}


def test_publish_changes_nothing_over_a_damaged_table(home, tmp_path):
    home.save(record(plan.runs(profiles.load("cpu"))[0]), trace([1], [1]))
    run("publish", "cpu")
    folder = tmp_path / "data" / "cpu"
    (folder / "steps.parquet").write_bytes(b"PAR1")
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    result = run("publish", "cpu")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "steps.parquet is skipped" in result.stderr
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before


@pytest.mark.parametrize("path", readme.COMPUTED, ids=lambda path: path.name)
def test_computed_numbers_agree_with_the_records(path):
    assert readme.render(path) == path.read_text(encoding="utf-8"), "run python -m lib readme"


def test_readme_check_says_whether_it_is_up_to_date(tmp_path, monkeypatch):
    stale = tmp_path / "README.md"
    stale.write_text("old")
    monkeypatch.setattr(readme, "PATH", stale)
    monkeypatch.setattr(readme, "render", lambda: "new")
    assert run("readme", "--check").exit_code == 1 and stale.read_text() == "old"
    assert run("readme").exit_code == 0 and stale.read_text() == "new"
    assert run("readme", "--check").exit_code == 0


def test_an_interrupt_says_that_nothing_is_lost(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(profiles, "load", interrupted)
    result = run("status", "cpu")
    assert result.exit_code == 130 and result.stderr.count("\n") == 1 and "stored" in result.stderr
