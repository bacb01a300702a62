"""Packages that do not fit each other, and what pip says."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.doctor.host import Answer, Host
from harness.doctor.packages import (
    Installed,
    check_pip,
    check_versions,
    inspect_pip,
    inspect_versions,
    read_installed,
)
from harness.machine.findings import Severity
from tests.support.finding_checks import severities, sound


async def nobody(argv: Sequence[str], *, limit_s: float) -> Answer:
    raise AssertionError("no child is asked here")


def test_what_fits_is_told_in_one_line() -> None:
    installed = [Installed("torch", "2.13.0+cpu"), Installed("vllm", "0.32.0", ("torch==2.13.0", "numpy"))]
    (finding,) = sound(check_versions(installed))
    assert finding.measured == "torch 2.13.0+cpu, vllm 0.32.0 fit each other"
    assert check_versions([Installed("click", "8")])[0].severity is Severity.FINE


def test_a_sampler_built_for_another_torch_breaks() -> None:
    installed = [Installed("vllm", "0.25.1", ("Torch ==2.11.0 ; python_version > '3'",)), Installed("torch", "2.13.0")]
    (finding,) = sound(check_versions(installed))
    assert (finding.check, finding.severity) == ("vllm", Severity.BROKEN)
    assert finding.measured == "vllm 0.25.1 requires torch==2.11.0, and 2.13.0 is installed"
    assert finding.remedy == "pip install 'torch==2.11.0', or another vllm"


@pytest.mark.parametrize(
    "requirement",
    [
        "torch==2.11.0 ; extra == 'gpu'",
        "torch==2.11.0 ; python_version < '3'",
        "torchvision==0.1",  # not installed: pip check says so
        "torch",
        "torch>=2.13.0.dev0",
        "not a requirement ===",
    ],
)
def test_what_does_not_apply_is_no_misfit(requirement: str) -> None:
    installed = [Installed("tensordict", "0.15", (requirement,)), Installed("torch", "2.13.0")]
    assert severities(check_versions(installed)) == {"versions": "fine"}


def test_a_misfit_with_something_outside_the_stack_is_a_warning_and_one_elsewhere_pips() -> None:
    installed = [
        Installed("transformers", "5.19", ("numpy<2",)),
        Installed("numpy", "2.3", ("click>9",)),
        Installed("click", "8"),
    ]
    assert severities(check_versions(installed)) == {"transformers": "warning"}


def test_builds_for_different_machines_break() -> None:
    installed = [Installed("torch", "2.13.0+cpu"), Installed("torchvision", "0.28.0+cu130")]
    (finding,) = sound(check_versions(installed))
    assert (finding.check, finding.severity) == ("torch builds", Severity.BROKEN)
    alike = [Installed("torch", "2.13.0+cu130"), Installed("torchvision", "0.28.0+cu130"), Installed("torchaudio", "2")]
    assert severities(check_versions(alike)) == {"versions": "fine"}


@given(st.sampled_from(["2.11.0", "2.13.0", "2.13.0+cpu", "2.14.0rc1"]), st.sampled_from(["==", ">=", "<", "!=", "~="]))
def test_a_misfit_is_what_packaging_says(version: str, operator: str) -> None:
    from packaging.specifiers import SpecifierSet

    requirement = f"{operator}2.13.0"
    installed = [Installed("tensordict", "0.15", (f"torch{requirement}",)), Installed("torch", version)]
    fits = SpecifierSet(requirement).contains(version, prereleases=True)
    assert (check_versions(installed)[0].severity is Severity.FINE) is fits


def test_this_environment_is_read() -> None:
    found = {each.name: each for each in read_installed()}
    assert found["pytest"].version
    assert any(text.startswith("pluggy") for text in found["pytest"].requires)
    assert sound(asyncio.run(inspect_versions(Host({}, Path("/"), nobody))))


# ---- pip ----


def test_pips_complaints_are_counted_and_mended() -> None:
    output = (
        "verl 0.9.1 has requirement tensordict<=0.10.0,!=0.9.0,>=0.8.0, but you have tensordict 0.15.3.\n"
        "trl 1.0 requires accelerate, which is not installed.\n"
        "a 1 has requirement b<2; python_version > '3', but you have b 3.\n"
        "c 1 requires d, which is not installed.\n"
    )
    (finding,) = sound([check_pip(Answer(output, 1))])
    assert finding.severity is Severity.WARNING
    assert finding.measured.count(";") >= 3
    assert finding.measured.endswith("; and 1 more")
    assert finding.remedy == "pip install 'tensordict<=0.10.0,!=0.9.0,>=0.8.0' 'b<2'"


@pytest.mark.parametrize(
    ("answer", "severity", "said"),
    [
        (Answer("No broken requirements found.\n"), "fine", "No broken requirements found."),
        (Answer("/x/python: No module named pip\n", 1), "fine", "pip is not installed"),
        (Answer("", None, "no answer within 40 s"), "warning", "no answer within 40 s"),
        (Answer("trl 1.0 requires accelerate, which is not installed.", 1), "warning", "accelerate"),
    ],
)
def test_pip_by_its_answer(answer: Answer, severity: str, said: str) -> None:
    (finding,) = sound([check_pip(answer)])
    assert finding.severity.value == severity
    assert said in finding.measured


def test_pip_itself_understands_the_question() -> None:
    asked: list[Sequence[str]] = []

    async def ask(argv: Sequence[str], *, limit_s: float) -> Answer:
        asked.append(argv)
        return Answer("")

    asyncio.run(inspect_pip(Host({}, Path("/"), ask)))
    done = subprocess.run([*asked[0], "--help"], capture_output=True, text=True, check=False)
    assert asked[0][0] == sys.executable
    assert done.returncode == 0 or "No module named pip" in done.stderr


@pytest.mark.full
def test_pip_says_nothing_of_a_cache_that_is_not_ours(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    if os.geteuid() == 0:
        os.chown(cache, 65534, 65534)
    else:
        cache.chmod(0o500)
    environ = {**os.environ, "PIP_CACHE_DIR": str(cache)}
    answers: list[str] = []

    async def ask(argv: Sequence[str], *, limit_s: float) -> Answer:
        done = subprocess.run(
            argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        answers.append(done.stdout)
        return Answer(done.stdout, done.returncode)

    asyncio.run(inspect_pip(Host({}, Path("/"), ask)))
    (said,) = answers
    assert said
    assert "cache" not in said
