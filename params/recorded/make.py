"""Writes answers.parquet: the recorded workloads as token ids, and their checksums. The files are frozen; this made them.

chat: chat.jsonl, questions and answers written for this collection by a language model (Claude), under its licence.
code, edit, json: this collection's own source and records as of COMMIT. prose: Shakespeare, from the pinned package aiperf.
Ids are those of SmolLM2's tokenizer. Usage: .venv/bin/python params/recorded/make.py
"""

import ast
import hashlib
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
from lib.measure import corpus, weights  # noqa: E402
from lib.results.run import Model  # noqa: E402

COMMIT = "7c3fa856bcdf8b3f879003e99d15d9f81873a072"
NUM = 512
tokenizer = AutoTokenizer.from_pretrained(weights.locate(Model()))


def ids(text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def asked(question: str) -> list[int]:
    return ids(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(HERE), *arguments], capture_output=True, text=True, check=True).stdout


def sources(pattern: str) -> dict[str, str]:
    names = git("ls-tree", "-r", "--name-only", "--full-tree", COMMIT).splitlines()
    return {name: git("show", f"{COMMIT}:{name}") for name in names if re.fullmatch(pattern, name)}


def blocks(text: str):
    """(what stands before it, source) of each function and class of a module, methods included."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
            yield "".join(lines[:first]), "".join(lines[first : node.end_lineno])


def last(text: str, tokens: int) -> str:
    """The last whole lines of `text` with at most `tokens` tokens."""
    kept, size = [], 0
    for line in reversed(text.splitlines(keepends=True)):
        size += len(ids(line))
        if size > tokens:
            break
        kept.append(line)
    return "".join(reversed(kept))


def code(modules, rng):
    made = [
        (asked(f"Continue this Python file.\n```python\n{last(before, 400)}```"), ids(f"```python\n{block}```"))
        for before, block in modules
        if 60 <= len(ids(block)) <= 500
    ]
    rng.shuffle(made)
    return made


def edit(modules, rng):
    made = []
    for _, block in modules:
        if not 100 <= len(ids(block)) <= 480:
            continue
        named = [
            n
            for n in re.findall(r"\b[a-z][a-z_]{3,}\b", block)
            if n not in ("self", "return", "import", "None", "from")
        ]
        documented = re.search(r'^ +""".*?"""\n', block, re.M | re.S)
        kind = rng.choice(["rename", "rename", "drop", "insert"])
        if kind == "drop" and documented:
            task, new = "Remove the docstring", block.replace(documented.group(0), "", 1)
        elif kind == "insert" and (place := re.search(r"^( +)return ", block, re.M)):
            task = "Log a line before the first return"
            new = block[: place.start()] + f'{place.group(1)}logger.debug("done")\n' + block[place.start() :]
        else:
            old = max(sorted(set(named)), key=named.count)
            task, new = f"Rename `{old}` to `{old}_value`", re.sub(rf"\b{old}\b", f"{old}_value", block)
        made.append(
            (
                asked(f"{task} in this code. Answer with the whole code.\n```python\n{block}```"),
                ids(f"```python\n{new}```"),
            )
        )
    rng.shuffle(made)
    return made


def extracted(records, rng):
    made = []
    for record in records:
        cell, counters = record["cell"], record["counters"]
        engine, work = cell["engine"], cell["workload"]
        shown = record["requests"][: rng.randrange(7)]
        requests = [
            {"prompt": r["num_prompt_tokens"], "output": r["num_output_tokens"], "ended": r["finish_reason"]}
            for r in shown
        ]
        facts = {
            "setting": cell["setting"],
            "workload": work["name"],
            "model": engine.get("model", {}).get("name", "SmolLM2-135M-Instruct"),
            "requests_in_flight": cell["batch_size"],
            "num_prompts": work["num_prompts"],
            "seconds": round(record["wall_s"], 2),
            "output_tokens": counters["num_output_tokens"],
            "drafted": counters.get("num_draft_tokens", 0),
            "accepted": counters.get("num_accepted_tokens", 0),
            "measured": record["provenance"]["measured"],
            "gpu": record["provenance"].get("gpu"),
            "requests": requests,
        }
        lines = [
            f"{facts['measured']} engine up on {facts['gpu'] or 'the CPU'}, model {facts['model']}",
            f"{facts['setting']}: workload {facts['workload']}, {facts['num_prompts']} prompts, "
            f"{facts['requests_in_flight']} in flight",
            *(
                f"request of {r['prompt']} tokens answered with {r['output']}, stopped by {r['ended']}"
                for r in requests
            ),
            f"drafts: {facts['drafted']} tokens proposed, {facts['accepted']} accepted",
            f"done in {facts['seconds']} s, {facts['output_tokens']} tokens",
        ]
        question = "Extract the facts of this log as JSON.\n\n" + "\n".join(lines) + "\n"
        made.append((asked(question), ids("```json\n" + json.dumps(facts, indent=2) + "\n```")))
    rng.shuffle(made)
    return made


def prose(rng):
    text = corpus.asset_path().read_text(encoding="utf-8")
    words, made = ids(text[len(text) // 4 :][:2_400_000]), []
    place = 0
    while len(made) < NUM:
        before, after = rng.randrange(64, 400), rng.randrange(64, 500)
        made.append((words[place : place + before], words[place + before : place + before + after]))
        place += before + after
    return made


def digest(pairs) -> str:
    ids = hashlib.sha256()
    for pair in pairs:
        for part in pair:
            ids.update(np.asarray([len(part), *part], np.int32).tobytes())
    return ids.hexdigest()[:32]


def main() -> None:
    rng = random.Random(0)
    modules = [block for _, text in sorted(sources(r"(lib|tests)/.*\.py").items()) for block in blocks(text)]
    text = sources(r"figures/data/(cpu|h200|h200-closed)/.*[0-9a-f]\.json")
    records = [r for _, t in sorted(text.items()) if (r := json.loads(t))["status"] == "ok" and r["requests"]]
    chat = [json.loads(line) for line in (HERE / "chat.jsonl").read_text(encoding="utf-8").splitlines()]
    pairs = [(asked(c["question"]), ids(c["answer"])) for c in chat]
    rng.shuffle(pairs)
    made = {"chat": pairs, "code": code(modules, rng), "edit": edit(modules, rng),
            "json": extracted(rng.sample(records, NUM), rng), "prose": prose(rng)}  # fmt: skip
    rows = [(name, *pair) for name, requests in made.items() for pair in requests[:NUM]]
    kind = pa.list_(pa.uint16())
    table = pa.table(
        {"workload": pa.array([r[0] for r in rows]), "prompt": pa.array([r[1] for r in rows], kind),
         "answer": pa.array([r[2] for r in rows], kind)}
    )  # fmt: skip
    pq.write_table(table, HERE / "answers.parquet", compression="zstd", compression_level=19)
    (HERE / "checksums.txt").write_text("".join(f"{name} {digest(pairs[:NUM])}\n" for name, pairs in made.items()))
    for name, requests in made.items():
        lengths = sorted(len(a) for _, a in requests[:NUM])
        print(f"{name}: {len(requests)} made, answers {lengths[0]} to {lengths[-1]}, mean {sum(lengths) / len(lengths):.0f}, "
              f"prompts mean {sum(len(p) for p, _ in requests[:NUM]) / len(lengths):.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
