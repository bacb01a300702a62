"""Options of `rlharness replay`, and the plan that follows from them, checked before anything is started."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from harness.bits.errors import UsageError
from harness.lab.experiments.command_spec import (
    ScenarioOptions,
    make_command_spec,
    refuse_both,
    refuse_scenario_options,
)
from harness.lab.experiments.launcher import Variant, check_program
from harness.lab.experiments.preparation import OutDirectory, keep_input, out_directory, place_of
from harness.lab.experiments.scenario import SMOKE
from harness.lab.experiments.scenario_files import A_COMMAND, nothing_to_run
from harness.lab.experiments.scenario_spec import asked_scenario, make_scenario_spec
from harness.lab.experiments.single_run import StopPlan, conditions_of, refuse_divergence
from harness.process.invocation import Invocation
from harness.recording.conditions import DIVERGENCE
from harness.recording.run_spec import RunSpec
from harness.trace.reader import Trace, read_trace

REPLAYS = "replays"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What a command line asks of fresh runs that are compared, or of one that ends where a condition holds."""

    scenario: str | None = None
    """Name or file of a scenario; None for the command after `--`."""
    scenario_options: ScenarioOptions = field(default_factory=ScenarioOptions)
    """What the runs change of it, and how they are recorded."""
    num_runs: int | None = None
    """Number of runs; None for as many as it takes to compare."""
    against: str | None = None
    """Directory of the trace that every run is compared with; None for the first run."""
    step: int | None = None
    """Step whose tensors are kept."""
    has_operations: bool = False
    """Whether the operations of that step are recorded, in runs of their own."""
    break_on: tuple[str, ...] = ()
    """Conditions of --break-on."""
    until: tuple[str, ...] = ()
    """Comparisons of --until."""
    resume_at: str | None = None
    """After how many steps a run is ended: "4", or "4,9"; None unless a resume is compared."""
    resume_command: str | None = None
    """Command line that resumes the run."""
    out: str | None = None
    """Directory of the runs; None for one below `.rlharness/replays`."""
    timeout_s: float = inf
    """Limit on each run, in seconds."""

    @property
    def has_condition(self) -> bool:
        """Whether one run is asked for, which ends where a condition holds."""
        return bool(self.break_on or self.until)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A replay that can begin."""

    run_spec: RunSpec
    """Of the first run."""
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
    stdin: Path = Path(os.devnull)
    """What every run reads as its standard input."""
    variants: tuple[RunSpec, ...] = ()
    """Run specs of a scenario whose runs differ in runtime settings; runs take them in turn, in a cycle."""
    typed: tuple[str, ...] = ()
    """The words by which a scenario is named after `rlharness replay`; of a foreign program none."""

    @property
    def directory(self) -> Path:
        """That of `out`; absolute."""
        return self.out.path

    def spec_of(self, number: int) -> RunSpec:
        """That of a run; they count from 1."""
        return self.variants[(number - 1) % len(self.variants)] if self.variants else self.run_spec

    def runs(self) -> Iterator[Variant]:
        """Yield each run, and after it the same once more with operations where there is a step for them."""
        for number in range(1, self.num_runs + 1):
            run_spec = self.spec_of(number)
            yield Variant(run_spec, number)
            if self.op_step is not None:
                yield Variant(replace(run_spec, op_step=self.op_step), number)


def make_plan(
    invocation: Invocation, options: ReplayOptions, replay_id: str, given: Callable[[], bytes] = bytes
) -> ReplayPlan:
    """The plan of a command line; makes its directory, and keeps in it what `given` reads as the runs' input.

    UsageError and TraceError for what cannot be used; nothing is made then.
    """
    run_specs, typed = _run_specs(invocation, options)
    run_spec = run_specs[0]
    check_program(run_spec, invocation.cwd, invocation.environ)
    if options.has_operations and options.step is None:
        raise UsageError(
            "--trace-ops without --step", legal="--step K --trace-ops", remedy="name the step that diverged"
        )
    trace = _reference(invocation, options)
    num_runs = _num_runs(options, len(run_specs))
    data = b"" if typed else given()  # the last that may take long or be refused before anything is made
    out = out_directory(invocation.cwd, options.out, REPLAYS, replay_id)
    return ReplayPlan(
        run_spec=run_spec,
        level_env=run_spec.variables(invocation.environ),
        against=trace,
        num_runs=num_runs,
        op_step=options.step if options.has_operations else None,
        timeout_s=options.timeout_s,
        out=out,
        stdin=keep_input(data, out.path),
        variants=run_specs if len(run_specs) > 1 else (),
        typed=typed,
    )


def plan_stop(invocation: Invocation, options: ReplayOptions) -> StopPlan:
    """Return the plan of one run that ends where a condition holds; UsageError and TraceError for unusable options."""
    conditions = conditions_of(options.break_on, options.until)
    given = {
        "--trace-ops": options.has_operations,
        "--runs": options.num_runs is not None,
        "--sweep": bool(options.scenario_options.sweep),
    }
    if unused := [name for name, is_given in given.items() if is_given]:
        raise UsageError(
            f"{', '.join(unused)} with a condition",
            legal="one run, which stops when the condition holds",
            remedy="omit it; the last line of the result is the command that looks closer",
        )
    reference = _reference(invocation, options)
    if reference is not None and not any(condition.word == DIVERGENCE for condition in conditions):
        raise UsageError(
            "--against with conditions that compare nothing",
            legal=f"--against DIR --break-on {DIVERGENCE}, beside other conditions",
            remedy=f"add --break-on {DIVERGENCE}, or omit --against",
        )
    if reference is None:
        refuse_divergence(
            conditions,
            legal="--against DIR, with which the run is compared",
            remedy="record one first: rlharness train, or rlharness trace",
        )
    run_spec = _run_specs(invocation, options)[0][0]
    check_program(run_spec, invocation.cwd, invocation.environ)
    return StopPlan(
        run_spec,
        conditions,
        None if reference is None else reference.directory,
    )


def _reference(invocation: Invocation, options: ReplayOptions) -> Trace | None:
    """The trace of --against; TraceError where it cannot be read."""
    return read_trace(place_of(invocation.cwd, options.against)) if options.against else None


def _run_specs(invocation: Invocation, options: ReplayOptions) -> tuple[tuple[RunSpec, ...], tuple[str, ...]]:
    """(a run spec for each run that differs from the others, the words that name the scenario, if it is one)."""
    keep = () if options.step is None else (str(options.step),)
    recording = replace(options.scenario_options.recording, keep=keep)
    if options.scenario is None and not invocation.trailing:
        raise nothing_to_run("replay", invocation.cwd)
    if options.scenario is None:
        refuse_scenario_options(options.scenario_options)
        return (make_command_spec(invocation.trailing, recording),), ()
    refuse_both(invocation, [options.scenario])
    asked = asked_scenario(invocation, options.scenario, options.scenario_options, SMOKE, A_COMMAND)
    return tuple(make_scenario_spec(asked, recording, variant) for variant in range(asked.num_variants)), asked.typed


def _num_runs(options: ReplayOptions, num_variants: int) -> int:
    """As many as it takes to compare one with another, and each with its own values, unless told otherwise.

    UsageError for one run that is compared with nothing.
    """
    if options.num_runs == 1 and not options.against:
        raise UsageError(
            "--runs 1 leaves nothing to compare with",
            legal="2 runs or more, or --against DIR",
            remedy="rlharness trace --out DIR -- COMMAND, or rlharness train SCENARIO --out DIR, records a single run",
        )
    return options.num_runs or max(num_variants, 1 if options.against else 2)
