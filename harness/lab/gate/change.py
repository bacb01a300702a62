"""What a change has done to a scenario, from what its runs are to each other. Pure.

the same side differs from itself                      nondeterministic
no bit differs; or none of what both sides record      equal
tokens, rewards, signs of advantages, what is read,    behaviour
shapes, steps, or floats beyond rounding
floats alone, no further than rounding                 numerics
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import isinf

from harness.core.text import count
from harness.lab.gate.recorded import Alone
from harness.lab.gate.rounding import Rounding
from harness.trace.verdict import (
    ADVANTAGE_SIGNS,
    BATCHES,
    COUNTED,
    INTEGERS,
    REWARDS,
    TOKENS,
    Count,
    Difference,
    FieldDifference,
    Kind,
    Verdict,
)

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
    """The base cannot be run, or there is none."""
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
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
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
    notes = tuple(_imported(verdict))
    first = verdict.first
    if first is None:
        if verdict.kind is Kind.EQUAL:
            return Finding(Change.EQUAL, notes=notes, verdict=verdict)
        return Finding(Change.NOT_COMPARABLE, verdict.reasons, notes, verdict)
    reasons = []
    if first.what is not Difference.VALUE:
        reasons.append(WHAT[first.what])
    reasons += [reason for kind in DECIDING if (reason := _moved(kind, verdict.attribution))]
    if not reasons and rounding is not None and not rounding.is_rounding:
        reasons.append(beyond_rounding(rounding))
    if rounding is None and not reasons and not verdict.attribution:
        reasons.append(
            "the trace has no tokens, rewards or kept tensors, so a change of numerics alone cannot be shown"
        )
    change = Change.BEHAVIOUR if reasons else Change.NUMERICS
    return Finding(change, tuple(reasons), notes, verdict, rounding)


MAX_NAMES = 5
"""So many names stand in a sentence."""


def equal_but_for(verdict: Verdict, alone: Alone) -> Finding:
    """That two sides compute the same, while one records more: that changes no run."""
    notes = [
        f"recorded at the {side} alone: {', '.join(names[:MAX_NAMES])}{' ...' if len(names) > MAX_NAMES else ''}"
        for side, names in (("base", alone.in_a), ("head", alone.in_b))
        if names
    ]
    return Finding(Change.EQUAL, notes=(*notes, "everything that both record is the same"), verdict=verdict)


WHAT = {
    Difference.DTYPE: "a value has another dtype",
    Difference.SHAPE: "a value has another shape",
    Difference.VALUE_ONLY_IN_A: "a value is recorded at the base alone",
    Difference.VALUE_ONLY_IN_B: "a value is recorded at the head alone",
    Difference.STEP_ONLY_IN_A: "the base has a step that the head has not",
    Difference.STEP_ONLY_IN_B: "the head has a step that the base has not",
}


def _moved(kind: str, attribution: Mapping[str, Count]) -> str:
    """That a kind of value changed, with how many and where first; empty where it did not."""
    moved = attribution.get(kind)
    if moved is None or moved.is_equal:
        return ""
    where = "" if moved.first is None else f", first at step {moved.first.step}"
    if moved.num_different:
        return f"{COUNTED[kind]}: {moved.num_different:,} of {moved.num_compared:,}{where}"
    if kind == ADVANTAGE_SIGNS:
        return f"whether signs of advantages changed is not known: they are too large to be kept{where}"
    return f"{COUNTED[kind]}{where}"


def beyond_rounding(rounding: Rounding) -> str:
    """That floats are further apart than rounding makes them."""
    if rounding.num_nan:
        return f"NaN came or went, in {count(rounding.num_nan, 'element')}"
    if isinf(rounding.share):
        return f"all of {rounding.phase} was 0 at the base, and is not"
    return (
        f"{rounding.phase} differs by {100 * rounding.share:.3g} % of its largest element: more than rounding explains"
    )


def _imported(verdict: Verdict) -> Iterator[str]:
    """What the change itself has moved of the numerics."""
    differences: tuple[FieldDifference, ...] = verdict.fingerprints.get("numerics", ())
    if differences:
        names = ", ".join(each.name for each in differences[:MAX_NAMES])
        names += " ..." if len(differences) > MAX_NAMES else ""
        yield f"the head's process is another than the base's in {names}"
