"""A gate from its options to its result: each scenario, or the command, on both sides, or against its golden.

options ─▶ worktree of the base (when it is wanted) ─▶ scenario by scenario ─▶ Gate
             golden of this machine and environment? ─ yes ─▶ compared with it
                                                    ─ no ──▶ compared with the base
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.findings import Finding
from harness.bits.text import path_text
from harness.lab.experiments.command_spec import (
    ScenarioOptions,
    command_name,
    make_command_spec,
    refuse_both,
    refuse_scenario_options,
)
from harness.lab.experiments.launcher import LaunchContext, TitledDisplay, check_program, open_launcher
from harness.lab.experiments.preparation import out_directory
from harness.lab.experiments.scenario import SMOKE
from harness.lab.experiments.scenario_files import ScenarioFile, all_scenarios, find_scenario
from harness.lab.experiments.scenario_spec import asked_of, check_machine, make_scenario_spec, say_misspelt
from harness.lab.experiments.worktrees import CHILD, Checkout, Commit, Side, open_worktrees, set_up
from harness.lab.gate.change import Change, Comparison, GateCode, change_of_identity
from harness.lab.gate.costs import Limits
from harness.lab.gate.golden import (
    Acceptance,
    Golden,
    acceptance,
    accepted,
    compare_with_golden,
    golden_directory,
    golden_of,
    read_goldens,
    write_golden,
)
from harness.lab.gate.result import Gate, GateScenario, policy_of
from harness.lab.gate.sides import (
    BASE,
    HEAD,
    BrokenRun,
    GateContext,
    Interrupted,
    Recorder,
    compare_sides,
    disagreement,
)
from harness.process.clock import Clock
from harness.process.invocation import Invocation
from harness.recording.run_spec import RunSpec
from harness.runner.config import GateKeys, load_config
from harness.trace.mapped_libraries import deciding

GATES = "gates"
LEAST_AGREEING = 2
"""Runs of the head that have to agree before one is compared with a golden, or becomes one."""


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What the command line and the configuration say together."""

    invocation: Invocation
    names: tuple[str, ...]
    """Scenarios that were typed; none: those of the configuration, else all of the project."""
    base: str
    """A revision; empty where none was given."""
    golden: Path | None
    accepts: bool
    reason: str
    """Why goldens are rewritten."""
    given: ScenarioOptions
    """What makes a run spec of a scenario or of the command."""
    setup: str
    """Command that prepares the base's worktree; empty for none."""
    runs: int
    """Number of runs of each side."""
    fail_on: tuple[str, ...]
    limits: Limits
    typed: Mapping[str, Any]
    """Values of --fail-on, --slowdown and --memory, which go before those of a configuration."""
    timeout_s: float = inf
    base_scenarios: tuple[str, ...] = ()
    """Scenarios that the configuration of the base lists: they run whatever that of the head says."""


def scenario_names(side: Side, options: GateOptions) -> tuple[str, ...]:
    """The scenarios that this side wants to be run: those typed, those of its configuration, or all of its project.

    None beside a command.
    """
    if options.names or options.invocation.trailing:
        return options.names
    config = load_config(side.cwd)
    if config.gate.scenarios is not None and config.path is not None and side.holds(str(config.path)):
        known = {each.name for each in all_scenarios(side.cwd)}
        return tuple(dict.fromkeys((*config.gate.scenarios, *(known & set(options.base_scenarios)))))
    return tuple(each.name for each in all_scenarios(side.cwd) if side.holds(str(each.file)))


def head_contexts(head: Side, options: GateOptions) -> list[GateContext]:
    """Return what runs in the working tree; UsageError where it cannot be run here as it was asked for."""
    invocation = options.invocation
    refuse_both(invocation, options.names)
    if invocation.trailing:
        refuse_scenario_options(options.given)
        run_spec = make_command_spec(invocation.trailing, options.given.recording)
        check_program(run_spec, head.cwd, head.command_environ)
        return [GateContext(command_name(invocation.trailing), "", head, run_spec)]
    return [head_context(name, head, options) for name in scenario_names(head, options)]


def head_context(name: str, head: Side, options: GateOptions) -> GateContext:
    """A scenario of the working tree; UsageError where it cannot be run here as it was asked for."""
    asked = asked_of(name, find_scenario(name, head.cwd).read(), options.given, SMOKE)
    say_misspelt(asked, options.invocation.note)
    check_machine(options.invocation, asked.scenario)
    return _context(name, asked.size, head, make_scenario_spec(asked, options.given.recording))


def base_context(context: GateContext, head: Side, base: Side, options: GateOptions) -> GateContext | None:
    """The same at the base; a scenario from its own file, None where there is none.

    A scenario that is no file of the checkout, of an installed package, say, is the same on both sides. UsageError
    where it cannot be run there as it was asked for.
    """
    if options.invocation.trailing:
        return replace(context, side=base)
    found = find_scenario(context.name, head.cwd)
    if head.holds(str(found.file)):
        path = base.root / Path(str(found.file)).resolve().relative_to(head.root.resolve())
        if not path.is_file():
            return None
        if found.table is None:
            found = ScenarioFile(context.name, path)
        elif context.name in {each.name for each in all_scenarios(base.cwd)}:
            found = find_scenario(context.name, base.cwd)
        else:
            return None
    asked = asked_of(context.name, found.read(), options.given, SMOKE)
    return _context(context.name, asked.size, base, make_scenario_spec(asked, options.given.recording))


def _context(name: str, size: str, side: Side, run_spec: RunSpec) -> GateContext:
    return GateContext(name, size, side, run_spec if run_spec.call is None else replace(run_spec, argv=CHILD))


async def run_gate(
    options: GateOptions,
    checkout: Checkout,
    place: LaunchContext,
    *,
    out: str | None,
    lines: TitledDisplay,
    clock: Clock,
) -> Gate:
    """Every scenario; those so far where a signal asks for the end. UsageError comes before any, and leaves nothing."""
    given = checkout.commit(options.base) if options.base else None  # an unknown revision is reported at once
    with ExitStack() as stack:
        launcher = stack.enter_context(open_launcher(place, lines))
        worktrees = stack.enter_context(open_worktrees(checkout))
        head, notes, note = worktrees.working_tree, list[Finding](), options.invocation.note

        def base_side() -> tuple[Commit, Side] | None:
            """Check the base out when it is first wanted; None without a given base and a default one."""
            commit = given or checkout.default_base()
            if commit is None:
                return None
            if commit == checkout.commit("HEAD") and not checkout.is_dirty:
                notes.append(GateCode.SAME_TREE())
            note(f"base {commit.short} {commit.subject}")
            return commit, stack.enter_context(worktrees.at(commit))

        base = None if options.golden else base_side()
        if base is not None:
            options = _with_policy_of(base[1], options)
        contexts = head_contexts(head, options)
        goldens = _read_goldens(options, contexts)
        known = {context.name for context in contexts}
        removed = [] if base is None else [name for name in scenario_names(base[1], options) if name not in known]
        if not contexts and not removed:
            raise UsageError(
                "there is no scenario to gate",
                legal="scenarios of the project, as rlharness scenarios lists them, or a command after --",
                remedy="rlharness gate -- python train.py",
            )
        directory = out_directory(place.cwd, out, GATES, place.run_id).path
        is_dirty = checkout.is_dirty  # before the runs, which may write anything
        head_commit, date = checkout.commit("HEAD"), f"{clock.wall():%Y-%m-%d}"
        author = Acceptance(date, head_commit.short + ("+" if is_dirty else ""), options.reason, checkout.user)
        problem: str | None = None  # why the base is not prepared: empty where it is
        found: list[GateScenario] = []

        async def against_base(recorder: Recorder, context: GateContext) -> GateScenario:
            nonlocal base, problem
            base = base or base_side()
            if base is None:
                code = GateCode.NO_BASE_IN_SHALLOW_CLONE if checkout.is_shallow else GateCode.NO_BASE
                return GateScenario(context.name, Comparison(Change.NOT_COMPARABLE, (code(),)))
            side, against = base[1], f"base {base[0].short}"
            if problem is None:
                log, setup = directory / "setup", options.setup
                problem = await set_up(launcher, setup, side, checkout.root, log) if setup else ""
            try:
                if problem:
                    raise UsageError(problem)
                other = base_context(context, head, side, options)
            except UsageError as error:
                rejected = Comparison(Change.NOT_COMPARABLE, (GateCode.BASE_REJECTED(message=error.what),))
                return GateScenario(context.name, rejected, against=against)
            return await _compare_with_base(recorder, context, other, against, options)

        async def compare(context: GateContext) -> GateScenario:
            shared: tuple[Finding, ...] = ()
            place_of_runs = directory / context.name.replace("/", "-")
            recorder = Recorder(launcher, lines, place_of_runs, checkout=checkout.root)
            replayed = context.run_spec.typed or ("--", *context.run_spec.argv)
            try:
                if options.golden:
                    result = await _compare_with_golden(recorder, context, goldens[context.name], options, author)
                    notes.extend(result.notes)
                    if result.comparison.change is not Change.NOT_COMPARABLE:
                        return replace(result, notes=shared, replay=replayed)
                    shared += result.comparison.reasons
                result = await against_base(recorder, context)
                if recorder.runs[HEAD] and not recorder.imports_checkout:
                    shared += (GateCode.SHARED_CODE(),)
                return replace(result, notes=shared, replay=replayed)
            except BrokenRun as broken:
                change = Comparison(Change.BROKEN if broken.side == HEAD else Change.NOT_COMPARABLE, broken.reasons)
                return GateScenario(context.name, change, notes=shared, output=broken.run.output)

        try:
            for context in contexts:
                found.append(await compare(context))
        except Interrupted:
            note(f"interrupted by {launcher.interrupted_by}: the results so far follow")
        found += [GateScenario(name, Comparison(Change.REMOVED, (GateCode.SCENARIO_REMOVED(),))) for name in removed]
        return Gate(
            head_commit,
            is_dirty,
            base and base[0],
            options.fail_on,
            tuple(found),
            directory,
            tuple(notes),
            launcher.interrupted_by,
            bisect_words(checkout, base[0], head_commit, options.setup) if base and not is_dirty else (),
        )


def bisect_words(checkout: Checkout, base: Commit, head: Commit, setup: str) -> tuple[str, ...]:
    """Return the command that finds the commit of a change, without its scenario; empty for a single commit."""
    if not checkout.is_ancestor(base, head) or len(checkout.history(base, head)) < 2:
        return ()
    prepared = ("--setup", setup) if setup else ()
    return ("rlharness", "bisect", "--good", base.short, "--bad", head.short, *prepared)


def _with_policy_of(base: Side, options: GateOptions) -> GateOptions:
    """Return the options with the policy of the base, but what was typed stays; a note where that of the head differs.

    UsageError for a policy that is not legal.
    """
    config = load_config(base.cwd)
    keys = config.gate if config.path is not None and base.holds(str(config.path)) else GateKeys()
    head = load_config(options.invocation.cwd).gate
    names = [name for name in ("scenarios", *options.typed) if getattr(head, name) != getattr(keys, name)]
    if spelt := ", ".join(name.replace("_", "-") for name in names):
        options.invocation.note(f"note: {spelt} of [tool.rlharness.gate] changed: that of the base applies")
    fail_on, limits = policy_of(options.typed, keys, "fail-on of the base")
    return replace(options, fail_on=fail_on, limits=limits, base_scenarios=tuple(keys.scenarios or ()))


async def _compare_with_base(
    recorder: Recorder, head: GateContext, base: GateContext | None, against: str, options: GateOptions
) -> GateScenario:
    """A scenario of the head, and the same at the base. Interrupted, BrokenRun."""
    if base is None:
        return GateScenario(head.name, Comparison(Change.NEW, (GateCode.SCENARIO_NEW(),)), against=against)
    if other := change_of_identity(base.run_spec.identity, head.run_spec.identity):
        return GateScenario(head.name, other, against=against)
    found = await compare_sides(
        recorder, {BASE: base, HEAD: head}, num_runs=options.runs, limits=options.limits, fail_on=options.fail_on
    )
    return GateScenario(head.name, *found, against)


# ------------------------------------------------------------------------------------------------------------ goldens


def _read_goldens(options: GateOptions, contexts: Iterable[GateContext]) -> dict[str, dict[str, Golden]]:
    """Goldens by scenario and key, all read before the first run; GoldenError for one that cannot be read."""
    if options.golden is None:
        return {}
    if not options.accepts and not options.golden.is_dir():
        raise UsageError(
            f"there are no goldens in {path_text(options.golden)}: it is not a directory",
            legal="a directory that rlharness gate --accept has written to",
            remedy="rlharness gate --golden DIR --accept --reason TEXT writes the first ones",
        )
    return {each.name: read_goldens(golden_directory(options.golden, each.name, each.size)) for each in contexts}


async def _compare_with_golden(
    recorder: Recorder, context: GateContext, goldens: dict[str, Golden], options: GateOptions, author: Acceptance
) -> GateScenario:
    """A scenario and its golden; NOT_COMPARABLE where there is none for it here. Its notes are the gate's."""
    assert options.golden is not None
    place = golden_directory(options.golden, context.name, context.size)
    if not goldens and not options.accepts:
        reason = GateCode.NO_GOLDEN(directory=path_text(place))
        return GateScenario(context.name, Comparison(Change.NOT_COMPARABLE, (reason,)))
    while len(recorder.runs[HEAD]) < LEAST_AGREEING:
        await recorder.record(HEAD, context)
    if unlike := disagreement(recorder):
        return GateScenario(context.name, unlike)
    now = golden_of(recorder.traces(HEAD)[0], context.name, context.size)
    key = fitting_key(goldens, now)
    before, others = goldens.get(key), tuple(each for each in goldens if each != key)
    against = f"golden {key}"
    if not options.accepts:
        if before is None:
            reason = GateCode.NO_GOLDEN_FOR_ENVIRONMENT(names=nearest_differences(goldens.values(), now))
            return GateScenario(context.name, Comparison(Change.NOT_COMPARABLE, (reason,)))
        return GateScenario(context.name, compare_with_golden(before, now), against=against, golden=before)
    golden = accepted(now, before, author)
    if golden is not before:
        write_golden(place / key, golden)
    kept = (GateCode.GOLDENS_KEPT(scenario=context.name, keys=others),) if others else ()
    return GateScenario(context.name, acceptance(before, now), against=against, golden=golden, notes=kept)


def fitting_key(goldens: Mapping[str, Golden], now: Golden) -> str:
    """Return the key of the golden whose deciding numerics are those of this run; the run's own if there is none."""
    fits = (key for key, each in goldens.items() if deciding(each.numerics) == deciding(now.numerics))
    return now.key if now.key in goldens else next(fits, now.key)


def nearest_differences(goldens: Iterable[Golden], now: Golden) -> tuple[str, ...]:
    """Return the numerics in which the nearest of these goldens differs from this run."""
    mine, others = deciding(now.numerics), [deciding(each.numerics) for each in goldens]
    return min((tuple(sorted(n for n in {**mine, **its} if mine.get(n) != its.get(n))) for its in others), key=len)
