"""Made-up records for tests of what is computed from records; they claim no measurement."""

from lib.results.records import Counters, Provenance, Record, Request, Resolved, Trace
from lib.results.run import Engine, Run, Workload

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 3}


def run(setting="vanilla", workload="sonnet", seed=0, speculative=None, **changes) -> Run:
    """speculative: vLLM's `speculative_config`."""
    values = {
        "engine": Engine(arguments={"speculative_config": speculative} if speculative else {}),
        "workload": Workload(name=workload, num_prompts=2, input_tokens=8, seed=seed),
        "output_tokens": 10,
        "concurrency": 2,
        "setting": setting,
    }
    return Run(**values | changes)


def record(asked: Run, *, wall_s=2.0, tpot_s=0.1, tokens=10, drafts=0, drafted=0, accepted=(), steps=20, session=None,
           **changes) -> Record:  # fmt: skip
    """Two requests of `tokens` tokens, each token `tpot_s` after the one before."""
    requests = tuple(
        Request(
            num_prompt_tokens=8, num_output_tokens=tokens, first_token_s=0.1, last_token_s=0.1 + tpot_s * (tokens - 1),
            finish_reason=reason, output_hash=f"{i:016x}",
        )
        for i, reason in enumerate(("length", "stop"))
    )  # fmt: skip
    values = {
        "run": asked,
        "status": "ok",
        "wall_s": wall_s,
        "counters": Counters(
            num_output_tokens=2 * tokens, num_prompt_tokens=16, num_drafts=drafts, num_draft_tokens=drafted,
            num_accepted_tokens=sum(accepted), num_accepted_tokens_per_pos=tuple(accepted), num_engine_steps=10,
            num_request_steps=steps,
        ),
        "requests": requests,
        "resolved": Resolved(vllm_version="0.0", runner="V1", async_scheduling=False, cudagraph_mode="NONE"),
        "provenance": Provenance(measured="2026-01-01T00:00:00Z", commit="abcdef0", cpu="a CPU", session=session),
    }  # fmt: skip
    return Record(**values | changes)


def trace(step_ms, running, prefills=0, **columns) -> Trace:
    """Steps of the given lengths after a first one at t = 0 that prefilled."""
    times = [0.0]
    for ms in step_ms:
        times.append(times[-1] + ms / 1000)
    n = len(times)
    values = {
        "t_s": times, "running": [1, *running], "waiting": [0] * n, "prefills": [1, *([prefills] * (n - 1))],
        "output_tokens": [1] * n, "drafts": [0] * n, "draft_tokens": [0] * n, "accepted_tokens": [0] * n,
        "graph_mode": [""] * n, "padded_tokens": [0] * n,
    }  # fmt: skip
    return Trace(steps=values | columns)
