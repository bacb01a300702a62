"""A gate from its options to its result: each scenario, or the command, on both sides, or against its golden.

options ─▶ worktree of the base (when it is wanted) ─▶ scenario by scenario ─▶ Gate
             golden of this machine and environment? ─ yes ─▶ compared with it
                                                    ─ no ──▶ compared with the base

    base  head  base  head ─▶ each side agrees with itself? ─▶ base against head
                              they part at step K ─▶ base, head once more, up to K, with its tensors kept

The pair with tensors shows once more that each side agrees with itself: its steps must be those of the first pair.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.findings import Finding
from harness.bits.text import path_text
from harness.lab.experiment.command_spec import SpecOptions
from harness.lab.experiment.launcher import Display, LaunchContext, Launcher, Run, check_program, open_launcher
from harness.lab.experiment.preparation import out_directory
from harness.lab.experiment.recording_result import Problem
from harness.lab.experiment.scenario import (
    SMOKE,
    Asked,
    ScenarioFile,
    all_scenarios,
    asked_of,
    asked_run,
    asked_scenario,
    find_scenario,
    make_scenario_spec,
)
from harness.lab.experiment.worktrees import Checkout, Commit, Side, imports_checkout, open_worktrees, set_up
from harness.lab.gate.change import (
    MAX_BYTES,
    Change,
    Comparison,
    GateCode,
    change_of_identity,
    classify_change,
    earliest_phase,
    measure_rounding,
    step_bytes,
)
from harness.lab.gate.golden import (
    Acceptance,
    Golden,
    accept,
    compare_with_golden,
    golden_directory,
    key_of,
    numerics_of,
    read_goldens,
)
from harness.process.clock import Clock
from harness.process.invocation import Invocation
from harness.recording.run_spec import RunSpec, read_rejection
from harness.runner.config import GateKeys, load_config
from harness.trace.diff import diff
from harness.trace.fingerprint import deciding
from harness.trace.reader import Trace, excerpt, read_trace
from harness.trace.verdict import Difference, Verdict

# --------------------------------------------------------------------------------------------------------------- policy

BEHAVIOUR, NUMERICS, CONFIGURATION, NOT_COMPARABLE = "behaviour", "numerics", "configuration", "not_comparable"
REASONS = (BEHAVIOUR, NUMERICS, CONFIGURATION, NOT_COMPARABLE)
"""What may stand in `fail-on`."""
DEFAULT = (BEHAVIOUR, NUMERICS, NOT_COMPARABLE)
BROKEN = "broken"
"""Beside REASONS: the head does not run. It always fails."""
REASON_OF = {Change.REMOVED: CONFIGURATION, Change.NONDETERMINISTIC: NOT_COMPARABLE}
"""Reasons that are not called as their change."""


def failure(change: Change, fail_on: Collection[str] = DEFAULT) -> tuple[str, ...]:
    """Return what fails of a scenario; BROKEN always does."""
    found = REASON_OF.get(change, change.value)
    return (found,) if found in (BROKEN, *fail_on) else ()


def policy_of(typed: str | None, keys: GateKeys, where: str) -> tuple[str, ...]:
    """Return the reasons to fail: those of --fail-on, else those of a configuration, else the default.

    UsageError for an unknown reason; the word "none" alone stands for none.
    """
    words: Sequence[str] = DEFAULT if keys.fail_on is None else keys.fail_on
    if typed is not None:
        where, words = "--fail-on", [word.strip() for word in typed.split(",")]
    words = () if list(words) == ["none"] else tuple(dict.fromkeys(words))
    if unknown := [word for word in words if word not in REASONS]:
        raise UsageError(f"{where} {unknown[0]!r}", legal=", ".join((*REASONS, "or none")))
    return words


def exit_code(failures: Collection[str]) -> ExitCode:
    """That of a gate from all that fails it: a divergence weighs most, then what is not comparable, then BROKEN."""
    if any(each not in (CONFIGURATION, NOT_COMPARABLE, BROKEN) for each in failures):
        return ExitCode.DIVERGED
    if any(each != BROKEN for each in failures):
        return ExitCode.NOT_COMPARABLE
    return ExitCode.INCOMPLETE_RECORDING if failures else ExitCode.OK


@dataclass(frozen=True, slots=True)
class GateScenario:
    """What became of one scenario."""

    name: str
    comparison: Comparison
    against: str = ""
    """With what it was compared: "base 3f9c2a7", "golden 5d0e..."; empty where with nothing."""
    notes: tuple[Finding, ...] = ()
    golden: Golden | None = None
    """With which it was compared, or that was written."""
    output: Path | None = None
    """What the run printed that did not come to its end."""
    replay: tuple[str, ...] = ()
    """The words after `rlharness replay` that run it again; empty if none of its runs is compared."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate that has ended."""

    head: Commit
    """The commit that is checked out."""
    is_dirty: bool
    """Whether the working tree holds more."""
    base: Commit | None
    """None where nothing was compared with a revision."""
    fail_on: tuple[str, ...]
    scenarios: tuple[GateScenario, ...]
    directory: Path
    """Directory of the traces."""
    notes: tuple[Finding, ...] = ()
    interrupted_by: str = ""
    bisect: tuple[str, ...] = ()
    """The command that finds the commit, without the scenario; empty where no commits lie between both sides."""

    @property
    def failures(self) -> dict[str, tuple[str, ...]]:
        """By scenario, what fails it."""
        found = {each.name: failure(each.comparison.change, self.fail_on) for each in self.scenarios}
        return {name: reasons for name, reasons in found.items() if reasons}

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of all scenarios together."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        return exit_code([reason for reasons in self.failures.values() for reason in reasons])


# ------------------------------------------------------------------------------------------------------------- the runs

BASE, HEAD = "base", "head"


class Interrupted(Exception):
    """A signal has asked for the end: nothing follows from the runs so far."""


class BrokenRun(Exception):
    """A run that did not come to its end, or recorded nothing."""

    def __init__(self, side: str, run: Run) -> None:
        super().__init__(side)
        self.side, self.run = side, run

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """What its entry says if that has rejected its configuration, else the problems of the recording."""
        problems = self.run.recording.problems or (Problem("it recorded no step"),)
        if rejection := read_rejection(self.run.recording.directory):
            problems = (Problem(f"{rejection.what} (legal: {rejection.legal})", rejection.remedy),)
        return tuple(GateCode.RUN_FAILED(side=self.side, message=each.what, remedy=each.remedy) for each in problems)


@dataclass(frozen=True, slots=True)
class GateContext:
    """A scenario or a command on one side, ready to be run."""

    name: str
    size: str
    side: Side = field(repr=False)
    run_spec: RunSpec = field(repr=False)


class Recorder:
    """Records the runs of one scenario, each side in a directory of its own."""

    def __init__(self, launcher: Launcher, directory: Path, *, checkout: Path | None = None) -> None:
        self._launcher, self._directory, self._checkout = launcher, directory, checkout
        self.imports_checkout = False
        """Whether any run has imported code of its side."""
        self.runs: dict[str, list[Run]] = {BASE: [], HEAD: []}

    async def record(self, side: str, context: GateContext) -> None:
        """Add one more run of a side. Interrupted, BrokenRun."""
        number = len(self.runs[side]) + 1
        self.runs[side].append(await self._run(side, side, f"{side}, run {number}", context, number))

    async def keep(self, side: str, context: GateContext, step: int) -> Trace:
        """Make a run up to this step, whose tensors it keeps."""
        context = replace(context, run_spec=replace(context.run_spec, keep=(step,), last_step=step))
        title = f"{side} up to step {step}, whose tensors are kept"
        return read_trace((await self._run(side, f"{side}-kept", title, context, 1)).recording.directory)

    async def _run(self, side: str, place: str, title: str, context: GateContext, number: int) -> Run:
        if self._launcher.interrupted_by:
            raise Interrupted
        self._launcher.display.title = f"{context.name}: {title}"
        spec, environ, cwd = context.run_spec, context.side.environ_of(context.run_spec), context.side.cwd
        run = await self._launcher.record(spec, self._directory / place, number, environ=environ, cwd=cwd)
        if self._launcher.interrupted_by:
            raise Interrupted
        self._launcher.display.ended(run)
        if not run.recording.is_complete or not run.recording.num_steps:
            raise BrokenRun(side, run)
        if self._checkout is not None:
            self.imports_checkout |= imports_checkout(run, context.side, self._checkout)
        return run

    def traces(self, side: str) -> list[Trace]:
        """Return those of the runs of a side so far."""
        return [read_trace(run.recording.directory) for run in self.runs[side]]


async def compare_sides(recorder: Recorder, contexts: Mapping[str, GateContext], num_runs: int) -> Comparison:
    """Run both sides in turns, and return what the change has done. Interrupted, BrokenRun."""
    for number in range(num_runs):
        for side, context in contexts.items():
            if len(recorder.runs[side]) <= number:  # against a golden, the head may have run before
                await recorder.record(side, context)
    if unlike := disagreement(recorder):
        return unlike
    traces = {side: recorder.traces(side)[0] for side in contexts}
    verdict = diff(traces[BASE], traces[HEAD])
    first = verdict.first
    if first is None:
        return classify_change(verdict, None)
    # Tensors say more where both sides have the value that differs, and it is not too much to keep.
    if first.what is not Difference.VALUE or max(step_bytes(each, first.step) for each in traces.values()) > MAX_BYTES:
        if len(recorder.runs[BASE]) == 1:  # nothing has shown yet that the base agrees with itself
            for side, context in contexts.items():
                await recorder.record(side, context)
        return disagreement(recorder) or classify_change(verdict, None)
    kept = {side: await recorder.keep(side, context, first.step) for side, context in contexts.items()}
    for side, again in kept.items():
        unlike_itself = diff(excerpt(traces[side], again.steps[0], again.steps[-1]), again)
        if unlike_itself.first is not None:
            return nondeterministic(side, unlike_itself)
    sides = kept[BASE], kept[HEAD]
    again_first = diff(*sides).first
    assert again_first is not None
    rounding = measure_rounding(*sides, first.step, earliest_phase(*sides, first.step))
    return classify_change(replace(verdict, first=replace(first, value=first.value or again_first.value)), rounding)


def disagreement(recorder: Recorder) -> Comparison | None:
    """That two runs of one side are not alike; None where they are."""
    for side in (BASE, HEAD):
        traces = recorder.traces(side)
        for other in traces[1:]:
            verdict = diff(traces[0], other)
            if verdict.first is not None:
                return nondeterministic(side, verdict)
    return None


def nondeterministic(side: str, verdict: Verdict) -> Comparison:
    """That a side does not agree with itself."""
    return Comparison(Change.NONDETERMINISTIC, (GateCode.SIDE_NONDETERMINISTIC(side=side),), verdict=verdict)


# ------------------------------------------------------------------------------------------------------------- the gate

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
    given: SpecOptions
    """What makes a run spec of a scenario or of the command."""
    setup: str
    """Command that prepares the base's worktree; empty for none."""
    runs: int
    """Number of runs of each side."""
    fail_on: tuple[str, ...]
    typed: str | None
    """Value of --fail-on, which goes before that of a configuration."""
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
    if invocation.trailing:
        command = _context(asked_run(invocation, "gate", next(iter(options.names), None), options.given), head, options)
        check_program(command.run_spec, head.cwd, head.command_environ)
        return [command]
    names = scenario_names(head, options)
    asked = [asked_scenario(invocation, name, options.given, SMOKE, is_isolated=True) for name in names]
    return [_context(each, head, options) for each in asked]


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
    return _context(asked, base, options)


def _context(asked: Asked, side: Side, options: GateOptions) -> GateContext:
    run_spec = make_scenario_spec(asked, is_isolated=True)
    return GateContext(asked.name, asked.size, side, run_spec)


async def run_gate(
    options: GateOptions, checkout: Checkout, place: LaunchContext, *, out: str | None, lines: Display, clock: Clock
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
            raise UsageError("there is no scenario to gate", remedy="rlharness gate -- python train.py")
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
            recorder = Recorder(launcher, place_of_runs, checkout=checkout.root)
            replayed = context.run_spec.typed or ("--", *context.run_spec.argv)
            try:
                if options.golden:
                    result = await _compare_with_golden(recorder, context, goldens[context.name], options, author)
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
    if not checkout.is_ancestor(base, head) or len(checkout.commits(head.name, [base.name])) < 2:
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
    names = [name for name in ("scenarios", "fail_on") if getattr(head, name) != getattr(keys, name)]
    if spelt := ", ".join(name.replace("_", "-") for name in names):
        options.invocation.note(f"note: {spelt} of [tool.rlharness.gate] changed: that of the base applies")
    fail_on = policy_of(options.typed, keys, "fail-on of the base")
    return replace(options, fail_on=fail_on, base_scenarios=tuple(keys.scenarios or ()))


async def _compare_with_base(
    recorder: Recorder, head: GateContext, base: GateContext | None, against: str, options: GateOptions
) -> GateScenario:
    """A scenario of the head, and the same at the base. Interrupted, BrokenRun."""
    if base is None:
        return GateScenario(head.name, Comparison(Change.NEW, (GateCode.SCENARIO_NEW(),)), against=against)
    if other := change_of_identity(base.run_spec.identity, head.run_spec.identity):
        return GateScenario(head.name, other, against=against)
    found = await compare_sides(recorder, {BASE: base, HEAD: head}, options.runs)
    return GateScenario(head.name, found, against)


# ------------------------------------------------------------------------------------------------------------ goldens


def _read_goldens(options: GateOptions, contexts: Iterable[GateContext]) -> dict[str, dict[str, Golden]]:
    """Goldens by scenario and key, all read before the first run; GoldenError for one that cannot be read."""
    if options.golden is None:
        return {}
    if not options.accepts and not options.golden.is_dir():
        what = f"there are no goldens in {path_text(options.golden)}: it is not a directory"
        raise UsageError(what, remedy="rlharness gate --golden DIR --accept --reason TEXT writes the first ones")
    return {each.name: read_goldens(golden_directory(options.golden, each.name, each.size)) for each in contexts}


async def _compare_with_golden(
    recorder: Recorder, context: GateContext, goldens: dict[str, Golden], options: GateOptions, author: Acceptance
) -> GateScenario:
    """A scenario and its golden; NOT_COMPARABLE where there is none for it here."""
    assert options.golden is not None
    place = golden_directory(options.golden, context.name, context.size)
    if not goldens and not options.accepts:
        reason = GateCode.NO_GOLDEN(directory=path_text(place))
        return GateScenario(context.name, Comparison(Change.NOT_COMPARABLE, (reason,)))
    while len(recorder.runs[HEAD]) < LEAST_AGREEING:
        await recorder.record(HEAD, context)
    if unlike := disagreement(recorder):
        return GateScenario(context.name, unlike)
    now = recorder.traces(HEAD)[0]
    key = fitting_key(goldens, now)
    before = goldens.get(key)
    against = f"golden {key}"
    if not options.accepts:
        if before is None:
            reason = GateCode.NO_GOLDEN_FOR_ENVIRONMENT(names=nearest_differences(goldens.values(), now))
            return GateScenario(context.name, Comparison(Change.NOT_COMPARABLE, (reason,)))
        return GateScenario(context.name, compare_with_golden(before.trace, now), against=against, golden=before)
    found, golden = accept(now, before, place / key, author)
    return GateScenario(context.name, found, against=against, golden=golden)


def fitting_key(goldens: Mapping[str, Golden], now: Trace) -> str:
    """Return the key of the golden whose deciding numerics are those of this run; the run's own if there is none."""
    own, numerics = key_of(now), deciding(numerics_of(now))
    fits = (key for key, each in goldens.items() if deciding(numerics_of(each.trace)) == numerics)
    return own if own in goldens else next(fits, own)


def nearest_differences(goldens: Iterable[Golden], now: Trace) -> tuple[str, ...]:
    """Return the numerics in which the nearest of these goldens differs from this run."""
    mine, others = deciding(numerics_of(now)), [deciding(numerics_of(each.trace)) for each in goldens]
    return min((tuple(sorted(n for n in {**mine, **its} if mine.get(n) != its.get(n))) for its in others), key=len)
