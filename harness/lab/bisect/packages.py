"""Versions of a package between two, each put beside the environment, in front of it on the import path.

    pip index versions NAME ─▶ A, ..., B ─▶ pip install --dry-run: what would change here ─▶ pip install --target DIR

Only what pip would change in this environment is installed, the package and the requirements of its version, so that
everything else, torch above all, is the same in every probe. The environment itself is never written to.
"""

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.bits.errors import UsageError
from harness.bits.files import read_text
from harness.lab.bisect.candidates import UnavailableError, refuse_interrupted
from harness.lab.bisect.search import in_a_line
from harness.lab.experiments.launcher import Launcher
from harness.lab.experiments.run import OUTPUT
from harness.lab.experiments.worktrees import Side
from harness.process.scratch import remove_tree

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
LEGAL = "NAME==A..B, the good version and a later one that is bad"
_SPEC = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*==\s*(\S+?)\s*\.\.\s*(\S+)\s*")
_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


def parse_packages(text: str) -> tuple[str, Version, Version]:
    """(name, good version, bad version) of NAME==A..B, where A is the earlier; UsageError for any other text."""
    match = _SPEC.fullmatch(text)
    try:
        if match is None:
            raise InvalidVersion(text)
        name, good, bad = canonicalize_name(match[1]), Version(match[2]), Version(match[3])
    except InvalidVersion:
        raise UsageError(f"--packages {text}", legal=LEGAL, remedy="--packages torch==2.10.0..2.12.0") from None
    if good == bad:
        raise UsageError(f"--packages {text}: one version", legal=LEGAL)
    if good > bad:
        raise UsageError(
            f"--packages {text}: {good} is later than {bad}",
            legal=LEGAL,
            remedy=f"--packages {match[1]}=={bad}..{good} searches between them; then invert the condition of --by",
        )
    return name, good, bad


def versions_between(known: Sequence[str], name: str, good: Version, bad: Version) -> list[str]:
    """The versions from the good one to the bad one, both included; UsageError where one is unknown.

    Pre-releases are among them only where one of the two is one.
    """
    by_version = {Version(text): text for text in known}
    for wanted in (good, bad):
        if wanted not in by_version:
            raise UsageError(
                f"pip finds no {name} {wanted} for Python {sys.version_info.major}.{sys.version_info.minor} here",
                legal=", ".join(by_version[each] for each in sorted(by_version)[-12:]) or "none: it finds no version",
                remedy=f"pip index versions {name} lists all versions except yanked ones",
            )
    takes_all = good.is_prerelease or bad.is_prerelease
    return [by_version[v] for v in sorted(by_version) if good <= v <= bad and (takes_all or not v.is_prerelease)]


class PackageCandidates:
    """Versions of one package, each in a directory of its own."""

    def __init__(
        self,
        session: Launcher,
        side: Side,
        directory: Path,
        name: str,
        versions: Sequence[str],
        *,
        note: Callable[[str], None],
    ) -> None:
        self._session = session
        self._note = note
        self._side = side
        self._directory = directory
        self._name = name
        self._numbers = count(1)
        self._requirements: dict[str, list[str]] = {}
        self.good, self.bad = versions[0], versions[-1]
        self.parents: Mapping[str, Sequence[str]] = in_a_line(versions)

    def describe(self, name: str) -> str:
        """einops 0.8.1."""
        return f"{self._name} {name}"

    @asynccontextmanager
    async def at(self, name: str) -> AsyncIterator[Side]:
        """The environment with this version in front of it."""
        target = self._directory / f"packages-{name}"
        try:
            if wanted := await self.requirements(name):
                self._note(f"installing {', '.join(wanted)}, beside the environment")
                arguments = ("install", "--quiet", "--no-deps", "--target", str(target), *wanted)
                await pip(self._session, arguments, self._log(), f"{self.describe(name)} cannot be installed")
            recorder, *rest = self._side.environ["PYTHONPATH"].split(os.pathsep)
            path = os.pathsep.join([recorder, *([str(target)] if wanted else []), *rest])
            of_command = [*([str(target)] if wanted else []), self._side.command_environ.get("PYTHONPATH", "")]
            yield replace(
                self._side,
                environ={**self._side.environ, "PYTHONPATH": path},
                command_environ={
                    **self._side.command_environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, of_command)),
                },
            )
        finally:
            remove_tree(str(target))

    async def requirements(self, version: str) -> list[str]:
        """What pip would install to have this version here; nothing where it is here. UnavailableError."""
        if version not in self._requirements:
            self._requirements[version] = await self._resolved(version)
        return self._requirements[version]

    async def _resolved(self, version: str) -> list[str]:
        log = self._log()
        report = log.with_suffix(".json")
        arguments = ("install", "--dry-run", "--quiet", "--report", str(report), f"{self._name}=={version}")
        await pip(self._session, arguments, log, f"{self.describe(version)} cannot be had here")
        found = [each["metadata"] for each in json.loads(read_text(report))["install"]]
        return [f"{each['name']}=={each['version']}" for each in found]

    def _log(self) -> Path:
        return self._directory / f"pip-{next(self._numbers)}"


async def index_versions(session: Launcher, name: str, directory: Path, *, pre: bool) -> list[str]:
    """What the index has of a package for this Python and machine, as pip is configured.

    UsageError where it cannot be asked, or has none.
    """
    log = directory / "pip-versions"
    arguments = ("index", "versions", name, *(("--pre",) if pre else ()))
    try:
        output = await pip(session, arguments, log, f"the versions of {name} are not known")
    except UnavailableError as error:
        refuse_interrupted(session.interrupted_by)
        raise UsageError(
            error.what,
            legal="a package that pip can install here",
            remedy=f"check the output of: pip index versions {name}",
        ) from None
    match = _VERSIONS.search(output)
    return [text.strip() for text in match[1].split(",")] if match else []


async def pip(session: Launcher, arguments: Sequence[str], log: Path, what: str) -> str:
    """What pip prints; UnavailableError, which begins with `what`, where it fails. It can be interrupted."""
    end = await session.carry_out((*PIP, *arguments), log)
    try:
        output = read_text(log / OUTPUT, errors="replace")
    except OSError:
        output = ""
    if end.exit_code != 0:
        raise UnavailableError(f"{what}: {'; '.join(faults_of(output)) or 'pip was ended'}")
    return output


def faults_of(output: str) -> list[str]:
    """The lines of pip's output that say what failed: its errors, what did not succeed, the last line of a build."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    ends = [before for before, line in pairwise(lines) if line == "[end of output]"]
    found = [line for line in lines if line.startswith(("ERROR:", "\N{MULTIPLICATION SIGN}")) or line in ends]
    others = [line for line in lines if not line.startswith("WARNING:")]
    return list(dict.fromkeys(found or others[-1:]))
