"""What a change has done to a scenario, from what its runs are to each other. Pure.

the same side differs from itself                      nondeterministic
no bit differs; or none of what both sides record      equal
tokens, rewards, signs of advantages, what is read,    behaviour
shapes, steps, floats beyond rounding, or a text of a
sync with all values before it equal
floats alone, no further than rounding                 numerics
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import isinf

from harness.lab.gate.reasons import (
    CODE_OF_DIFFERENCE,
    CODE_OF_KIND,
    FloatsApart,
    KindChanged,
    Named,
    NanChanged,
    OfTraces,
    Reason,
    ReasonCode,
    RecordedAlone,
)
from harness.lab.gate.recorded import Alone
from harness.lab.gate.rounding import Rounding
from harness.trace.attribution import TEXTS
from harness.trace.reasons import VerdictCode
from harness.trace.renames import ENTRY, current_entry
from harness.trace.verdict import (
    ADVANTAGE_SIGNS,
    BATCHES,
    INTEGERS,
    REWARDS,
    TOKENS,
    Count,
    Difference,
    Divergence,
    Kind,
    Verdict,
)

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


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a scenario."""

    change: Change
    reasons: tuple[Reason, ...] = ()
    notes: tuple[Reason, ...] = ()
    verdict: Verdict | None = None
    """Of the base (A) and the head (B); of the side that differs from itself where it is nondeterministic."""
    rounding: Rounding | None = None
    """Of the step in which they part; None where nothing was kept of it."""
    place: str = ""
    """Where they part, of a golden, which has no verdict: step 3, backward."""


def classify_change(verdict: Verdict, rounding: Rounding | None) -> Finding:
    """What a verdict on a run of the base and one of the head means; each side is known to agree with itself.

    Both ran on one machine and in one environment: where the fingerprint's numerics differ, the change itself has made
    them differ, by what it imports.
    """
    notes = (*_imported(verdict), *noted(verdict))
    first = verdict.first
    if first is None:
        if verdict.kind is Kind.EQUAL:
            return Finding(Change.EQUAL, notes=notes, verdict=verdict)
        reported = tuple(OfTraces(ReasonCode.TRACES_NOT_COMPARABLE, each) for each in verdict.reasons)
        return Finding(Change.NOT_COMPARABLE, reported, notes, verdict)
    reasons: list[Reason] = []
    if first.what is not Difference.VALUE:
        reasons.append(Reason(CODE_OF_DIFFERENCE[first.what]))
    elif _is_text_of_sync(first):
        reasons.append(Reason(ReasonCode.SYNC_MOVED_ALONE))
    reasons += [reason for kind in DECIDING if (reason := _moved(kind, verdict.attribution))]
    if not reasons and rounding is not None and not rounding.is_rounding:
        reasons.append(beyond_rounding(rounding))
    if rounding is None and not reasons and not verdict.attribution:
        reasons.append(Reason(ReasonCode.NO_EVIDENCE))
    change = Change.BEHAVIOUR if reasons else Change.NUMERICS
    return Finding(change, tuple(reasons), notes, verdict, rounding)


def equal_but_for(verdict: Verdict, alone: Alone) -> Finding:
    """That two sides compute the same, while one records more: that changes no run. Not comparable without a value."""
    notes = [
        RecordedAlone(ReasonCode.RECORDED_ALONE, side, names)
        for side, names in (("base", alone.in_a), ("head", alone.in_b))
        if names
    ]
    if not alone.has_common:
        return Finding(Change.NOT_COMPARABLE, (Reason(ReasonCode.NOTHING_IN_COMMON),), tuple(notes), verdict)
    return Finding(
        Change.EQUAL, notes=(*notes, Reason(ReasonCode.COMMON_VALUES_EQUAL), *noted(verdict)), verdict=verdict
    )


def change_of_identity(base: Mapping[str, str], head: Mapping[str, str]) -> Change:
    """Return CONFIGURATION; NOT_COMPARABLE if the entry differs, which may compute the same under another name."""
    entries = [current_entry(identity.get(ENTRY, "")) for identity in (base, head)]
    return Change.CONFIGURATION if entries[0] == entries[1] else Change.NOT_COMPARABLE


def noted(verdict: Verdict) -> tuple[Reason, ...]:
    """Return the notes of a verdict, as `rlharness diff` shows them: logged values that differ, or content, say."""
    content = [each for each in verdict.reasons if each.code is VerdictCode.CONTENT_DIFFERS]
    return tuple(OfTraces(ReasonCode.NOTED, note) for note in (*content, *verdict.notes))


def _is_text_of_sync(first: Divergence) -> bool:
    """Whether what differs first is a digest of weights that were sent, so that the weights themselves do not."""
    return first.a is not None and first.a.phase == SYNC and first.a.dtype in TEXTS


def _moved(kind: str, attribution: Mapping[str, Count]) -> KindChanged | None:
    """Return that a kind of value changed, with how many and where first; None if it did not."""
    moved = attribution.get(kind)
    if moved is None or moved.is_equal:
        return None
    step = None if moved.first is None else moved.first.step
    if moved.num_different:
        return KindChanged(CODE_OF_KIND[kind], step, moved.num_different, moved.num_compared)
    return KindChanged(ReasonCode.ADVANTAGE_SIGNS_UNKNOWN if kind == ADVANTAGE_SIGNS else CODE_OF_KIND[kind], step)


def beyond_rounding(rounding: Rounding) -> Reason:
    """Return that floats are further apart than rounding makes them."""
    if rounding.num_nan:
        return NanChanged(ReasonCode.NAN_CHANGED, rounding.num_nan)
    if isinf(rounding.share):
        return FloatsApart(ReasonCode.ZERO_AT_BASE, rounding.phase)
    return FloatsApart(ReasonCode.BEYOND_ROUNDING, rounding.phase, rounding.share)


def _imported(verdict: Verdict) -> Iterator[Reason]:
    """Yield the numerics that the change itself has moved."""
    if differences := verdict.fingerprints.get("numerics"):
        yield Named(ReasonCode.NUMERICS_DIFFER, tuple(each.name for each in differences))
