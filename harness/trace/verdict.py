"""The result of comparing two traces. Data only: `diff` decides, `render.divergence` formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from harness.bits.exit_codes import ExitCode
from harness.bits.findings import Finding
from harness.trace.chain import RecordedValue
from harness.trace.element_diff import ValueDifference
from harness.trace.ops import OpVerdict
from harness.trace.values import Float

TOKENS, INTEGERS, BATCHES = "tokens", "integers", "batches"
REWARDS, ADVANTAGE_SIGNS = "rewards", "advantage_signs"
"""Kinds of what an attribution counts."""


BY_WEIGHT = (ExitCode.DIVERGED, ExitCode.NOT_COMPARABLE, ExitCode.INCOMPLETE_RECORDING, ExitCode.OK)
"""Exit codes of several verdicts: the first that occurs is that of all."""
COUNTED = {
    TOKENS: "tokens flipped",
    INTEGERS: "integers and texts of rollouts changed",
    BATCHES: "integers and texts of batches changed",
    REWARDS: "rewards changed",
    ADVANTAGE_SIGNS: "signs of advantages changed",
}
"""Each kind, as a count of it is named."""


class Kind(Enum):
    """The verdict in a word."""

    EQUAL = "equal"
    DIVERGED = "diverged"
    NOT_COMPARABLE = "not_comparable"
    INCOMPLETE = "incomplete"
    """Equal as far as both go, and one does not go to its end."""


EXIT_CODES = {
    Kind.EQUAL: ExitCode.OK,
    Kind.DIVERGED: ExitCode.DIVERGED,
    Kind.NOT_COMPARABLE: ExitCode.NOT_COMPARABLE,
    Kind.INCOMPLETE: ExitCode.INCOMPLETE_RECORDING,
}


class Difference(Enum):
    """How two values, or two steps, differ."""

    VALUE = "value"
    """Digests of one algorithm differ."""
    DTYPE = "dtype"
    SHAPE = "shape"
    VALUE_ONLY_IN_A = "value_only_in_a"
    VALUE_ONLY_IN_B = "value_only_in_b"
    STEP_ONLY_IN_A = "step_only_in_a"
    STEP_ONLY_IN_B = "step_only_in_b"


STEP_ONLY = {Difference.STEP_ONLY_IN_A: "A", Difference.STEP_ONLY_IN_B: "B"}


@dataclass(frozen=True, slots=True)
class Known:
    """A value as it was recorded last."""

    step: int
    value: RecordedValue


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting of an optimizer; None if it was never recorded."""

    name: str
    a: RecordedValue | None
    b: RecordedValue | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two traces."""

    step: int
    what: Difference
    rank: int | None = None
    """Rank whose log shows it first; None if values were merged over ranks, or no rank has the step."""
    ranks: tuple[int, ...] = ()
    """Every rank whose log shows a difference in this step."""
    a: RecordedValue | None = None
    """The value in A; None if A does not have it."""
    b: RecordedValue | None = None
    last_equal: RecordedValue | None = None
    """The equal value recorded before it; None if it is the first of the step."""
    phases_before: tuple[str, ...] = ()
    """Phases of A's values that were recorded before it in this step, all equal in both."""
    num_before: int = 0
    """Number of these values."""
    num_microbatches: int = 1
    """Number of parts of its phase and name that this rank has in A, for a value that is a part."""
    num_values: int = 0
    """Number of values of this step, in the log that shows it first, in A or in B."""
    num_different: int = 0
    """Number of these values that differ."""
    value: ValueDifference | None = None
    """Difference of the elements, if the trace has them."""
    known: Known | None = None
    """What the trace that lacks the value recorded last of it, for a value that is recorded when it changes."""
    settings: tuple[SettingDifference, ...] = ()
    """Settings of optimizers that differ in this step, if the first difference is one."""


@dataclass(frozen=True, slots=True)
class Context:
    """States of random-number generators at the start of steps, up to the first divergence."""

    names: tuple[str, ...]
    """Names of all compared states, or of those that differ first."""
    step: int | None = None
    """The first in which they differ; None where they do not."""
    rank: int | None = None
    """Lowest rank with a difference; None if there is none."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of one recorded value."""

    step: int
    rank: int
    name: str
    shape: tuple[int, ...]
    element: int | None
    """Its index in C order; None where the values are not known, or of other shapes."""


@dataclass(slots=True)
class Count:
    """How many elements of one kind changed, over the whole run."""

    num_compared: int = 0
    num_different: int = 0
    num_unknown: int = 0
    """Number of different values whose elements are unknown, or whose shapes differ."""
    first: Element | None = None

    @property
    def is_equal(self) -> bool:
        """Whether nothing changed."""
        return not self.num_different and not self.num_unknown


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One name of a fingerprint that is not the same; None where it is absent."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class CurveDifference:
    """One value of the curve, at the first step where the curves differ; None where it was not recorded."""

    step: int
    name: str
    a: Float | None
    b: Float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of comparing A with B."""

    kind: Kind
    reasons: tuple[Finding, ...] = ()
    """Reasons of NOT_COMPARABLE and INCOMPLETE; empty for the other kinds."""
    causes: tuple[Finding, ...] = ()
    """Likely causes of `first`, the most likely one first."""
    notes: tuple[Finding, ...] = ()
    """Further facts for the reader."""
    first: Divergence | None = None
    """First difference among values of chained scope; also if the traces are not comparable."""
    part: Divergence | None = None
    """First difference of one rank's or micro-batch's part, in an earlier step than `first`, or without a `first`."""
    context: Context | None = None
    """None where no step says what it began with."""
    attribution: Mapping[str, Count] = field(default_factory=dict)
    """Counts by kind. Kinds without recorded values are absent; all kinds are if nothing diverged."""
    num_ranks: int = 1
    num_steps: int = 0
    """Steps that were compared, and those that only one of the two has."""
    num_steps_different: int = 0
    is_nan_payload_only: bool = False
    """Whether everything that differs is NaN in both: its own class of divergence."""
    fingerprints: Mapping[str, tuple[FieldDifference, ...]] = field(default_factory=dict)
    """Differences by part; equal parts are absent."""
    curve: tuple[CurveDifference, ...] = ()
    operations: OpVerdict | None = None
    """Comparison of the operations of the step of `first`; None unless both traces have a record."""

    @property
    def is_floats_only(self) -> bool:
        """Whether only floats differ, of values among which other elements were compared too."""
        counts = self.attribution.values()
        is_value = self.first is not None and self.first.what not in STEP_ONLY
        return is_value and all(each.is_equal for each in counts) and any(each.num_compared for each in counts)
