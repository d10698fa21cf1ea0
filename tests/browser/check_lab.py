"""JupyterLab as a reader sees it: opens every notebook in Chromium, runs all cells in replay, keeps screenshots.

    python tests/browser/check_lab.py [FOLDER FOR SCREENSHOTS]

Needs the package playwright and a Chromium on the path; neither belongs to the environment, so this is no part of
`make test`. Fails if a cell ends in an error, does not run, or holds a picture or a widget that the page does not show.
At the end notebook 01 measures with a real engine, and is stopped.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
LIMIT_S = 180
OPEN = "window.jupyterapp && jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
CELLS = "() => jupyterapp.shell.currentWidget.context.model.toJSON().cells"
SHOW = """async index => {
    const notebook = jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = index;
    await notebook.scrollToItem(index, 'start');
    await new Promise(done => setTimeout(done, 400));
    const shown = [...notebook.widgets[index].node.querySelectorAll('.jp-OutputArea img, .jp-OutputArea .jupyter-widgets')];
    return shown.length > 0 && shown.every(s => s.tagName !== 'IMG' || s.complete && s.naturalWidth > 0 && s.width > 100);
}"""
PARAMETERS = """source => {
    const cells = jupyterapp.shell.currentWidget.content.model.cells;
    for (let i = 0; i < cells.length; i++)
        if ((cells.get(i).getMetadata('tags') || []).includes('parameters')) cells.get(i).sharedModel.setSource(source);
}"""
BAR = ".jp-OutputArea .widget-hbox:has(.progress, .widget-hprogress, .jupyter-widget-hprogress), .jp-OutputArea .widget-hprogress"
SEEN = {"image/png": "picture", "application/vnd.jupyter.widget-view+json": "widget"}


def start(token: str, store: Path) -> tuple[subprocess.Popen, str]:
    """JupyterLab at the top folder, bound to this machine, measuring into `store`; returns it and its address."""
    shutil.rmtree(store, ignore_errors=True)
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--ServerApp.root_dir=.",
         "--LabApp.expose_app_in_browser=True", "--allow-root"],
        cwd=ROOT, env=os.environ | {"JUPYTER_TOKEN": token, "SPECULATION_RUNS": str(store)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in server.stderr:
        if found := re.search(r"(http://127\.0\.0\.1:\d+)/lab", line):
            return server, found[1]
    raise RuntimeError("JupyterLab did not start")


def check(page: Page, notebook: Path, shots: Path) -> list[str]:
    """What is wrong with a notebook after Run All; [] if nothing."""
    page.wait_for_function(OPEN, timeout=60_000)
    page.evaluate("() => jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    assert not any(c.get("execution_count") for c in page.evaluate(CELLS)), "saved outputs are still there"
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        time.sleep(1)
        cells = page.evaluate(CELLS)
        code = [c for c in cells if c["cell_type"] == "code" and "".join(c["source"]).strip()]
        if page.evaluate(OPEN) and all(c["execution_count"] for c in code):
            break
    wrong = []
    for index, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        outputs = cell["outputs"]
        wrong += [f"cell {index}: {o['ename']}: {o['evalue']}" for o in outputs if o["output_type"] == "error"]
        if not cell["execution_count"]:
            wrong.append(f"cell {index} did not run in {LIMIT_S} s")
        for kind in [SEEN[mime] for o in outputs for mime in o.get("data", {}) if mime in SEEN]:
            if not page.evaluate(SHOW, index):
                wrong.append(f"cell {index}: its {kind} is not shown")
            page.screenshot(path=shots / f"{notebook.stem}_{index:02d}.png")
    return wrong


def check_measuring(page: Page, server: subprocess.Popen, shots: Path) -> list[str]:
    """Notebook 01 measures one workload with a real engine: a live progress bar, and a stop button that ends the engine."""
    page.wait_for_function(OPEN, timeout=60_000)
    page.evaluate(PARAMETERS, 'profile = "cpu"\nmode = "measure"\nseeds = [7]\nworkloads = ["sonnet"]')
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
    page.wait_for_selector(BAR, state="attached", timeout=60_000)
    end, texts = time.monotonic() + LIMIT_S, set()
    while time.monotonic() < end and not any("running" in text for text in texts):
        texts.update(bar.text_content() for bar in page.query_selector_all(BAR))
        time.sleep(0.2)
    page.query_selector(BAR).scroll_into_view_if_needed()
    time.sleep(1)
    page.screenshot(path=shots / "measuring.png")
    engines = [p for p in psutil.Process(server.pid).children(recursive=True) if "lib.measure.worker" in p.cmdline()]
    page.click("[data-command='notebook:interrupt-kernel'], [title^='Interrupt the kernel'] >> nth=0")
    _, alive = psutil.wait_procs(engines, timeout=20)
    end, ends = time.monotonic() + 30, []
    while time.monotonic() < end and not ends:
        time.sleep(1)
        ends = [o["ename"] for c in page.evaluate(CELLS) for o in c.get("outputs", []) if o["output_type"] == "error"]
    page.screenshot(path=shots / "stopped.png")
    wrong = [] if any("running" in text for text in texts) else [f"the bar never told what runs: {sorted(texts)}"]
    wrong += [] if engines and not alive else ["the stop button left an engine" if engines else "no engine was seen"]
    return wrong + ([] if ends == ["KeyboardInterrupt"] else [f"the cells ended with {ends}"])


def main(folder: str = "runs/browser") -> int:
    shots = ROOT / folder
    shots.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(16)
    server, address = start(token, shots / "store")
    failed = 0
    saved = {path: path.read_bytes() for path in (ROOT / "notebooks").glob("*.ipynb")}  # JupyterLab saves by itself
    try:
        with sync_playwright() as play:
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
                page = browser.new_page(viewport={"width": 1500, "height": 1000})
                page.goto(f"{address}/lab/tree/notebooks/{notebook.name}?token={token}&reset")
                wrong = check(page, notebook, shots)
                failed += bool(wrong)
                print(notebook.name, "; ".join(wrong) or "ok", flush=True)
                page.close()
            page = browser.new_page(viewport={"width": 1500, "height": 1000})
            page.goto(f"{address}/lab/tree/notebooks/01_vanilla_baseline.ipynb?token={token}&reset")
            wrong = check_measuring(page, server, shots)
            failed += bool(wrong)
            print("measuring", "; ".join(wrong) or "ok", flush=True)
    finally:
        server.terminate()
        server.wait()
        for path, text in saved.items():
            path.write_bytes(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
