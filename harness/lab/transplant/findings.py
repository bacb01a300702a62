"""Two runs of which one is to be explained by the other, and what a command has found out about them."""

from dataclasses import dataclass
from pathlib import Path

from harness.core.exit_codes import ExitCode
from harness.core.redaction import redact_fields
from harness.lab.experiments.recorded_run import RecordedRun
from harness.lab.transplant.comparison import Effect, Outcome
from harness.trace.verdict import FieldDifference


@dataclass(frozen=True, slots=True)
class Pair:
    """What is explained: why B is not A."""

    a: RecordedRun
    b: RecordedRun
    parts: int
    """The first step in which the two differ."""
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
        shown_a, shown_b = redact_fields(a), redact_fields(b)
        return tuple(FieldDifference(name, shown_a.get(name), shown_b.get(name)) for name in names)


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
