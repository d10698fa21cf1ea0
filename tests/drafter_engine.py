"""One real engine on the CPU, in float32 and in this process; prints ids and counters as one JSON line.

python tests/drafter_engine.py METHOD OPTIONS, METHOD one of vanilla, ngram, PaddedNgram, PaddedSuffix.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

GAMMA, MAX_NUM_SEQS, LOOKUP = 7, 6, {"prompt_lookup_min": 2, "prompt_lookup_max": 5}


def main(method: str, options: dict) -> None:
    scratch = Path(tempfile.mkdtemp())
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # two threads that wait for each other crawl on a busy machine
        "SPECULATION_DRAFTER_OPTIONS": json.dumps((LOOKUP if method == "PaddedNgram" else {}) | options),
        "SPECULATION_DRAFTER_COUNTS": str(scratch / "counts"),
    }
    from vllm import LLM, SamplingParams

    from lib import cells, drafters, models, workloads

    speculative = None
    if method == "ngram":
        speculative = {"method": "ngram", "num_speculative_tokens": GAMMA, **LOOKUP}
    elif method != "vanilla":
        speculative = {
            "method": "custom_class", "model": f"lib.drafters.{method}", "num_speculative_tokens": GAMMA,
        }  # fmt: skip
    llm = LLM(
        models.locate(cells.Model()), dtype="float32", max_model_len=256, max_num_seqs=MAX_NUM_SEQS,
        enforce_eager=True, speculative_config=speculative, disable_log_stats=False,
    )  # fmt: skip
    tokenizer = llm.get_tokenizer()
    prompts = [
        {"prompt_token_ids": prompt.token_ids}
        for name in cells.WORKLOADS  # more prompts than rows, of unequal lengths: rows are freed and moved
        for prompt in workloads.build(cells.Workload(name=name, num_prompts=2, input_tokens=96, seed=5), tokenizer)
    ]
    limits = [SamplingParams(temperature=0.0, max_tokens=24 + 8 * (i % 3)) for i in range(len(prompts))]
    outputs = llm.generate(prompts, limits, use_tqdm=False)
    counters = {m.name: m.value for m in llm.get_metrics() if "spec_decode" in m.name and hasattr(m, "value")}
    counts = drafters.read_counts(scratch / "counts")
    ids = [list(output.outputs[0].token_ids) for output in outputs]
    print(json.dumps({"ids": ids, "counts": counts, **counters}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
