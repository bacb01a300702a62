"""A bisection from its options to its result: the good end, the bad end, and probes between them.

    good, good again, bad ─▶ search ─▶ probe: worktree or packages ─▶ run ─▶ criterion ─▶ search ─▶ ... ─▶ first bad

Every probe runs the scenario as it is in the working tree, with the code of its own revision.
"""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path

from harness.bits.errors import UsageError
from harness.lab.bisect.candidates import CommitCandidates, UnavailableError, checked_ends, refuse_interrupted
from harness.lab.bisect.criterion import Criterion
from harness.lab.bisect.packages import PackageCandidates, index_versions, parse_packages, versions_between
from harness.lab.bisect.probes import EndsError, RevisionSearch
from harness.lab.bisect.result import Bisection
from harness.lab.experiments.command_spec import make_command_spec, refuse_both, refuse_scenario_options
from harness.lab.experiments.launcher import LaunchContext, Launcher, checked_program, open_launcher
from harness.lab.experiments.out_directory import out_directory
from harness.lab.experiments.run import TitledDisplay
from harness.lab.experiments.run_spec import RunSpec
from harness.lab.experiments.scenario import SMOKE
from harness.lab.experiments.scenario_files import find_scenario, nothing_to_run
from harness.lab.experiments.scenario_options import ScenarioOptions
from harness.lab.experiments.scenario_spec import asked_of, check_machine, make_scenario_spec, say_misspelt
from harness.lab.experiments.worktrees import (
    CHILD,
    Checkout,
    Commit,
    Side,
    open_worktrees,
    recorder_path,
    set_up,
)
from harness.process.invocation import Invocation

BISECTIONS = "bisections"


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
    given: ScenarioOptions = field(default_factory=ScenarioOptions)
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
            raise UsageError(
                "the range to search is missing",
                legal="--good REV --bad REV, or --packages NAME==A..B",
                remedy="rlharness bisect --good v1.0 --bad HEAD -- python train.py",
            )


@dataclass(frozen=True, slots=True)
class Probing:
    """How each probe is run."""

    options: BisectOptions
    run_spec: RunSpec
    place: LaunchContext
    out: Path
    """Of the traces."""
    lines: TitledDisplay
    note: Callable[[str], None]


async def bisect(options: BisectOptions, invocation: Invocation, bisect_id: str, lines: TitledDisplay) -> Bisection:
    """Find the first revision or version whose run is bad.

    Raises HarnessError for what the user can mend; UsageError before anything is made.
    """
    run_spec = _run_spec(invocation, options)
    commits = None if options.packages else _commits(invocation, options)
    place = LaunchContext(CHILD[0], invocation.cwd, invocation.environ, bisect_id, options.timeout_s)
    out = out_directory(invocation.cwd, options.out, BISECTIONS, bisect_id).path
    probing = Probing(options, run_spec, place, out, lines, invocation.note)
    if commits is None:
        assert options.packages is not None
        return await _over_versions(probing, options.packages)
    return await _over_commits(probing, *commits)


def _run_spec(invocation: Invocation, asked_for: BisectOptions) -> RunSpec:
    """The scenario as it is in the working tree, or the command; UsageError where it cannot be run as asked for."""
    options, name = asked_for.given, asked_for.scenario
    refuse_both(invocation, [name] if name else [])
    if name is None:
        if not invocation.trailing:
            raise nothing_to_run("bisect", invocation.cwd)
        refuse_scenario_options(options)
        run_spec = make_command_spec(invocation.trailing, options.recording)
        checked_program(run_spec, invocation.cwd, invocation.environ)
        return run_spec
    asked = asked_of(name, find_scenario(name, invocation.cwd).read(), options, SMOKE)
    say_misspelt(asked, invocation.note)
    check_machine(invocation, asked.scenario)
    run_spec = make_scenario_spec(asked, options.recording)
    return run_spec if run_spec.call is None else replace(run_spec, argv=CHILD)


def _commits(invocation: Invocation, options: BisectOptions) -> tuple[Checkout, Commit, Commit]:
    """The checkout, and the good and the bad commit of it; UsageError where they are none."""
    checkout = Checkout(invocation.cwd, invocation.environ)
    return checkout, *checked_ends(checkout, options.good or "", options.bad or "")


async def _over_commits(probing: Probing, checkout: Checkout, good: Commit, bad: Commit) -> Bisection:
    with open_launcher(probing.place, probing.lines) as session, open_worktrees(checkout) as worktrees:
        setup = probing.options.setup
        prepare = partial(set_up, session, setup, checkout=checkout.root) if setup else None
        candidates = CommitCandidates(checkout, worktrees, good, bad, prepare=prepare, logs=probing.out)
        hunt = RevisionSearch(
            session, probing.lines, candidates, probing.options.criterion, probing.out, checkout_root=checkout.root
        )
        found = await hunt.first_bad(
            probing.options.scenario or shlex.join(probing.run_spec.shown_argv), probing.run_spec
        )
        return replace(found, commit=candidates.commit(found.found.name))


async def _over_versions(probing: Probing, packages: str) -> Bisection:
    with open_launcher(probing.place, probing.lines) as session:
        versions = await _versions(session, packages, probing)
        hunt = RevisionSearch(session, probing.lines, versions, probing.options.criterion, probing.out)
        return await hunt.first_bad(
            probing.options.scenario or shlex.join(probing.run_spec.shown_argv), probing.run_spec
        )


async def _versions(session: Launcher, packages: str, probing: Probing) -> PackageCandidates:
    """The versions between two, both of which can be had here: that is asked before anything is installed or run."""
    side, out = _here(probing.place, probing.out), probing.out
    name, good, bad = parse_packages(packages)
    known = await index_versions(session, name, out, pre=good.is_prerelease or bad.is_prerelease)
    versions = PackageCandidates(session, side, out, name, versions_between(known, name, good, bad), note=probing.note)
    for end in (versions.good, versions.bad):
        try:
            await versions.requirements(end)
        except UnavailableError as error:
            refuse_interrupted(session.interrupted_by)
            raise EndsError(error.what, legal="two ends that pip can install", remedy="name another end") from None
    return versions


def _here(place: LaunchContext, out: Path) -> Side:
    """The working directory as it is, with this package's recorder in front of everything."""
    path = [str(recorder_path(out)), str(place.cwd), place.environ.get("PYTHONPATH", "")]
    environ = {**place.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    return Side(place.cwd, place.cwd, environ, place.environ)
