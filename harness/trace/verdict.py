"""The result of comparing two traces. Data only: `diff` decides, `render.divergence` formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from harness.bits.exit_codes import ExitCode
from harness.bits.findings import Finding, FindingCode
from harness.trace.format import RecordedValue
from harness.trace.ops import OpVerdict
from harness.trace.values import Float, ValueDifference

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


# -------------------------------------------------------------------------------------------- reasons, causes and notes
# Reasons, causes and notes of verdicts: each code with its sentence.
#
# `trace` and `traces` are "A" and "B". A sequence of names or steps is complete; a sentence shows the first of them.

_LOOK = "the operations of step {step} name it"
_WORKER = "batch {index} was made by DataLoader worker {worker} of {num_workers}"
_SEEDED = "{names} differed before the first step: seeded from a value that differs, or not at all"
_GUESSED = "the processes have no ranks, and were matched {}: (process of A, process of B) {{numbers}}"


class VerdictCode(FindingCode):
    """Codes of reasons and notes."""

    IDENTITY_DIFFERS = "identity_differs", "the configuration or the command differs (identity): {names}"
    CONTENT_DIFFERS = "content_differs", "data or functions that the configuration names differ (content): {names}"
    NUMERICS_DIFFER = "numerics_differ", "the hardware or the installed software differs (numerics): {names}"
    IDENTITY_UNKNOWN = "identity_unknown", "the identity of {trace} is unknown"
    DIGESTS_INCOMPARABLE = "digests_incomparable", "digests of different algorithms: {num_values:value} not compared"
    CHAIN_BROKEN = "chain_broken", "{trace}, rank {rank}: the chain of step {step} does not follow from the one before"
    ROOT_MISMATCH = "root_mismatch", "the roots of step {step} differ, but not its values: a root does not match them"
    TRACE_INCOMPLETE = "trace_incomplete", "{trace}: {message}"
    NO_STEP = "no_step", "no step was recorded"
    NO_VALUE = "no_value", "no value was recorded that could differ"
    TRACE_DAMAGED = "trace_damaged", "{trace}: {message}"
    PROCESSES_MATCHED = "processes_matched", _GUESSED.format("by content")
    PROCESSES_GUESSED = "processes_guessed", _GUESSED.format("by a guess"), "set RANK and WORLD_SIZE for each process"
    CURVES_OF_OTHER_PROCESSES = "curves_of_other_processes", "the curves, of different processes, were not compared"
    RANK_DISAGREES = (
        "rank_disagrees",
        "{trace}: rank {rank} disagrees with a lower one on {phase} {name}, step {step}",
    )
    RANKS_MISSING = "ranks_missing", "compared {num_compared} of {num_ranks} ranks: those with a log in both traces"
    CURVE_DIFFERS = "curve_differs", "logged values differ from step {step} on, but recorded values do not: {names}"
    CURVE_MISSING = "curve_missing", "{trace}: curve.jsonl is missing or empty: logged values were not compared"
    CURVE_LINES_MISSING = "curve_lines_missing", "{trace}: curve.jsonl has no line for step {steps}: not compared"
    CURVE_DTYPES_DIFFER = "curve_dtypes_differ", "logged {names} at step {step} is {a} in A, {b} in B: not compared"
    OPERATIONS_OF_OTHER_STEPS = (
        "operations_of_other_steps",
        "operations were recorded for step {steps}, but the first difference is in step {first_step}",
    )
    RESUMED = (
        "resumed",
        "B's step 0 is A's step {shift}: compared steps {first_step} to {last_step}, without the curves;"
        " differing fields of the identity that were not compared: {names}",
    )
    RESUMED_AT = (
        "resumed_at",
        "B begins with the weights that A had before step {shift}, as a resumed run does: --shift {shift} aligns it",
    )


class CauseCode(FindingCode):
    """Codes of likely causes of a first difference, by what the traces show."""

    CODE_DIFFERS = "code_differs", "the code differs: {names}"
    ENVIRONMENT_DIFFERS = "environment_differs", "runtime settings differ: {names}"
    ENDED_EARLIER = (
        "ended_earlier",
        "{trace} ended after step {step}, and all that both have is equal: look for a limit of time, a condition on a"
        " value that is not recorded, and the length of the data",
    )
    SEED_DIFFERS = "seed_differs", f"{_SEEDED} (the clock, os.urandom, a process number)"
    SEED_OF_HASH = "seed_of_hash", f"{_SEEDED} (hash() of a text, since PYTHONHASHSEED is not set, or the clock)"
    GENERATOR_DIFFERS = (
        "generator_differs",
        "the state of {names} has differed since step {step}: one run drew more random numbers, or set a state",
    )
    BATCH_OF_WORKER = (
        "batch_of_worker",
        f"{_WORKER}, its seed is equal: look at __getitem__, and at generators that the worker does not seed",
    )
    WORKER_SEED_DIFFERS = (
        "worker_seed_differs",
        f"{_WORKER}, its seed differs: look at the generator of the loader, and at torch.manual_seed",
    )
    ORDER_OF_SET = (
        "order_of_set",
        "the same elements in a different order: a set of texts, since PYTHONHASHSEED is not set, or files",
        "--level deterministic sets the hash seed",
    )
    ORDER_DIFFERS = (
        "order_differs",
        "the same elements in a different order: files (os.listdir, glob), or results in order of arrival",
    )
    DATA_DIFFER = (
        "data_differ",
        "the data differ, while the recorded generators are equal: the order of files or sets, a generator that was"
        " not recorded, the clock, or the data themselves",
    )
    REWARD_OF_HASH = (
        "reward_of_hash",
        "the completions are equal: the reward depends on the order of a set of texts, since PYTHONHASHSEED is not set,"
        " or on the clock, files, a server",
        "--level deterministic sets the hash seed",
    )
    REWARD_DIFFERS = (
        "reward_differs",
        "the completions are equal: the reward depends on the clock, files, a server, or a generator of its own",
    )
    WRITTEN_OUTSIDE = (
        "written_outside",
        "{name} was written outside the optimizer, in {traces}: after its last step, before this forward pass",
    )
    WEIGHTS_DIFFER = (
        "weights_differ",
        "the runs began with different weights, and equal generators: a checkpoint, or the order of initialisation",
    )
    INPUTS_NOT_RECORDED = (
        "inputs_not_recorded",
        "no batch of this step was recorded, so its inputs may differ already: order of files or sets, augmentation,"
        " results in order of arrival; then dropout and kernels",
        _LOOK,
    )
    FORWARD_DIFFERS = (
        "forward_differs",
        "batches and weights are equal: look for dropout, unrecorded state, a cast, a kernel",
        _LOOK,
    )
    GRADIENT_CHANGED = (
        "gradient_changed",
        "backward left this gradient equal in both; it changed between backward and the optimizer's step, in"
        " {traces}: clipping, unscaling, or a reduction over ranks",
    )
    ATOMICS = (
        "atomics",
        "{operation} adds in an order of its own (atomics or threads), {at}",
        "--level deterministic uses a deterministic kernel if torch has one",
    )
    OPERATION_DIFFERS = "operation_differs", "the first operation that differs is {operation}, {at}"
    LOGGED_TOO = "logged_too", "{names} differs too, and what it is computed from was not recorded"
    BACKWARD_DIFFERS = (
        "backward_differs",
        "all before it is equal: look for sums by atomics or threads (index_put, scatter_add), recomputed dropout, a"
        " detached, scaled or stale gradient",
        _LOOK,
    )
    SETTINGS_DIFFER = "settings_differ", "settings of the optimizer differ: {names}. Look at its scheduler"
    STATE_DIFFERS = (
        "state_differs",
        "gradients and settings are equal: look for lost or restored state of the optimizer, or fused against plain",
    )
    OWN_OPTIMIZER_DIFFERS = (
        "own_optimizer_differs",
        "gradients are equal as backward left them, and what an optimizer that is not torch's gets is not recorded:"
        " look at what changes them after backward, and at its state and settings",
    )
    SYNC_DIFFERS = "sync_differs", "the trained weights are equal: weights that did not arrive, or were cast"
