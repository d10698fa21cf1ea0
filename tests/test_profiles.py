"""Profiles: every file loads; bad input fails before anything starts, with one sentence that names the field."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lib import measure
from lib.measure import profiles
from lib.measure.profiles import ProfileError
from lib.results import settings

PROFILES = sorted(path for path in profiles.PARAMS.glob("*.yaml") if path != settings.PATH)
CPU = settings.read_yaml(profiles.PARAMS / "cpu.yaml")


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_loads_under_its_own_name(path):
    p = profiles.load(path.stem)
    assert p.profile == path.stem and not p.changed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"out_put_tokens": 3}, ["out_put_tokens", "did you mean 'output_tokens'"]),
        ({"output_tokens": "many"}, ["output_tokens", "'many'"]),
        ({"output_tokens": 0}, ["output_tokens", "got 0"]),
        ({"seeds": []}, ["seeds", "got []"]),
        ({"concurrency": [0]}, ["concurrency", "from 1", "got [0]"]),
        ({"workloads": ["sonet"]}, ["workloads", "'sonet'", "did you mean 'sonnet'"]),
        ({"settings": ["vanila"]}, ["settings", "'vanila'", "did you mean 'vanilla'"]),
        ({"repeats": {"vanila": 2}}, ["repeats", "did you mean 'vanilla'"]),
        ({"repeats": {"vanilla": 0}}, ["repeats", "from 1"]),
        ({"engine": CPU["engine"] | {"max_model_len": 190}}, ["engine.max_model_len", "at least 200", "got 190"]),
        ({"concurrency": [64]}, ["concurrency", "engine.max_num_seqs (8)", "got 64"]),
        ({"num_prompts": {4: 2}}, ["num_prompts", "each concurrency", "none for 8"]),
        ({"num_prompts": 0}, ["num_prompts", "from 1", "got 0"]),
        ({"num_prompts": "many"}, ["num_prompts", "got 'many'"]),
        ({"model": {"name": "SmolLM2-135M"}}, ["model.name", "SmolLM2-135M-Instruct", "'SmolLM2-135M'"]),
        ({"model": {"source": "dummy", "name": "gpt-9"}}, ["model.name", "opt-125m", "'gpt-9'"]),
        ({"model": []}, ["model", "at least 1"]),
        ({"settings": [{"mine": {"extends": "ngramm"}}]}, ["settings.mine.extends", "did you mean 'ngram'"]),
        ({"settings": [{"mine": {"suffix_cache": "hot"}}]}, ["settings.mine.suffix_cache", "'hot'"]),
    ],
)
def test_bad_values_are_one_sentence(change, words):
    with pytest.raises(ProfileError) as error:
        profiles.validate(CPU | change, "cpu.yaml")
    message = str(error.value)
    assert "\n" not in message and message.startswith("cpu.yaml: ")
    assert [w for w in words if w not in message] == []


def test_room_for_the_longest_draft_is_asked_for():
    engine = CPU["engine"] | {"max_model_len": 128 + 40 + 31}
    profiles.validate(CPU | {"engine": engine, "settings": ["vanilla", "ngram"]}, "x")
    with pytest.raises(ProfileError, match="at least 200 .*got 199"):
        profiles.validate(CPU | {"engine": engine, "settings": ["suffix"]}, "x")


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.integers(), min_size=1, max_size=3))
def test_no_unknown_key_slips_through(extra):
    extra = {k: v for k, v in extra.items() if k not in profiles.Profile.model_fields and k != "model"}
    if extra:
        with pytest.raises(ProfileError):
            profiles.validate(CPU | extra, "cpu.yaml")


# ---- files -----------------------------------------------------------------------------------------------------------


def test_yaml_traps_arrive_with_the_right_type(tmp_path):
    file = tmp_path / "trap.yaml"
    file.write_text(
        "profile: trap\ntime_limit_s: 3e2\noutput_tokens: 010\nengine: {num_gpu_blocks_override: null}\n"
        "settings:\n- suffix\n- no: {extends: suffix, suffix_cache: off}\n"
    )
    p = profiles.load(str(file))
    assert (p.time_limit_s, p.output_tokens, p.engine) == (300.0, 10, {"num_gpu_blocks_override": None})
    assert p.settings == ("suffix", "no") and p.menu["no"].suffix_cache == "off"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"profile: bad\nprofile: worse\n", "valid YAML"),
        (b"profile: [\n", "valid YAML"),
        (b"profile: \xff\n", "UTF-8"),
        (b"- profile\n", "mapping"),
        (b"", "mapping"),
    ],
)
def test_a_file_that_is_no_profile_is_one_sentence(content, words, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(settings.SettingError, match=words) as error:
        profiles.load(str(file))
    assert "\n" not in str(error.value) and "bad.yaml" in str(error.value)


def test_an_unknown_profile_is_told_what_there_is():
    with pytest.raises(ProfileError, match="cpu.*got 'h20'.*did you mean 'h200'"):
        profiles.load("h20")


# ---- notebooks -------------------------------------------------------------------------------------------------------


def test_a_notebook_s_values_override_and_none_does_not():
    p = measure.profile({"profile": "cpu", "mode": "replay", "output_tokens": "64", "seeds": None})
    assert (p.output_tokens, p.seeds, p.changed) == (64, (0, 1), True)
    assert not measure.profile({"profile": "cpu", "mode": "replay", "seeds": None}).changed


def test_an_override_replaces_only_the_keys_it_names():
    p = measure.profile({"profile": "cpu", "engine": {"max_num_seqs": 16}})
    assert p.engine == CPU["engine"] | {"max_num_seqs": 16}


@pytest.mark.parametrize(
    "listed", ["[vanilla, mine: {extends: ngram}]", "{vanilla: , mine: {extends: ngram}}"], ids=["list", "mapping"]
)
def test_a_profile_s_own_setting_can_be_asked_for_by_name(listed, tmp_path):
    (file := tmp_path / "own.yaml").write_text(f"profile: own\nsettings: {listed}\n")
    p = measure.profile({"profile": str(file), "settings": ["mine"]})
    assert p.settings == ("mine",) and p.menu["mine"].arguments["speculative_config"]["method"] == "ngram"


def test_a_whole_profile_injected_by_papermill_is_that_profile():
    injected = yaml.safe_load((profiles.PARAMS / "cpu.yaml").read_text())  # the way papermill -f reads it
    got = measure.profile({"mode": "replay", **injected})
    assert got.model_copy(update={"changed": False}) == profiles.load("cpu")


@pytest.mark.parametrize(
    ("namespace", "words"),
    [
        ({"output_token": 3}, ["output_token", "did you mean 'output_tokens'"]),
        ({"mode": "measured"}, ["mode", "replay or measure", "'measured'"]),
        ({"profile": "h20"}, ["'h20'", "did you mean 'h200'"]),
        ({"log": ""}, ["log", "got ''"]),  # a variable that is not set
    ],
)
def test_unknown_notebook_parameters_are_refused(namespace, words):
    with pytest.raises(ProfileError) as error:
        measure.profile({"profile": "cpu", "mode": "replay"} | namespace)
    assert [w for w in words if w not in str(error.value)] == []


def test_only_the_parameters_cells_are_parameters():
    asked = ['profile: str = "cpu"\noutput_tokens = None', "output_tokens = 64"]  # the notebook's own, and papermill's
    cells = ["", "import numpy", *asked, "p = measure.profile(globals())"]
    p = measure.profile({"In": cells, "profile": "cpu", "output_tokens": 64, "seeds": "a later variable", "runs": 1})
    assert (p.output_tokens, p.seeds) == (64, (0, 1))
    after = measure.profile(
        {"In": [*cells[:-1], "import numpy as np", cells[-1]], "profile": "cpu", "output_tokens": 64}
    )
    assert after.output_tokens == 64  # a cell of imports in between hides nothing
    with pytest.raises(ProfileError, match="unknown parameter output_token "):
        measure.profile({"In": ["output_token = 3", "measure.profile(globals())"], "output_token": 3})
