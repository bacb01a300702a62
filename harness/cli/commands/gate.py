"""`rlharness gate` from arguments to exit code: each scenario on both sides, or against its golden, then the policy.

options ─▶ worktree of the base (when it is wanted) ─▶ scenario by scenario ─▶ text, JSON, GitHub
             golden of this machine and environment? ─ yes ─▶ compared with it
                                                    ─ no ──▶ compared with the base
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.clock import SystemClock
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, wants_colour
from harness.lab.experiments.out_directory import out_directory
from harness.lab.experiments.session import Session, open_session
from harness.lab.experiments.supervised_runs import Place
from harness.lab.experiments.worktrees import CHILD, Checkout, Commit, Side, check_origin, open_worktrees
from harness.lab.gate.against_base import AgainstBase
from harness.lab.gate.against_golden import AgainstGolden
from harness.lab.gate.change import Change, Finding
from harness.lab.gate.plan import GateOptions, Scene, gate_options, head_scene, nothing_to_gate, scenario_names
from harness.lab.gate.result import Gate, GateScenario
from harness.lab.gate.sides import HEAD, BrokenRun, Interrupted, Recorder
from harness.process.run_directory import new_run_id
from harness.render.console import say, show
from harness.render.gate import directory_name, gate_json, gate_text
from harness.render.github import annotate, append_summary, is_on_github
from harness.render.run_lines import RunLines

GATES = "gates"


def run_gate(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness gate`; HarnessError for what the user can mend."""
    clock = SystemClock()
    options = gate_options(invocation, arguments)
    checkout = Checkout(invocation.cwd, invocation.environ)
    base = checkout.commit(options.base) if options.base else None  # a revision that is none is told at once
    golden = AgainstGolden(options, options.golden, checkout, clock) if options.golden else None
    gate_id = new_run_id(clock.wall())
    place = Place(CHILD[0], invocation.cwd, invocation.environ, gate_id, options.timeout_s)
    gate = asyncio.run(_carried_out(options, checkout, base, golden, place=place, out=arguments["out"]))
    if arguments["json"]:
        show(json.dumps(gate_json(gate)))
    else:
        show(gate_text(gate, colour=wants_colour(arguments["color"], invocation)))
    if is_on_github(invocation.environ):
        annotate(gate)
        append_summary(gate, invocation.environ)
    return gate.exit_code


async def _carried_out(
    options: GateOptions,
    checkout: Checkout,
    commit: Commit | None,
    golden: AgainstGolden | None,
    *,
    place: Place,
    out: str | None,
) -> Gate:
    """Every scenario; those so far where a signal asks for the end. UsageError comes before any, and leaves nothing."""
    lines = RunLines()
    found: list[GateScenario] = []
    with ExitStack() as stack:
        session = stack.enter_context(open_session(place, lines))
        worktrees = stack.enter_context(open_worktrees(checkout))
        head = worktrees.working_tree
        base = AgainstBase(options, checkout, worktrees, stack, commit, note=say)
        scenes = [head_scene(name, head, options) for name in scenario_names(head, options)]
        if golden is not None:
            golden.read(scenes)
        removed = removed_scenarios(options, scenes, None if golden else base.side())
        if not scenes and not removed:
            raise nothing_to_gate(place.cwd)
        directory = out_directory(place.cwd, out, GATES, place.run_id).path
        bench = Bench(checkout.root, base, golden, session, lines, directory)
        is_dirty = checkout.is_dirty  # before the runs, which may write anything
        try:
            for scene in scenes:
                found.append(await bench.scenario(scene))
        except Interrupted:
            say(f"interrupted by {session.interrupted_by}: what was judged so far is told")
        found += [
            GateScenario(name, Finding(Change.REMOVED, ("the head has no such scenario any more",))) for name in removed
        ]
        return Gate(
            head=checkout.commit("HEAD"),
            is_dirty=is_dirty,
            base=base.commit,
            policy=options.policy,
            scenarios=tuple(found),
            directory=directory,
            notes=(*base.notes, *(golden.notes if golden else ())),
            interrupted_by=session.interrupted_by,
        )


def removed_scenarios(options: GateOptions, scenes: list[Scene], base: Side | None) -> list[str]:
    """Those that only the base has; none where there is no base."""
    known = {scene.name for scene in scenes}
    return [] if base is None else [name for name in scenario_names(base, options) if name not in known]


@dataclass(frozen=True, slots=True)
class Bench:
    """What the scenarios of one gate share."""

    root: Path
    """Of the checkout."""
    base: AgainstBase
    golden: AgainstGolden | None
    session: Session
    lines: RunLines
    directory: Path

    async def scenario(self, scene: Scene) -> GateScenario:
        """One scenario, from its runs to the finding. Interrupted."""
        notes = tuple(filter(None, [check_origin(scene.side, scene.envelope.call, self.root)]))
        recorder = Recorder(self.session, self.lines, self.directory / directory_name(scene.name))
        try:
            if self.golden is not None:
                found = await self.golden.compare(recorder, scene)
                if found.finding.change is not Change.NOT_COMPARABLE:
                    return replace(found, notes=notes, typed=scene.envelope.typed)
                notes += found.finding.reasons
            found = await self.base.compare(recorder, scene)
            return replace(found, notes=notes, typed=scene.envelope.typed)
        except BrokenRun as broken:
            change = Change.BROKEN if broken.side == HEAD else Change.NOT_COMPARABLE
            return GateScenario(scene.name, Finding(change, broken.reasons), notes=notes, output=broken.run.output)
