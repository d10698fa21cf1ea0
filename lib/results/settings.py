"""The menu of settings: `params/settings.yaml`, and what a profile adds to it. A setting is vLLM's own engine arguments."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lib.results.records import ROOT
from lib.results.run import Frozen, Speculative

PATH = ROOT / "params" / "settings.yaml"
GREY = "#777777"


class SettingError(ValueError):
    """One sentence: the field, what it got and what it must be."""


class Setting(Frozen):
    """One setting as the menu has it, `extends` followed."""

    label: str
    color: str = GREY
    env: dict[str, str] = Field(default_factory=dict)
    suffix_cache: Literal["off", "cold", "warm"] | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)  # of vllm.LLM, speculative_config included

    @property
    def speculative(self) -> Speculative | None:
        config = self.arguments.get("speculative_config")
        return Speculative.model_validate(config) if config else None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file, as YAML 1.2: `off` is a word, 010 is ten, a key given twice is an error. Raises SettingError."""
    try:
        values = YAML(typ="safe", pure=True).load(io.StringIO(path.read_text(encoding="utf-8")))
    except (YAMLError, UnicodeDecodeError) as error:
        raise SettingError(
            f"{path.name} must be valid YAML in UTF-8, got: {' '.join(str(error).split())[:300]}"
        ) from None
    except OSError as error:
        raise SettingError(f"{path.name} must be a readable file, got: {error.strerror}") from None
    if not isinstance(values, dict):
        raise SettingError(f"{path.name} must be a mapping of keys to values, got {type(values).__name__}")
    return values


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean …?)`, empty where nothing is near."""
    close = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `change` on top, mappings within them key by key."""
    both = {
        k: merged(base[k], v) for k, v in change.items() if isinstance(v, Mapping) and isinstance(base.get(k), Mapping)
    }
    return {**base, **change, **both}


def resolve(definitions: Mapping[str, Any]) -> dict[str, Setting]:
    """Settings from their definitions. Raises SettingError for an unknown `extends`, a circle, or a wrong own key."""

    def raw(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
        own = definitions[name] or {}
        if not isinstance(own, Mapping):
            raise SettingError(f"settings.{name} must be a mapping, got {own!r}")
        if (base := own.get("extends")) is None:
            return dict(own)
        if base not in definitions or base in seen:
            why = "extends itself" if base in seen else f"got {base!r}{nearest(base, definitions)}"
            raise SettingError(f"settings.{name}.extends must be one of {', '.join(definitions)}, {why}")
        below = {k: v for k, v in raw(base, (*seen, base)).items() if k != "label"}
        return merged(below, {k: v for k, v in own.items() if k != "extends"})

    made = {}
    for name in definitions:
        held = {"label": name} | raw(name, (name,))
        own = {k: v for k, v in held.items() if k in Setting.model_fields and k != "arguments"}
        try:
            made[name] = Setting(**own, arguments={k: v for k, v in held.items() if k not in own})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise SettingError(
                f"settings.{name}.{where} {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}"
            ) from None
    return made


@cache
def _definitions() -> dict[str, Any]:
    return read_yaml(PATH)


def menu(own: Mapping[str, Any] | None = None) -> dict[str, Setting]:
    """Every setting by name: those of `params/settings.yaml`, with a profile's `own` definitions on top."""
    return resolve(_definitions() | {k: v for k, v in (own or {}).items() if v})


_shown: dict[str, Setting] = {}  # of the notebook's profile


def show(held: Mapping[str, Setting]) -> None:
    """Let `named` know the settings of a profile from now on, its own ones included."""
    _shown.update(held)


def named(name: str) -> Setting:
    """The setting of this name; one that is labelled by its name where neither menu nor profile has it."""
    return _shown.get(name) or menu().get(name) or Setting(label=name)
