"""Reasons and notes of the gate's findings: a code, and the values that belong to it. `render.gate_reasons` words them.

Names of values are those of the JSON. A sequence of names is complete; how many are shown is decided where it is shown.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from harness.bits.findings import Finding
from harness.trace.verdict import ADVANTAGE_SIGNS, BATCHES, INTEGERS, REWARDS, TOKENS, Difference


class ReasonCode(Enum):
    """Codes of reasons and notes. Scripts rely on the values: none changes its meaning."""

    TOKENS_CHANGED = "tokens_changed"
    INTEGERS_CHANGED = "integers_changed"
    BATCHES_CHANGED = "batches_changed"
    REWARDS_CHANGED = "rewards_changed"
    ADVANTAGE_SIGNS_CHANGED = "advantage_signs_changed"
    ADVANTAGE_SIGNS_UNKNOWN = "advantage_signs_unknown"
    DTYPE_CHANGED = "dtype_changed"
    SHAPE_CHANGED = "shape_changed"
    VALUE_ONLY_AT_BASE = "value_only_at_base"
    VALUE_ONLY_AT_HEAD = "value_only_at_head"
    STEP_ONLY_AT_BASE = "step_only_at_base"
    STEP_ONLY_AT_HEAD = "step_only_at_head"
    BEYOND_ROUNDING = "beyond_rounding"
    ZERO_AT_BASE = "zero_at_base"
    NAN_CHANGED = "nan_changed"
    CURVE_BEYOND_ROUNDING = "curve_beyond_rounding"
    SYNC_MOVED_ALONE = "sync_moved_alone"
    """A digest of a sync differs, and no value before it: no rounding does that."""
    NO_EVIDENCE = "no_evidence"
    """The trace cannot show a change of numerics alone."""
    TRACES_NOT_COMPARABLE = "traces_not_comparable"
    SIDE_NONDETERMINISTIC = "side_nondeterministic"
    SETTING_CHANGED = "setting_changed"
    MORE_SETTINGS_CHANGED = "more_settings_changed"
    SCENARIO_NEW = "scenario_new"
    SCENARIO_REMOVED = "scenario_removed"
    NO_BASE = "no_base"
    BASE_REJECTED = "base_rejected"
    RUN_FAILED = "run_failed"
    LEGAL = "legal"
    REMEDY = "remedy"
    NO_GOLDEN = "no_golden"
    NO_GOLDEN_FOR_ENVIRONMENT = "no_golden_for_environment"
    GOLDEN_CONFIGURATION = "golden_configuration"
    GOLDEN_FIRST = "golden_first"
    GOLDEN_REPLACED = "golden_replaced"
    GOLDEN_HAS_NO_TENSORS = "golden_has_no_tensors"
    GOLDENS_KEPT = "goldens_kept"
    NUMERICS_DIFFER = "numerics_differ"
    RECORDED_ALONE = "recorded_alone"
    COMMON_VALUES_EQUAL = "common_values_equal"
    NOTHING_IN_COMMON = "nothing_in_common"
    NOTED = "noted"
    SAME_TREE = "same_tree"
    SHARED_CODE = "shared_code"


CODE_OF_KIND = {
    TOKENS: ReasonCode.TOKENS_CHANGED,
    INTEGERS: ReasonCode.INTEGERS_CHANGED,
    BATCHES: ReasonCode.BATCHES_CHANGED,
    REWARDS: ReasonCode.REWARDS_CHANGED,
    ADVANTAGE_SIGNS: ReasonCode.ADVANTAGE_SIGNS_CHANGED,
}
"""Code of a change, by the kind of value that an attribution counts."""
CODE_OF_DIFFERENCE = {
    Difference.DTYPE: ReasonCode.DTYPE_CHANGED,
    Difference.SHAPE: ReasonCode.SHAPE_CHANGED,
    Difference.VALUE_ONLY_IN_A: ReasonCode.VALUE_ONLY_AT_BASE,
    Difference.VALUE_ONLY_IN_B: ReasonCode.VALUE_ONLY_AT_HEAD,
    Difference.STEP_ONLY_IN_A: ReasonCode.STEP_ONLY_AT_BASE,
    Difference.STEP_ONLY_IN_B: ReasonCode.STEP_ONLY_AT_HEAD,
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason or a note; subclasses add the values of their codes."""

    code: ReasonCode


@dataclass(frozen=True, slots=True)
class KindChanged(Reason):
    """Values of one kind changed, or may have: a code of CODE_OF_KIND, or ADVANTAGE_SIGNS_UNKNOWN."""

    first_step: int | None = None
    """First step with such a change; None if it is unknown."""
    num_different: int = 0
    """Number of different elements; 0 if it is unknown."""
    num_compared: int = 0


@dataclass(frozen=True, slots=True)
class FloatsApart(Reason):
    """Floats differ by more than rounding: BEYOND_ROUNDING, or ZERO_AT_BASE without a share."""

    phase: str
    share: float | None = None
    """Largest distance relative to the largest element of the phase."""


@dataclass(frozen=True, slots=True)
class NanChanged(Reason):
    """Elements are NaN on one side only: NAN_CHANGED."""

    num_elements: int


@dataclass(frozen=True, slots=True)
class CurveApart(Reason):
    """A value of the curve differs by more than rounding: CURVE_BEYOND_ROUNDING."""

    name: str
    step: int
    base: float
    head: float


@dataclass(frozen=True, slots=True)
class SettingChanged(Reason):
    """A value of the configuration changed: SETTING_CHANGED. None stands for an absent one."""

    name: str
    base: str | None
    head: str | None


@dataclass(frozen=True, slots=True)
class MoreSettings(Reason):
    """Changed settings without a reason of their own: MORE_SETTINGS_CHANGED."""

    num_settings: int


@dataclass(frozen=True, slots=True)
class Named(Reason):
    """Names that differ: GOLDEN_CONFIGURATION, NO_GOLDEN_FOR_ENVIRONMENT, NUMERICS_DIFFER."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OfSide(Reason):
    """Something about one side: SIDE_NONDETERMINISTIC."""

    side: str


@dataclass(frozen=True, slots=True)
class RecordedAlone(Reason):
    """Values that one side alone records: RECORDED_ALONE."""

    side: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reported(Reason):
    """A text from elsewhere: BASE_REJECTED, LEGAL, REMEDY."""

    message: str


@dataclass(frozen=True, slots=True)
class OfTraces(Reason):
    """A reason or a note of the verdict on both traces: TRACES_NOT_COMPARABLE, NOTED."""

    reason: Finding


@dataclass(frozen=True, slots=True)
class RunFailed(Reason):
    """A run did not end properly, as its entry or the recording reports: RUN_FAILED."""

    side: str
    message: str


@dataclass(frozen=True, slots=True)
class NoBase(Reason):
    """There is no revision to compare with: NO_BASE."""

    is_shallow: bool


@dataclass(frozen=True, slots=True)
class NoGolden(Reason):
    """A scenario without a golden: NO_GOLDEN."""

    directory: Path


@dataclass(frozen=True, slots=True)
class GoldenReplaced(Reason):
    """A golden replaces an earlier one: GOLDEN_REPLACED."""

    date: str
    """Date of the earlier one; empty if it is unknown."""
    change: str
    """Change from the earlier one: a value of `Change`."""


@dataclass(frozen=True, slots=True)
class GoldensKept(Reason):
    """Goldens of other machines or environments were not rewritten: GOLDENS_KEPT."""

    scenario: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedCode(Reason):
    """A module that both sides import from outside the checkout: SHARED_CODE."""

    module: str
    origin: str
