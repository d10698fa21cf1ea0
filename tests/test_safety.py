"""Nothing committed tells where it was made, and no engine runs a model's own code unasked or unsaid."""

import getpass
import json
import re
import socket
from pathlib import Path

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import standin_sweep

from lib.measure import engines, profiles
from lib.results import settings
from lib.results.records import ROOT
from lib.results.run import Model

# Hosts that outputs and figures may name: sources, standards, documentation.
HOSTS = {
    "arxiv.org", "creativecommons.org", "docs.ray.io", "docs.vllm.ai", "doi.org", "github.com", "huggingface.co",
    "matplotlib.org", "purl.org", "www.w3.org",
}  # fmt: skip
PATTERNS = {
    "path": r"(?<![\w.…/:-])/(?:home|root|Users|tmp|work|workspace|mnt|media|opt|usr|var|etc|srv|data|scratch|private)/[\w.-]+"
            r"|\b[A-Z]:\\\\?(?:Users|Windows)|file://",
    "token": r"\bhf_[A-Za-z0-9]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bsk-[A-Za-z0-9_-]{16,}"
             r"|\bAKIA[0-9A-Z]{16}\b|\beyJ[\w-]{10,}\.[\w-]{10,}|[?&]token=\w+|\b[Bb]earer [\w.-]{16,}",
    "registry": r"\b[\w.-]+/(?:simple|api/pypi)/|--(?:extra-)?index-url|\b(?:artifactory|nexus|devpi)\b",
    "private address": r"(?<![\w.])(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01])|127\.0)\.\d{1,3}\.\d{1,3}(?![\w.])",
}  # fmt: skip


def told(text: str) -> list[str]:
    """What `text` gives away, in words."""
    found = [f"{what}: {m.group()}" for what, pattern in PATTERNS.items() for m in re.finditer(pattern, text)]
    found += [f"host: {m.group(1)}" for m in re.finditer(r"https?://([\w.-]+)", text) if m.group(1) not in HOSTS]
    for what, name in (("host name", socket.gethostname()), ("user name", getpass.getuser())):
        # a name of three letters, or one that is a word of every text, proves nothing
        if len(name) > 3 and name not in ("root", "localhost", "user") and re.search(rf"\b{re.escape(name)}\b", text):
            found.append(f"{what}: {name}")
    return found


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('"log": "/home/someone/runs/x.log"', "path"),
        ("File /tmp/abc/plan.json", "path"),
        ("opened C:\\Users\\someone", "path"),
        ("hf_" + "a1" * 15, "token"),
        ("http://localhost:8888/lab?token=" + "0" * 32, "token"),
        ("Looking in indexes: https://pkgs.example.org/simple/", "registry"),
        ("https://pkgs.example.org/x", "host"),
        ("tcp://192.168.1.20:6379", "private address"),
        (f"measured on {socket.gethostname()}x {socket.gethostname()}", "host name"),
    ],
)
def test_the_scan_finds_what_it_looks_for(text, what):
    if what == "host name" and len(socket.gethostname()) <= 3:
        pytest.skip("this machine's name is too short to look for")
    assert [t for t in told(text) if t.startswith(what)]


@pytest.mark.parametrize(
    "text", ["…/site-packages/vllm/x.py", "figures/data/cpu", "tok/s/GPU", "https://arxiv.org/abs/1"]
)
def test_the_scan_leaves_plain_words_alone(text):
    assert told(text) == []


def committed(pattern: str) -> list[Path]:
    """Files of the repository itself, not of a run."""
    return sorted((ROOT / "figures").rglob(pattern))


def test_records_tell_nothing_of_their_machine():
    found = {}
    for file in committed("runs.parquet"):
        for field, column in zip(pq.read_schema(file), pq.read_table(file).columns, strict=True):
            if pa.types.is_string(field.type) or pa.types.is_list(field.type):
                words = {" ".join(map(str, v)) if isinstance(v, list) else v for v in column.to_pylist() if v}
                found[f"{file.parent.name} {field.name}"] = told("\n".join(sorted(words)))
    assert "cpu run" in found and "h200 versions" in found
    assert {name: what for name, what in found.items() if what} == {}


def test_requests_and_traces_hold_numbers_and_a_few_words_only():
    words = set()
    for name in ("requests.parquet", "steps.parquet"):
        for file in committed(name):
            for field, column in zip(pq.read_schema(file), pq.read_table(file).columns, strict=True):
                if pa.types.is_string(field.type) and field.name != "run_id":
                    words |= set(column.to_pylist())
    assert "FULL" in words
    assert words <= {"", "FULL", "PIECEWISE", "NONE", "length", "stop", None}


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_tell_nothing_of_their_machine(path):
    notebook = nbformat.read(path, as_version=4)
    texts = [json.dumps(notebook.metadata)]
    for cell in notebook.cells:
        texts.append(json.dumps(cell.metadata))
        for output in cell.get("outputs", []):
            plain = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/") or "svg" in k}
            texts += ["".join(v) if isinstance(v, (str, list)) else json.dumps(v) for v in plain.values()]
            texts += [output.get("text", ""), "\n".join(output.get("traceback", []))]
    assert [what for text in texts for what in told(text)] == []


def test_figures_tell_nothing_of_their_machine():
    found = {f.name: told(f.read_text()) for f in committed("*.svg")}
    assert found
    assert {name: what for name, what in found.items() if what} == {}


def test_other_committed_data_tells_nothing_of_its_machine():
    found = {f.name: told(f.read_text()) for pattern in ("*.csv", "*.jsonl") for f in committed(pattern)}
    assert {name: what for name, what in found.items() if what} == {}


# ---- a model's own code ----------------------------------------------------------------------------------


def test_no_profile_runs_a_model_s_own_code():
    held = [profiles.load(path.stem) for path in (ROOT / "params").glob("*.yaml") if path != settings.PATH]
    assert held and not [p.profile for p in held if any(m.trust_remote_code for m in p.models)]
    assert Model().trust_remote_code is False


def test_a_model_s_own_code_is_announced_and_recorded(tmp_path, monkeypatch, capsys):
    standin_sweep.use(monkeypatch, tmp_path / "cache")
    p = standin_sweep.profile()
    (plain,) = standin_sweep.runs(1, 1)
    model = plain.engine.model.model_copy(update={"trust_remote_code": True})
    run = plain.model_copy(update={"engine": plain.engine.model_copy(update={"model": model})})
    assert run.engine.llm_arguments("somewhere")["trust_remote_code"] is True
    store = engines.run([run], p, progress=False, folder=tmp_path)
    assert "model.trust_remote_code is true: engines run code that opt-125m brings along" in capsys.readouterr().err
    assert '"trust_remote_code": true' in next(store.folder.glob("*.json")).read_text()
    assert store.get(run).status == "ok"
    engines.run([plain], p, progress=False, folder=tmp_path)
    assert "trust_remote_code" not in capsys.readouterr().err


def test_jupyterlab_keeps_its_token_and_stays_on_this_machine():
    recipe = (ROOT / "Makefile").read_text().partition("\nlab:")[2].partition("\n\n")[0]
    assert "--ip=127.0.0.1" in recipe
    assert not re.search(r"token|password|disable_check_xsrf|allow_origin|0\.0\.0\.0", recipe.partition("\n")[2])
