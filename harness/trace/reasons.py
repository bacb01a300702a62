"""Reasons and notes of verdicts: a code, and the values that belong to it. `render.verdict_reasons` words them.

`trace` is "A" or "B". A sequence of names or steps is complete; how many are shown is decided where it is shown.
"""

from dataclasses import dataclass
from enum import Enum


class VerdictCode(Enum):
    """Codes of reasons and notes. Scripts rely on the values: none changes its meaning."""

    IDENTITY_DIFFERS = "identity_differs"
    CONTENT_DIFFERS = "content_differs"
    NUMERICS_DIFFER = "numerics_differ"
    IDENTITY_UNKNOWN = "identity_unknown"
    DIGESTS_INCOMPARABLE = "digests_incomparable"
    """Digests of different algorithms."""
    CHAIN_BROKEN = "chain_broken"
    ROOT_MISMATCH = "root_mismatch"
    TRACE_INCOMPLETE = "trace_incomplete"
    NO_STEP = "no_step"
    NO_VALUE = "no_value"
    TRACE_DAMAGED = "trace_damaged"
    PROCESSES_MATCHED = "processes_matched"
    PROCESSES_GUESSED = "processes_guessed"
    CURVES_OF_OTHER_PROCESSES = "curves_of_other_processes"
    RANK_DISAGREES = "rank_disagrees"
    RANKS_MISSING = "ranks_missing"
    CURVE_DIFFERS = "curve_differs"
    CURVE_MISSING = "curve_missing"
    CURVE_LINES_MISSING = "curve_lines_missing"
    CURVE_DTYPES_DIFFER = "curve_dtypes_differ"
    OPERATIONS_OF_OTHER_STEPS = "operations_of_other_steps"
    BATCH_OF_WORKER = "batch_of_worker"
    WRITTEN_OUTSIDE = "written_outside"
    RESUMED = "resumed"
    RESUMED_AT = "resumed_at"


@dataclass(frozen=True, slots=True)
class VerdictReason:
    """A reason or a note; subclasses add the values of their codes."""

    code: VerdictCode


@dataclass(frozen=True, slots=True)
class FieldsDiffer(VerdictReason):
    """Fields of a fingerprint differ: IDENTITY_DIFFERS, CONTENT_DIFFERS, NUMERICS_DIFFER."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OfTrace(VerdictReason):
    """Something about one trace: IDENTITY_UNKNOWN, CURVE_MISSING."""

    trace: str


@dataclass(frozen=True, slots=True)
class Incomparable(VerdictReason):
    """Values that cannot be compared: DIGESTS_INCOMPARABLE."""

    num_values: int


@dataclass(frozen=True, slots=True)
class ChainBroken(VerdictReason):
    """A step whose chain does not follow from the step before: CHAIN_BROKEN."""

    trace: str
    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class RootMismatch(VerdictReason):
    """A step whose roots differ while its values do not: ROOT_MISMATCH."""

    step: int


@dataclass(frozen=True, slots=True)
class TraceFault(VerdictReason):
    """A gap or damage, as the reader of the trace reports it: TRACE_INCOMPLETE, TRACE_DAMAGED."""

    trace: str
    message: str


@dataclass(frozen=True, slots=True)
class ProcessesMatched(VerdictReason):
    """Processes without ranks, matched by content: PROCESSES_MATCHED, or PROCESSES_GUESSED for an arbitrary choice."""

    numbers: tuple[tuple[int, int], ...]
    """Pairs of the number in A and that in B."""


@dataclass(frozen=True, slots=True)
class RankDisagrees(VerdictReason):
    """A rank has another global value than a lower rank of its trace: RANK_DISAGREES."""

    trace: str
    rank: int
    step: int
    phase: str
    name: str


@dataclass(frozen=True, slots=True)
class RanksMissing(VerdictReason):
    """Only some ranks have a log in both traces: RANKS_MISSING."""

    num_compared: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class CurveDiffers(VerdictReason):
    """Logged values differ from a step on, while recorded values do not: CURVE_DIFFERS."""

    step: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CurveLinesMissing(VerdictReason):
    """Steps without a line in the curve of one trace: CURVE_LINES_MISSING."""

    trace: str
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CurveDtypesDiffer(VerdictReason):
    """Logged values that were not compared, since their dtypes differ: CURVE_DTYPES_DIFFER."""

    step: int
    names: tuple[str, ...]
    a: str
    """Dtype in A of the first of them."""
    b: str


@dataclass(frozen=True, slots=True)
class OtherSteps(VerdictReason):
    """Operations were recorded in both traces, but not of the first step that differs: OPERATIONS_OF_OTHER_STEPS."""

    steps: tuple[int, ...]
    first_step: int


@dataclass(frozen=True, slots=True)
class BatchOfWorker(VerdictReason):
    """The first difference is in a batch that a DataLoader's worker process has made: BATCH_OF_WORKER."""

    index: int
    """Number of the batch in its pass over the data."""
    worker: int
    num_workers: int
    is_seed_equal: bool
    """Whether the workers were seeded alike in both traces."""


@dataclass(frozen=True, slots=True)
class WrittenOutside(VerdictReason):
    """The first difference is a weight that was written after its optimizer's last step: WRITTEN_OUTSIDE."""

    name: str
    traces: tuple[str, ...]
    """Those in which it was."""


@dataclass(frozen=True, slots=True)
class Resumed(VerdictReason):
    """B was compared as a run that was resumed: RESUMED."""

    shift: int
    """The step of A that is B's step 0."""
    first_step: int
    last_step: int
    """By A's numbers: the steps that both have."""
    names: tuple[str, ...]
    """Fields of the identity that differ; they decide nothing."""


@dataclass(frozen=True, slots=True)
class ResumedAt(VerdictReason):
    """B begins with weights that A had after a step, as a resumed run does: RESUMED_AT."""

    shift: int
    """The step of A that is B's step 0."""
