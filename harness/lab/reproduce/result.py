"""A step of a recorded run, or all of its steps, run again, and all that was found."""

from dataclasses import dataclass, replace
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from harness.lab.experiments.bundles.making import write_bundle_of
from harness.lab.experiments.hints import NextCommand, next_command, step_command
from harness.lab.reproduce.comparison import Ending, OtherRun, OtherTrace, Repeated
from harness.trace.verdict import EXIT_CODES


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A step that was run again, and all that was found."""

    repeated: Repeated
    directory: Path
    other: OtherRun | None = None
    other_trace: OtherTrace | None = None
    """Of a whole run that was set against a trace."""
    bundle: Path | None = None
    """Where it was written; None where none was asked for."""
    bundle_needs: str = ""
    """The checkpoint that the bundle names; empty where it holds all that it needs."""
    notes: tuple[str, ...] = ()
    interrupted_by: str = ""
    """The name of a signal; empty where it went to its end."""

    @property
    def next_command(self) -> NextCommand | None:
        """What to type next: of a step that ends in its middle its operations, of a run that has died what it says."""
        plan, runs = self.repeated.plan, self.repeated.runs
        if self.interrupted_by or plan.has_operations or not runs:
            return None
        if self.repeated.is_reproduced:
            is_broken = self.repeated.ending is not Ending.WHOLE
            return NextCommand("look closer", step_command(plan.run.directory, plan.step)) if is_broken else None
        return next_command(plan.run_spec, runs[0].recording)

    @property
    def exit_code(self) -> ExitCode:
        """That of a step which did not come out again; else, with another run, what the two are to each other."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        if self.repeated.is_reproduced and self.other_trace is not None:
            return EXIT_CODES[self.other_trace.verdict.kind]
        if not self.repeated.is_reproduced or self.other is None:
            return self.repeated.exit_code
        if not self.other.repeated.is_reproduced:
            return self.other.repeated.exit_code
        verdict = self.other.verdict
        return ExitCode.INCOMPLETE_RECORDING if verdict is None else EXIT_CODES[verdict.kind]


def with_bundle(found: Reproduction, path: Path, *, refers_to_checkpoint: bool) -> Reproduction:
    """Write the step as a bundle, and return what was found with it.

    It holds all values of the step where it came out as it was recorded. BundleError where it cannot be written.
    """
    plan = found.repeated.plan
    again = found.repeated.runs[0].recording.directory if found.repeated.is_reproduced else None
    head = write_bundle_of(plan.run, plan.step, path, refers_to_checkpoint=refers_to_checkpoint, kept_by=again)
    return replace(found, bundle=path, bundle_needs=head.checkpoint.path if head.checkpoint else "")
