"""Between what a bisection looks: commits, each in a worktree of its own, or versions of a package.

    git rev-list A..B ─▶ commits ─▶ git worktree add ─▶ --setup
    pip index versions NAME ─▶ A, ..., B ─▶ pip install --dry-run: what would change here ─▶ pip install --target DIR

Only what pip would change in this environment is installed, the package and the requirements of its version, so that
everything else, torch above all, is the same in every probe. The environment itself is never written to.
"""

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Protocol

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.bits.errors import HarnessError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import read_text
from harness.bits.text import path_text
from harness.lab.bisect.search import in_a_line
from harness.lab.experiments.launcher import OUTPUT, Launcher
from harness.lab.experiments.worktrees import Checkout, Commit, GitError, Side, Worktrees
from harness.process.scratch import remove_tree

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
LEGAL = "NAME==A..B, the good version and a later one that is bad"
_SPEC = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*==\s*(\S+?)\s*\.\.\s*(\S+)\s*")
_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


class UnavailableError(HarnessError):
    """A candidate that is not available here; another one is probed instead."""


class Interrupted(HarnessError):
    """A signal has asked for the end before both ends were known."""

    exit_code = ExitCode.INTERRUPTED


def refuse_interrupted(interrupted_by: str) -> None:
    """Interrupted where a signal of this name has asked for the end; nothing for no name."""
    if interrupted_by:
        raise Interrupted(f"interrupted by {interrupted_by}, before both ends were known")


class Candidates(Protocol):
    """What may be bad first, and how each is had."""

    good: str
    bad: str

    @property
    def parents(self) -> Mapping[str, Sequence[str]]:
        """The history: by candidate, those right before it; `good` is not a candidate."""

    def describe(self, name: str) -> str:
        """A candidate as a person knows it."""

    def at(self, name: str) -> AbstractAsyncContextManager[Side]:
        """Where the candidate is run, gone afterwards; UnavailableError where it cannot be had."""


class CommitCandidates:
    """The commits that the bad one has and the good one has not."""

    def __init__(
        self,
        checkout: Checkout,
        worktrees: Worktrees,
        good: Commit,
        bad: Commit,
        *,
        prepare: Callable[..., Awaitable[str]] | None = None,
        logs: Path = Path(),
    ) -> None:
        self._prepare, self._logs, self._num_prepared = prepare, logs, 0
        self._checkout = checkout
        self._worktrees = worktrees
        self.good, self.bad = good.name, bad.name
        self.parents = checkout.history(good, bad)

    def commit(self, name: str) -> Commit:
        """A candidate."""
        return self._checkout.commit(name)

    def describe(self, name: str) -> str:
        """3f9c2a7 The clip is lower."""
        commit = self.commit(name)
        return f"{commit.short} {commit.subject}"

    @asynccontextmanager
    async def at(self, name: str) -> AsyncIterator[Side]:
        """Its worktree."""
        with ExitStack() as stack:
            try:
                side = stack.enter_context(self._worktrees.at(self.commit(name)))
            except GitError as error:
                raise UnavailableError(error.what) from None
            if self._prepare is not None:
                self._num_prepared += 1
                log = self._logs / f"setup-{self._num_prepared}"
                if problem := await self._prepare(side=side, log=log):
                    raise UnavailableError(f"{problem}; what it printed: {path_text(log / OUTPUT)}")
            yield side


def checked_ends(checkout: Checkout, good: str, bad: str) -> tuple[Commit, Commit]:
    """Two revisions, the first an ancestor of the second; UsageError for any others."""
    ends = checkout.commit(good), checkout.commit(bad)
    if ends[0] == ends[1]:
        raise UsageError(f"--good {good} and --bad {bad} are one commit", legal="two, the good one earlier")
    if not checkout.is_ancestor(*ends):
        turned = checkout.is_ancestor(ends[1], ends[0])
        raise UsageError(
            f"--good {good} is not an ancestor of --bad {bad}",
            legal="a good commit that is an ancestor of the bad one",
            remedy=f"--good {bad} --bad {good} searches between them; then invert the condition of --by"
            if turned
            else f"git merge-base {good} {bad} names a common ancestor",
        )
    return ends


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
            yield self._with(str(target)) if wanted else self._side
        finally:
            remove_tree(str(target))

    def _with(self, target: str) -> Side:
        """The environment with a directory in front of it; behind the recorder, where an entry is called."""
        recorder, *rest = self._side.environ["PYTHONPATH"].split(os.pathsep)
        own = self._side.command_environ
        of_command = os.pathsep.join(filter(None, [target, own.get("PYTHONPATH", "")]))
        return replace(
            self._side,
            environ={**self._side.environ, "PYTHONPATH": os.pathsep.join([recorder, target, *rest])},
            command_environ={**own, "PYTHONPATH": of_command},
        )

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
