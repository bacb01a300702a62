"""Two runs of which one is to be explained by the other, and what a command has found out about them."""

from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.exit_codes import ExitCode
from harness.lab.recorded_run import RecordedRun
from harness.lab.transplant.grafts import first_difference
from harness.lab.transplant.judgement import Effect, Outcome
from harness.trace.verdict import FieldDifference


@dataclass(frozen=True, slots=True)
class Pair:
    """What is explained: why B is not A."""

    a: RecordedRun
    b: RecordedRun
    step: int
    """The first step in which something is put; of weights, the step that begins with them."""
    last: int
    """The last step that is looked at."""

    @property
    def identity_differences(self) -> tuple[FieldDifference, ...]:
        """What of the two configurations is not the same; nothing where one of them is not known."""
        manifests = self.a.trace.manifest, self.b.trace.manifest
        if manifests[0] is None or manifests[1] is None:
            return ()
        a, b = manifests[0].fingerprint.identity, manifests[1].fingerprint.identity
        names = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
        return tuple(FieldDifference(name, a.get(name), b.get(name)) for name in names)


@dataclass(frozen=True, slots=True)
class Findings:
    """A command that has ended."""

    pair: Pair
    directory: Path
    outcomes: tuple[Outcome, ...]
    """In the order in which what was taken is recorded, or was asked for."""
    notes: tuple[str, ...] = ()
    """Why what was seen proves less than it could."""
    interrupted_by: str = ""

    @property
    def cause(self) -> Outcome | None:
        """The first transplant from which B follows, or so nearly that only noise is left of the way to it."""
        return next((each for each in self.outcomes if each.effect is Effect.BECOMES_B or each.is_near), None)

    @property
    def exit_code(self) -> ExitCode:
        """OK where a cause was found; NOT_COMPARABLE where a run did not come out again as it was recorded."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        if self.notes:
            return ExitCode.NOT_COMPARABLE
        return ExitCode.OK if self.cause else ExitCode.DIVERGED


def make_pair(a: RecordedRun, b: RecordedRun, step: int | None, num_steps: int | None) -> Pair:
    """Where two runs part, and how far they are looked at; UsageError where they cannot be set against each other."""
    for run in (a, b):
        if tuple(run.trace.ranks) != (0,):
            raise UsageError(f"{run.directory} has {len(run.trace.ranks)} ranks", legal="runs of one process")
    found = first_difference(a.trace, b.trace) if step is None else step
    common = sorted(set(a.trace.steps) & set(b.trace.steps))
    if found is None:
        raise UsageError(
            f"{a.directory} and {b.directory} have the same bits in every step that both have",
            legal="two runs that differ: there is nothing to explain",
        )
    if found not in common:
        span = f"{common[0]} to {common[-1]}" if common else "none"
        raise UsageError(f"--step {found}", legal=f"a step that both runs have recorded: {span}")
    last = common[-1] if num_steps is None else min(common[-1], found + num_steps - 1)
    return Pair(a, b, found, last)
