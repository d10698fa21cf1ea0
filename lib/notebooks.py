"""Executes the notebooks with papermill, and takes their outputs over."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
import papermill
import psutil

from lib.measure import engines, forkserver, plan
from lib.measure.profiles import Profile
from lib.results import records, table

FOLDER = records.ROOT / "notebooks"
SILENT_S = 60.0  # a kernel that is stopped for so long is ended


class NotebookError(ValueError):
    """One sentence: what cannot be executed."""


def find(only: Sequence[str] | None = None) -> list[Path]:
    """All notebooks, or those of some numbers, in order. Raises NotebookError."""
    known = {path.name[:2]: path for path in sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))}
    for number in only or ():
        if number not in known:
            raise NotebookError(f"--only must be among {', '.join(known)}, got {number!r}")
    return [known[number] for number in only or known]


def execute(p: Profile, mode: str, only: Sequence[str] | None = None, save: bool = False) -> bool:
    """Run the notebooks; prints what each took, goes on after a failed one. Whether all ended well. Raises NotebookError."""
    chosen = find(only)
    if mode == "replay" and not table.is_published(p.profile):
        raise NotebookError(f"profile must be one whose records were published with --mode replay, got {p.profile!r}")
    folder = records.runs_folder(p.profile) / mode
    folder.mkdir(parents=True, exist_ok=True)
    took: list[tuple[str, float, str]] = []
    with _one_import_of_vllm(p) if mode == "measure" else contextlib.nullcontext():
        for number, path in enumerate(chosen, start=1):
            print(f"[{number}/{len(chosen)}] {path.name} ({mode}, profile {p.profile})", flush=True)
            begin, out = time.monotonic(), folder / path.name
            outcome = _execute(path, out, p, mode)
            took.append((path.name, time.monotonic() - begin, outcome))
            if save and outcome == "ok":
                _save(path, nbformat.read(out, as_version=4))
    print(f"\n{'notebook':34} {'seconds':>8}  outcome")
    for name, seconds, outcome in took:
        print(f"{name:34} {seconds:8.1f}  {outcome}")
    print(f"{'all':34} {sum(seconds for _, seconds, _ in took):8.1f}")
    return all(outcome == "ok" for *_, outcome in took)


@contextlib.contextmanager
def _stopped_kernels_end() -> Iterator[None]:
    """Kernels of ours without a heartbeat (SIGSTOP, a paused container) are killed: papermill would wait for ever."""
    over = threading.Event()

    def watch() -> None:
        since: dict[psutil.Process, float] = {}
        while not over.wait(SILENT_S / 20):
            stopped = [c for c in psutil.Process().children() if c.is_running() and c.status() == psutil.STATUS_STOPPED]
            since = {child: since.get(child, time.monotonic()) for child in stopped}
            for child in (c for c, begin in since.items() if time.monotonic() - begin > SILENT_S):
                child.kill()

    threading.Thread(target=watch, name="watch-kernels", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _execute(path: Path, out: Path, p: Profile, mode: str) -> str:
    try:
        with warnings.catch_warnings(), _stopped_kernels_end():
            warnings.simplefilter("ignore")
            papermill.execute_notebook(
                str(path), str(out), parameters={"profile": p.profile, "mode": mode}, kernel_name="python3",
                progress_bar=sys.stderr.isatty(), log_output=mode == "measure", cwd=str(FOLDER),
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],  # of TCP, of a stop: nothing a reader can act on
            )  # fmt: skip
    except papermill.PapermillExecutionError as error:
        outcome = f"failed: {error.ename}: {error.evalue}"
    except Exception as error:  # a kernel that was killed; the other notebooks go on
        outcome = f"failed: {type(error).__name__}: {error}".splitlines()[0]
    else:
        return "ok"
    print(outcome, file=sys.stderr)
    return outcome


def _one_import_of_vllm(p: Profile) -> contextlib.AbstractContextManager:
    """A fork server for the CPU profile's engines that are still to be started; nothing where none is."""
    asked = plan.runs(p)
    if not asked[0].engine.in_process or not plan.missing(asked, plan.store_of(p)):
        return contextlib.nullcontext()
    print("importing vLLM", flush=True)
    return forkserver.open_fork_server(engines.environment(asked[0], p))


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Drop what differs between two equal runs: papermill's and the front end's time stamps and paths."""
    notebook.metadata.pop("papermill", None)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if tags := [tag for tag in cell.metadata.get("tags", []) if tag != "papermill-error-cell-tag"]:
            cell.metadata["tags"] = tags


def _save(path: Path, executed: nbformat.NotebookNode) -> None:
    """Take over the outputs of a run into the notebook itself; the injected parameters stay out."""
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    # where a kernel's printed text is cut into pieces is chance
    executed, _ = CoalesceStreamsPreprocessor(enabled=True).preprocess(executed, {})
    tidy(executed)
    executed.cells = [c for c in executed.cells if "injected-parameters" not in c.metadata.get("tags", [])]
    for count, cell in enumerate((c for c in executed.cells if c.cell_type == "code"), start=1):
        cell.execution_count = count
        cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output["execution_count"] = count
    nbformat.write(executed, path)
