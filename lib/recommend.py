"""Which setting to switch on: the answer for one's own requests, and the flags to paste.

`answer` predicts every candidate setting on a request log (`lib.prediction`) and judges it; `paste`, `schedule`,
`schedule_advice` and `graph_advice` put the winner into vLLM's own terms. `main` is `python -m lib recommend`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lib import drafters, ladder, models, params, records, requestlog, steptime
from lib.cells import Model, Speculative
from lib.prediction import AS_SHIPPED, NOT, PAYS, Costs, Prediction, rank, survey_folder
from lib.stats import Estimate
from lib.steptime import Law


class RecommendError(ValueError):
    """One sentence: the field, the value and what is allowed."""


# ---- settings ----


def candidates(draft_lengths: Sequence[int] = (3, 5, 7, 10)) -> dict[str, Speculative | None]:
    """Settings worth trying, by name; suffix ones only where arctic_inference is installed."""
    found: dict[str, Speculative | None] = {"vanilla": None}
    lookup = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    for gamma in draft_lengths:
        found[f"ngram_g{gamma}"] = Speculative(method="ngram", num_speculative_tokens=gamma, **lookup)
    for gamma in draft_lengths:
        found[f"padded_ngram_g{gamma}"] = Speculative(
            method="custom_class", drafter="PaddedNgram", num_speculative_tokens=gamma, drafter_options=lookup
        )
    if importlib.util.find_spec("arctic_inference") is not None:
        off = {"suffix_decoding_max_cached_requests": 0}
        found["suffix"] = Speculative(method="suffix", num_speculative_tokens=32, **off)
        found["suffix_f2"] = Speculative(
            method="suffix", num_speculative_tokens=32, suffix_decoding_max_spec_factor=2.0, **off
        )
        found["suffix_p3"] = Speculative(
            method="suffix", num_speculative_tokens=32, suffix_decoding_min_token_prob=0.3, **off
        )
        found["suffix_cold"] = Speculative(method="suffix", num_speculative_tokens=32)
    return found


def with_larger_graphs(settings: Mapping[str, Speculative | None], costs: Costs) -> dict[str, Speculative]:
    """The ngram drafters among settings once more, as <name>_full, for engines with FULL graphs for steps of any composition;
    none where there are no graphs, nor vLLM's own on runner V2, which fills its drafts itself."""
    if "FULL" not in costs.drafter.modes:
        return {}
    methods = {"custom_class"} | ({"ngram"} if costs.runner == "V1" else set())
    return {f"{name}_full": s for name, s in settings.items() if s is not None and s.method in methods}


def best(predictions: Iterable[Prediction], batch_size: int) -> Prediction:
    """The setting to switch on at a batch size: the fastest that pays, else the plain run."""
    here = [p for p in predictions if p.batch_size == batch_size]
    if not here:
        raise RecommendError(f"batch_size is {batch_size}, allowed: one of those that were predicted")
    paying = [p for p in here if p.verdict == PAYS]
    if paying:
        return max(paying, key=lambda p: p.speedup.value)
    return next(p for p in here if p.speculative is None)


# ---- what to paste ----


def environment(speculative: Speculative | None) -> dict[str, str]:
    """Environment that a setting needs; only our own drafters need any."""
    if speculative is None or not speculative.drafter:
        return {}
    return {drafters.OPTIONS: json.dumps(speculative.drafter_options)}


def graph_arguments(prediction: Prediction) -> dict[str, Any]:
    """What `LLM(...)` is asked for beside the drafts: the graphs, where they are not those as shipped."""
    if not prediction.graphs.any_step:
        return {}
    return {
        "max_cudagraph_capture_size": prediction.graphs.largest,
        "compilation_config": {"cudagraph_mode": "FULL"},
    }


def paste(prediction: Prediction, model: str) -> tuple[str, str]:
    """(`LLM(...)` call, `vllm serve` command) that switch a setting on."""
    s, seqs = prediction.speculative, prediction.batch_size
    arguments = [f"model={model!r}", f"max_num_seqs={seqs}"]
    command = [f"vllm serve {model}", f"--max-num-seqs {seqs}"]
    for name, value in graph_arguments(prediction).items():
        arguments.append(f"{name}={value!r}")
        told = f"'{json.dumps(value)}'" if isinstance(value, dict) else value
        command.append(f"--{name.replace('_', '-')} {told}")
    if s is not None:
        config = s.vllm()
        arguments.append(f"speculative_config={config!r}")
        command.append(f"--speculative-config '{json.dumps(config)}'")
    call = "LLM(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"
    needs = environment(s)
    if needs:
        call = "".join(f"os.environ[{k!r}] = {v!r}\n" for k, v in needs.items()) + call
        command[0] = " ".join(f"{k}='{v}'" for k, v in needs.items()) + " PYTHONPATH=. " + command[0]
    return call, " \\\n    ".join(command)


def schedule(prediction: Prediction, costs: Costs) -> list[list[int]]:
    """The best draft length by batch size, as vLLM's `num_speculative_tokens_per_batch_size`: [[from, to,
    length], ...].

    Only batch sizes and lengths inside the law's grid are considered; a single range means that nothing is to
    be gained from a schedule. Empty for a setting without drafts.
    """
    acceptance, s = prediction.acceptance_per_position, prediction.speculative
    if s is None or not acceptance:
        return []
    full = s.drafter is not None or (s.method == "ngram" and costs.runner == "V2") or prediction.graphs.any_step
    mode = _usable(costs.drafter, "FULL" if full else "PIECEWISE")
    plain = _usable(costs.vanilla, "FULL")
    low, high = (int(x) for x in costs.vanilla.regime(plain).grid.batch)
    ranges: list[list[int]] = []
    for batch in range(low, high + 1):
        choice = steptime.best_gamma(
            costs.vanilla, costs.drafter, batch, acceptance, mode=mode, vanilla_mode=plain,
            coverage=prediction.coverage,
        )  # fmt: skip
        if ranges and ranges[-1][2] == choice.gamma:
            ranges[-1][1] = batch
        else:
            ranges.append([batch, batch, choice.gamma])
    if ranges:
        ranges[0][0] = 1  # vLLM wants the first range to start there
    return ranges


def _usable(law: Law, mode: str) -> str:
    return mode if mode in law.modes else law.modes[0]


def schedule_advice(prediction: Prediction, costs: Costs) -> str:
    """A plain sentence on a draft length that follows the batch: the flag, or why vLLM refuses it."""
    ranges, s = schedule(prediction, costs), prediction.speculative
    if s is None:
        return "Nothing is drafted, so there is no draft length to schedule."
    if len(ranges) < 2:
        return "One draft length is best at every measured batch size: no schedule is needed."
    name = "num_speculative_tokens_per_batch_size"
    text = json.dumps(ranges)
    if prediction.graphs.any_step:
        return (
            f"The draft length should follow the batch ({text}), but with {name} vLLM's runner V1 sets cudagraph_mode to "
            "PIECEWISE and gives these FULL graphs up: keep one length."
        )
    if s.method == "suffix":
        return (
            f"The draft length should follow the batch ({text}), but vLLM refuses {name} with method "
            "'suffix' (an assertion in its drafter): set one length, or use PaddedSuffix with its own "
            "gamma_schedule."
        )
    if s.drafter:
        pairs = ",".join(f"{low}:{gamma}" for low, _, gamma in ranges)
        return (
            f"The draft length should follow the batch: vLLM does not hand {name} to a custom_class, so set the "
            f'drafter\'s own option "gamma_schedule": "{pairs}".'
        )
    tail = (
        "" if costs.runner == "V2"
        else " Runner V1 then uses PIECEWISE graphs only, where ngram's uneven steps are anyway."
    )  # fmt: skip
    return f'The draft length should follow the batch: add "{name}": {text} to speculative_config.{tail}'


def graph_advice(prediction: Prediction, costs: Costs) -> str:
    """A sentence on what larger graphs need, or where a full batch of drafts outgrows the largest one as shipped; else empty."""
    s = prediction.speculative
    if prediction.graphs.any_step:
        return (
            "FULL graphs for steps of any composition need an attention backend that captures them, such as FlashAttention 3 on "
            "Hopper GPUs: where vLLM logs that it sets another cudagraph_mode, this prediction does not hold, and padded drafts "
            "are the way to stay in a graph. Measured in notebook 04 on one small model with prompts of 400 tokens; vLLM's own "
            "documentation calls FULL good for small models or small prompts only."
        )
    if s is None or not s.drafter or not {"FULL", "PIECEWISE"} & set(costs.drafter.modes):
        return ""
    verified = prediction.batch_size * (1 + s.num_speculative_tokens)
    if verified <= AS_SHIPPED.largest:
        return ""
    size = ladder.capture_size(prediction.batch_size, s.num_speculative_tokens)
    return (
        f"A full batch of {prediction.setting} verifies {verified:,} tokens a step, more than the largest CUDA graph as shipped "
        f"({AS_SHIPPED.largest}), so it was predicted without graphs: max_cudagraph_capture_size={size} and "
        f'compilation_config={{"cudagraph_mode": "FULL"}} keep it in one with FlashAttention 3 ({prediction.setting}_full; '
        "measured in notebook 04 on one small model)."
    )


# ---- the answer for one log ----


@dataclass(frozen=True)
class Answer:
    """Everything that is said about one request log on one machine."""

    predictions: tuple[Prediction, ...]
    costs: Costs
    num_requests: int
    num_tokens: int
    bad: tuple[requestlog.BadLine, ...]
    notes: tuple[str, ...]

    @property
    def batch_sizes(self) -> list[int]:
        return sorted({p.batch_size for p in self.predictions})

    def table(self, *, best_only: int | None = None) -> str:
        """Plain text, a row a setting and batch size; `best_only` keeps so many rows of each batch."""
        head = (
            "batch",
            "setting",
            "tokens/step",
            "coverage",
            "accepted",
            "R",
            "tok/s",
            "speedup [95 %]",
            "verdict",
        )
        rows = []
        for batch in self.batch_sizes:
            here = [p for p in self.predictions if p.batch_size == batch]
            for p in here[:best_only]:
                share = "-" if np.isnan(p.acceptance) else f"{p.acceptance:.2f}"
                rows.append(
                    (str(batch), p.setting, f"{p.tau:.2f}", f"{p.coverage:.2f}", share, f"{p.r:.2f}",
                     f"{p.throughput.value:,.0f}", _interval(p.speedup), p.verdict)
                )  # fmt: skip
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        left = {1, 8}
        return "\n".join(
            "  ".join(
                c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (head, *rows)
        )

    def hope(self, batch_size: int) -> Prediction | None:
        """The drafting setting that pays, or might at one batch size; None where none does."""
        chosen = best(self.predictions, batch_size)
        rest = [p for p in self.predictions if p.batch_size == batch_size and p.speculative is not None]
        if chosen.speculative is not None:
            return chosen
        return None if all(p.verdict == NOT for p in rest) else max(rest, key=lambda p: p.speedup.value)

    def sentence(self, batch_size: int) -> str:
        """The answer at one batch size."""
        hope = self.hope(batch_size)
        if hope is None:
            return f"Batch {batch_size}: leave speculation off; no setting pays."
        if hope is best(self.predictions, batch_size):
            return f"Batch {batch_size}: {hope.setting} pays, {_interval(hope.speedup)} times vanilla."
        return (
            f"Batch {batch_size}: nothing surely pays, leave speculation off. Worth a measurement: {hope.setting}, "
            f"{_interval(hope.speedup)} times vanilla, {hope.verdict}."
        )

    def as_json(self, model: str) -> dict[str, Any]:
        """The same, for scripts."""

        def number(value: float) -> float | None:
            return round(float(value), 6) if np.isfinite(value) else None

        def row(p: Prediction) -> dict[str, Any]:
            return {
                "setting": p.setting, "batch_size": p.batch_size, "verdict": p.verdict,
                "tokens_per_step": number(p.tau), "draft_coverage": number(p.coverage),
                "acceptance_rate": number(p.acceptance), "step_time_ratio": number(p.r),
                "throughput_tok_s": [number(v) for v in p.throughput[:3]],
                "speedup": [number(v) for v in p.speedup[:3]], "outside_grid": number(p.outside),
                "speculative_config": p.speculative.vllm() if p.speculative else None,
                "graphs": graph_arguments(p),
            }  # fmt: skip

        answers = {}
        for batch in self.batch_sizes:
            chosen = best(self.predictions, batch)
            call, command = paste(chosen, model)
            answers[str(batch)] = {
                "setting": chosen.setting, "llm": call, "serve": command,
                "schedule": schedule(chosen, self.costs), "advice": schedule_advice(chosen, self.costs),
                "graphs": graph_advice(self.hope(batch) or chosen, self.costs),
            }  # fmt: skip
        return {
            "requests": self.num_requests, "output_tokens": self.num_tokens,
            "left_out": [{"line": b.number, "reason": b.reason} for b in self.bad],
            "law": {"model": self.costs.vanilla.model, "hardware": self.costs.vanilla.hardware,
                    "relative_error": number(self.costs.drafter.relative_error)},
            "noise_floor": {str(b): number(self.costs.noise_at(b)) for b in self.batch_sizes}, "notes": list(self.notes),
            "answers": answers, "predictions": [row(p) for p in self.predictions],
        }  # fmt: skip


def _interval(e: Estimate) -> str:
    return f"{e.value:.2f} [{e.low:.2f}, {e.high:.2f}]" if np.isfinite(e.low) else f"{e.value:.2f}"


def answer(
    log: requestlog.Log,
    costs: Costs,
    *,
    batch_sizes: Sequence[int] | None = None,
    settings: Mapping[str, Speculative | None] | None = None,
    hardware: str | None = None,
    max_model_len: int | None = None,
    progress: bool = False,
) -> Answer:
    """Predict every setting on a request log. batch_sizes: default 1, 4, 16, 64, 256 and the grid's ends, as
    far as the law goes. hardware: where it will be served, if that is known.
    """
    grid = costs.vanilla.regimes[0].grid.batch
    # a batch larger than the log is the whole log; a law fitted to real runs may end just short of a power of two
    covered = [b for b in (1, 4, 8, 16, 64, 256) if grid[0] <= b <= 1.05 * grid[1] and b <= len(log.streams)]
    sizes = sorted(set(batch_sizes or covered or [max(int(grid[0]), 1)]))
    notes = [*log.notes, *costs.notes]
    beyond = [b for b in sizes if not grid[0] <= b <= 1.05 * grid[1]]
    if beyond:
        notes.append(
            f"Batch size {', '.join(map(str, beyond))} is beyond the law's grid ({grid[0]:g} to "
            f"{grid[1]:g}): those predictions are extrapolated and get no verdict."
        )
    if hardware and hardware != costs.vanilla.hardware:
        notes.append(
            f"The law was measured on {costs.vanilla.hardware}, not on {hardware}: the answer holds for the former."
        )
    if not costs.noise:
        notes.append("The law's folder holds no repeated engine cells: verdicts allow for no noise floor.")
    else:
        told = ", ".join(f"{np.exp(costs.noise_at(b)):.2f} at batch {b}" for b in sizes)
        notes.append(f"Noise floor: a verdict needs the whole interval beyond a factor of {told}.")
    if few := [str(b) for b in batch_sizes or () if b > len(log.streams)]:
        notes.append(
            f"Batch {', '.join(few)}: the log has {len(log.streams)} requests, so no more than these run together."
        )
    if importlib.util.find_spec("arctic_inference") is None:
        notes.append("The package arctic-inference is not installed: the suffix drafter is left out.")
    offered = settings or candidates()
    larger = {} if settings else with_larger_graphs(offered, costs)
    ranked = rank(
        log.streams,
        costs,
        batch_sizes=sizes,
        settings=offered | larger,
        any_step=larger,
        max_model_len=max_model_len,
        progress=progress,
    )
    return Answer(tuple(ranked), costs, len(log.streams), log.num_tokens, log.bad, tuple(notes))


# ---- command line ----


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lib recommend",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Which speculation setting makes YOUR requests faster on a machine, without an engine.\n\n"
            "The drafters of vLLM are replayed over your request log; a step-time law measured on the\n"
            "machine turns the steps into time. You get a table, a figure, and the flags to paste."
        ),
        epilog=(
            "A log is JSONL, one request a line, in order of arrival:\n"
            '  {"prompt": "...", "completion": "..."}                        plain text\n'
            '  {"messages": [..., {"role": "assistant", "content": "..."}]}  chat, the answer last\n'
            '  {"prompt_token_ids": [...], "output_token_ids": [...]}        ids: no tokenizer needed\n'
            "Optional in a line: model, temperature, finish_reason. Bad lines are listed and left out.\n\n"
            "Verdicts: 'pays' and 'does not pay' if the whole 95 % interval lies beyond the noise floor,\n"
            "'beyond the measured grid' where the law was not measured, else 'too close to call'.\n"
            "Exit codes: 0 an answer was given, 2 an input needs mending (one sentence says what).\n\n"
            "Example:\n"
            "  python -m lib recommend --log requests.jsonl --model Qwen/Qwen2.5-7B-Instruct \\\n"
            "      --law figures/data/h200 --batch 1,16,64"
        ),
    )
    add = parser.add_argument
    add("--log", required=True, help="your requests, a .jsonl file")
    add(
        "--law",
        required=True,
        help="folder of records with the machine's step-time grid, e.g. figures/data/h200",
    )
    add(
        "--model",
        help="hub id, folder or packaged model; its tokenizer reads text, its name goes into the flags",
    )
    add("--law-model", help="which of the law's models stands for yours (default: the one that --model names)")
    add(
        "--batch",
        default="",
        help="requests in flight together, e.g. 1,16,64 (default: what the law's grid covers)",
    )
    add("--requests", type=int, help="use only the first so many requests of the log")
    add("--max-model-len", type=int, help="model length limit (default: no request reaches it)")
    add(
        "--runner",
        choices=("V1", "V2"),
        help="vLLM's model runner for its own ngram (default: as in the records)",
    )
    add(
        "--hardware",
        help="name of the machine you will serve on, to be checked against the law's (default: this one)",
    )
    add("--figure", help="where to write the figure, .svg or .png (default: runs/recommend/<log>.png)")
    add("--json", action="store_true", help="print one JSON object instead of text")
    return parser


def model_of(name: str) -> Model:
    """A model given on the command line: a packaged one by its name, a folder, or else a hub id."""
    if name in models.PACKAGED:
        return Model(source="packaged", name=name)
    return Model(source="folder" if Path(name).is_dir() else "hub", name=name)


def load_tokenizer(name: str) -> Any:
    """The Hugging Face tokenizer of a model. Raises RecommendError, models.ModelError."""
    path = models.locate(model_of(name))
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise RecommendError(
            f"model is {name!r}, allowed: one whose tokenizer loads ({' '.join(str(error).split())[:99]})"
        ) from None


def _law_model(labels: Sequence[str], wanted: str | None, model: str | None) -> tuple[str | None, list[str]]:
    """(label of the law, notes): the one asked for, the one that the model's name holds, or the only."""
    if wanted:
        return wanted, []
    named = [label for label in labels if model and label.split(" ")[0].lower() in model.lower()]
    if len(named) == 1:
        return named[0], []
    if len(labels) == 1:
        note = f"The law was measured with {labels[0]}, not with {model}." if model else ""
        return labels[0], [note] if note else []
    return None, []


def _whole_numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = [0]
    if found and min(found) < 1:
        raise RecommendError(f"--batch is {text!r}, allowed: whole numbers from 1, e.g. 1,16,64")
    return found


def _this_machine() -> str:
    """The GPU, or the CPU with its number of cores, named as in a law."""
    from lib import engines

    where = engines.provenance()
    return where.gpu or f"{where.cpu or 'CPU'} ({where.num_cpus} cores)"


def _answer_of(options: argparse.Namespace) -> Answer:
    batch_sizes = _whole_numbers(options.batch)
    if options.requests is not None and options.requests < 1:
        raise RecommendError(f"--requests is {options.requests}, allowed: whole numbers from 1")
    if options.figure and Path(options.figure).suffix not in (".png", ".svg"):
        raise RecommendError(f"--figure is {options.figure!r}, allowed: a file ending in .png or .svg")
    progress = not options.json and sys.stderr.isatty()
    surveyed = survey_folder(Path(options.law).absolute())
    label, notes = _law_model(surveyed.complete, options.law_model, options.model)
    if label is None and len(surveyed.complete) > 1:
        raise RecommendError(
            f"--model is {options.model!r}, which none of the law's models is called, allowed: --law-model with one of "
            f"{', '.join(surveyed.complete)}"
        )
    costs = surveyed.costs(label)
    if options.runner:
        costs = replace(costs, runner=options.runner)
    tokenizer = load_tokenizer(options.model) if options.model and requestlog.holds_text(Path(options.log)) else None
    log = requestlog.read(options.log, tokenizer, progress=progress)
    if options.requests:
        log = replace(log, streams=log.streams[: options.requests])
    log = replace(log, notes=(*notes, *log.notes))
    return answer(
        log, costs, batch_sizes=batch_sizes, hardware=options.hardware or _this_machine(),
        max_model_len=options.max_model_len, progress=progress,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m lib recommend`: prints the answer and writes its figure; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        found = _answer_of(options)
    except (ValueError, models.ModelError, params.ParamsError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    from lib import figures

    model = options.model or found.costs.vanilla.model
    target = Path(options.figure or records.runs_folder("recommend") / f"{Path(options.log).stem}.png")
    target.parent.mkdir(parents=True, exist_ok=True)
    figures.recommendation(found).savefig(target)
    if options.json:
        print(json.dumps(found.as_json(model) | {"figure": str(target)}, indent=1))
        return 0
    law = found.costs.vanilla
    print(f"log: {found.num_requests} requests, {found.num_tokens:,} output tokens")
    for line in found.bad[:10]:
        print(f"  line {line.number} is left out: {line.reason}")
    if len(found.bad) > 10:
        print(f"  ... and {len(found.bad) - 10} more")
    error = found.costs.drafter.relative_error
    print(f"law: {law.model} on {law.hardware}, median error on held-out points {100 * error:.1f} %")
    for note in found.notes:
        print(f"note: {note}")
    print(f"\n{found.table()}\n")
    for batch in found.batch_sizes:
        chosen = best(found.predictions, batch)
        call, command = paste(chosen, model)
        graphs = graph_advice(found.hope(batch) or chosen, found.costs)
        advice = filter(None, (schedule_advice(chosen, found.costs), graphs))
        print(f"{found.sentence(batch)}\n\n{call}\n\n{command}\n\n{' '.join(advice)}\n")
    print(f"figure: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
