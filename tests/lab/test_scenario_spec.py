"""Run specs of scenarios: what of a payload is identity, what is only told, what is refused."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.lab.experiment.command_spec import SpecOptions
from harness.lab.experiment.preparation import prepare
from harness.lab.experiment.scenario import asked_scenario, make_scenario_spec
from harness.process.invocation import Invocation
from harness.recording.run_spec import RunSpec
from tests.lab.scenario_texts import TINY, write_tiny

SEEDED = settings(derandomize=True, max_examples=50)


def options(*, level: str = "", metrics: tuple[str, ...] = (), **given_ones: Any) -> SpecOptions:
    """Of a command line that gives nothing but these."""
    return SpecOptions(level=level, metrics=metrics, **given_ones)


def run_spec(
    cwd: Path, variant: int = 0, environ: Mapping[str, str] = os.environ, *, scenario: str = "tiny", **given_ones: Any
) -> RunSpec:
    write_tiny(cwd)
    told = options(**given_ones)
    asked = asked_scenario(Invocation(cwd, environ), scenario, told, "smoke")
    return make_scenario_spec(asked, variant)


def test_the_identity_is_the_payload_without_what_is_free(tmp_path: Path) -> None:
    found = run_spec(tmp_path)
    assert found.identity == {
        "(entry)": "tests.lab.tiny_entry:run",
        "(level)": "invariant",
        "seed": "1",
        "num_steps": "3",
        "leaks": "false",
    }
    assert found.perturbation == {"runtime.num_parts": "4", "output": "{}"}
    assert found.call is not None
    assert found.call.config["num_steps"] == 3
    assert (found.level, found.typed) == ("invariant", ("tiny", "--size", "smoke"))


@SEEDED
@given(st.sampled_from(["seed", "num_steps", "leaks", "new.key", "output.x", "runtime.num_parts"]), st.integers(5))
def test_an_override_is_in_the_identity_or_told_beside_it(tmp_path: Path, key: str, value: int) -> None:
    plain, other = run_spec(tmp_path), run_spec(tmp_path, overrides=(f"{key}={value}",))
    is_free = key.partition(".")[0] in ("runtime", "output")
    assert (plain.identity == other.identity) == is_free
    assert (plain.perturbation == other.perturbation) != is_free
    if not is_free:
        names = {*plain.identity, *other.identity}
        assert {name for name in names if plain.identity.get(name) != other.identity.get(name)} == {key}
    assert other.typed == (*plain.typed, "--set", f"{key}={value}"), "what was overridden is recorded"


@pytest.mark.parametrize(("is_intels", "mode"), [(True, "AUTO,STRICT"), (False, "AUTO")])
def test_mkl_is_strict_on_processors_that_know_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_intels: bool, mode: str
) -> None:
    monkeypatch.setattr("harness.recording.run_spec.is_intels", lambda: is_intels)
    found = replace(run_spec(tmp_path), level="invariant")
    assert found.variables({})["MKL_CBWR"] == mode
    assert replace(found, level="deterministic").variables({})["MKL_CBWR"] == "AUTO"


def test_secrets_are_in_what_the_entry_gets_and_nowhere_else(tmp_path: Path) -> None:
    found = run_spec(tmp_path, overrides=("api_key=verysecret", "output.hub_token=verysecret"))
    assert found.call is not None
    assert found.call.config["api_key"] == "verysecret"
    told = (found.identity, found.perturbation, found.shown_argv)
    assert "verysecret" not in repr(told)
    assert repr(told).count("<redacted>") == 4


def test_what_varies_is_another_value_for_each_run(tmp_path: Path) -> None:
    sweep = ("runtime.num_parts=1, 7, 16", "output.name=a,b")
    runs = [run_spec(tmp_path, variant, sweep=sweep) for variant in range(4)]
    assert [run.perturbation["runtime.num_parts"] for run in runs] == ["1", "7", "16", "1"]
    assert [run.perturbation["output.name"] for run in runs] == ['"a"', '"b"', '"a"', '"b"']
    assert len({tuple(run.identity.items()) for run in runs}) == 1
    asked = asked_scenario(Invocation(tmp_path, os.environ), "tiny", options(sweep=sweep), "smoke")
    assert asked.num_variants == 3
    assert asked.typed[-4:] == ("--sweep", sweep[0], "--sweep", sweep[1])
    alone = ("tiny", "--size", "smoke", "--set", "runtime.num_parts=7", "--set", 'output.name="b"')
    assert runs[1].typed == alone, "each run says how it is had alone"
    words = dict(word.split("=", 1) for word in alone if "=" in word)
    again = run_spec(tmp_path, overrides=tuple(f"{key}={value}" for key, value in words.items()))
    assert (again.call, again.identity) == (runs[1].call, runs[1].identity)


@pytest.mark.parametrize(
    ("given_ones", "said"),
    [
        ({"overrides": ("seed",)}, "--set seed"),
        ({"overrides": ("seed=[1",)}, "--set seed=[1, line 1, column "),
        ({"overrides": ("seed.x=1",)}, "--set: seed.x leads through seed, which is 1 and not a section"),
        ({"sweep": ("runtime.num_parts",)}, "--sweep runtime.num_parts"),
        ({"sweep": ("seed=1,2",)}, "--sweep seed: it is part of the run identity"),
        ({"sweep": ("nosuch=1,2",)}, "--sweep nosuch: it is part of the run identity"),
        ({"size": "huge"}, "there is no size 'huge'"),
        ({"scenario": "tinny"}, "there is no scenario 'tinny'"),
        ({"metrics": ("loss",)}, "--metric loss"),
        ({"overrides": ("api_key=<redacted>",)}, "--set api_key=<redacted>: rlharness removed a secret there"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, given_ones: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        run_spec(tmp_path, **given_ones)
    assert refused.value.what.startswith(said)
    assert refused.value.legal or refused.value.remedy


def test_without_its_cards_or_beside_another_harness_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path)
    path.write_text(TINY.replace("runtime_sections:", "gpus: 64\nruntime_sections:"), encoding="utf-8")
    invocation = Invocation(tmp_path, {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    with pytest.raises(UsageError, match="needs 64 GPUs, and 0 are free here"):
        asked_scenario(invocation, "tiny", options(), "smoke")
    write_tiny(tmp_path)
    monkeypatch.setattr("harness.lab.experiment.scenario.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="torch is not installed"):
        asked_scenario(invocation, "tiny", options(), "smoke")
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").touch()
    with pytest.raises(UsageError, match=r"harness/__init__\.py would be imported"):
        asked_scenario(invocation, "tiny", options(), "smoke")


def test_what_was_prepared_can_be_taken_back(tmp_path: Path) -> None:
    out, env = prepare(run_spec(tmp_path), tmp_path / "t", {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    names = sorted(path.name for path in (tmp_path / "t").iterdir())
    assert names == ["call.json", "run.json"]
    assert not {"PYTHONHASHSEED", "OMP_DYNAMIC"} & env.keys(), "free at level invariant"
    assert env["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    out.give_back()
    assert not (tmp_path / "t").exists()
