"""Command line: `python -m lib COMMAND`. Every command works from the top folder without a path set by hand."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

try:
    from lib import corpus, engines, fanout, models, nursery, params, readme, records, sweep, table, workloads
except ModuleNotFoundError as missing:
    if missing.name and missing.name.partition(".")[0] == "lib":
        raise
    sys.exit(
        f"{missing.name} is not installed for this Python, allowed: that of . .venv/bin/activate, made by make env"
    )

NOTEBOOKS = records.ROOT / "notebooks"
# One sentence and exit code 2 for what the reader can mend.
EXPECTED = (
    params.ParamsError, engines.StoreBusy, corpus.CorpusError, fanout.FanoutError, models.ModelError,
    workloads.WorkloadError, table.Unreadable,
)  # fmt: skip


def _notebooks(only: Sequence[str] | None) -> list[Path]:
    found = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    if only:
        known = {path.name[:2]: path for path in found}
        for number in only:
            if number not in known:
                raise params.ParamsError(f"--only is {number!r}, allowed: {', '.join(known)}")
        found = [known[number] for number in only]
    return found


def tidy(notebook: dict) -> None:
    """Drop what differs between two equal runs: papermill's and the front end's time stamps and paths."""
    notebook.metadata.pop("papermill", None)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        tags = [tag for tag in cell.metadata.get("tags", []) if tag != "papermill-error-cell-tag"]
        if tags:
            cell.metadata["tags"] = tags


def _nursery(profile: params.Profile) -> contextlib.AbstractContextManager:
    """One import of vLLM for all engines of the CPU profile that are still to be started; nothing where none is."""
    cells = sweep.choose(sweep.collection(profile), None)
    if not profile.engine.in_process or not engines.plan(cells, engines.store(profile, "measure")):
        return contextlib.nullcontext()
    print("importing vLLM", flush=True)
    return nursery.open_nursery(engines.environment(cells[0], profile))


def reproduce(options: argparse.Namespace) -> int:
    """Execute the notebooks with papermill, in order; print what each took."""
    import nbformat
    import papermill

    profile = params.load(options.profile)
    chosen = _notebooks(options.only.split(",") if options.only else None)
    if options.mode == "replay" and not engines.store(profile).all():
        raise params.ParamsError(
            f"profile is {profile.profile!r}, allowed with --mode replay: one whose records were published "
            f"(python -m lib sweep {profile.profile}, then publish)"
        )
    folder = records.runs_folder(profile.profile) / options.mode
    folder.mkdir(parents=True, exist_ok=True)
    took: list[tuple[str, float, str]] = []
    with _nursery(profile) if options.mode == "measure" else contextlib.nullcontext():
        for number, path in enumerate(chosen, start=1):
            print(f"[{number}/{len(chosen)}] {path.name} ({options.mode}, profile {profile.profile})", flush=True)
            begin, outcome = time.monotonic(), "ok"
            out = folder / path.name
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    papermill.execute_notebook(
                        str(path), str(out), parameters={"profile": profile.profile, "mode": options.mode},
                        kernel_name="python3", progress_bar=sys.stderr.isatty(), log_output=options.mode == "measure",
                        cwd=str(NOTEBOOKS),
                    )  # fmt: skip
            except papermill.PapermillExecutionError as error:
                outcome = f"failed: {error.ename}: {error.evalue}"
                print(outcome, file=sys.stderr)
            took.append((path.name, time.monotonic() - begin, outcome))
            if options.save and outcome == "ok":
                _save(path, nbformat.read(out, as_version=4))
    print(f"\n{'notebook':34} {'seconds':>8}  outcome")
    for name, seconds, outcome in took:
        print(f"{name:34} {seconds:8.1f}  {outcome}")
    print(f"{'all':34} {sum(seconds for _, seconds, _ in took):8.1f}")
    return 0 if all(outcome == "ok" for *_, outcome in took) else 1


def _save(path: Path, executed) -> None:
    """Take over the outputs of a run into the notebook itself; the injected parameters stay out."""
    import nbformat
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    # where a kernel's printed text is cut into pieces is chance
    executed, _ = CoalesceStreamsPreprocessor(enabled=True).preprocess(executed, {})
    tidy(executed)
    executed.cells = [c for c in executed.cells if "injected-parameters" not in c.metadata.get("tags", [])]
    count = 0
    for cell in executed.cells:
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            for output in cell.outputs:
                if "execution_count" in output:
                    output["execution_count"] = count
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    nbformat.write(executed, path)


def publish(options: argparse.Namespace) -> int:
    """Merge the records of a run into the tables in figures/data, where replay reads them."""
    profile = params.load(options.profile)
    count = table.publish(profile.profile)
    if not count:
        raise params.ParamsError(f"profile is {profile.profile!r}, allowed: one that was measured (sweep it first)")
    print(f"{count} records of profile {profile.profile} are in figures/data/{profile.profile}")
    return 0


def update_readme(options: argparse.Namespace) -> int:
    """Compute the tables of README.md from the committed records again."""
    old = {path: path.read_text(encoding="utf-8") for path in readme.COMPUTED}
    new = {path: readme.render(path) for path in readme.COMPUTED}
    stale = [path for path in new if new[path] != old[path]]
    for path in stale:
        if options.check:
            print(f"{path.name} differs from the records: run python -m lib readme")
        else:
            records.write_atomically(path, new[path].encode())
            print(f"{path.name} brought up to date")
    return 1 if stale and options.check else 0


def snapshot(options: argparse.Namespace) -> int:
    """One row a record, raw counters and what was asked, as CSV or Parquet."""
    profile = params.load(options.profile)
    rows, target = table.frame(engines.store(profile, options.mode).all()), Path(options.out)
    rows.to_parquet(target) if target.suffix == ".parquet" else rows.to_csv(target, index=False)
    print(f"{len(rows)} records written to {target}")
    return 0


def status(options: argparse.Namespace) -> int:
    """What a profile's store holds, by setting and status."""
    profile = params.load(options.profile)
    held = engines.store(profile, options.mode).all()
    found: dict[str, dict[str, int]] = {}
    for record in held:
        counts = found.setdefault(record.cell.setting, {})
        counts[record.status] = counts.get(record.status, 0) + 1
    if options.json:
        print(json.dumps(found, indent=1, sort_keys=True))
    else:
        for name, counts in sorted(found.items()):
            print(f"{name:28} " + "  ".join(f"{n} {what}" for what, n in sorted(counts.items())))
        print(f"{len(held)} records")
    return 0


def _hosts(text: str) -> list[int]:
    """GPUs of each host, from `8,8`."""
    if not all(part.isdigit() and int(part) for part in text.split(",")):
        raise params.ParamsError(f"--hosts is {text!r}, allowed: the GPUs of each host, e.g. 8 or 8,8")
    return [int(part) for part in text.split(",")]


def run_sweep(options: argparse.Namespace) -> int:
    """Measure every engine cell of the collection; the plan comes first, failures are named at the end."""
    profile = params.load(options.profile)
    parts = options.only.split(",") if options.only else sweep.PARTS
    held = [r for source in (engines.store(profile, "measure"), *sweep.history(profile)) for r in source.all()]
    chosen = options.settings.split(",") if options.settings else None
    cells = sweep.choose(sweep.collection(profile, parts, held), chosen)
    failures = ("oom", "timeout", "crashed", "invalid")
    asked = options.retry.split(",") if options.retry else []
    for status in asked:
        if status not in ("failed", *failures):
            raise params.ParamsError(f"--retry holds {status!r}, allowed: failed, {', '.join(failures)}")
    retry = ("interrupted", *(failures if "failed" in asked else asked))
    if options.hosts and not options.dry_run:
        raise params.ParamsError(f"--hosts is {options.hosts!r}, allowed: only with --dry-run, which places the plan")
    hosts = _hosts(options.hosts) if options.hosts else None
    planned = sweep.plan(cells, engines.store(profile, "measure"), retry, sweep.history(profile))
    if options.json:
        print(json.dumps([engine._asdict() for engine in planned], indent=1))
    else:
        print(sweep.describe(planned), flush=True)
    if options.dry_run:
        if hosts and not options.json:
            print(fanout.describe(fanout.place(planned, hosts)))
        return 0
    ended = sweep.run(profile, cells, retry, options.ray)
    failed = [r for r in ended if r.status != "ok"]
    if not options.json:
        print(sweep.outcome(ended))
    print(
        f"{len(ended) - len(failed)} of {len(cells)} engine cells measured", file=sys.stderr if options.json else None
    )
    for r in failed:
        where = f"{r.cell.setting} {r.cell.workload.name} batch {r.cell.batch_size}"
        print(f"{where}: {r.status}, {r.reason}", file=sys.stderr)
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m lib",
        description="Should I switch speculation on? Measure vLLM engines, replay drafters, get an answer.",
        epilog="Exit codes: 0 all well, 1 something failed and is named, 2 an input or the store needs mending, 130 interrupted.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, function, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text, description=function.__doc__)
        sub.set_defaults(function=function)
        return sub

    def with_profile(sub: argparse.ArgumentParser, mode: str | None = None) -> argparse.ArgumentParser:
        sub.add_argument("profile", help="a name in params/ or a .yaml file")
        if mode:
            sub.add_argument("--mode", choices=("replay", "measure"), default=mode,
                             help=f"replay: committed records; measure: the run's own (default {mode})")  # fmt: skip
        return sub

    sub = with_profile(add("reproduce", reproduce, "execute the notebooks with papermill"), "measure")
    sub.add_argument("--only", help="notebook numbers, e.g. 01,02")
    sub.add_argument("--save", action="store_true", help="take the executed outputs over into notebooks/")
    with_profile(add("publish", publish, "merge a run's records into figures/data"))
    sub = with_profile(add("snapshot", snapshot, "write the records as one CSV or Parquet table"), "replay")
    sub.add_argument("--out", required=True, help="a .csv or .parquet file")
    sub = with_profile(add("sweep", run_sweep, "measure every engine cell of a profile"))
    sub.add_argument("--only", help="notebook numbers, e.g. 01,05")
    sub.add_argument("--settings", help="settings of the ladder, in this order, e.g. vanilla,ngram")
    sub.add_argument("--retry", help="measure failed cells again: failed, or some of oom,timeout,crashed,invalid")
    sub.add_argument(
        "--ray", metavar="ADDRESS", help="spread the engines over this Ray cluster; local: this machine's GPUs"
    )
    sub.add_argument("--dry-run", action="store_true", help="show the plan and stop")
    sub.add_argument("--hosts", help="with --dry-run: place the plan on hosts of so many GPUs, e.g. 8 or 8,8")
    sub.add_argument("--json", action="store_true", help="the plan as JSON")
    sub = add("readme", update_readme, "compute the tables in README.md")
    sub.add_argument("--check", action="store_true", help="only say whether it is up to date")
    sub = with_profile(add("status", status, "what a profile's store holds"), "measure")
    sub.add_argument("--json", action="store_true", help="machine-readable")
    recommend = commands.add_parser("recommend", help="an answer for your own request log", add_help=False)
    recommend.set_defaults(function=None)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["recommend"]:  # its own parser teaches it
        from lib import recommend

        return recommend.main(arguments[1:])
    options = parser().parse_args(arguments)
    try:
        return options.function(options)
    except EXPECTED as error:
        print(f"{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what had been measured is stored, the same command goes on from there", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
