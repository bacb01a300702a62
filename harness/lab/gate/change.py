"""What a change has done to a scenario, from what its runs are to each other. Pure.

the same side differs from itself                      nondeterministic
no bit differs                                         equal
tokens, rewards, signs of advantages, what is read,    behaviour
shapes, steps, floats beyond rounding, or a text of a
sync with all values before it equal
floats alone, no further than rounding                 numerics

The distance of the tensors is that of one step of a pair of runs that kept them. A change of numerics moves the last
digits of what it acts on first; a change of behaviour moves more, even where no token flips within a few steps. What is
small beside its phase, a gradient that cancels, say, may differ whole by rounding: distances are measured against the
largest element of the phase. Single numbers are left out for that reason, and what comes after the gradients, since
Adam makes a step of any gradient's sign.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite, isinf, prod

from harness.bits.findings import Finding, FindingCode
from harness.trace.explanation import TEXTS
from harness.trace.format import CHAINED, PHASES, RecordedValue, Scope, raw_value
from harness.trace.manifest import ENTRY
from harness.trace.reader import Trace
from harness.trace.values import ELEMENT_BYTES, FLOATS, compare, numbers
from harness.trace.verdict import (
    ADVANTAGE_SIGNS,
    BATCHES,
    COUNTED,
    INTEGERS,
    REWARDS,
    TOKENS,
    Count,
    Difference,
    Kind,
    SettingDifference,
    Verdict,
    VerdictCode,
)

HALF_OF_THE_DIGITS = {"f64": 2**-11.5, "f32": 2**-11.5, "f16": 2**-5.0, "bf16": 2**-3.5}
"""By dtype, the square root of its precision; float64 as float32, since much of it was computed as that."""
MAX_BYTES = 2**28
"""A step with more than this is not kept for it: 256 MiB."""
_PIECE_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class Rounding:
    """How far apart the tensors of one step are."""

    step: int
    num_compared: int
    """Tensors that both sides have kept."""
    num_different: int
    first: str
    """The first of them, in the order of recording: "backward layers.0.weight"; empty where none differs."""
    first_ulp: int
    """Its largest distance in units in the last place; of pairs without NaN."""
    max_ulp: int
    """The largest of all."""
    name: str
    """Of the tensor with it."""
    share: float
    """The largest distance relative to the largest element of its phase, of the compared phases."""
    phase: str
    """The phase with it; empty if no phase is compared."""
    is_rounding: bool
    """Whether at least half of the digits agree in every compared phase, and no NaN came or went."""
    num_nan: int = 0
    """Elements that are NaN on one side alone."""


def measure_rounding(a: Trace, b: Trace, step: int, first_phase: str) -> Rounding | None:
    """Compare what both have kept of a step, in which they part in this phase; None where they kept nothing alike.

    TraceError where a file of kept tensors cannot be read.
    """
    judged = phases_compared(first_phase)
    largest, distances = (defaultdict[tuple[str, str], float](float) for _ in range(2))
    """By phase and dtype."""
    num_compared = num_different = first_ulp = max_ulp = num_nan = 0
    first = name = ""
    for value, x, y in _pairs(a, b, step):
        num_compared += 1
        is_classified, key = value.phase in judged and prod(value.shape) > 1, (value.phase, value.dtype)
        if is_classified:
            largest[key] = max(largest[key], _largest(value.dtype, x))
        if (found := compare(value.dtype, x, y)) is None:
            continue
        num_different += 1
        if is_classified:
            distances[key] = max(distances[key], found.max_abs or 0.0)
        num_nan += found.num_nan_only_a + found.num_nan_only_b
        ulp, told = found.max_ulp or 0, f"{value.phase} {value.name}"
        if not first:
            first, first_ulp = told, ulp
        if ulp > max_ulp:
            max_ulp, name = ulp, told
    if not num_compared:
        return None
    shares = {key: each / largest[key] if largest[key] else inf for key, each in distances.items() if each}
    worst = max(shares, key=shares.__getitem__, default=("", ""))
    return Rounding(
        step=step,
        num_compared=num_compared,
        num_different=num_different,
        first=first,
        first_ulp=first_ulp,
        max_ulp=max_ulp,
        name=name,
        share=shares.get(worst, 0.0),
        phase=worst[0],
        is_rounding=not num_nan and all(share <= HALF_OF_THE_DIGITS[dtype] for (_, dtype), share in shares.items()),
        num_nan=num_nan,
    )


def earliest_phase(a: Trace, b: Trace, step: int) -> str:
    """Of the phases in which two traces of a step differ, the one that comes first in a step; empty for none.

    What was recorded first need not be of it: another update may follow, and a warm start comes before all of them.
    """
    found: set[str] = set()
    for rank in a.logs(step).keys() & b.logs(step).keys():
        of_a, of_b = (
            {(value.scope, value.key): value for value in each.columns(step, rank).values()} for each in (a, b)
        )
        found |= {key[0] for scope, key in of_a if scope in CHAINED and of_b.get((scope, key)) != of_a[scope, key]}
    return min(found, key=lambda phase: PHASES.index(phase) if phase in PHASES else len(PHASES), default="")


def phases_compared(first: str) -> tuple[str, ...]:
    """From the phase in which the runs part to the gradients; that phase alone where it comes after them."""
    if first not in PHASES:
        return (first,)
    at, end = PHASES.index(first), PHASES.index("backward")
    return PHASES[at : end + 1] if at <= end else (first,)


def step_bytes(trace: Trace, step: int) -> int:
    """How much it would take to keep the tensors of a step."""
    values = (value for rank in trace.logs(step) for value in trace.columns(step, rank).values())
    return sum(prod(value.shape) * ELEMENT_BYTES.get(value.dtype, 1) for value in values)


def _pairs(a: Trace, b: Trace, step: int) -> Iterator[tuple[RecordedValue, bytes, bytes]]:
    """Floats that both have kept, of one dtype and shape: the leaf in A, and both values."""
    for rank in sorted(a.logs(step).keys() & b.logs(step).keys()):
        of_b = {(value.scope, value.key): value for value in b.columns(step, rank).values()}
        for value in a.columns(step, rank).values():
            other = of_b.get((value.scope, value.key))
            if other is None or value.dtype not in FLOATS or value.scope is Scope.CONTEXT:
                continue
            if (value.dtype, value.shape) != (other.dtype, other.shape):
                continue
            x, y = a.tensor(step, rank, value), b.tensor(step, rank, other)
            if x is not None and y is not None and len(x) == len(y):
                yield value, x, y


def _largest(dtype: str, data: bytes) -> float:
    """The largest absolute value that is finite."""
    pieces = (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))
    return max((abs(x) for piece in pieces for x in numbers(dtype, piece) if isfinite(x)), default=0.0)


SYNC = "sync"
DECIDING = (BATCHES, INTEGERS, TOKENS, REWARDS, ADVANTAGE_SIGNS)


class Change(Enum):
    """What became of a scenario, in a word."""

    EQUAL = "equal"
    NUMERICS = "numerics"
    """Floats moved, and nothing that they decide."""
    BEHAVIOUR = "behaviour"
    CONFIGURATION = "configuration"
    """Another identity: it is another run."""
    NONDETERMINISTIC = "nondeterministic"
    """One side does not agree with itself: nothing follows from how it differs from the other."""
    NOT_COMPARABLE = "not_comparable"
    """The base cannot be run, there is none, or the entry has another name."""
    BROKEN = "broken"
    """The head does not run to its end."""
    NEW = "new"
    """The base has no such scenario."""
    REMOVED = "removed"
    """The head has it no more."""
    ACCEPTED = "accepted"
    """Its golden was written: nothing is compared."""


class GateCode(FindingCode):
    """Codes of the gate's reasons and notes."""

    TOKENS_CHANGED = "tokens_changed", f"{COUNTED[TOKENS]}, first at step {{first_step}}"
    INTEGERS_CHANGED = "integers_changed", f"{COUNTED[INTEGERS]}, first at step {{first_step}}"
    BATCHES_CHANGED = "batches_changed", f"{COUNTED[BATCHES]}, first at step {{first_step}}"
    REWARDS_CHANGED = "rewards_changed", f"{COUNTED[REWARDS]}, first at step {{first_step}}"
    ADVANTAGE_SIGNS_CHANGED = "advantage_signs_changed", f"{COUNTED[ADVANTAGE_SIGNS]}, first at step {{first_step}}"
    ADVANTAGE_SIGNS_UNKNOWN = (
        "advantage_signs_unknown",
        "it is unknown whether signs of advantages changed: they are too large to be kept",
    )
    DTYPE_CHANGED = "dtype_changed", "a value has another dtype"
    SHAPE_CHANGED = "shape_changed", "a value has another shape"
    VALUE_ONLY_AT_BASE = "value_only_at_base", "a value is recorded at the base alone"
    VALUE_ONLY_AT_HEAD = "value_only_at_head", "a value is recorded at the head alone"
    STEP_ONLY_AT_BASE = "step_only_at_base", "the base has a step that the head has not"
    STEP_ONLY_AT_HEAD = "step_only_at_head", "the head has a step that the base has not"
    BEYOND_ROUNDING = (
        "beyond_rounding",
        "{phase} differs by {share:.3g} times its largest element: more than rounding explains",
    )
    ZERO_AT_BASE = "zero_at_base", "all of {phase} was 0 at the base, and is not"
    NAN_CHANGED = "nan_changed", "NaN came or went, in {num_elements:element}"
    CURVE_BEYOND_ROUNDING = (
        "curve_beyond_rounding",
        "{name} of step {step} was {base:.6g} and is {head:.6g}: more than rounding explains",
    )
    OPTIMIZER_SETTINGS_CHANGED = (
        "optimizer_settings_changed",
        "settings of the optimizer changed by more than rounding: {names}",
    )
    SYNC_MOVED_ALONE = (
        "sync_moved_alone",
        "the digest of synced weights differs, and no weight before it: the sampler was sent other weights than these",
    )
    NO_EVIDENCE = (
        "no_evidence",
        "the trace has no tokens, rewards or kept tensors, so a change of numerics alone cannot be shown",
    )
    SIDE_NONDETERMINISTIC = (
        "side_nondeterministic",
        "two runs of the {side} do not agree with each other: nothing follows from how the sides differ",
    )
    SETTING_CHANGED = "setting_changed", "{name} was {base} and is {head}"
    SCENARIO_NEW = "scenario_new", "the base has no such scenario"
    SCENARIO_REMOVED = "scenario_removed", "the head no longer has this scenario"
    NO_BASE = "no_base", "there is no base: no commit before this one, no branch of origin", "--base REV names one"
    NO_BASE_IN_SHALLOW_CLONE = (
        "no_base_in_shallow_clone",
        "there is no base in this shallow clone: no commit before this one, no branch of origin",
        "git fetch --unshallow; in GitHub Actions, fetch-depth: 0",
    )
    BASE_REJECTED = "base_rejected", "the base cannot be run: {message}"
    RUN_FAILED = "run_failed", "{side}: {message}", "{remedy}"
    NO_GOLDEN = "no_golden", "{directory} holds no golden", "rlharness gate --accept writes one"
    NO_GOLDEN_FOR_ENVIRONMENT = (
        "no_golden_for_environment",
        "the goldens are of other machines or environments: the nearest differs in {names}; compared with the base"
        " instead",
    )
    GOLDEN_FIRST = "golden_first", "the first golden of this machine and environment"
    GOLDEN_REPLACED = "golden_replaced", "in place of that of {date}: {change}"
    GOLDEN_HAS_NO_TENSORS = (
        "golden_has_no_tensors",
        "a golden holds no tensors: --base REV shows how far floats differ",
    )
    NUMERICS_DIFFER = "numerics_differ", "the head's process differs from the base's in {names}"
    SAME_TREE = (
        "same_tree",
        "the base is the checked-out commit, without uncommitted changes: both sides are the same tree",
    )
    SHARED_CODE = "shared_code", "no code of this checkout was imported: both sides ran the same installed code"


CODE_OF_KIND = {
    TOKENS: GateCode.TOKENS_CHANGED,
    INTEGERS: GateCode.INTEGERS_CHANGED,
    BATCHES: GateCode.BATCHES_CHANGED,
    REWARDS: GateCode.REWARDS_CHANGED,
    ADVANTAGE_SIGNS: GateCode.ADVANTAGE_SIGNS_CHANGED,
}
"""Code of a change, by the kind of value that an attribution counts."""
CODE_OF_DIFFERENCE = {
    Difference.DTYPE: GateCode.DTYPE_CHANGED,
    Difference.SHAPE: GateCode.SHAPE_CHANGED,
    Difference.VALUE_ONLY_IN_A: GateCode.VALUE_ONLY_AT_BASE,
    Difference.VALUE_ONLY_IN_B: GateCode.VALUE_ONLY_AT_HEAD,
    Difference.STEP_ONLY_IN_A: GateCode.STEP_ONLY_AT_BASE,
    Difference.STEP_ONLY_IN_B: GateCode.STEP_ONLY_AT_HEAD,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of a scenario."""

    change: Change
    reasons: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    verdict: Verdict | None = None
    """On the base or golden (A) and the head (B); on the side that differs from itself where it is nondeterministic."""
    rounding: Rounding | None = None
    """In the step in which they part; None where nothing was kept of it."""


def classify_change(verdict: Verdict, rounding: Rounding | None, curve: Sequence[Finding] | None = None) -> Comparison:
    """What a verdict on a run of the base and one of the head means; each side is known to agree with itself.

    `curve` has the reasons of its curve against a golden, which holds no tensors; None for a base. Both ran on one
    machine and in one environment: where the fingerprint's numerics differ, the change itself has made them differ, by
    what it imports.
    """
    differences = verdict.fingerprints.get("numerics")
    imported = [GateCode.NUMERICS_DIFFER(names=tuple(each.name for each in differences))] if differences else []
    content = (each for each in verdict.reasons if each.code is VerdictCode.CONTENT_DIFFERS)
    notes: tuple[Finding, ...] = (*imported, *content, *verdict.notes)
    first = verdict.first
    if first is None:
        if verdict.kind is Kind.EQUAL:
            return Comparison(Change.EQUAL, notes=notes, verdict=verdict)
        return Comparison(Change.NOT_COMPARABLE, tuple(verdict.reasons), notes, verdict)
    reasons: list[Finding] = []
    if first.what is not Difference.VALUE:
        reasons.append(CODE_OF_DIFFERENCE[first.what]())
    elif first.a is not None and first.a.phase == SYNC and first.a.dtype in TEXTS:  # and no weight before it
        reasons.append(GateCode.SYNC_MOVED_ALONE())
    if names := tuple(each.name for each in first.settings if _is_beyond_rounding(each)):
        reasons.append(GateCode.OPTIMIZER_SETTINGS_CHANGED(names=names))
    reasons += [reason for kind in DECIDING if (reason := _moved(kind, verdict.attribution))]
    if not reasons and rounding is not None and not rounding.is_rounding:
        reasons.append(beyond_rounding(rounding))
    reasons += curve or ()
    if not reasons and curve is not None:
        notes += (GateCode.GOLDEN_HAS_NO_TENSORS(),)
    elif rounding is None and not reasons and not verdict.attribution:
        reasons.append(GateCode.NO_EVIDENCE())
    change = Change.BEHAVIOUR if reasons else Change.NUMERICS
    return Comparison(change, tuple(reasons), notes, verdict, rounding)


def change_of_identity(base: Mapping[str, str], head: Mapping[str, str]) -> Comparison | None:
    """The settings that differ between two identities, as reasons; None if none does.

    CONFIGURATION; NOT_COMPARABLE if the entry differs, which may compute the same under another name.
    """
    names = sorted(name for name in base.keys() | head.keys() if base.get(name) != head.get(name))
    if not names:
        return None
    reasons = [GateCode.SETTING_CHANGED(name=name, base=base.get(name), head=head.get(name)) for name in names]
    entries = [identity.get(ENTRY, "") for identity in (base, head)]
    return Comparison(Change.CONFIGURATION if entries[0] == entries[1] else Change.NOT_COMPARABLE, tuple(reasons))


def _is_beyond_rounding(setting: SettingDifference) -> bool:
    """Return whether a number of an optimizer changed by more than half of its digits: f64 is Python's own here."""
    a, b, limits = setting.a, setting.b, HALF_OF_THE_DIGITS | {"f64": 2**-26}
    if a is None or b is None or (a.dtype, a.shape) != (b.dtype, b.shape) or a.dtype not in FLOATS:
        return False
    pairs = zip(*(numbers(each.dtype, raw_value(each)) for each in (a, b)), strict=True)
    return any(abs(x - y) > limits[a.dtype] * max(abs(x), abs(y)) for x, y in pairs)


def _moved(kind: str, attribution: Mapping[str, Count]) -> Finding | None:
    """Return that a kind of value changed, with how many and where first; None if it did not."""
    moved = attribution.get(kind)
    if moved is None or moved.is_equal:
        return None
    if kind == ADVANTAGE_SIGNS and not moved.num_different:
        return GateCode.ADVANTAGE_SIGNS_UNKNOWN()
    step = None if moved.first is None else moved.first.step
    return CODE_OF_KIND[kind](first_step=step, num_different=moved.num_different, num_compared=moved.num_compared)


def beyond_rounding(rounding: Rounding) -> Finding:
    """Return that floats are further apart than rounding makes them."""
    if rounding.num_nan:
        return GateCode.NAN_CHANGED(num_elements=rounding.num_nan)
    if isinf(rounding.share):
        return GateCode.ZERO_AT_BASE(phase=rounding.phase)
    return GateCode.BEYOND_ROUNDING(phase=rounding.phase, share=rounding.share)
