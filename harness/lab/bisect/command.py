"""`rlharness bisect` from arguments to exit code: the good end, the bad end, and probes between them.

    good, good again, bad ─▶ search ─▶ probe: worktree or packages ─▶ run ─▶ criterion ─▶ search ─▶ ... ─▶ first bad

Every probe runs the scenario as it is in the working tree, with the code of its own revision.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from harness.clock import SystemClock
from harness.errors import UsageError
from harness.exit_codes import ExitCode
from harness.lab.bisect.candidates import CommitCandidates, checked_ends
from harness.lab.bisect.criterion import Criterion, parse_criterion
from harness.lab.bisect.hunt import Hunt
from harness.lab.bisect.packages import PackageCandidates, index_versions, parse_packages, versions_between
from harness.lab.bisect.result import Bisection
from harness.lab.envelope import Envelope
from harness.lab.gate.plan import NO_OPTIONS
from harness.lab.out_directory import out_directory
from harness.lab.scenario import SMOKE
from harness.lab.scenario_envelope import asked_of, check_machine, scenario_envelope
from harness.lab.scenario_places import find_scenario
from harness.lab.session import open_session
from harness.lab.supervised import Place
from harness.lab.worktrees import CHILD, Checkout, Side, open_worktrees, recorder_path
from harness.reporters.base import show
from harness.reporters.bisect import bisection_json, bisection_text
from harness.reporters.run_lines import RunLines
from harness.runner.options import Invocation, wants_colour
from harness.runner.run_directory import new_run_id

BISECTIONS = "bisections"


def run_bisect(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness bisect`; HarnessError for what the user can mend."""
    criterion = parse_criterion(arguments["by"], arguments["tolerance"])
    _check_ends(arguments)
    envelope = _envelope(invocation, arguments)
    bisect_id = new_run_id(SystemClock().wall())
    directory = out_directory(invocation.cwd, arguments["out"], BISECTIONS, bisect_id)
    place = Place(CHILD[0], invocation.cwd, invocation.environ, bisect_id, arguments["timeout"] or inf)
    found = asyncio.run(_carried_out(invocation, arguments, criterion, envelope=envelope, place=place, out=directory))
    if arguments["json"]:
        show(json.dumps(bisection_json(found)))
    else:
        show(bisection_text(found, colour=wants_colour(arguments["color"], invocation)))
    return found.exit_code


def _check_ends(arguments: Mapping[str, Any]) -> None:
    given = [f"--{name}" for name in ("good", "bad") if arguments[name]]
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
    check_machine(invocation, asked.scenario)
    return replace(scenario_envelope(asked, options), argv=CHILD)


async def _carried_out(
    invocation: Invocation,
    arguments: Mapping[str, Any],
    criterion: Criterion,
    *,
    envelope: Envelope,
    place: Place,
    out: Path,
) -> Bisection:
    lines = RunLines()
    with ExitStack() as stack:
        if arguments["packages"]:
            name, good, bad = parse_packages(arguments["packages"])
            session = stack.enter_context(open_session(place, lines))
            is_pre = good.is_prerelease or bad.is_prerelease
            versions = versions_between(await index_versions(session, name, out, pre=is_pre), name, good, bad)
            side = _here(invocation, out)
            hunt = Hunt(session, lines, PackageCandidates(session, side, out, name, versions), criterion, out)
            return await hunt.first_bad(arguments["scenario"], envelope)
        checkout = Checkout(invocation.cwd, invocation.environ)
        ends = checked_ends(checkout, arguments["good"], arguments["bad"])
        session = stack.enter_context(open_session(place, lines))
        worktrees = stack.enter_context(open_worktrees(checkout))
        candidates = CommitCandidates(checkout, worktrees, *ends)
        hunt = Hunt(session, lines, candidates, criterion, out, checkout_root=checkout.root)
        found = await hunt.first_bad(arguments["scenario"], envelope)
        return replace(found, commit=candidates.commit(found.found.name))


def _here(invocation: Invocation, out: Path) -> Side:
    """The working directory as it is, with this package's recorder in front of everything."""
    path = [str(recorder_path(out)), str(invocation.cwd), invocation.environ.get("PYTHONPATH", "")]
    environ = {**invocation.environ, "PYTHONPATH": ":".join(filter(None, path))}
    return Side(invocation.cwd, invocation.cwd, environ)
