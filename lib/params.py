"""Profiles: `params/<profile>.yaml` and notebook variables become one frozen, typed `Profile`.

YAML 1.1 turns `1e-5` into text, `off` into False and `010` into 8. Every value is therefore checked against its field's
type: numbers written as text are read as numbers, `off` is a word again where a word is wanted, and a leading zero in a
profile's file is refused. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, NonNegativeInt, ValidationError, field_validator, model_validator

from lib import models, parrot, shapes
from lib.cells import PUBLISHED, RECORDED, WORKLOADS, Engine, Frozen, Model

ROOT = Path(__file__).resolve().parent.parent
PARAMS = ROOT / "params"


class ParamsError(ValueError):
    """One sentence: the field, the value and what is allowed."""


class Ngram(Frozen):
    """The ngram drafter's settings (vLLM's names)."""

    num_speculative_tokens: int = Field(default=7, ge=1)
    prompt_lookup_min: int = Field(default=2, ge=1)
    prompt_lookup_max: int = Field(default=5, ge=1)

    @model_validator(mode="after")
    def _pair(self) -> Ngram:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min is {self.prompt_lookup_min}, "
                f"allowed: at most prompt_lookup_max ({self.prompt_lookup_max})"
            )
        return self


class Suffix(Frozen):
    """The suffix drafter's settings (vLLM's names without the `suffix_decoding_` prefix)."""

    num_speculative_tokens: int = Field(default=32, ge=1)
    max_tree_depth: int = Field(default=24, ge=1)
    max_spec_factor: float = Field(default=1.0, gt=0)
    min_token_prob: float = Field(default=0.1, ge=0, le=1)
    max_cached_requests: int = Field(default=10000, ge=1)
    memory: Literal["off", "cold", "warm"] = "off"
    draft_lengths: tuple[int, ...] = (12,)  # other num_speculative_tokens, in notebook 03

    @field_validator("memory", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value


class StepTime(Frozen):
    """The grid of the step-time law: batch sizes x drafted tokens x context, on each architecture."""

    architectures: tuple[str, ...] = ()  # shapes as `name` or `name:quantization`; empty: the profile's own model
    baselines_of: tuple[str, ...] = ()  # those that get vanilla on V1, on V1 synchronous, and again, as well
    again_of: tuple[str, ...] = ()  # those whose vanilla and `full_draft_tokens` are started again
    batch_sizes: tuple[int, ...] = (1, 4, 8)
    draft_tokens: tuple[int, ...] = (0, 1, 3, 7)
    full_draft_tokens: tuple[int, ...] = ()  # lengths that get an engine whose FULL graph is captured for just them
    full_draft_tokens_of: dict[str, tuple[int, ...]] = Field(default_factory=dict)  # others for single architectures
    contexts: tuple[int, ...] = (128,)
    contexts_of: dict[str, tuple[int, ...]] = Field(default_factory=dict)  # other contexts for single architectures
    num_steps: int = Field(default=16, ge=3)
    rounds: int = Field(default=1, ge=1)  # times that the grid is walked, so that a slow minute hits no point alone
    dtype: str | None = None


def _known(name: str, allowed: Sequence[str]) -> str:
    if name not in allowed:
        raise ValueError(f"holds {name!r}{_nearest(name, allowed)}, allowed: {', '.join(allowed)}")
    return name


class Synthetic(Frozen):
    """Shapes whose drafts are accepted by chance, as often as another setting's were on the profile's own model."""

    architectures: tuple[str, ...] = ()  # as in step_time; empty: nothing is measured
    setting: str = "padded_ngram"
    workload: str = "sonnet"
    batch_sizes: tuple[int, ...] = (1, 16, 64)
    input_tokens: int = Field(default=128, ge=1)
    output_tokens: int = Field(default=256, ge=1)

    @field_validator("workload")
    @classmethod
    def _known_workload(cls, value: str) -> str:
        return _known(value, WORKLOADS)


class Profile(Frozen):
    """Everything a notebook measures with. `None` means: vLLM's own default."""

    profile: str
    model: Model = Model()
    engine: Engine = Engine()
    workloads: tuple[str, ...] = WORKLOADS
    sweep_workloads: tuple[str, ...] = ("sonnet", "code")
    answers: Literal["model", "recorded", "published"] = "model"  # the last two: what a parrot says
    form: Literal["raw", "chat"] = "chat"
    num_prompts: int | dict[int, int] = 8  # one number, or one for each batch size
    input_tokens: int = Field(default=350, ge=1)
    output_tokens: int = Field(default=96, ge=1)
    ignore_eos: bool = False
    reuse_prompts: bool = False
    seeds: tuple[int, ...] = (0, 1)
    batch_sizes: tuple[int, ...] = (8,)
    batch_sweep: tuple[int, ...] = ()  # further batch sizes, measured on sweep_workloads with the first seed
    repeats: int = Field(default=2, ge=1)
    rungs: tuple[str, ...] = ("vanilla", "null", "ngram", "suffix", "full")  # the ladder, names of lib.ladder
    arms: tuple[
        str, ...
    ] = ()  # further settings of lib.ladder, on sweep_workloads with the first seed, every batch size
    controls: tuple[Literal["raw", "ignore_eos"], ...] = ()  # vanilla and drafters again: plain prompts, no early end
    gamma_schedule: str = ""  # of the arm padded_ngram_schedule, like 1:7,128:0
    captured_gamma_schedule: str = ""  # of the arm padded_ngram_captured_schedule, like 1:7,128:3
    # batch size -> setting -> repeats of its engine, on all workloads and seeds
    wide: dict[int, dict[str, tuple[NonNegativeInt, ...]]] = Field(default_factory=dict)
    ngram: Ngram = Ngram()
    suffix: Suffix = Suffix()
    draft_lengths: tuple[int, ...] = (3, 5, 7, 10)
    cudagraph_modes: tuple[Literal["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"], ...] = ()
    fixed_num_gpu_blocks: int | None = Field(default=None, ge=1)  # held while cudagraph_mode varies
    gpu_memory_utilizations: tuple[float, ...] = ()
    step_time: StepTime = StepTime()
    synthetic: Synthetic = Synthetic()
    time_limit_s: float = Field(default=900, gt=0)  # of one engine process
    threads: int | None = Field(default=None, ge=1)  # CPU engine: OpenMP threads; None: all cores
    own_log: str | None = None  # a JSONL request log, relative to the top folder

    @field_validator("seeds", "batch_sizes")
    @classmethod
    def _not_empty(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 0:
            raise ValueError(f"is {list(value)}, allowed: at least one whole number, none negative")
        return value

    @model_validator(mode="after")
    def _known_workloads(self) -> Profile:
        held = {"model": WORKLOADS, "recorded": (*RECORDED, "jsonl"), "published": PUBLISHED}[self.answers]
        for field in ("workloads", "sweep_workloads"):
            for name in getattr(self, field):
                try:
                    _known(name, held)
                except ValueError as error:
                    raise ValueError(f"{field} {error} (answers: {self.answers})") from None
        if (self.model.source == "parrot") != (self.answers != "model"):
            raise ValueError(
                f"answers must be recorded or published with model.source parrot and model with any other, "
                f"got {self.answers} with {self.model.source}"
            )
        if "jsonl" in (*self.workloads, *self.sweep_workloads) and not (
            self.own_log and (ROOT / self.own_log).is_file()
        ):
            raise ValueError(f"own_log must name a JSONL file for workload jsonl, got {self.own_log!r}")
        numbers = self.num_prompts.values() if isinstance(self.num_prompts, dict) else [self.num_prompts]
        if min(numbers, default=0) < 1:
            raise ValueError(f"num_prompts must be whole numbers from 1, got {self.num_prompts}")
        return self

    @model_validator(mode="after")
    def _known_models(self) -> Profile:
        if self.model.source == "parrot":
            config = parrot.config_of(self.model)
            vocabulary, positions = parrot.vocabulary(config), config["max_position_embeddings"]
            if self.engine.max_model_len > positions:
                raise ValueError(
                    f"engine.max_model_len must be at most the model's {positions}, got {self.engine.max_model_len}"
                )
            need = self.input_tokens + vocabulary.cipher_tokens([0] * self.output_tokens)
            if need > min(vocabulary.longest, self.engine.max_model_len - self.output_tokens):
                raise ValueError(
                    f"engine.max_model_len must leave room for a prompt of input_tokens ({self.input_tokens}) and the "
                    f"answer's cipher, {need} tokens in all, and output_tokens ({self.output_tokens}); got "
                    f"{self.engine.max_model_len}, and the model's prompts may have {vocabulary.longest}"
                )
        name, held = self.model.name, models.PACKAGED
        if self.model.source == "packaged" and name not in held:
            raise ValueError(
                f"model.name is {name!r}{_nearest(name, held)}, allowed with source packaged: {', '.join(held)}"
            )
        known = [*dict.fromkeys((self.model.name, *held, *shapes.SHAPES))]
        asked = {f"{field}.architectures": getattr(self, field).architectures for field in ("step_time", "synthetic")}
        for field in ("contexts_of", "full_draft_tokens_of"):
            asked[f"step_time.{field}"] = getattr(self.step_time, field)
        for field, architectures in asked.items():
            for architecture in architectures:
                if (name := architecture.partition(":")[0]) not in known:
                    raise ValueError(f"{field} holds {name!r}{_nearest(name, known)}, allowed: {', '.join(known)}")
        measured = self.step_time.architectures or (self.model.name,)
        for field in ("baselines_of", "again_of"):
            for name in getattr(self.step_time, field):
                if name not in measured:
                    raise ValueError(
                        f"step_time.{field} holds {name!r}{_nearest(name, measured)}, allowed: {', '.join(measured)}"
                    )
        return self

    @model_validator(mode="after")
    def _possible(self) -> Profile:
        lengths = (*self.draft_lengths, *self.suffix.draft_lengths)
        longest = max(self.ngram.num_speculative_tokens, self.suffix.num_speculative_tokens, *lengths, 1)
        need = self.input_tokens + self.output_tokens + longest
        if need > self.engine.max_model_len:
            raise ValueError(
                f"engine.max_model_len is {self.engine.max_model_len}, allowed: at least input_tokens "
                f"({self.input_tokens}) + output_tokens ({self.output_tokens}) + drafted tokens ({longest}) = {need}"
            )
        graphs = [mode for mode in self.cudagraph_modes if mode != "NONE"]
        if self.engine.enforce_eager and graphs:
            raise ValueError(
                f"cudagraph_modes holds {graphs[0]}, allowed with engine.enforce_eager=true: NONE or an empty list"
            )
        if isinstance(self.num_prompts, dict):
            for batch in (*self.batch_sizes, *self.batch_sweep, *self.wide):
                if batch not in self.num_prompts:
                    raise ValueError(f"num_prompts lacks batch size {batch}, allowed: one entry for each batch size")
        asked = {"batch_sizes": self.batch_sizes, "batch_sweep": self.batch_sweep, "wide": tuple(self.wide)}
        asked |= {"synthetic.batch_sizes": self.synthetic.batch_sizes} if self.synthetic.architectures else {}
        for field, sizes in asked.items():
            if max(sizes, default=0) > self.engine.max_num_seqs:
                raise ValueError(
                    f"{field} holds {max(sizes)}, allowed: at most engine.max_num_seqs ({self.engine.max_num_seqs})"
                )
        return self

    @property
    def base_engine(self) -> Engine:
        """The engine as shipped: the profile's model and settings, no speculation."""
        return self.engine.model_copy(update={"model": self.model})

    def prompts_at(self, batch_size: int) -> int:
        """Number of prompts measured at a batch size."""
        return self.num_prompts[batch_size] if isinstance(self.num_prompts, dict) else self.num_prompts


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and leading zeros, and leaves dates and yes/no/on/off as words."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":bool", ":int", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), "-+0123456789")
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$"),
    "-+0123456789.",
)
_LEADING_ZERO = re.compile(r"^[-+]?0[0-9_]+$")


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    seen: dict = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if key in seen:
            raise ParamsError(f"line {line}: {key} is given twice, allowed: once")
        for scalar in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
            if isinstance(scalar, yaml.ScalarNode) and scalar.style is None and _LEADING_ZERO.match(scalar.value):
                raise ParamsError(
                    f"line {line}: {key} is {scalar.value}, allowed: a number without leading zeros, or quoted text"
                )
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def _nearest(word: str, known) -> str:
    close = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _sentence(error: ValidationError, where: str) -> str:
    """The first problem of a pydantic error as one sentence."""
    first = error.errors()[0]
    # of a union pydantic names the branch that failed too, which is no key of the file
    path = ".".join(
        str(part) for part in first["loc"] if not re.fullmatch(r"(int|str|float|dict|tuple)(\[.*\])?", str(part))
    )
    if first["type"] == "extra_forbidden":
        owner: Any = Profile
        for part in first["loc"][:-1]:
            annotation = owner.model_fields[part].annotation
            owner = annotation if isinstance(annotation, type) else Profile
        known = list(owner.model_fields)
        return f"{where}: {path} is no known key{_nearest(first['loc'][-1], known)}, allowed: {', '.join(known)}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{where}: {path} {message}" if path and not message.startswith(path) else f"{where}: {message}"
    if first["type"] == "missing":
        return f"{where}: {path} is missing, allowed: a value"
    return f"{where}: {path} is {first['input']!r}, allowed: {message[0].lower()}{message[1:]}"


def validate(values: Mapping[str, Any], where: str) -> Profile:
    """A `Profile` from plain values; raises ParamsError with one sentence."""
    plain = _plain(values)
    model = plain.get("model")
    if isinstance(model, dict) and model.get("source") == "parrot" and str(model.get("name")).endswith(".json"):
        path = ROOT / str(model["name"])  # a config's content is part of what is asked for, not its name alone
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else None
        plain["model"] = model | {"name": str(path), "revision": digest}
    try:
        return Profile.model_validate(plain)
    except ValidationError as error:
        raise ParamsError(_sentence(error, where)) from None


def _plain(value: Any) -> Any:
    """Numbers written as text (`1e-5` under YAML 1.1) stay text here: pydantic reads them by the field's type."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def read_yaml(path: Path) -> dict:
    """The mapping in a profile's file; ParamsError if it is none."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except ParamsError as error:
        raise ParamsError(f"{path.name}: {error}") from None
    except yaml.YAMLError as error:
        raise ParamsError(f"{path.name} is no valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ParamsError(f"{path.name} holds {type(values).__name__}, allowed: a mapping of keys to values")
    return values


def path_of(name: str) -> Path:
    """params/<name>.yaml, or a path given as such; ParamsError names the profiles that exist."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else PARAMS / f"{name}.yaml"
    if not path.exists() and not path.is_absolute():
        path = ROOT / path
    if not path.exists():
        known = sorted(p.stem for p in PARAMS.glob("*.yaml"))
        raise ParamsError(f"profile is {name!r}{_nearest(name, known)}, allowed: {', '.join(known)}, or a .yaml file")
    return path


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Profile:
    """Profile `name` (a name in params/ or a path), with top-level `overrides` (None: the profile's own value).

    A mapping override replaces only the keys it names. Raises ParamsError.
    """
    path = path_of(name)
    values = read_yaml(path)
    for key, value in (overrides or {}).items():
        if value is None:
            continue
        held = values.get(key)
        merge = isinstance(held, dict) and isinstance(value, Mapping) and key != "num_prompts"
        values[key] = {**held, **value} if merge else value
    return validate(values, path.name if not overrides else f"{path.name} and notebook parameters")


_NOTEBOOK_OWN = {"mode"}  # every notebook's parameter that is no field of the profile


def from_notebook(namespace: Mapping[str, Any], own: tuple[str, ...] = ()) -> Profile:
    """The profile for a notebook's parameters cell, papermill's injected cell included.

    `namespace` is `globals()`. Variables named after a Profile field override the profile's file; None leaves it alone.
    `own` names the notebook's other parameters. Any other plain value in the namespace is an unknown parameter: error.
    """
    mode = namespace.get("mode", "replay")
    if mode not in ("replay", "measure"):
        raise ParamsError(f"mode is {mode!r}, allowed: replay, measure")
    known = set(Profile.model_fields) | _NOTEBOOK_OWN | set(own)
    plain = (str, int, float, list, dict, bool, tuple)
    for name, value in namespace.items():
        internal = name.startswith("_") or name in ("In", "Out")
        if not internal and name not in known and isinstance(value, plain):
            raise ParamsError(
                f"{name} is no known parameter{_nearest(name, known)}, allowed: {', '.join(sorted(known))}"
            )
    given = {key: namespace[key] for key in Profile.model_fields if key in namespace and key != "profile"}
    return load(str(namespace.get("profile", "cpu")), given)


def count_gpus() -> int:
    """NVIDIA GPUs of this machine, without touching CUDA."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def count_cpus() -> int:
    """CPU cores this process may run on: fewer than the machine has when it was started under `taskset`."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_machine(profile: Profile, methods: set[str]) -> None:
    """Refuse, before any engine starts, what this machine cannot run. Raises ParamsError."""
    engine = profile.engine
    need, have = engine.tensor_parallel_size * engine.pipeline_parallel_size, count_gpus()
    remote = engine.distributed_executor_backend == "ray"
    if need > max(have, 1) and not remote:
        raise ParamsError(f"engine.tensor_parallel_size is {need}, allowed: at most the GPUs present ({have})")
    if "suffix" in methods and importlib.util.find_spec("arctic_inference") is None:
        raise ParamsError(
            "suffix.num_speculative_tokens asks for the suffix drafter, allowed: only with the package "
            "arctic-inference==0.1.1 installed (make env)"
        )
    if importlib.util.find_spec("vllm") is None:
        raise ParamsError("mode is 'measure', allowed: only with vLLM installed (make env, or make gpu-env)")
