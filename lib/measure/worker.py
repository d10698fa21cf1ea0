"""One engine process: builds the engine, runs its runs in order, writes each record as the run ends.

The only module that imports vLLM. `engines` starts it as `python -m lib.measure.worker PLAN`, in its own process group, with the
environment set before vLLM is imported. It imports vLLM at once and builds the engine when the parent says so on its
standard input. It speaks to the parent in JSON lines on the file descriptor named by SPECULATION_EVENTS_FD and ends its whole
group when the parent is gone (its standard input closes).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from array import array
from bisect import bisect
from collections import deque
from pathlib import Path
from typing import Any

from lib.measure import machine, monitor, parrot, recorded, weights, workloads
from lib.results.records import STEP_COLUMNS, Counters, Provenance, Record, Request, Resolved, Store, Trace
from lib.results.run import Run, Workload

EVENTS_VARIABLE = "SPECULATION_EVENTS_FD"  # where an engine process finds the pipe for its events
GO = b"g"  # what an engine process is told: build the engine
_COUNTERS = {
    "vllm:spec_decode_num_drafts": "num_drafts",
    "vllm:spec_decode_num_draft_tokens": "num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "num_accepted_tokens",
    "vllm:num_preemptions": "num_preemptions",
    "vllm:prompt_tokens": "num_prompt_tokens",
    "vllm:prefix_cache_hits": "num_cached_prompt_tokens",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


def end_group() -> None:
    """End this process and everything it started, at once."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


class Parent:
    """The process that started us: says when to build the engine; ends our whole group by ending, even killed."""

    def __init__(self) -> None:
        self._began, self._go, self._said = time.monotonic(), threading.Event(), 0.0
        threading.Thread(target=self._follow, name="follow-parent", daemon=True).start()

    def _follow(self) -> None:
        while said := os.read(0, 4096):
            if GO in said:
                self._said = time.monotonic()
                self._go.set()
        end_group()

    def wait(self) -> float:
        """Wait for the word; returns when this process or the word came, whichever was later (monotonic seconds)."""
        self._go.wait()
        return max(self._began, self._said)


def follow_children(emit) -> None:
    """A killed EngineCore makes `step` wait for ever: notice that an engine process of ours is gone, say so and end."""
    import psutil

    children = [p for p in psutil.Process().children() if "resource_tracker" not in " ".join(p.cmdline())]

    def watch() -> None:
        while all(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in children):
            time.sleep(0.5)
        emit(event="died", reason="an engine process died")
        end_group()

    if children:
        threading.Thread(target=watch, name="follow-children", daemon=True).start()


class StepRecorder:
    """Keeps what the engine core returns each step, and when (the core's own monotonic clock)."""

    def __init__(self, engine: Any):
        self._core, self._original = engine.engine_core, engine.engine_core.get_output
        self.steps: list[Any] = []
        self.submitted: list[float] = []  # when each request was handed to the engine, same clock

    def __enter__(self) -> StepRecorder:
        def get_output(*args, **kwargs):
            outputs = self._original(*args, **kwargs)
            self.steps.append(outputs)
            return outputs

        self._core.get_output = get_output
        return self

    def __exit__(self, *exception) -> None:
        del self._core.get_output

    def columns(self, start: float) -> tuple[dict[str, list], dict[str, list[float]], int]:
        """(columns of the trace, first and last token time by internal request id, request-steps)."""
        columns: dict[str, list] = {name: [] for name in STEP_COLUMNS}
        times: dict[str, list[float]] = {}
        request_steps, begin = 0, start
        for step in self.steps:
            stats = step.scheduler_stats
            produced = [o for o in step.outputs if o.new_token_ids]
            if not produced and (stats is None or not stats.num_running_reqs):
                continue
            now = step.timestamp - start
            prefilled = 0
            for output in produced:
                if output.request_id not in times:
                    times[output.request_id] = [now, now]
                    prefilled += 1
                times[output.request_id][1] = now
            request_steps += len(produced)
            spec = stats.spec_decoding_stats if stats is not None else None
            graph = stats.cudagraph_stats if stats is not None else None
            columns["t_s"].append(round(now, 6))
            columns["running"].append(len(produced))
            columns["waiting"].append(stats.num_waiting_reqs if stats is not None else 0)
            # prompts that ended here; -1 where one was still on its way (a chunk of it may have been in the step)
            on_the_way = bisect(self.submitted, begin) > len(times)
            columns["prefills"].append(-1 if on_the_way else prefilled)
            begin = step.timestamp
            columns["output_tokens"].append(sum(len(o.new_token_ids) for o in produced))
            columns["drafts"].append(spec.num_drafts if spec else 0)
            columns["draft_tokens"].append(spec.num_draft_tokens if spec else 0)
            columns["accepted_tokens"].append(spec.num_accepted_tokens if spec else 0)
            columns["graph_mode"].append(str(graph.runtime_mode).rsplit(".", 1)[-1] if graph else "")
            columns["padded_tokens"].append(graph.num_padded_tokens if graph else 0)
        return columns, times, request_steps


def _read_metrics(llm: Any) -> tuple[dict[str, int], list[int]]:
    totals, per_position = dict.fromkeys(_COUNTERS.values(), 0), []
    for metric in llm.get_metrics():
        if metric.name in _COUNTERS:
            totals[_COUNTERS[metric.name]] += int(metric.value)
        elif metric.name == _PER_POSITION:
            per_position = [int(v) for v in metric.values]
    return totals, per_position


def _hash(ids: list[int]) -> str:
    return hashlib.sha256(array("q", ids).tobytes()).hexdigest()[:16]


def resolved(llm: Any, model_path: str, log: str) -> Resolved:
    """What the engine made of its arguments."""
    import vllm

    config = llm.llm_engine.vllm_config
    compilation, cache, scheduler = config.compilation_config, config.cache_config, config.scheduler_config
    backend = re.search(r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend", log, re.IGNORECASE)
    spec = config.speculative_config
    keys = ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max",
            "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests",
            "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "rejection_sample_method")  # fmt: skip
    eager = bool(config.model_config.enforce_eager)
    return Resolved(
        vllm_version=vllm.__version__,
        runner="V2" if config.use_v2_model_runner else "V1",
        async_scheduling=bool(scheduler.async_scheduling),
        cudagraph_mode=compilation.cudagraph_mode.name if compilation.cudagraph_mode is not None else "NONE",
        cudagraph_capture_sizes=() if eager else tuple(sorted(compilation.cudagraph_capture_sizes or ())),
        num_gpu_blocks=cache.num_gpu_blocks,
        block_size=cache.block_size,
        attention_backend=backend.group(1) if backend else None,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        enforce_eager=eager,
        speculative={} if spec is None else {k: getattr(spec, k) for k in keys if getattr(spec, k, None) is not None},
        model_checksum=weights.checksum(model_path),
        num_parameters=weights.num_parameters(model_path),
    )


class Runner:
    """One engine and the runs that go through it."""

    def __init__(self, llm: Any, plan: dict, settled: Resolved, start_s: float):
        self.llm, self.plan, self.resolved, self.start_s = llm, plan, settled, start_s
        source = plan["runs"][0]["engine"].get("model", {}).get("source")
        self.tokenizer = None if source in ("dummy", "parrot") else llm.get_tokenizer()
        self.seen: set[tuple[int, ...]] = set()  # prompts that this engine has answered
        self.warmed: set[int] = set()
        self.ran = 0
        self._ids = 0

    def prompts(self, workload: Workload) -> list[workloads.Prompt]:
        size = weights.vocab_size(self.plan["model_path"]) if workload.name == "random" else None
        return workloads.build(workload, self.tokenizer, vocab_size=size)

    def said(self, run: Run, **changes: Any) -> list[recorded.Request]:
        """The requests of a run whose answers are given: a parrot says them."""
        config = json.loads((Path(self.plan["model_path"]) / "config.json").read_text())
        return recorded.build(run.workload, parrot.vocabulary(config), run.output_tokens, **changes)

    def cache_ciphers(self, run: Run, requests: list[recorded.Request]) -> None:
        """Let the engine read every cipher once, so that its blocks are cached and only the plain prompt is read in the run.

        Each is answered with the end token alone, which a suffix drafter's memory can make nothing of.
        """
        if run.engine.arguments.get("enable_prefix_caching", True):
            ciphers = [r.prompt_token_ids[: r.num_cipher_tokens] for r in requests]
            batch = self.resolved.max_num_seqs or run.concurrency
            self.generate(ciphers, 1, True, batch, allowed_token_ids=[parrot.END])

    def generate(
        self,
        prompts: list[list[int]],
        output_tokens: int,
        ignore_eos: bool,
        concurrency: int,
        recorder: StepRecorder | None = None,
        temperature: float = 0,
        **sampling: Any,
    ) -> list[Any]:
        """Outputs in prompt order, never more than `concurrency` requests in flight; with internal ids."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=temperature, max_tokens=output_tokens, ignore_eos=ignore_eos,
            detokenize=self.tokenizer is not None, output_kind=RequestOutputKind.FINAL_ONLY, **sampling,
        )  # fmt: skip
        engine, waiting = self.llm.llm_engine, deque(range(len(prompts)))
        submitted = recorder.submitted if recorder is not None else []
        finished: dict[str, Any] = {}
        internal: dict[int, tuple[str, str]] = {}
        while len(finished) < len(prompts):
            while waiting and len(internal) - len(finished) < concurrency:
                index = waiting.popleft()
                self._ids += 1
                name = f"r{self._ids}"
                submitted.append(time.monotonic())
                inner = engine.add_request(name, {"prompt_token_ids": prompts[index]}, params)
                internal[index] = (name, inner or name)
            for output in engine.step():
                if output.finished:
                    finished[output.request_id] = output
        return [(internal[i][1], finished[internal[i][0]]) for i in range(len(prompts))]

    def warm_up(self, run: Run) -> None:
        """Once a batch size, with prompts that no run measures: kernels are compiled and caches filled by use."""
        if run.concurrency in self.warmed:
            return
        changes = {
            "seed": run.workload.seed + 1_000_003,
            "num_prompts": min(run.concurrency, run.workload.num_prompts),
        }
        if run.workload.name == "random":  # decode steps are timed: long prompts would only take time to read
            changes["input_tokens"] = min(run.workload.input_tokens, 32)
        other = run.workload.model_copy(update=changes)
        tokens = min(self.plan["warm_up_tokens"], run.output_tokens)
        if run.workload.answers == "model":
            ids = [p.token_ids for p in self.prompts(other)]
        else:
            ids = [r.prompt_token_ids for r in self.said(run.model_copy(update={"workload": other}), reverse=True)]
        self.generate(ids, tokens, True, run.concurrency)
        self.warmed.add(run.concurrency)

    def prepare_suffix_cache(self, run: Run, prompts: list[list[int]]) -> None:
        """Hold the run's promise about the suffix drafter's memory: cold prompts are new, warm ones were answered."""
        known = [p for p in prompts if tuple(p) in self.seen]
        if run.suffix_cache == "cold" and known:
            raise ValueError(
                f"suffix_cache cold must get prompts that this engine has not answered, got {len(known)} that were; run it first"
            )
        if run.suffix_cache == "warm" and len(known) < len(prompts):
            self.generate(prompts, run.output_tokens, run.ignore_eos, run.concurrency)
            self.seen.update(map(tuple, prompts))

    def run(self, run: Run) -> tuple[Record, Trace]:
        """Measure one run; returns its record and trace."""
        said = self.said(run) if run.workload.answers != "model" else None
        ids = [p.token_ids for p in self.prompts(run.workload)] if said is None else [r.prompt_token_ids for r in said]
        self.warm_up(run)
        self.prepare_suffix_cache(run, ids)
        if run.workload.name != "random":  # step times want their prompts read fast, not honestly
            self.llm.reset_prefix_cache()
        if said is not None:
            self.cache_ciphers(run, said)
        before, per_before = _read_metrics(self.llm)
        with StepRecorder(self.llm.llm_engine) as recorder, monitor.Monitor(num_gpus=run.engine.num_gpus) as watch:
            start = time.monotonic()
            outputs = self.generate(ids, run.output_tokens, run.ignore_eos, run.concurrency, recorder, run.temperature)
            wall_s = time.monotonic() - start
        after, per_after = _read_metrics(self.llm)
        self.seen.update(map(tuple, ids))
        columns, times, request_steps = recorder.columns(start)
        per_before = per_before or [0] * len(per_after)
        totals = {name: after[name] - before[name] for name in after}
        requests = tuple(self._request(inner, output, times) for inner, output in outputs)
        output_ids = [list(output.outputs[0].token_ids) for _, output in outputs]
        wrong = recorded.divergence(said, output_ids) if said is not None else ""
        cached = totals.pop("num_cached_prompt_tokens")
        counters = Counters(
            **totals | {"num_prompt_tokens": sum(map(len, ids))},
            num_output_tokens=sum(map(len, output_ids)),
            num_accepted_tokens_per_pos=tuple(b - a for a, b in zip(per_before, per_after, strict=True)),
            num_engine_steps=len(columns["t_s"]),
            num_request_steps=request_steps,
        )
        record = Record(
            run=run, status="invalid" if wrong else "ok", reason=wrong, wall_s=round(wall_s, 6), counters=counters,
            requests=requests, verbatim=None if said is None else not wrong,
            inputs_hash=_hash([i for r in said or () for part in r[:2] for i in [len(part), *part]]) if said else "",
            num_cached_prompt_tokens=cached,
            output_hash=_hash([i for one in output_ids for i in [len(one), *one]]), resolved=self.resolved,
            monitor=watch.result(), engine_start_s=round(self.start_s, 3), order=self.ran,
            provenance=Provenance(**self.plan["provenance"] | {"measured": machine.now()}),
        )  # fmt: skip
        self.ran += 1
        return record, Trace(steps=columns)

    @staticmethod
    def _request(inner: str, output: Any, times: dict[str, list[float]]) -> Request:
        completion = output.outputs[0]
        spec = getattr(completion, "spec_decode_metrics", None)
        first, last = times.get(inner, (None, None))
        return Request(
            num_prompt_tokens=len(output.prompt_token_ids),
            num_output_tokens=len(completion.token_ids),
            first_token_s=first if first is None else round(first, 6),
            last_token_s=last if last is None else round(last, 6),
            finish_reason=completion.finish_reason,
            output_hash=_hash(list(completion.token_ids)),
            drafted_per_step=tuple(spec.per_step_drafted) if spec is not None else None,
            accepted_per_step=tuple(spec.per_step_accepted) if spec is not None else None,
        )


_NO_MEMORY = ("out of memory", "can't allocate memory", "available memory", "memoryerror", "not enough memory")


def _status_of(error: BaseException) -> str:
    text = f"{type(error).__name__} {error}".lower()
    if any(words in text for words in _NO_MEMORY):
        return "oom"
    return "invalid" if isinstance(error, (ValueError, TypeError, ImportError)) else "crashed"


def main(plan_path: str) -> int:
    parent = Parent()
    events = os.fdopen(int(os.environ[EVENTS_VARIABLE]), "w", buffering=1)

    def emit(**fields: Any) -> None:
        events.write(json.dumps(fields) + "\n")

    plan = json.loads(Path(plan_path).read_text())
    runs = [Run.model_validate(c) for c in plan["runs"]]
    store = Store(plan["records"])
    try:
        import inspect

        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs

        begin = parent.wait()
        arguments = runs[0].engine.llm_arguments(plan["model_path"]) | {
            "disable_log_stats": False, "cudagraph_metrics": not runs[0].engine.arguments.get("enforce_eager"),
        }  # fmt: skip
        known = inspect.signature(EngineArgs).parameters  # vLLM < 0.27.2 lacks the next option
        if runs[0].engine.speculative is not None and "per_request_spec_decode_metrics" in known:
            arguments["per_request_spec_decode_metrics"] = "detailed"
        llm = LLM(**arguments)
    except Exception as error:
        emit(event="failed", plan_id=None, status=_status_of(error), reason=_reason(error))
        raise
    follow_children(emit)
    start_s = time.monotonic() - begin
    log = Path(plan["log"])
    settled = resolved(llm, plan["model_path"], log.read_text(errors="replace") if log.exists() else "")
    emit(event="ready", start_s=start_s, resolved=settled.model_dump(mode="json"))
    runner = Runner(llm, plan, settled, start_s)
    for run in runs:
        emit(event="running", plan_id=run.plan_id)
        try:
            record, trace = runner.run(run)
        except Exception as error:
            emit(event="failed", plan_id=run.plan_id, status=_status_of(error), reason=_reason(error))
            raise
        store.save(record, trace)
        emit(event="done", plan_id=run.plan_id)
    emit(event="end")
    events.close()
    # vLLM's own shutdown waits seconds for its processes; the records are on disk
    sys.stdout.flush()
    sys.stderr.flush()
    end_group()
    return 0


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
