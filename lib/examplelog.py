"""The small example log that ships with the collection: made-up office traffic, answered by the packaged model.

`python -m lib.examplelog` writes it again: prompts come from the templates below (nothing is quoted from anywhere), the
answers from a real engine of the `cpu` profile. One line lacks its answer on purpose, as in real logs.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

from lib import engines, ladder, params, recommend, records, requestlog
from lib.cells import Workload

NUM_REQUESTS = 24
OUTPUT_TOKENS = 128

_PEOPLE = ("Ada Brook", "Ben Field", "Cleo Marsh", "Dan Holt", "Eva Stone")
_TOWNS = ("Northgate", "Eastbury", "Millford", "Lower Quay")
_ITEMS = ("desk lamp", "office chair", "paper tray", "wall clock", "cable box")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_FUNCTION = """def {name}({a}, {b}):
    {c} = {a} * {b}
    if {c} > {limit}:
        {c} = {limit}
    return {c}
"""


def _order(rng: random.Random) -> str:
    return (
        f"Order {rng.randrange(1000, 9999)}: {rng.randrange(1, 9)} x {rng.choice(_ITEMS)} for {rng.choice(_PEOPLE)}, "
        f"to be sent to {rng.choice(_TOWNS)} on {rng.choice(_DAYS)}."
    )


def _extract(rng: random.Random) -> str:
    orders = "\n".join(_order(rng) for _ in range(4))
    return f"{orders}\n\nWrite these orders as a JSON list with the keys order, quantity, item, customer, town, day."


def _edit(rng: random.Random) -> str:
    names = rng.sample(("total", "price", "count", "weight", "width", "height"), 3)
    body = _FUNCTION.format(name=rng.choice(("cost", "area", "load")), a=names[0], b=names[1], c=names[2],
                            limit=rng.randrange(100, 999))  # fmt: skip
    return f"Add a docstring to this function and give back the whole function.\n\n{body}"


def _reply(rng: random.Random) -> str:
    return (
        f"Write a short and friendly reply to a customer from {rng.choice(_TOWNS)} whose {rng.choice(_ITEMS)} did not "
        f"come on {rng.choice(_DAYS)}. Offer to send it again on {rng.choice(_DAYS)}."
    )


def prompts(count: int = NUM_REQUESTS, seed: int = 0) -> list[str]:
    """Seeded prompts: extraction, code editing and free writing in turn."""
    rng = random.Random(seed)
    makers = (_extract, _edit, _reply)
    return [makers[i % len(makers)](rng) for i in range(count)]


def write(path: Path | None = None) -> Path:
    """Answer the prompts with a real engine and write the log (default: the one that ships)."""
    path = path or requestlog.locate()
    profile = params.load("cpu", {"output_tokens": OUTPUT_TOKENS})
    asked = [[{"role": "user", "content": text}] for text in prompts()]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "prompts.jsonl"
        source.write_text("\n".join(json.dumps({"messages": messages}) for messages in asked))
        workload = Workload(name="jsonl", num_prompts=len(asked), input_tokens=1, path=str(source))
        cell = ladder.cells(profile, ["vanilla"], workloads=["sonnet"], seeds=[0], keep_tokens=True)[0]
        cell = cell.model_copy(update={"workload": workload})
        store = engines.run([cell], profile, folder=Path(folder))
        trace, record = store.trace(store.get(cell)), store.get(cell)
    tokenizer = recommend.load_tokenizer(profile.model.name)
    lines = []
    for messages, prompt, output, request in zip(
        asked, trace.prompt_token_ids, trace.output_token_ids, record.requests, strict=True
    ):
        text = tokenizer.decode(output, skip_special_tokens=True)
        lines.append(
            {"model": profile.model.name, "temperature": 0, "messages": messages, "completion": text,
             "finish_reason": request.finish_reason, "prompt_token_ids": prompt, "output_token_ids": output}
        )  # fmt: skip
    lines.insert(len(lines) // 2, {"model": profile.model.name, "messages": asked[0]})
    records.write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
    return path


if __name__ == "__main__":
    print(f"{write().name} written", file=sys.stderr)
