"""Command line: `python -m lib COMMAND`. Every command works from the top folder without a path set by hand."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

try:
    import pandas as pd
    import typer

    from lib import notebooks, readme
    from lib.measure import corpus, engines, machine, plan, profiles, ray, requestlog, weights, workloads
    from lib.results import records, settings, table
except ModuleNotFoundError as missing:
    if missing.name and missing.name.partition(".")[0] == "lib":
        raise
    sys.exit(f"{missing.name} must be installed for this Python: use that of . .venv/bin/activate, made by make env")

# One sentence and exit code 2 for what the reader can mend.
EXPECTED = (
    settings.SettingError, machine.MachineError, engines.StoreBusy, corpus.CorpusError, ray.FanoutError,
    weights.ModelError, workloads.WorkloadError, table.Unreadable, notebooks.NotebookError,
)  # fmt: skip

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Should I switch speculation on? Measure vLLM engines, replay drafters, get an answer.",
    epilog="Exit codes: 0 all well, 1 something failed and is named, 2 an input or the store needs mending, 130 interrupted.",
)  # fmt: skip


class Mode(StrEnum):
    replay = "replay"
    measure = "measure"


ProfileName = Annotated[str, typer.Argument(metavar="PROFILE", help="a name in params/ or a .yaml file")]
ModeOption = Annotated[Mode, typer.Option(help="replay: committed records; measure: the run's own")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show the plan and stop")]
AsJson = Annotated[bool, typer.Option("--json", help="machine-readable")]


@contextlib.contextmanager
def _sentences(*further: type[Exception]) -> Iterator[None]:
    """What the reader can mend ends as one sentence."""
    try:
        yield
    except (*EXPECTED, *further) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("interrupted; what had been measured is stored, the same command goes on from there", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # of `| head`
        sys.stderr.close()
        raise typer.Exit(0) from None


def _tables(profile: profiles.Profile, mode: Mode) -> table.Tables:
    return table.read(profile.profile) if mode == Mode.replay else table.frames(table.all_of(plan.store_of(profile)))


@app.command()
def reproduce(
    profile: ProfileName,
    mode: ModeOption = Mode.measure,
    only: Annotated[str | None, typer.Option(help="notebook numbers, e.g. 01,02")] = None,
    save: Annotated[bool, typer.Option(help="take the executed outputs over into notebooks/")] = False,
) -> None:
    """Execute the notebooks with papermill, in order; print what each took."""
    with _sentences():
        if not notebooks.execute(profiles.load(profile), mode.value, only.split(",") if only else None, save):
            raise typer.Exit(1)


@app.command()
def sweep(
    profile: ProfileName,
    settings: Annotated[
        str | None, typer.Option(help="settings to measure, e.g. vanilla,ngram; default: the profile's")
    ] = None,
    retry: Annotated[
        str, typer.Option(help=f"measure failed runs again: failed, or some of {','.join(plan.FAILURES)}")
    ] = "",
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="ADDRESS", help="spread the engines over this Ray cluster; local: this machine's GPUs"
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure every run of a profile that is missing; the plan comes first, failures are named at the end."""
    with _sentences():
        p = profiles.load(profile)
        asked = plan.runs(p, settings.split(",") if settings else None)
        words = retry.split(",") if retry else []
        for word in words:
            if word not in ("failed", *plan.FAILURES):
                raise profiles.ProfileError(f"--retry must be among failed, {', '.join(plan.FAILURES)}, got {word!r}")
        again = ("interrupted", *(plan.FAILURES if "failed" in words else words))
        store = plan.store_of(p)
        groups = plan.missing(asked, store, again)
        past = table.read(p.profile).runs
        planned = plan.overview(groups, past)
        if as_json:
            typer.echo(planned.to_json(orient="records", indent=1))
        else:
            typer.echo(planned.to_string(index=False) if len(planned) else "nothing is missing")
            minutes = planned.minutes.sum(skipna=False)
            told = f"{minutes:.0f} minutes estimated" if minutes == minutes else "some of it like nothing measured yet"
            typer.echo(f"{len(groups)} engines, {planned.runs.sum()} runs of {len(asked)}; {told}")
        if dry_run:
            return
        store = (
            ray.run(asked, p, address=ray_address, retry=again) if ray_address else engines.run(asked, p, retry=again)
        )
        ended = [r for r in map(store.get, asked) if r is not None]
        if not as_json:
            typer.echo(plan.outcome(ended).to_string())
        failed = [r for r in ended if r.status != "ok"]
        typer.echo(f"{len(ended) - len(failed)} of {len(asked)} runs measured", err=as_json)
        for r in failed:
            typer.echo(
                f"{r.run.setting} {r.run.workload.name} at {r.run.concurrency}: {r.status}, {r.reason}", err=True
            )
        if failed:
            raise typer.Exit(1)


@app.command()
def publish(profile: ProfileName) -> None:
    """Merge a run's records into the tables in figures/data, where replay reads them."""
    with _sentences():
        p = profiles.load(profile)
        if not (count := table.publish(p.profile)):
            raise profiles.ProfileError(f"profile must be one that was measured (sweep it first), got {p.profile!r}")
        typer.echo(f"{count} runs of profile {p.profile} are in figures/data/{p.profile}")


@app.command()
def status(profile: ProfileName, mode: ModeOption = Mode.measure, as_json: AsJson = False) -> None:
    """What is held of a profile, by setting and status, and how much that is of what the profile asks for."""
    with _sentences():
        p = profiles.load(profile)
        runs = _tables(p, mode).runs
        counts = runs.groupby(["setting", "status"]).size().unstack(fill_value=0) if len(runs) else runs
        if as_json:
            typer.echo(json.dumps({name: row.to_dict() for name, row in counts.iterrows()}, indent=1))
            return
        asked = {r.plan_id for r in plan.runs(p)}
        own = int(runs[runs.status == "ok"].plan_id.isin(asked).sum()) if len(runs) else 0
        if len(runs):
            typer.echo(counts.to_string())
        typer.echo(f"{own} of the {len(asked)} runs that this profile asks for, {len(runs) - own} others")


@app.command()
def recommend(
    log: Annotated[Path, typer.Argument(help="JSON lines, one request each, in one of the forms of README; -: stdin")],
    model: Annotated[
        str | None, typer.Option(help="a measured one, or of a size between measured ones; default: Llama-3.1-8B")
    ] = None,
    concurrency: Annotated[str | None, typer.Option(help="requests in flight, e.g. 1,8,64")] = None,
    settings: Annotated[str | None, typer.Option(help="settings of the menu, e.g. ngram,suffix; default: all")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="a folder or hub id, for text logs; default: SmolLM2's")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="requests a second: the answer for this load")] = None,
    prompts: Annotated[Path | None, typer.Option(help="an OpenAI batch's input, where the log is its output")] = None,
    calibration: Annotated[str | None, typer.Option(help="price with the runs of `calibrate`, by its name")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which setting pays for your own requests: drafts replayed exactly, steps priced by measured runs on an H200."""
    from lib.answer import recommend as advice

    with _sentences(advice.AdviceError, requestlog.LogError):
        found = advice.answer(
            log, model=model, concurrency=_numbers(concurrency),
            settings=settings.split(",") if settings else None, tokenizer=tokenizer, rate=rate, prompts=prompts,
            **({"profiles": (calibration,)} if calibration else {}),
        )  # fmt: skip
        if as_json:
            parts = {n: json.loads(v.to_json(orient="records")) if isinstance(v, pd.DataFrame) else v
                     for n, v in found._asdict().items()}  # fmt: skip
            typer.echo(json.dumps(parts, indent=1))
            return
        typer.echo(f"{found.sentence}\n")
        typer.echo(
            (advice.overview(found.table) if rate is None else found.rate.round(2)).to_string(index=False, na_rep="")
        )
        for line in (*found.flags.values(), *found.notes):
            typer.echo(f"\n{line}")


@app.command()
def trial(
    log: Annotated[Path, typer.Argument(help="your requests, as `recommend` reads them")],
    model: Annotated[str, typer.Option(help="your architecture: a name in params/shapes, a config.json or a hub id")],
    settings: Annotated[str | None, typer.Option(help="settings to try; default: the two best predicted")] = None,
    concurrency: Annotated[str | None, typer.Option(help="requests in flight, e.g. 1,8,64")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="run the model itself: its outputs are its own")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="a folder or hub id, for text logs; default: SmolLM2's")] = None,
    base: Annotated[
        str | None, typer.Option(help="profile whose engine arguments to use; default: h200, or cpu")
    ] = None,
    calibration: Annotated[str | None, typer.Option(help="predict with the runs of `calibrate`, by its name")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure your log on your machine, without weights, and print predicted beside measured."""
    from lib.answer import recommend as advice
    from lib.answer import trial as trials

    with _sentences(advice.AdviceError, requestlog.LogError):
        planned = trials.plan_of(
            log, model=model, settings=settings.split(",") if settings else None, concurrency=_numbers(concurrency),
            real=weights, tokenizer=tokenizer, base=base, calibration=calibration,
        )  # fmt: skip
        _announce(planned.profile)
        if dry_run:
            return
        found = trials.outcome(trials.run(planned.profile), planned.predicted)
        told, named = advice.sentence(found.rename(columns={"ratio": "speedup"}))
        if as_json:
            typer.echo(json.dumps({"sentence": told, "table": json.loads(found.to_json(orient="records"))}, indent=1))
            return
        typer.echo(f"{told}\n\n{found.round(3).to_string(index=False, na_rep='')}")
        for line in (*(advice.flags(planned.profile.menu[n], model) for n in named), *planned.notes):
            typer.echo(f"\n{line}")


@app.command()
def calibrate(
    model: Annotated[str, typer.Option(help="your architecture: a name in params/shapes, a config.json or a hub id")],
    concurrency: Annotated[str | None, typer.Option(help="requests in flight, e.g. 1,8,64")] = None,
    base: Annotated[
        str | None, typer.Option(help="profile whose engine arguments to use; default: h200, or cpu")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Measure the step cost of your own machine for your architecture, so that `recommend --calibration` prices with it."""
    from lib.answer import recommend as advice
    from lib.answer import stepcost
    from lib.answer import trial as trials

    with _sentences(advice.AdviceError):
        p = trials.calibration_of(model, concurrency=_numbers(concurrency), base=base)
        _announce(p)
        if dry_run:
            return
        trials.run(p)
        (name,) = stepcost.models(profiles=(p.profile,))
        error = stepcost.cost(name, profiles=(p.profile,)).error
        typer.echo(f"texts and loads that the fit had not seen are predicted within {100 * error:.0f} %")
        typer.echo(f"now: python -m lib recommend LOG --calibration {p.profile}")


def _numbers(listed: str | None) -> list[int] | None:
    numbers = listed.split(",") if listed else []
    if not all(n.isdigit() and int(n) for n in numbers):
        raise profiles.ProfileError(f"--concurrency must be whole numbers from 1, e.g. 1,8,64, got {listed!r}")
    return [int(n) for n in numbers] or None


def _announce(p: profiles.Profile) -> None:
    """The plan of a profile that the command made, with minutes as runs of this model took before."""
    groups = plan.missing(plan.runs(p), plan.store_of(p))
    past = pd.concat([table.read(name).runs for name in ("h200", "h200-sizes")])
    planned = plan.overview(groups, past)
    typer.echo(planned.to_string(index=False) if len(planned) else "everything is measured already", err=True)


@app.command(name="readme")
def update_readme(check: Annotated[bool, typer.Option(help="only say whether it is up to date")] = False) -> None:
    """Compute the tables in README.md from the committed records again."""
    with _sentences():
        old, new = readme.PATH.read_text(encoding="utf-8"), readme.render()
        if old != new and check:
            typer.echo(f"{readme.PATH.name} differs from the records: run python -m lib readme")
            raise typer.Exit(1)
        if old != new:
            records.write_atomically(readme.PATH, new.encode())
            typer.echo(f"{readme.PATH.name} brought up to date")


def main() -> None:
    app(prog_name="python -m lib")


if __name__ == "__main__":
    main()
