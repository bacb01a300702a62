"""`rlharness bisect` from arguments to exit code: the good end, the bad end, and probes between them.

    good, good again, bad ─▶ search ─▶ probe: worktree or packages ─▶ run ─▶ criterion ─▶ search ─▶ ... ─▶ first bad

Every probe runs the scenario as it is in the working tree, with the code of its own revision.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from harness.core.clock import SystemClock
from harness.core.errors import UsageError
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, wants_colour
from harness.lab.bisect.candidates import CommitCandidates, UnavailableError, checked_ends, refuse_interrupted
from harness.lab.bisect.criterion import Criterion, parse_criterion
from harness.lab.bisect.packages import PackageCandidates, index_versions, parse_packages, versions_between
from harness.lab.bisect.probes import EndsError, Hunt
from harness.lab.bisect.result import Bisection
from harness.lab.experiments.out_directory import out_directory
from harness.lab.experiments.run_spec import Envelope
from harness.lab.experiments.scenario import SMOKE
from harness.lab.experiments.scenario_files import find_scenario
from harness.lab.experiments.scenario_spec import asked_of, check_machine, say_misspelt, scenario_envelope
from harness.lab.experiments.session import Session, open_session
from harness.lab.experiments.supervised_runs import Place
from harness.lab.experiments.worktrees import CHILD, Checkout, Commit, Side, open_worktrees, recorder_path
from harness.lab.gate.plan import NO_OPTIONS
from harness.process.run_directory import new_run_id
from harness.render.bisect import bisection_json, bisection_text
from harness.render.console import say, show
from harness.render.run_lines import RunLines

BISECTIONS = "bisections"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is looked for, and how each probe is run."""

    scenario: str
    """As it was typed."""
    envelope: Envelope
    criterion: Criterion
    place: Place
    out: Path
    """Of the traces."""


def run_bisect(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness bisect`; HarnessError for what the user can mend."""
    criterion = parse_criterion(arguments["by"], arguments["tolerance"])
    _check_ends(arguments)
    envelope = _envelope(invocation, arguments)
    packages = arguments["packages"]
    commits = None if packages else _commits(invocation, arguments)
    bisect_id = new_run_id(SystemClock().wall())
    place = Place(CHILD[0], invocation.cwd, invocation.environ, bisect_id, arguments["timeout"] or inf)
    out = out_directory(invocation.cwd, arguments["out"], BISECTIONS, bisect_id).path
    asked = Asked(arguments["scenario"], envelope, criterion, place, out)
    found = asyncio.run(_over_versions(asked, packages) if commits is None else _over_commits(asked, *commits))
    if arguments["json"]:
        show(json.dumps(bisection_json(found)))
    else:
        show(bisection_text(found, colour=wants_colour(arguments["color"], invocation)))
    return found.exit_code


def _check_ends(arguments: Mapping[str, Any]) -> None:
    given = [f"--{name}" for name in ("good", "bad") if arguments[name]]
    if arguments["packages"]:
        parse_packages(arguments["packages"])
    if arguments["packages"] and given:
        raise UsageError(f"--packages and {' '.join(given)}", legal="one of the two: revisions, or versions")
    if not arguments["packages"] and len(given) < 2:
        raise UsageError(
            "between what shall it look?",
            legal="--good REV --bad REV, or --packages NAME==A..B",
            remedy="rlharness bisect SCENARIO --good v1.0 --bad HEAD",
        )


def _envelope(invocation: Invocation, arguments: Mapping[str, Any]) -> Envelope:
    """The scenario as it is in the working tree; UsageError where it cannot be run as it was asked for."""
    options = {**NO_OPTIONS, "size": arguments["size"], "overrides": arguments["overrides"]}
    name = arguments["scenario"]
    asked = asked_of(name, find_scenario(name, invocation.cwd).read(), options, SMOKE)
    say_misspelt(asked, invocation.note)
    check_machine(invocation, asked.scenario)
    return replace(scenario_envelope(asked, options), argv=CHILD)


def _commits(invocation: Invocation, arguments: Mapping[str, Any]) -> tuple[Checkout, Commit, Commit]:
    """The checkout, and the good and the bad commit of it; UsageError where they are none."""
    checkout = Checkout(invocation.cwd, invocation.environ)
    return checkout, *checked_ends(checkout, arguments["good"], arguments["bad"])


async def _over_commits(asked: Asked, checkout: Checkout, good: Commit, bad: Commit) -> Bisection:
    lines = RunLines()
    with open_session(asked.place, lines) as session, open_worktrees(checkout) as worktrees:
        candidates = CommitCandidates(checkout, worktrees, good, bad)
        hunt = Hunt(session, lines, candidates, asked.criterion, asked.out, checkout_root=checkout.root)
        found = await hunt.first_bad(asked.scenario, asked.envelope)
        return replace(found, commit=candidates.commit(found.found.name))


async def _over_versions(asked: Asked, packages: str) -> Bisection:
    lines = RunLines()
    with open_session(asked.place, lines) as session:
        versions = await _versions(session, packages, _here(asked.place, asked.out), asked.out)
        hunt = Hunt(session, lines, versions, asked.criterion, asked.out)
        return await hunt.first_bad(asked.scenario, asked.envelope)


async def _versions(session: Session, packages: str, side: Side, out: Path) -> PackageCandidates:
    """The versions between two, both of which can be had here: that is asked before anything is installed or run."""
    name, good, bad = parse_packages(packages)
    known = await index_versions(session, name, out, pre=good.is_prerelease or bad.is_prerelease)
    versions = PackageCandidates(session, side, out, name, versions_between(known, name, good, bad), note=say)
    for end in (versions.good, versions.bad):
        try:
            await versions.requirements(end)
        except UnavailableError as error:
            refuse_interrupted(session.interrupted_by)
            raise EndsError(error.what, legal="two ends that pip can install", remedy="name another end") from None
    return versions


def _here(place: Place, out: Path) -> Side:
    """The working directory as it is, with this package's recorder in front of everything."""
    path = [str(recorder_path(out)), str(place.cwd), place.environ.get("PYTHONPATH", "")]
    environ = {**place.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    return Side(place.cwd, place.cwd, environ)
