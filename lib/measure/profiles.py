"""Profiles: `params/<profile>.yaml` and a notebook's parameters become one frozen, typed `Profile`."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from lib.measure import parrot, shapes, weights
from lib.results import settings as menu
from lib.results.records import ROOT
from lib.results.run import PUBLISHED, RECORDED, WORKLOADS, Frozen, Model
from lib.results.settings import nearest

PARAMS = ROOT / "params"


class ProfileError(menu.SettingError):
    """One sentence: the field, what it got and what it must be."""


class Profile(Frozen):
    """Everything a notebook measures with. Engine arguments that are not given are vLLM's own defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    profile: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    models: tuple[Model, ...] = Field(default=(Model(),), alias="model", min_length=1)
    engine: dict[str, Any] = Field(default_factory=dict)  # arguments of vllm.LLM, under every setting
    env: dict[str, str] = Field(default_factory=dict)  # variables that vLLM reads
    settings: tuple[str, ...] = ("vanilla", "ngram")
    own_settings: dict[str, Any] = Field(default_factory=dict)  # definitions on top of params/settings.yaml
    answers: Literal["model", "recorded", "published"] = "model"  # the last two: what a parrot says
    form: Literal["raw", "chat"] = "chat"
    workloads: tuple[str, ...] = WORKLOADS
    concurrency: tuple[int, ...] = (8,)
    num_prompts: int | dict[int, int] = 8  # one number, or one for each concurrency
    seeds: tuple[int, ...] | dict[int, tuple[int, ...]] = (0,)  # likewise
    repeats: dict[str, int] = Field(default_factory=dict)  # identical engines of a setting, for the A/A variability
    input_tokens: int = Field(default=350, ge=1)
    output_tokens: int = Field(default=96, ge=1)
    ignore_eos: bool = False
    time_limit_s: float = Field(default=900, gt=0)  # of one engine process without a sign of life
    threads: int | None = Field(default=None, ge=1)  # CPU engine: OpenMP threads; None: all cores
    log: str | None = Field(
        default=None, min_length=1
    )  # a JSONL request log for workload jsonl, relative to the top folder
    changed: bool = False  # whether a notebook's parameters changed the file's values

    @property
    def model(self) -> Model:
        return self.models[0]

    def at(self, concurrency: int) -> tuple[int, tuple[int, ...]]:
        """Number of prompts and seeds at a concurrency."""
        number, seeds = self.num_prompts, self.seeds
        return (
            number[concurrency] if isinstance(number, dict) else number,
            seeds[concurrency] if isinstance(seeds, dict) else seeds,
        )

    @property
    def menu(self) -> dict[str, menu.Setting]:
        """Every setting that this profile may name."""
        return menu.menu(self.own_settings)

    @field_validator("models", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        many = [value] if isinstance(value, Mapping | Model) else value
        return (
            [_with_content(m) if isinstance(m, Mapping) else m for m in many]
            if isinstance(many, list | tuple)
            else value
        )

    @model_validator(mode="after")
    def _known(self) -> Profile:
        try:
            known = self.menu
        except menu.SettingError as error:
            raise ValueError(str(error)) from None
        held = {"model": (*WORKLOADS, "jsonl"), "recorded": (*RECORDED, "jsonl"), "published": PUBLISHED}[self.answers]
        for field, names in (("settings", known), ("repeats", known), ("workloads", held)):
            for name in getattr(self, field):
                if name not in names:
                    raise ValueError(f"{field} must be among {', '.join(names)}, got {name!r}{nearest(name, names)}")
        for field, low in (("concurrency", 1), ("num_prompts", 1), ("seeds", 0), ("repeats", 1)):
            value = getattr(self, field)
            numbers = [
                n
                for v in (value.values() if isinstance(value, dict) else [value])
                for n in (v if isinstance(v, tuple) else [v])
            ]
            if field != "repeats" and not numbers or min(numbers, default=low) < low:
                raise ValueError(
                    f"{field} must be whole numbers from {low}, got {list(value) if isinstance(value, tuple) else value}"
                )
        for field in ("num_prompts", "seeds"):
            lacking = [
                c for c in self.concurrency if isinstance(getattr(self, field), dict) and c not in getattr(self, field)
            ]
            if lacking:
                raise ValueError(f"{field} must have an entry for each concurrency, got none for {lacking[0]}")
        if "jsonl" in self.workloads and not (self.log and (ROOT / self.log).is_file()):
            raise ValueError(f"log must name a JSONL file for workload jsonl, got {self.log!r}")
        return self

    @model_validator(mode="after")
    def _possible(self) -> Profile:
        most = self.engine.get("max_num_seqs")
        if most and max(self.concurrency) > most:
            raise ValueError(f"concurrency must be at most engine.max_num_seqs ({most}), got {max(self.concurrency)}")
        longest = self.engine.get("max_model_len", 2**31)
        for model in self.models:
            need, room = self.input_tokens + self.output_tokens, longest
            if (model.source == "parrot") != (self.answers != "model"):
                raise ValueError(
                    f"answers must be recorded or published with model.source parrot and model with any other, "
                    f"got {self.answers} with {model.source}"
                )
            if model.source == "packaged" and model.name not in weights.PACKAGED:
                raise ValueError(
                    f"model.name must be one of {', '.join(weights.PACKAGED)} with source packaged, got {model.name!r}"
                )
            if model.source == "dummy":
                shapes.config_of(model.name)
            if model.source == "parrot":
                config = parrot.config_of(model)
                vocabulary, positions = parrot.vocabulary(config), config["max_position_embeddings"]
                if longest > positions and "max_model_len" in self.engine:
                    raise ValueError(f"engine.max_model_len must be at most the model's {positions}, got {longest}")
                need += vocabulary.cipher_tokens([0] * self.output_tokens)
                room = min(vocabulary.longest + self.output_tokens, longest)
            # drafted tokens want room, too
            need += max((s.arguments.get("speculative_config", {}).get("num_speculative_tokens", 0)
                         for n, s in self.menu.items() if n in self.settings), default=0) if room == longest else 0  # fmt: skip
            if need > room:
                raise ValueError(
                    f"engine.max_model_len must be at least {need} for input_tokens ({self.input_tokens}), output_tokens "
                    f"({self.output_tokens}), what is drafted and a parrot's cipher of the answer, got {room}"
                )
        return self


def _with_content(model: Mapping[str, Any]) -> dict[str, Any]:
    """A parrot of a config.json: the file's content is part of what is asked for, not its name alone."""
    if model.get("source") != "parrot" or not str(model.get("name")).endswith(".json"):
        return dict(model)
    path = ROOT / str(model["name"])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else None
    return {**model, "name": str(path), "revision": digest}


def _sentence(error: ValidationError, where: str) -> str:
    """The first problem of a pydantic error as one sentence."""
    first = error.errors()[0]
    # of a union pydantic names the branch that failed too, which is no key of the file
    union = r"(int|str|float|dict|tuple|Model)(\[.*\])?"
    path = ".".join(str(part) for part in first["loc"] if not re.fullmatch(union, str(part)))
    known = list(Profile.model_json_schema()["properties"])
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key {path}{nearest(path, known)}; keys are {', '.join(known)}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "value_error":
        return f"{where}: {message}"
    if first["type"] == "missing":
        return f"{where}: {path} must be given"
    return f"{where}: {path} {message[0].lower()}{message[1:]}, got {first['input']!r}"


def _pairs(listed: Any) -> list[tuple[str, Any]] | None:
    """Names and own definitions (or None) of `settings`: a list of either, or a mapping; None for anything else."""
    if isinstance(listed, Mapping):
        return list(listed.items())
    if not isinstance(listed, list | tuple):
        return None
    return [p for item in listed for p in (item.items() if isinstance(item, Mapping) else [(item, None)])]


def validate(values: Mapping[str, Any], where: str) -> Profile:
    """A `Profile` from plain values; raises ProfileError with one sentence."""
    values = dict(values)
    listed = _pairs(values.get("settings"))
    if listed is not None:
        values["settings"] = [name for name, _ in listed]
        values["own_settings"] = {**values.get("own_settings", {}), **{name: own for name, own in listed if own}}
    try:
        return Profile.model_validate(values)
    except (ValidationError, parrot.ParrotError) as error:
        raise ProfileError(
            _sentence(error, where) if isinstance(error, ValidationError) else f"{where}: {error}"
        ) from None


def path_of(name: str) -> Path:
    """params/<name>.yaml, or a path given as such; ProfileError names the profiles that exist."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else PARAMS / f"{name}.yaml"
    if not path.exists() and not path.is_absolute():
        path = ROOT / path
    if not path.exists():
        known = sorted(p.stem for p in PARAMS.glob("*.yaml") if p != menu.PATH)
        raise ProfileError(
            f"profile must be one of {', '.join(known)}, or a .yaml file, got {name!r}{nearest(name, known)}"
        )
    return path


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Profile:
    """Profile `name` (a name in params/ or a path), with top-level `overrides` (None: the profile's own value).

    A mapping override replaces only the keys it names. Raises ProfileError.
    """
    path = path_of(name)
    values = menu.read_yaml(path)
    # a profile's own definitions outlive an overriding list of names
    values["own_settings"] = {name: own for name, own in _pairs(values.get("settings")) or () if own}
    for key, value in (overrides or {}).items():
        if value is not None:
            held = values.get(key)
            values[key] = (
                menu.merged(held, value) if isinstance(held, Mapping) and isinstance(value, Mapping) else value
            )
    return validate(values, path.name if not overrides else f"{path.name} and notebook parameters")


_given: dict[str, set[str]] = {}  # of this kernel: the names that its parameters cells set


def from_notebook(namespace: Mapping[str, Any]) -> Profile:
    """The profile for a notebook's parameters cell, papermill's injected cell included. `namespace` is `globals()`.

    Variables of these cells named after a Profile field override the profile's file; None leaves it alone. Any other
    name there is an error. Later variables of the notebook are none of its parameters.
    """
    if found := _parameters(namespace.get("In")):
        _given["names"] = found
    names = _given.get("names") if "In" in namespace else {n for n in namespace if not n.startswith("_")}
    if (mode := namespace.get("mode", "replay")) not in ("replay", "measure"):
        raise ProfileError(f"mode must be replay or measure, got {mode!r}")
    known = {f.alias or n for n, f in Profile.model_fields.items()} - {"changed", "own_settings"} | {"mode"}
    for name in sorted(names or ()):
        if name not in known:
            raise ProfileError(
                f"unknown parameter {name}{nearest(name, known)}; parameters are {', '.join(sorted(known))}"
            )
    given = {
        key: namespace[key] for key in known & (names or set()) if key in namespace and key not in ("profile", "mode")
    }
    changed = any(value is not None for value in given.values())
    p = load(str(namespace.get("profile", "cpu")), given).model_copy(update={"changed": changed})
    menu.show(p.menu)
    return p


_SETS = ast.Assign | ast.AnnAssign


def _parameters(history: list[str] | None) -> set[str]:
    """Names that the cells before the running one set, as far back as cells hold nothing but assignments and imports."""
    names: set[str] = set()
    for source in reversed((history or [])[:-1]):
        try:
            statements = ast.parse(source).body
        except SyntaxError:
            break
        if not statements or not all(isinstance(s, _SETS | ast.Import | ast.ImportFrom) for s in statements):
            break
        names |= {
            t.id
            for s in statements
            if isinstance(s, _SETS)
            for t in (s.targets if isinstance(s, ast.Assign) else [s.target])
            if isinstance(t, ast.Name)
        }
    return names
