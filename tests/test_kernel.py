"""Kernels: the stop button ends the engine, records what was under way and the kernel goes on; a killed or stopped one
costs its own notebook only."""

import os
import time
from pathlib import Path

import nbformat
import psutil
import pytest
import standin_sweep
from jupyter_client.manager import start_new_kernel

from lib import notebooks
from lib.measure import profiles
from lib.results import records

ROOT = Path(__file__).parents[1]
RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import standin_sweep
from lib.measure import engines
engines.run(standin_sweep.runs(1, 2, output_tokens=900), standin_sweep.profile(), progress=False, folder=Path({folder!r}))
"""


def test_the_stop_button_leaves_no_engine(tmp_path, monkeypatch):
    standin_sweep.use(monkeypatch, tmp_path / "cache", step_s=0.05)
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT / "notebooks"), env=dict(os.environ))
    try:
        kernel = psutil.Process(manager.provisioner.pid)
        asked = client.execute(RUN.format(tests=str(ROOT / "tests"), folder=str(tmp_path / "run")))
        log = tmp_path / "run" / "logs"
        end = time.monotonic() + 60
        while not (log.exists() and kernel.children() and list((tmp_path / "run" / "scratch").glob("engine-*"))):
            assert time.monotonic() < end, "no engine was started"
            time.sleep(0.1)
        engine = kernel.children()
        time.sleep(3)  # past the start: the first run is under way
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=30)
        while reply["parent_header"].get("msg_id") != asked:
            reply = client.get_shell_msg(timeout=30)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        _, alive = psutil.wait_procs(engine, timeout=20)
        assert not alive, "an engine outlived the stop button"
        (held,) = records.Store(tmp_path / "run" / "records").all()
        assert held.status == "interrupted"
        # for a moment after an error the kernel aborts what it is asked
        while client.execute("1 + 1", reply=True, timeout=30)["content"]["status"] != "ok":
            assert time.monotonic() < end + 60, "the kernel does not go on"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("end", ["SIGKILL", "SIGSTOP"])
def test_a_kernel_that_dies_or_falls_silent_costs_its_own_notebook_only(end, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPECULATION_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    monkeypatch.setattr(notebooks, "SILENT_S", 2.0)
    for name, source in (("00_bad", f"import os, signal; os.kill(os.getpid(), signal.{end})"), ("01_good", "1 + 1")):
        cells = [nbformat.v4.new_code_cell("mode = None\nprofile = None", metadata={"tags": ["parameters"]})]
        notebook = nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell(source)])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    assert not notebooks.execute(profiles.load("cpu"), "replay")
    bad, good = capsys.readouterr().out.splitlines()[-3:-1]
    assert bad.startswith("00_bad") and "failed: DeadKernelError" in bad
    assert good.startswith("01_good") and good.endswith("ok")
