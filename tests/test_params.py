"""Profiles: every file loads; bad input fails before anything starts, with one sentence that names field and allowed."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lib import params

PROFILES = sorted(params.PARAMS.glob("*.yaml"))
CPU = params.read_yaml(params.PARAMS / "cpu.yaml")


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_loads_under_its_own_name(path):
    assert params.load(path.stem).profile == path.stem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"out_put_tokens": 3}, ["out_put_tokens", "output_tokens"]),
        ({"engine": {**CPU["engine"], "max_num_seq": 8}}, ["engine.max_num_seq", "max_num_seqs"]),
        ({"output_tokens": "many"}, ["output_tokens", "many"]),
        ({"output_tokens": 0}, ["output_tokens", "0", "greater"]),
        ({"seeds": []}, ["seeds", "at least one"]),
        ({"workloads": ["sonet"]}, ["workloads", "sonet", "sonnet"]),
        ({"engine": {**CPU["engine"], "max_model_len": 190}}, ["max_model_len", "190", "200"]),
        ({"cudagraph_modes": ["PIECEWISE"]}, ["cudagraph_modes", "PIECEWISE", "enforce_eager"]),
        (
            {"engine": {**CPU["engine"], "cudagraph_mode": "PIECEWISE"}},
            ["cudagraph_mode", "PIECEWISE", "enforce_eager"],
        ),
        (
            {"engine": {**CPU["engine"], "max_cudagraph_capture_size": 2048}},
            ["max_cudagraph_capture_size", "2048", "enforce_eager"],
        ),
        ({"ngram": {"prompt_lookup_min": 6, "prompt_lookup_max": 5}}, ["prompt_lookup_min", "6", "5"]),
        ({"batch_sizes": [64]}, ["batch_sizes", "64", "max_num_seqs"]),
        ({"num_prompts": {4: 2}}, ["num_prompts", "8"]),
        ({"num_prompts": "many"}, ["num_prompts is 'many'"]),
        ({"step_time": {"baselines_of": ["opt-126m"]}}, ["step_time.baselines_of", "opt-126m"]),
        ({"step_time": {"again_of": ["Qwen2.5-7B"]}}, ["step_time.again_of", "'Qwen2.5-7B'", "SmolLM2"]),
        ({"step_time": {"contexts_of": {"Qwen-7B": [64]}}}, ["step_time.contexts_of", "Qwen-7B", "Qwen2.5-7B"]),
        ({"num_prompts": {8: 8}, "wide": {4: {"ngram": [0]}}}, ["num_prompts lacks batch size 4"]),
        ({"synthetic": {"workload": "sonet"}}, ["synthetic.workload", "sonet", "sonnet"]),
        ({"synthetic": {"architectures": ["gpt-9"]}}, ["synthetic.architectures", "gpt-9", "opt-125m"]),
    ],
)
def test_bad_values_are_one_sentence(change, words):
    with pytest.raises(params.ParamsError) as error:
        params.validate(CPU | change, "cpu.yaml")
    message = str(error.value)
    assert "\n" not in message and "allowed" in message
    assert [w for w in words if w not in message] == []


def test_yaml_traps_arrive_with_the_right_type(tmp_path):
    file = tmp_path / "trap.yaml"
    text = yaml.safe_dump(CPU | {"profile": "trap"})
    text += "time_limit_s: 1e3\n" if "time_limit_s" not in text else ""
    text = text.replace("time_limit_s: 300", "time_limit_s: 3e2").replace("memory: 'off'", "memory: off")
    text = text.replace("dtype: float32", "dtype: float32\n  num_gpu_blocks_override: null")
    file.write_text(text)
    profile = params.load(str(file))
    assert profile.time_limit_s == 300.0
    assert profile.suffix.memory == "off"
    assert profile.engine.num_gpu_blocks_override is None


def test_leading_zeros_and_double_keys_are_refused(tmp_path):
    for line, word in (("output_tokens: 096\n", "output_tokens"), ("profile: cpu\nprofile: gpu\n", "profile")):
        file = tmp_path / "bad.yaml"
        file.write_text("profile: bad\n" + line if "profile" not in line else line)
        with pytest.raises(params.ParamsError, match=word):
            params.load(str(file))


def test_papermill_values_override_and_none_does_not():
    # papermill -f and -p parse YAML 1.1: `1e-5` arrives as text, `off` as False
    namespace = {"profile": "cpu", "mode": "replay", "output_tokens": "64", "seeds": None, "suffix": {"memory": False}}
    profile = params.from_notebook(namespace)
    assert profile.output_tokens == 64
    assert profile.seeds == (0, 1)
    assert profile.suffix.memory == "off" and profile.suffix.num_speculative_tokens == 32


def test_a_whole_profile_injected_by_papermill_is_that_profile():
    with open(params.PARAMS / "cpu.yaml") as file:
        injected = yaml.safe_load(file)  # the way papermill -f reads it
    assert params.from_notebook({"mode": "replay", **injected}) == params.load("cpu")


@pytest.mark.parametrize(
    ("namespace", "words"),
    [
        ({"output_token": 3}, ["output_token", "output_tokens"]),
        ({"mode": "measured"}, ["mode", "replay, measure"]),
        ({"profile": "h20"}, ["h20", "h200"]),
    ],
)
def test_unknown_notebook_parameters_are_refused(namespace, words):
    with pytest.raises(params.ParamsError) as error:
        params.from_notebook({"profile": "cpu", "mode": "replay"} | namespace)
    assert [w for w in words if w not in str(error.value)] == []


def test_machine_checks_name_what_is_missing(monkeypatch):
    profile = params.load("cpu", {"engine": {"tensor_parallel_size": 4}})
    monkeypatch.setattr(params, "count_gpus", lambda: 0)
    with pytest.raises(params.ParamsError, match=r"tensor_parallel_size is 4.*GPUs present \(0\)"):
        params.check_machine(profile, set())
    monkeypatch.setattr(params.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(params.ParamsError, match="arctic-inference"):
        params.check_machine(params.load("cpu"), {"suffix"})
    with pytest.raises(params.ParamsError, match="vLLM"):
        params.check_machine(params.load("cpu"), set())


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.integers(), min_size=1, max_size=3))
def test_no_unknown_key_slips_through(extra):
    known = set(params.Profile.model_fields)
    extra = {k: v for k, v in extra.items() if k not in known}
    if extra:
        with pytest.raises(params.ParamsError):
            params.validate(CPU | extra, "cpu.yaml")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"name": "SmolLM2-135M"}}, ["model.name", "'SmolLM2-135M'", "did you mean 'SmolLM2-135M-Instruct'"]),
        (
            {"step_time": {"architectures": ["Qwen2.5-0.6B"]}},
            ["step_time.architectures", "did you mean 'Qwen2.5-0.5B'"],
        ),
        ({"step_time": {"architectures": ["Llama-3.3-70:fp8"]}}, ["'Llama-3.3-70'", "did you mean 'Llama-3.3-70B'"]),
    ],
)
def test_a_misspelt_model_is_refused_before_anything_starts(changes, words):
    with pytest.raises(params.ParamsError) as error:
        params.load("cpu", changes)
    assert all(word in str(error.value) for word in words)


def test_another_model_keeps_the_profiles_grid():
    p = params.load("cpu", {"model": {"source": "shape", "name": "opt-125m"}})
    assert "SmolLM2-135M-Instruct" in p.step_time.architectures
