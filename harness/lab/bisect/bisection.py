"""A bisection from its options to its result: the good end, the bad end, and probes between them.

    good, good again, bad ─▶ search ─▶ probe: worktree or packages ─▶ run ─▶ criterion ─▶ search ─▶ ... ─▶ first bad

    git rev-list --bisect-all ─▶ commits ─▶ git worktree add ─▶ --setup
    pip index versions NAME ─▶ A, ..., B ─▶ pip install --dry-run: what would change here ─▶ pip install --target DIR

Every probe runs the scenario or the command as it is in the working tree, with the code of its own revision. The good
end runs twice, since bits that come and go cannot be bisected. Of a package only what pip would change in this
environment is installed, so that everything else, torch above all, is the same in every probe. The environment itself
is never written to.

A commit is bad where an ancestor of it is: then half of the suspects, those that the bad one has and no good one has,
go with each probe that git chooses. One that cannot be run says nothing; the next best is taken.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import count
from math import inf, isnan
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.bits.errors import HarnessError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import read_text
from harness.bits.redaction import redact_argv
from harness.bits.text import path_text
from harness.lab.experiment.command_spec import SpecOptions
from harness.lab.experiment.launcher import OUTPUT, Display, LaunchContext, Launcher, check_program, open_launcher
from harness.lab.experiment.preparation import out_directory
from harness.lab.experiment.scenario import asked_run, make_scenario_spec
from harness.lab.experiment.worktrees import (
    Checkout,
    Commit,
    GitError,
    Side,
    Worktrees,
    imports_checkout,
    open_worktrees,
    recorder_path,
    set_up,
)
from harness.process.invocation import Invocation
from harness.process.program_output import output_tail
from harness.process.scratch import remove_tree
from harness.recording.metrics import OPERATORS, Condition, parse_condition
from harness.recording.run_spec import RunSpec, read_rejection
from harness.trace.diff import diff
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import Kind, Verdict


class Outcome(Enum):
    """What a probe has shown."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"
    """It could not be run, and says nothing."""


# ------------------------------------------------------------------------------------------------------------ criterion

BITS = "bits"
OPTION = "--by"


@dataclass(frozen=True, slots=True)
class Criterion:
    """Distinguishes good probes from bad ones."""

    text: str
    """As it was typed."""
    condition: Condition | None = None
    """Bad is where it holds; None of BITS."""

    def classify(self, good: Trace, probe: Trace) -> tuple[Outcome, str]:
        """Return what a probe is, beside the run that is known to be good, and the reason in a few words."""
        if self.condition is not None:
            condition, name = self.condition, self.condition.name_among(_names(probe))
            points = [(point.step, point.values[name].value()) for point in probe.curve if name in point.values]
            for step, value in points:
                if isnan(value) or OPERATORS[condition.relation](value, condition.number):
                    return Outcome.BAD, f"{condition.name} of step {step} is {value:.6g}"
            if points:
                return Outcome.GOOD, f"no step has {condition}"
            return Outcome.SKIP, f"its curve has no {condition.name}"
        verdict = diff(good, probe)
        if verdict.first is None:
            if verdict.kind is Kind.EQUAL:
                return Outcome.GOOD, "every bit is the same"
            codes = dict.fromkeys(reason.code.value for reason in verdict.reasons)
            return Outcome.SKIP, f"cannot be compared: {', '.join(codes)}"
        first = verdict.first.a or verdict.first.b
        where = f", first in {first.phase} {first.name}" if first else ""
        return Outcome.BAD, f"bits differ from step {verdict.first.step} on{where}"

    def check(self, good: Trace) -> None:
        """UsageError where the curve of the good one has nothing of what is asked for."""
        known = _names(good)
        if self.condition and (name := self.condition.name_among(known)) not in known:
            what = f"{OPTION} {self.text}: the curve of the good run has no value {name!r}"
            raise UsageError(what, legal=", ".join(sorted(known)) or "nothing: this scenario records no curve")


def parse_criterion(text: str) -> Criterion:
    """A criterion as it is typed; UsageError for any other text."""
    if text == BITS:
        return Criterion(text)
    with suppress(UsageError):
        condition = parse_condition(text, OPTION)
        if not condition.word:
            return Criterion(text, condition)
    raise UsageError(f"{OPTION} {text}", legal=f"{BITS}, or METRIC>X, with one of {' '.join(OPERATORS)}")


def _names(trace: Trace) -> set[str]:
    """Of all values of the curve."""
    return {name for point in trace.curve for name in point.values}


# ----------------------------------------------------------------------------------------------------------- candidates

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


@dataclass
class CommitCandidates:
    """The commits that the bad one has and the good one has not."""

    checkout: Checkout
    worktrees: Worktrees
    ends: tuple[Commit, Commit]
    """The good one, and the bad one."""
    prepare: Callable[..., Awaitable[str]] | None = None
    logs: Path = Path()

    def __post_init__(self) -> None:
        self.good, self.bad = (end.name for end in self.ends)
        self._num_prepared = 0

    def suspects(self, bad: str, goods: Sequence[str]) -> list[str]:
        """Return the commits that `bad` has and none of `goods` has, the earliest first."""
        return self.checkout.commits(bad, goods, "--topo-order", "--reverse")

    def by_gain(self, bad: str, goods: Sequence[str]) -> list[str]:
        """Return the same, the one that halves them best first."""
        return self.checkout.commits(bad, goods, "--bisect-all")

    def describe(self, name: str) -> str:
        """3f9c2a7 The clip is lower."""
        commit = self.checkout.commit(name)
        return f"{commit.short} {commit.subject}"

    @asynccontextmanager
    async def at(self, name: str) -> AsyncIterator[Side]:
        """Its worktree."""
        with ExitStack() as stack:
            try:
                side = stack.enter_context(self.worktrees.at(self.checkout.commit(name)))
            except GitError as error:
                raise UnavailableError(error.what) from None
            if self.prepare is not None:
                self._num_prepared += 1
                log = self.logs / f"setup-{self._num_prepared}"
                if problem := await self.prepare(side=side, log=log):
                    raise UnavailableError(f"{problem}; what it printed: {path_text(log / OUTPUT)}")
            yield side


def checked_ends(checkout: Checkout, good: str, bad: str) -> tuple[Commit, Commit]:
    """Two revisions, the first an ancestor of the second; UsageError for any others."""
    ends = checkout.commit(good), checkout.commit(bad)
    if ends[0] == ends[1]:
        raise UsageError(f"--good {good} and --bad {bad} are one commit", legal="two, the good one earlier")
    if not checkout.is_ancestor(*ends):
        turned = checkout.is_ancestor(ends[1], ends[0])
        remedy = f"--good {bad} --bad {good} searches between them; then invert the condition of --by"
        remedy = remedy if turned else f"git merge-base {good} {bad} names a common ancestor"
        raise UsageError(f"--good {good} is not an ancestor of --bad {bad}", remedy=remedy)
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
        remedy = f"--packages {match[1]}=={bad}..{good} searches between them; then invert the condition of --by"
        raise UsageError(f"--packages {text}: {good} is later than {bad}", remedy=remedy)
    return name, good, bad


def versions_between(known: Sequence[str], name: str, good: Version, bad: Version) -> list[str]:
    """The versions from the good one to the bad one, both included; UsageError where one is unknown.

    Pre-releases are among them only where one of the two is one.
    """
    by_version = {Version(text): text for text in known}
    for wanted in (good, bad):
        if wanted not in by_version:
            what = f"pip finds no {name} {wanted} for Python {sys.version_info.major}.{sys.version_info.minor} here"
            last = ", ".join(by_version[each] for each in sorted(by_version)[-12:])
            raise UsageError(what, legal=last or "none", remedy=f"pip index versions {name} lists all versions")
    takes_all = good.is_prerelease or bad.is_prerelease
    return [by_version[v] for v in sorted(by_version) if good <= v <= bad and (takes_all or not v.is_prerelease)]


@dataclass
class PackageCandidates:
    """Versions of one package, each in a directory of its own."""

    session: Launcher
    side: Side
    directory: Path
    name: str
    versions: Sequence[str]
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        self._numbers, self._requirements = count(1), dict[str, list[str]]()
        self.good, self.bad = self.versions[0], self.versions[-1]

    def suspects(self, bad: str, goods: Sequence[str]) -> list[str]:
        """Return the versions after the last of `goods` up to `bad`."""
        return list(self.versions[max(map(self.versions.index, goods)) + 1 : self.versions.index(bad) + 1])

    def by_gain(self, bad: str, goods: Sequence[str]) -> list[str]:
        """Return the same, the one in the middle first."""
        left = self.suspects(bad, goods)
        return sorted(left, key=lambda version: abs(2 * left.index(version) + 2 - len(left)))

    def describe(self, name: str) -> str:
        """einops 0.8.1."""
        return f"{self.name} {name}"

    @asynccontextmanager
    async def at(self, name: str) -> AsyncIterator[Side]:
        """The environment with this version in front of it."""
        target = self.directory / f"packages-{name}"
        try:
            if wanted := await self.requirements(name):
                self.note(f"installing {', '.join(wanted)}, beside the environment")
                arguments = ("install", "--quiet", "--no-deps", "--target", str(target), *wanted)
                await pip(self.session, arguments, self._log(), f"{self.describe(name)} cannot be installed")
            yield self._with(str(target)) if wanted else self.side
        finally:
            remove_tree(str(target))

    def _with(self, target: str) -> Side:
        """The environment with a directory in front of it; behind the recorder, where an entry is called."""
        recorder, *rest = self.side.environ["PYTHONPATH"].split(os.pathsep)
        own = self.side.command_environ
        of_command = os.pathsep.join(filter(None, [target, own.get("PYTHONPATH", "")]))
        return replace(
            self.side,
            environ={**self.side.environ, "PYTHONPATH": os.pathsep.join([recorder, target, *rest])},
            command_environ={**own, "PYTHONPATH": of_command},
        )

    async def requirements(self, version: str) -> list[str]:
        """What pip would install to have this version here; nothing where it is here. UnavailableError."""
        if version not in self._requirements:
            log = self._log()
            report = log.with_suffix(".json")
            arguments = ("install", "--dry-run", "--quiet", "--report", str(report), f"{self.name}=={version}")
            await pip(self.session, arguments, log, f"{self.describe(version)} cannot be had here")
            found = [each["metadata"] for each in json.loads(read_text(report))["install"]]
            self._requirements[version] = [f"{each['name']}=={each['version']}" for each in found]
        return self._requirements[version]

    def _log(self) -> Path:
        return self.directory / f"pip-{next(self._numbers)}"


Candidates = CommitCandidates | PackageCandidates
"""What may be bad first, and how each is had."""


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
        raise UsageError(error.what, remedy=f"check the output of: pip index versions {name}") from None
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
        said = output_tail(log / OUTPUT)[-1:] or ["pip was ended"]
        raise UnavailableError(f"{what}: {said[0]}; what it printed: {path_text(log / OUTPUT)}")
    return output


# ------------------------------------------------------------------------------------------------------------- the runs

BISECTIONS = "bisections"


@dataclass(frozen=True, slots=True)
class Probe:
    """One candidate that was looked at."""

    name: str
    """A commit's whole hash, or a version."""
    label: str
    """As a person knows it."""
    outcome: Outcome
    reason: str
    directory: Path | None = None
    """Of its trace; None where it left none."""


@dataclass(frozen=True, slots=True)
class Bisection:
    """What a bisection has found."""

    scenario: str
    criterion: Criterion
    good: Probe
    bad: Probe
    probes: tuple[Probe, ...]
    """Between the two, in the order in which they were looked at."""
    candidates: tuple[Probe, ...]
    """Among which the first bad one is, the earliest first; one, unless some could not be run, or were not reached."""
    found: Probe
    """The earliest that is known to be bad."""
    last_good: Probe
    """The run with which it was compared: of a parent, where that was run."""
    verdict: Verdict
    """Of `last_good` (A) and `found` (B)."""
    directory: Path
    commit: Commit | None = None
    """Of `found`, where candidates are commits."""
    interrupted_by: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """OK where one was found."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        return ExitCode.OK if len(self.candidates) == 1 else ExitCode.INCOMPLETE_RECORDING


@dataclass(frozen=True, slots=True)
class BisectOptions:
    """What is looked for, and between what."""

    scenario: str | None
    """As it was typed; None for the command after --."""
    criterion: Criterion
    good: str | None = None
    bad: str | None = None
    packages: str | None = None
    """NAME==A..B, in place of two revisions."""
    given: SpecOptions = field(default_factory=SpecOptions)
    """What makes the run spec."""
    setup: str = ""
    """Command that prepares the worktree of each revision; empty for none."""
    timeout_s: float = inf
    """Limit on each run."""
    out: str | None = None

    def __post_init__(self) -> None:
        given = [f"--{name}" for name, value in (("good", self.good), ("bad", self.bad)) if value]
        if self.packages:
            parse_packages(self.packages)
        if self.packages and given:
            raise UsageError(f"--packages and {' '.join(given)}", legal="one of the two: revisions, or versions")
        if not self.packages and len(given) < 2:
            raise UsageError("the range to search is missing", legal="--good REV --bad REV, or --packages NAME==A..B")


async def bisect(options: BisectOptions, invocation: Invocation, bisect_id: str, lines: Display) -> Bisection:
    """Find the first revision or version whose run is bad.

    Raises HarnessError for what the user can mend; UsageError before anything is made.
    """
    asked = asked_run(invocation, "bisect", options.scenario, options.given, is_isolated=True)
    run_spec = make_scenario_spec(asked, is_isolated=True)
    check_program(run_spec, invocation.cwd, invocation.environ)
    checkout = None if options.packages else Checkout(invocation.cwd, invocation.environ)
    ends = None if checkout is None else checked_ends(checkout, options.good or "", options.bad or "")
    place = LaunchContext(invocation.cwd, invocation.environ, bisect_id, options.timeout_s)
    out = out_directory(invocation.cwd, options.out, BISECTIONS, bisect_id).path
    with ExitStack() as stack:
        session = stack.enter_context(open_launcher(place, lines))
        candidates: Candidates
        if checkout is not None and ends is not None:
            worktrees, setup = stack.enter_context(open_worktrees(checkout)), options.setup
            prepare = partial(set_up, session, setup, checkout=checkout.root) if setup else None
            candidates = CommitCandidates(checkout, worktrees, ends, prepare=prepare, logs=out)
        else:
            candidates = await _versions(session, options.packages or "", place, out, invocation.note)
        root = None if checkout is None else checkout.root
        search = RevisionSearch(session, candidates, options.criterion, out, checkout_root=root)
        found = await search.first_bad(options.scenario or shlex.join(run_spec.shown_argv), run_spec)
        return replace(found, commit=None if checkout is None else checkout.commit(found.found.name))


async def _versions(
    session: Launcher, packages: str, place: LaunchContext, out: Path, note: Callable[[str], None]
) -> PackageCandidates:
    """The versions between two, both of which can be had here: that is asked before anything is installed or run."""
    name, good, bad = parse_packages(packages)
    known = await index_versions(session, name, out, pre=good.is_prerelease or bad.is_prerelease)
    path = [str(recorder_path(out)), str(place.cwd), place.environ.get("PYTHONPATH", "")]
    environ = {**place.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    side = Side(place.cwd, place.cwd, environ, place.environ)
    versions = PackageCandidates(session, side, out, name, versions_between(known, name, good, bad), note=note)
    for end in (versions.good, versions.bad):
        try:
            await versions.requirements(end)
        except UnavailableError as error:
            refuse_interrupted(session.interrupted_by)
            raise EndsError(error.what, legal="two ends that pip can install", remedy="name another end") from None
    return versions


class NothingToFindError(HarnessError):
    """The two ends are not what they were said to be: nothing lies between them that could be found."""

    exit_code = ExitCode.NOT_COMPARABLE


class EndsError(HarnessError):
    """An end that cannot be run."""

    exit_code = ExitCode.INCOMPLETE_RECORDING


@dataclass
class RevisionSearch:
    """One bisection."""

    session: Launcher
    candidates: Candidates
    criterion: Criterion
    directory: Path
    """Of the traces."""
    checkout_root: Path | None = None
    """Of commits."""
    good: Trace | None = None
    """The run with which all others are compared."""

    async def first_bad(self, scenario: str, run_spec: RunSpec) -> Bisection:
        """Search. HarnessError where the ends do not allow it; what is known so far where a signal asks for the end."""
        candidates = self.candidates
        good = await self._good_end(run_spec)
        bad = await self._probe(candidates.bad, "bad", run_spec)
        self._check_end(bad)
        found, goods, probes = candidates.bad, [candidates.good], list[Probe]()
        while not self.session.interrupted_by:
            asked = {found, *(probe.name for probe in probes)}
            left = [name for name in candidates.by_gain(found, goods) if name not in asked]
            if not left:
                break
            probe = await self._probe(left[0], f"{len(left).bit_length()} to go", run_spec)
            if self.session.interrupted_by:
                break
            probes.append(probe)
            found = probe.name if probe.outcome is Outcome.BAD else found
            goods += [probe.name] if probe.outcome is Outcome.GOOD else []
        by_name = {probe.name: probe for probe in (good, *probes, bad)}
        first, last_good = by_name[found], by_name[goods[-1]]
        assert first.directory is not None and last_good.directory is not None
        suspects = [
            by_name.get(each) or Probe(each, candidates.describe(each), Outcome.SKIP, "not looked at")
            for each in candidates.suspects(found, goods)
        ]
        return Bisection(
            scenario=scenario,
            criterion=self.criterion,
            good=good,
            bad=bad,
            probes=tuple(probes),
            candidates=tuple(suspects),
            found=first,
            last_good=last_good,
            verdict=diff(read_trace(last_good.directory), read_trace(first.directory)),
            directory=self.directory,
            interrupted_by=self.session.interrupted_by,
        )

    async def _good_end(self, run_spec: RunSpec) -> Probe:
        """The good end, which is shown to agree with itself."""
        name = self.candidates.good
        try:
            async with self.candidates.at(name) as side:
                good = await self._run(name, "good", run_spec, side)
                self._take(good)
                again = await self._run(name, "good, once more", run_spec, side, suffix="-again")
        except UnavailableError as error:
            self._check_end(Probe(name, self.candidates.describe(name), Outcome.SKIP, error.what))
            raise
        if again.outcome is not Outcome.GOOD:
            refuse_interrupted(self.session.interrupted_by)
            words = run_spec.typed or ("--", *run_spec.argv)
            replay = shlex.join(redact_argv(["rlharness", "replay", *words]))
            what = f"two runs of {good.label} differ: {again.reason}"
            raise NothingToFindError(what, remedy=f"{replay}; --level deterministic may remove it")
        return good

    def _take(self, good: Probe) -> None:
        """The run with which all others are compared. HarnessError where it cannot be that."""
        if good.outcome is Outcome.SKIP:
            self._check_end(good)
        assert good.directory is not None
        self.good = read_trace(good.directory)
        self.criterion.check(self.good)
        outcome, reason = self.criterion.classify(self.good, self.good)
        if outcome is not Outcome.GOOD:
            found = "is bad" if outcome is Outcome.BAD else "cannot be compared"
            what = f"{good.label}, which should be good, {found}: {reason}"
            raise NothingToFindError(what, remedy="name an earlier one")

    def _check_end(self, end: Probe) -> None:
        refuse_interrupted(self.session.interrupted_by)
        if end.outcome is Outcome.SKIP:
            said = f"; what it printed: {path_text(end.directory / OUTPUT)}" if end.directory else ""
            raise EndsError(
                f"{end.label} cannot be run: {end.reason}", remedy=f"name another end, at which it runs{said}"
            )
        if end.outcome is Outcome.GOOD:
            remedy = "search between other versions, or another package"
            if self.checkout_root:
                remedy = "every revision runs the scenario or command of the working tree: it may have changed itself"
            raise NothingToFindError(
                f"{end.label}, which should be bad, equals the good one: {end.reason}", remedy=remedy
            )

    async def _probe(self, name: str, title: str, run_spec: RunSpec) -> Probe:
        """Run one candidate where it is had, and judge it."""
        try:
            async with self.candidates.at(name) as side:
                return await self._run(name, title, run_spec, side)
        except UnavailableError as error:
            label = self.candidates.describe(name)
            self.session.display.end(f"{label} ({title}): skipped: {error.what}")
            return Probe(name, label, Outcome.SKIP, error.what)

    async def _run(self, name: str, title: str, run_spec: RunSpec, side: Side, *, suffix: str = "") -> Probe:
        """Run one candidate, and judge it; the first one is good."""
        label = self.candidates.describe(name)
        self.session.display.title = f"{label} ({title})"
        place = self.directory / f"{label.split()[0] if self.checkout_root else name}{suffix}"
        run = await self.session.record(run_spec, place, environ=side.environ_of(run_spec), cwd=side.cwd)
        self.session.display.ended(run)
        directory = run.recording.directory
        if refusal := read_rejection(directory):
            return Probe(name, label, Outcome.SKIP, f"its entry refuses to begin: {refusal.what}", directory)
        if not run.recording.is_complete or not run.recording.num_steps:
            problem = run.recording.problems[0].what if run.recording.problems else "no step was recorded"
            return Probe(name, label, Outcome.SKIP, ": ".join([problem, *output_tail(run.output)[-1:]]), directory)
        if self.checkout_root is not None:
            imports_checkout(run, side, self.checkout_root)
        trace = read_trace(directory)
        if self.good is None:
            return Probe(name, label, Outcome.GOOD, "", directory)
        outcome, reason = self.criterion.classify(self.good, trace)
        self.session.display.end(f"{self.session.display.title}: {outcome.value}, {reason}")
        return Probe(name, label, outcome, reason, directory)
