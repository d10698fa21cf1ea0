"""A stand-in for vLLM that the real worker drives: one made-up token a request and step, no model, no measurement.

Put before the real one on PYTHONPATH. Tokens follow from the prompt alone. STANDIN_STEP_S: seconds a step.
"""

import os
import time
import zlib
from types import SimpleNamespace

__version__ = "0.0.standin"


class SamplingParams(SimpleNamespace):
    pass


class _Core:
    def __init__(self):
        self.step_s = float(os.environ.get("STANDIN_STEP_S", "0.002"))
        self.requests: dict[str, SimpleNamespace] = {}

    def get_output(self):
        time.sleep(self.step_s)
        outputs = []
        for name, request in self.requests.items():
            seen = [*request.prompt, *request.tokens]
            request.tokens.append(zlib.crc32(str(seen).encode()) % 1000)
            outputs.append(SimpleNamespace(request_id=name, new_token_ids=request.tokens[-1:]))
        return SimpleNamespace(outputs=outputs, scheduler_stats=None, timestamp=time.monotonic())


class _Engine:
    def __init__(self, arguments):
        self.engine_core = _Core()
        self.num_prompt_tokens = 0
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enforce_eager=True, dtype="torch.float32"),
            scheduler_config=SimpleNamespace(async_scheduling=False, max_num_batched_tokens=None,
                                             max_num_seqs=arguments["max_num_seqs"]),
            compilation_config=SimpleNamespace(cudagraph_mode=None, cudagraph_capture_sizes=()),
            cache_config=SimpleNamespace(num_gpu_blocks=1, block_size=16),
            speculative_config=None, use_v2_model_runner=False,
        )  # fmt: skip

    def add_request(self, name, prompt, params):
        ids = prompt["prompt_token_ids"]
        self.num_prompt_tokens += len(ids)
        self.engine_core.requests[name] = SimpleNamespace(prompt=ids, tokens=[], limit=params.max_tokens)
        return name

    def step(self):
        self.engine_core.get_output()
        held = self.engine_core.requests
        ended = [name for name, request in held.items() if len(request.tokens) == request.limit]
        return [self._output(name, held.pop(name)) for name in ended]

    @staticmethod
    def _output(name, request):
        completion = SimpleNamespace(token_ids=request.tokens, finish_reason="length")
        return SimpleNamespace(request_id=name, finished=True, prompt_token_ids=request.prompt, outputs=[completion])


class LLM:
    def __init__(self, **arguments):
        self.llm_engine = _Engine(arguments)

    def get_metrics(self):
        return [SimpleNamespace(name="vllm:prompt_tokens", value=self.llm_engine.num_prompt_tokens)]

    def reset_prefix_cache(self):
        return True
