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

from harness.clock import Clock, SystemClock
from harness.errors import UsageError
from harness.exit_codes import ExitCode
from harness.lab.gate.change import Change, Finding
from harness.lab.gate.golden import (
    Acceptance,
    Golden,
    accepted,
    compare_with_golden,
    golden_directory,
    golden_of,
    other_keys,
    read_golden,
    write_golden,
)
from harness.lab.gate.plan import (
    GateOptions,
    Scene,
    base_scene,
    check_origin,
    gate_options,
    head_scene,
    scenario_names,
)
from harness.lab.gate.result import Gate, GateScenario
from harness.lab.gate.sides import HEAD, BrokenRun, Interrupted, Recorder, compare_sides, disagreement
from harness.lab.out_directory import out_directory
from harness.lab.session import Session, open_session
from harness.lab.supervised import Place
from harness.lab.worktrees import CHILD, Checkout, Commit, Side, Worktrees, open_worktrees
from harness.reporters.base import say, show
from harness.reporters.gate import directory_name, gate_json, gate_text
from harness.reporters.github import annotate, append_summary, is_on_github
from harness.reporters.run_lines import RunLines
from harness.runner.options import Invocation, wants_colour
from harness.runner.run_directory import new_run_id

GATES = "gates"
LEAST_AGREEING = 2
"""Runs of the head that have to agree before one is compared with a golden, or becomes one."""
MAX_NAMES = 5


def run_gate(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness gate`; HarnessError for what the user can mend."""
    clock = SystemClock()
    options = gate_options(invocation, arguments)
    checkout = Checkout(invocation.cwd, invocation.environ)
    base = checkout.commit(options.base) if options.base else None  # a revision that is none is told at once
    gate_id = new_run_id(clock.wall())
    directory = out_directory(invocation.cwd, arguments["out"], GATES, gate_id)
    place = Place(CHILD[0], invocation.cwd, invocation.environ, gate_id, options.timeout_s)
    gate = asyncio.run(_carried_out(options, checkout, base, place=place, directory=directory, clock=clock))
    if arguments["json"]:
        show(json.dumps(gate_json(gate)))
    else:
        show(gate_text(gate, colour=wants_colour(arguments["color"], invocation)))
    if is_on_github(invocation.environ):
        annotate(gate)
        append_summary(gate, invocation.environ)
    return gate.exit_code


async def _carried_out(
    options: GateOptions, checkout: Checkout, base: Commit | None, *, place: Place, directory: Path, clock: Clock
) -> Gate:
    """Every scenario; those so far where a signal asks for the end."""
    lines = RunLines()
    found: list[GateScenario] = []
    with ExitStack() as stack:
        session = stack.enter_context(open_session(place, lines))
        worktrees = stack.enter_context(open_worktrees(checkout))
        bench = Bench(
            options=options,
            checkout=checkout,
            worktrees=worktrees,
            session=session,
            lines=lines,
            directory=directory,
            clock=clock,
            stack=stack,
            base=base,
        )
        try:
            for name, scene in bench.scenes().items():
                found.append(await bench.scenario(name, scene))
        except Interrupted:
            say(f"interrupted by {session.interrupted_by}: what was judged so far is told")
        return Gate(
            head=bench.head_commit,
            is_dirty=bench.is_dirty,
            base=bench.base if bench.has_used_base else None,
            policy=options.policy,
            scenarios=tuple(found),
            directory=directory,
            notes=tuple(bench.notes),
            interrupted_by=session.interrupted_by,
        )


@dataclass
class Bench:
    """What the scenarios of one gate share."""

    options: GateOptions
    checkout: Checkout
    worktrees: Worktrees
    session: Session
    lines: RunLines
    directory: Path
    clock: Clock
    stack: ExitStack
    """Takes worktrees away at the end."""
    base: Commit | None
    """None until it is wanted, where none was given."""

    def __post_init__(self) -> None:
        self.head = self.worktrees.working_tree
        self.head_commit = self.checkout.commit("HEAD")
        self.is_dirty = self.checkout.is_dirty
        self.has_used_base = False
        self.notes: list[str] = []
        self._base_side: Side | None = None

    def scenes(self) -> dict[str, Scene | None]:
        """The scenarios of the head, each ready to be run, then those that only the base has, as None.

        UsageError where there is none, or one of the head cannot be run: nothing has been started then.
        """
        names = scenario_names(self.head, self.options)
        scenes: dict[str, Scene | None] = {name: head_scene(name, self.head, self.options) for name in names}
        if self.options.golden is None and (base := self.base_side()) is not None:
            for name in scenario_names(base, self.options):
                scenes.setdefault(name)
        if not scenes:
            raise UsageError(
                "there is no scenario to gate",
                legal="scenarios of the project, as rlharness scenarios lists them",
                remedy="write one into the directory scenarios, or name those of a package",
            )
        return scenes

    def base_side(self) -> Side | None:
        """The base, checked out when it is first wanted; None where there is none."""
        if self._base_side is None:
            self.base = self.base or self.checkout.default_base()
            if self.base is None:
                return None
            if self.base == self.head_commit and not self.is_dirty:
                self.notes.append("the base is what is checked out, and nothing is uncommitted: one tree with itself")
            self.lines.end(f"base {self.base.short} {self.base.subject}")
            self._base_side = self.stack.enter_context(self.worktrees.at(self.base))
            self.has_used_base = True
        return self._base_side

    async def scenario(self, name: str, scene: Scene | None) -> GateScenario:
        """One scenario, from its runs to the finding; None of one that the head has not. Interrupted."""
        if scene is None:
            return GateScenario(name, Finding(Change.REMOVED, ("the head has no such scenario any more",)))
        notes = tuple(filter(None, [check_origin(scene, self.checkout.root)]))
        recorder = Recorder(self.session, self.lines, self.directory / directory_name(name))
        try:
            if self.options.golden is not None:
                found = await self._against_golden(recorder, scene, self.options.golden)
                if found.finding.change is not Change.NOT_COMPARABLE:
                    return replace(found, notes=notes)
                notes += found.finding.reasons
            return replace(await self._against_base(recorder, scene), notes=notes)
        except BrokenRun as broken:
            change = Change.BROKEN if broken.side == HEAD else Change.NOT_COMPARABLE
            return GateScenario(name, Finding(change, broken.reasons), notes=notes, output=broken.run.output)

    async def _against_base(self, recorder: Recorder, head: Scene) -> GateScenario:
        """Against the same scenario at the base. Interrupted, BrokenRun."""
        side = self.base_side()
        if side is None or self.base is None:
            shallow = ", and this is a shallow clone" if self.checkout.is_shallow else ""
            reason = f"there is no base: no commit before this one, no branch of origin{shallow}: --base REV names one"
            return GateScenario(head.name, Finding(Change.NOT_COMPARABLE, (reason,)))
        against = f"base {self.base.short}"
        try:
            base = base_scene(head, self.head, side, self.options)
        except UsageError as error:
            finding = Finding(Change.CONFIGURATION, (f"the base's scenario cannot be run: {error.what}",))
            return GateScenario(head.name, finding, against=against)
        if base is None:
            return GateScenario(head.name, Finding(Change.NEW, ("the base has no such scenario",)), against=against)
        check_origin(base, self.checkout.root)
        if reasons := other_identity(base.envelope.identity, head.envelope.identity):
            return GateScenario(head.name, Finding(Change.CONFIGURATION, reasons), against=against)
        measured = await compare_sides(recorder, base, head, num_runs=self.options.runs, limits=self.options.limits)
        return GateScenario(head.name, measured.finding, measured.costs, against)

    async def _against_golden(self, recorder: Recorder, scene: Scene, goldens: Path) -> GateScenario:
        """Against the golden of this machine and environment; NOT_COMPARABLE where there is none."""
        while len(recorder.runs[HEAD]) < LEAST_AGREEING:
            await recorder.record(HEAD, scene)
        if unlike := disagreement(recorder):
            return GateScenario(scene.name, unlike)
        place = golden_directory(goldens, scene.name, scene.size)
        now = golden_of(recorder.traces(HEAD)[0], scene.name, scene.size)
        before = read_golden(place / now.key)
        if self.options.accepts:
            golden = accepted(now, before, self._acceptance())
            if golden is not before:
                write_golden(place / now.key, golden)
            if others := other_keys(place, now.key):
                self.notes.append(
                    f"{scene.name}: goldens of other machines or environments stay as they were: {', '.join(others)};"
                    " accept it there too"
                )
            return GateScenario(scene.name, Finding(Change.EQUAL), against=f"golden {now.key}", accepted=golden)
        if before is None:
            return GateScenario(scene.name, Finding(Change.NOT_COMPARABLE, tuple(foreign(place, now))))
        return GateScenario(scene.name, compare_with_golden(before, now), against=f"golden {now.key}")

    def _acceptance(self) -> Acceptance:
        commit = self.head_commit.short + ("+" if self.is_dirty else "")
        return Acceptance(f"{self.clock.wall():%Y-%m-%d}", commit, self.options.reason, self.checkout.user)


def other_identity(base: Mapping[str, str], head: Mapping[str, str]) -> tuple[str, ...]:
    """What of the configuration is not the same, value by value; nothing where it is."""
    names = sorted(name for name in base.keys() | head.keys() if base.get(name) != head.get(name))
    told = [f"{name} was {base.get(name, 'absent')} and is {head.get(name, 'absent')}" for name in names[:MAX_NAMES]]
    return tuple(told + ([f"and {len(names) - MAX_NAMES} more keys"] if len(names) > MAX_NAMES else []))


def foreign(place: Path, now: Golden) -> list[str]:
    """Why there is no golden to compare with."""
    others = [golden for key in other_keys(place, now.key) if (golden := read_golden(place / key)) is not None]
    if not others:
        return [f"{place} holds no golden of this scenario in this size: rlharness gate --accept writes one"]
    differing = [
        sorted(n for n in now.numerics.keys() | each.numerics.keys() if now.numerics.get(n) != each.numerics.get(n))
        for each in others
    ]
    names = min(differing, key=len)
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return [
        f"the goldens are of other machines or environments: the nearest differs in {', '.join(names[:MAX_NAMES])}"
        f"{more}; compared with the base instead"
    ]
