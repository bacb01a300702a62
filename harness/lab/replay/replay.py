"""A replay: its options, the plan that is checked before anything starts, and the comparison of its runs.

The runs that count are those without operations: recording them may change what a program does. Whether it did is seen
from the root of that step. Starts nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.experiment.command_spec import SpecOptions
from harness.lab.experiment.launcher import Run, Variant, check_program
from harness.lab.experiment.preparation import OutDirectory, out_directory, place_of
from harness.lab.experiment.scenario import asked_run, make_scenario_spec
from harness.process.invocation import Invocation
from harness.recording.run_spec import RunSpec
from harness.trace.diff import diff, match_processes
from harness.trace.explanation import causes
from harness.trace.manifest import GPU
from harness.trace.ops import (
    NAN,
    NonFinite,
    Operation,
    OpVerdict,
    compare_ops,
    find_non_finite,
    is_faithful,
    read_ops,
    recorded_steps,
    suspects,
)
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import BY_WEIGHT, EXIT_CODES, Kind, Verdict

REPLAYS = "replays"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What a command line asks of fresh runs that are compared."""

    scenario: str | None = None
    """Name or file of a scenario; None for the command after `--`."""
    scenario_options: SpecOptions = field(default_factory=SpecOptions)
    """What the runs change of it, and how they are recorded."""
    num_runs: int | None = None
    """Number of runs; None for as many as it takes to compare."""
    against: str | None = None
    """Directory of the trace that every run is compared with; None for the first run."""
    step: int | None = None
    """Step whose tensors are kept."""
    has_operations: bool = False
    """Whether the operations of that step are recorded, in runs of their own."""
    resume_at: str | None = None
    """After how many steps a run is ended: "4", or "4,9"; None unless a resume is compared."""
    resume_command: str | None = None
    """Command line that resumes the run."""
    out: str | None = None
    """Directory of the runs; None for one below `.rlharness/replays`."""
    timeout_s: float = inf
    """Limit on each run, in seconds."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A replay that can begin."""

    run_specs: tuple[RunSpec, ...]
    """Of the runs, which take them in turn, in a cycle: those of a scenario may differ in runtime settings."""
    out: OutDirectory
    """Holds a directory for each run."""
    num_runs: int
    level_env: Mapping[str, str] = field(default_factory=dict)
    """What every process shall have of the level."""
    against: Trace | None = None
    """With what every run is compared; None: with the first run."""
    op_step: int | None = None
    """The step whose operations are recorded, each time in a run of its own."""
    timeout_s: float = inf
    typed: tuple[str, ...] = ()
    """The words by which a scenario is named after `rlharness replay`; of a foreign program none."""

    @property
    def directory(self) -> Path:
        """That of `out`; absolute."""
        return self.out.path

    @property
    def run_spec(self) -> RunSpec:
        """Run spec of the first run."""
        return self.run_specs[0]

    def spec_of(self, number: int) -> RunSpec:
        """Return the run spec of a run; they count from 1."""
        return self.run_specs[(number - 1) % len(self.run_specs)]

    def runs(self) -> Iterator[Variant]:
        """Yield each run, and after it the same once more with operations where there is a step for them."""
        for number in range(1, self.num_runs + 1):
            run_spec = self.spec_of(number)
            title = f"run {number} of {self.num_runs}"
            yield Variant(run_spec, number, title)
            if self.op_step is not None:
                yield Variant(replace(run_spec, op_step=self.op_step), number, f"{title}, with operations")


def make_plan(invocation: Invocation, options: ReplayOptions, replay_id: str) -> ReplayPlan:
    """Return the plan of a command line, and make its directory.

    UsageError and TraceError for what cannot be used; nothing is made then.
    """
    run_specs, typed = _run_specs(invocation, options)
    run_spec = run_specs[0]
    check_program(run_spec, invocation.cwd, invocation.environ)
    if options.has_operations and options.step is None:
        raise UsageError("--trace-ops without --step", legal="--step K --trace-ops")
    trace = read_trace(place_of(invocation.cwd, options.against)) if options.against else None
    num_runs = _num_runs(options, len(run_specs))
    out = out_directory(invocation.cwd, options.out, REPLAYS, replay_id)
    return ReplayPlan(
        run_specs=run_specs,
        level_env=run_spec.variables(invocation.environ),
        against=trace,
        num_runs=num_runs,
        op_step=options.step if options.has_operations else None,
        timeout_s=options.timeout_s,
        out=out,
        typed=typed,
    )


def _run_specs(invocation: Invocation, options: ReplayOptions) -> tuple[tuple[RunSpec, ...], tuple[str, ...]]:
    """(a run spec for each run that differs from the others, the words that name the scenario, if it is one)."""
    keep = () if options.step is None else (str(options.step),)
    asked = asked_run(invocation, "replay", options.scenario, replace(options.scenario_options, keep=keep))
    return tuple(make_scenario_spec(asked, variant) for variant in range(asked.num_variants)), asked.typed


def _num_runs(options: ReplayOptions, num_variants: int) -> int:
    """As many as it takes to compare one with another, and each with its own values, unless told otherwise.

    UsageError for one run that is compared with nothing.
    """
    if options.num_runs == 1 and not options.against:
        raise UsageError("--runs 1 leaves nothing to compare with", legal="2 runs or more, or --against DIR")
    return options.num_runs or max(num_variants, 1 if options.against else 2)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run, and what it is to the one it was compared with."""

    a: str
    """Whose trace is A: "run 1", or the directory of --against."""
    b: str
    verdict: Verdict
    operations: tuple[OpVerdict, ...] = ()
    """Of each rank, of the runs in which they were recorded."""
    nan: NonFinite | None = None
    """Where the first NaN among the operations of B came from; None where there is none."""
    notes: tuple[str, ...] = ()
    suspects: tuple[Operation, ...] | None = None
    """Operations that may be the cause of a difference that did not occur while they were recorded; None without."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that has ended."""

    plan: ReplayPlan
    runs: tuple[Run, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    interrupted_by: str = ""
    """The name of a signal; empty where it went to its end."""

    @property
    def exit_code(self) -> ExitCode:
        """Of all comparisons the one that weighs most; a run that was not recorded whole weighs as incomplete."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        found = {EXIT_CODES[comparison.verdict.kind] for comparison in self.comparisons}
        if not self.comparisons or not all(run.recording.is_complete for run in self.runs):
            found.add(ExitCode.INCOMPLETE_RECORDING)
        return next(code for code in BY_WEIGHT if code in found)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a comparison."""

    name: str
    trace: Trace
    with_operations: Trace | None
    """Of the same run once more; the trace itself where it has them."""


def compare_runs(plan: ReplayPlan, runs: Sequence[Run], interrupted_by: str = "") -> Replay:
    """Compare every run with the first, or with that of --against; runs that left no trace are left out."""
    with_operations = {run.number: run for run in runs if run.has_operations and run.recording.ranks}
    sides = [
        _Side(run.name, read_trace(run.recording.directory), _read(with_operations.get(run.number)))
        for run in runs
        if not run.has_operations and run.recording.ranks
    ]
    if plan.against is not None:
        sides.insert(0, _Side(str(plan.against.directory), plan.against, plan.against))
    comparisons = [_compare(sides[0], side, plan.op_step) for side in sides[1:]]
    return Replay(plan, tuple(runs), tuple(comparisons), tuple(_without_level(plan, runs)), interrupted_by)


def _read(run: Run | None) -> Trace | None:
    return None if run is None else read_trace(run.recording.directory)


def _compare(a: _Side, b: _Side, op_step: int | None) -> Comparison:
    verdict = diff(a.trace, b.trace)
    if op_step is None or a.with_operations is None or b.with_operations is None:
        return Comparison(a.name, b.name, verdict)
    sides = [
        replace(
            side, trace=match_processes(a.trace, side.trace).b, with_operations=match_processes(a.trace, with_ops).b
        )
        for side, with_ops in ((a, a.with_operations), (b, b.with_operations))
    ]
    recorded = [side.with_operations for side in sides if side.with_operations is not None]
    numbers = {log.number: rank for rank, log in recorded[1].ranks.items()}
    ranks = [numbers.get(number, number) for number, step in recorded_steps(recorded[1].directory) if step == op_step]
    found, nans = [], []
    all_operations: list[Operation] = []
    for rank in ranks:
        of_a, of_b = (read_ops(trace.directory, _number(trace, rank), op_step) for trace in recorded)
        if of_a is not None and of_b is not None:
            found.append(compare_ops(of_a, of_b, rank, op_step))
            nans.append(find_non_finite(of_b))
            all_operations += of_a.operations
    if not found:
        return Comparison(a.name, b.name, verdict, notes=(f"no operations of step {op_step} were recorded",))
    nan = next((each for each in nans if each is not None and each.kind == NAN), None)
    doubts = tuple(_doubts(op_step, ranks, *sides))
    has_vanished = verdict.first is not None and verdict.first.step == op_step and all(x.first is None for x in found)
    if verdict.kind is Kind.DIVERGED and not has_vanished:
        named = replace(verdict, operations=next((x for x in found if x.first is not None), None))
        verdict = replace(verdict, causes=tuple(causes(a.trace, b.trace, named)))
    manifest = a.with_operations.manifest
    has_gpu = manifest is None or GPU in manifest.fingerprint.numerics
    may_be_why = suspects(all_operations, has_gpu=has_gpu) if has_vanished else None
    return Comparison(a.name, b.name, verdict, tuple(found), nan, doubts, may_be_why)


def _number(trace: Trace, rank: int) -> int:
    """The number in the names of a rank's files."""
    return trace.ranks[rank].number if rank in trace.ranks else rank


def _doubts(step: int, ranks: Iterable[int], a: _Side, b: _Side) -> Iterator[str]:
    """What there is to say against operations whose step came out otherwise than without them."""
    for rank in ranks:
        without = [_root(side.trace, rank, step) for side in (a, b)]
        recorded = [_root(side.with_operations, rank, step) for side in (a, b)]
        if None in without:
            names = [side.name for side, root in zip((a, b), without, strict=True) if root is None]
            yield f"rank {rank}: not valid: there is no step {step} in {', '.join(names)}"
            continue
        if all(x and y and is_faithful(x, y) for x, y in zip(recorded, without, strict=True)):
            continue
        if without[0] == without[1] and recorded[0] == recorded[1]:
            yield f"rank {rank}: not valid: recording the operations changed step {step}"
        elif recorded[0] == recorded[1]:
            yield (
                f"rank {rank}: the runs with operations agree in step {step}: the difference is intermittent and"
                " did not occur in them"
            )
        else:
            yield (
                f"rank {rank}: step {step} is nondeterministic: the operations shown come from two additional runs and"
                " may differ from the runs compared above"
            )


def _root(trace: Trace | None, rank: int, step: int) -> bytes | None:
    log = trace.ranks.get(rank) if trace is not None else None
    return log.heads[step].root if log is not None and step in log.heads else None


def _without_level(plan: ReplayPlan, runs: Sequence[Run]) -> Iterator[str]:
    """Processes that were not given what the level sets; an entry answers for those that take no step."""
    for run in runs:
        for report in run.recording.reports:
            seen = report.level_env if plan.run_spec.call is None or report.rank is not None else {}
            if other := [name for name, value in plan.level_env.items() if seen and seen.get(name) != value]:
                yield f"{run.name}: process {report.pid} did not get what the level sets: {', '.join(other)}"
