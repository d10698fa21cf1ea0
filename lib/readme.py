"""The README's table of answers and its list of notebooks, computed from committed records, never typed by hand.

`python -m lib readme` rewrites the text between the markers; a test holds the file against the records.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pandas as pd

from lib import results
from lib.results import records

PATH = records.ROOT / "README.md"
# rows of the table of answers: profile, model, setting
SHOWN = [
    ("h200", "Llama-3.1-8B", "ngram"), ("h200-sizes", "Qwen2.5-14B", "ngram"), ("h200-sizes", "Qwen2.5-32B", "ngram"),
    ("h200", "Llama-3.1-8B", "suffix"),
]  # fmt: skip
FIGURES = {
    "00": "answer", "01": "noise floor", "02": "draft length", "03": "02, 04", "04": "01, 03", "05": "05", "06": "06",
    "07": "map, predicted", "08": "re-analysis",
}  # fmt: skip


def _verdict(row: pd.Series, floors: pd.Series) -> str:
    """What a row of `results.compare` says beyond what runs of equal engines differ by (`floors`, by requests in flight,
    where the row's own model had no two)."""
    aa = floors.get(row.concurrency, floors.max()) if pd.isna(row.aa) else row.aa
    word = "**use**" if row.low > 1 + aa else "don't" if row.high < 1 - aa else "no difference"
    return f"{word} {row.ratio:.2f}"


def _lines(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows))


def answer() -> str:
    """Use or don't, with the throughput over vanilla, by model, setting, text and requests in flight."""
    tables = {profile: results.read(profile) for profile in dict.fromkeys(profile for profile, *_ in SHOWN)}
    good = {
        name: t.runs.query("status == 'ok' and workload != 'random' and temperature == 0") for name, t in tables.items()
    }
    flight = sorted({c for runs in good.values() for c in runs.concurrency})
    first, rows = good[SHOWN[0][0]], []
    spread = results.variability(first).groupby("concurrency").aa.max()
    for profile, model, setting in SHOWN:
        runs = good[profile][good[profile].model == model]
        for text, group in results.compare(runs, setting, requests=tables[profile].requests).groupby("workload"):
            cells = {row.concurrency: _verdict(row, spread) for _, row in group.iterrows()}
            rows.append([results.label(setting), model, text, *(cells.get(c, "") for c in flight)])
    floors = ", ".join(f"{100 * aa:.0f} % at {c}" for c, aa in spread.items())
    told = (
        f"*Parrots in bf16, one {first.gpu.iloc[0]}, vLLM {first.resolved_vllm_version.iloc[0]}; throughput as a multiple of no "
        f"speculation (intervals: notebooks 00 and 05); {sum(map(len, good.values()))} runs, every answer verbatim: "
        f"{'yes' if all(r.verbatim.all() for r in good.values()) else 'no'}. Runs of equal engines of the {first.model.iloc[0]} "
        f"differ by up to {floors}.*"
    )
    return told + "\n\n" + _lines(["setting", "model", "text", *(f"{c} in flight" for c in flight)], rows)


def notebook_table() -> str:
    """The collection as a table: each notebook's question, the records of its saved run, and its figures."""
    rows = []
    for path in sorted((records.ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        question = notebook.cells[0].source.splitlines()[0].split("·", 1)[1].strip()
        (parameters,) = (c.source for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
        profile = re.search(r'profile: str = "([\w-]+)"', parameters).group(1)
        name = path.stem.replace("_", " ")
        rows.append([f"[{name}](notebooks/{path.name})", question, profile, FIGURES[path.name[:2]]])
    return _lines(["notebook", "question", "records", "figures"], rows)


# file -> its computed blocks: the name in the markers, and what stands between them
COMPUTED = {PATH: {"computed": answer, "notebooks": notebook_table}}


def render(path: Path = PATH) -> str:
    """A file of COMPUTED with its blocks brought up to date. Raises ValueError without the markers."""
    text = path.read_text(encoding="utf-8")
    for name, made in COMPUTED[path].items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if begin not in text or end not in text:
            raise ValueError(f"{path.name} must hold the markers {begin} … {end}")
        head, rest = text.split(begin, 1)
        text = f"{head}{begin}\n{made()}\n{end}{rest.split(end, 1)[1]}"
    return text
