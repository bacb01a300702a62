"""A gate from its options to its result: each scenario on both sides, or against its golden.

options ─▶ worktree of the base (when it is wanted) ─▶ scenario by scenario ─▶ Gate
             golden of this machine and environment? ─ yes ─▶ compared with it
                                                    ─ no ──▶ compared with the base
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.bits.errors import UsageError
from harness.lab.experiments.command_spec import refuse_both, refuse_scenario_options
from harness.lab.experiments.launcher import LaunchContext, Launcher, open_launcher
from harness.lab.experiments.out_directory import out_directory
from harness.lab.experiments.run import TitledDisplay
from harness.lab.experiments.worktrees import Checkout, Commit, Side, check_origin, open_worktrees, set_up
from harness.lab.gate.against_base import AgainstBase
from harness.lab.gate.against_golden import AgainstGolden
from harness.lab.gate.change import Change, Finding
from harness.lab.gate.plan import GateContext, GateOptions, command_context, head_context, scenario_names
from harness.lab.gate.reasons import Reason, ReasonCode, SharedCode
from harness.lab.gate.result import Gate, GateScenario
from harness.lab.gate.sides import HEAD, BrokenRun, Interrupted, Recorder
from harness.runner.config import GateKeys, load_config

GATES = "gates"
POLICY_KEYS = ("scenarios", "fail_on", "slowdown", "memory")
"""Keys of the configuration that decide the verdict."""


async def run_gate(
    options: GateOptions,
    checkout: Checkout,
    commit: Commit | None,
    golden: AgainstGolden | None,
    *,
    place: LaunchContext,
    out: str | None,
    lines: TitledDisplay,
) -> Gate:
    """Every scenario; those so far where a signal asks for the end. UsageError comes before any, and leaves nothing."""
    found: list[GateScenario] = []
    with ExitStack() as stack:
        session = stack.enter_context(open_launcher(place, lines))
        worktrees = stack.enter_context(open_worktrees(checkout))
        head = worktrees.working_tree
        base = AgainstBase(options, checkout, worktrees, stack, commit, note=options.invocation.note)
        side = None if golden else base.side()
        if side is not None:
            options = _with_policy_of(side, options)
            base.options = options
        refuse_both(options.invocation, options.names)
        if options.invocation.trailing:
            refuse_scenario_options(options.given)
            scenes = [command_context(head, options)]
        else:
            scenes = [head_context(name, head, options) for name in scenario_names(head, options)]
        if golden is not None:
            golden.read(scenes)
        removed = removed_scenarios(options, scenes, side)
        if not scenes and not removed:
            raise UsageError(
                "there is no scenario to gate",
                legal="scenarios of the project, as rlharness scenarios lists them, or a command after --",
                remedy="rlharness gate -- python train.py",
            )
        directory = out_directory(place.cwd, out, GATES, place.run_id).path
        base.set_up = partial(set_up, session, options.setup, checkout=checkout.root, log=directory / "setup")
        scenarios = _Scenarios(checkout.root, base, golden, session, lines, directory)
        is_dirty = checkout.is_dirty  # before the runs, which may write anything
        try:
            for scene in scenes:
                found.append(await scenarios.compare(scene))
        except Interrupted:
            options.invocation.note(f"interrupted by {session.interrupted_by}: the results so far follow")
        found += [
            GateScenario(name, Finding(Change.REMOVED, (Reason(ReasonCode.SCENARIO_REMOVED),))) for name in removed
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


def _with_policy_of(base: Side, options: GateOptions) -> GateOptions:
    """The options with the policy of the base; a note where that of the head differs."""
    config = load_config(base.cwd)
    keys = config.gate if config.path is not None and base.holds(str(config.path)) else GateKeys()
    head = load_config(options.invocation.cwd).gate
    if names := [name for name in POLICY_KEYS if getattr(head, name) != getattr(keys, name)]:
        spelt = ", ".join(name.replace("_", "-") for name in names)
        options.invocation.note(f"note: {spelt} of [tool.rlharness.gate] changed: that of the base applies")
    return options.with_policy_of(keys)


def removed_scenarios(options: GateOptions, scenes: list[GateContext], base: Side | None) -> list[str]:
    """Those that only the base has; none where there is no base."""
    known = {scene.name for scene in scenes}
    return [] if base is None else [name for name in scenario_names(base, options) if name not in known]


@dataclass(frozen=True, slots=True)
class _Scenarios:
    """What the scenarios of one gate share."""

    root: Path
    """Of the checkout."""
    base: AgainstBase
    golden: AgainstGolden | None
    session: Launcher
    lines: TitledDisplay
    directory: Path

    async def compare(self, scene: GateContext) -> GateScenario:
        """One scenario, from its runs to the finding. Interrupted."""
        origin = check_origin(scene.side, scene.run_spec.call, self.root)
        notes: tuple[Reason, ...] = (SharedCode(ReasonCode.SHARED_CODE, *origin),) if origin else ()
        recorder = Recorder(self.session, self.lines, self.directory / directory_name(scene.name), checkout=self.root)
        try:
            if self.golden is not None:
                found = await self.golden.compare(recorder, scene)
                if found.finding.change is not Change.NOT_COMPARABLE:
                    return replace(found, notes=notes, typed=scene.run_spec.typed)
                notes += found.finding.reasons
            found = await self.base.compare(recorder, scene)
            return replace(found, notes=notes, typed=scene.run_spec.typed)
        except BrokenRun as broken:
            change = Change.BROKEN if broken.side == HEAD else Change.NOT_COMPARABLE
            return GateScenario(scene.name, Finding(change, broken.reasons), notes=notes, output=broken.run.output)


def directory_name(scenario: str) -> str:
    """Of a scenario's traces."""
    return scenario.replace("/", "-")
