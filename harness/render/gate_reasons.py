"""Reasons and notes of `rlharness gate`: one sentence for each code."""

from collections.abc import Sequence

from harness.bits.text import count, path_text
from harness.lab.gate.reasons import (
    CODE_OF_KIND,
    CurveApart,
    FloatsApart,
    GoldenReplaced,
    GoldensKept,
    KindChanged,
    MoreSettings,
    Named,
    NanChanged,
    NoBase,
    NoGolden,
    OfSide,
    OfTraces,
    Reason,
    ReasonCode,
    RecordedAlone,
    Reported,
    RunFailed,
    SettingChanged,
    SharedCode,
)
from harness.trace.verdict import COUNTED

MAX_NAMES = 5
"""Maximum number of names in a sentence."""
KINDS = {code: kind for kind, code in CODE_OF_KIND.items()}
"""Kind of value, by the code of its change."""
SENTENCES = {
    ReasonCode.DTYPE_CHANGED: "a value has another dtype",
    ReasonCode.SHAPE_CHANGED: "a value has another shape",
    ReasonCode.VALUE_ONLY_AT_BASE: "a value is recorded at the base alone",
    ReasonCode.VALUE_ONLY_AT_HEAD: "a value is recorded at the head alone",
    ReasonCode.STEP_ONLY_AT_BASE: "the base has a step that the head has not",
    ReasonCode.STEP_ONLY_AT_HEAD: "the head has a step that the base has not",
    ReasonCode.SYNC_MOVED_ALONE: (
        "the digest of synced weights differs, and no weight before it: the sampler was sent other weights than these"
    ),
    ReasonCode.NO_EVIDENCE: (
        "the trace has no tokens, rewards or kept tensors, so a change of numerics alone cannot be shown"
    ),
    ReasonCode.SCENARIO_NEW: "the base has no such scenario",
    ReasonCode.SCENARIO_REMOVED: "the head no longer has this scenario",
    ReasonCode.GOLDEN_FIRST: "the first golden of this machine and environment",
    ReasonCode.GOLDEN_HAS_NO_TENSORS: "a golden holds no tensors: --base REV shows how far floats differ",
    ReasonCode.COMMON_VALUES_EQUAL: "everything that both record is the same",
    ReasonCode.NOTHING_IN_COMMON: "there is no value that both sides record",
    ReasonCode.SAME_TREE: (
        "the base is the checked-out commit, without uncommitted changes: both sides are the same tree"
    ),
}
"""Sentences of codes without values."""
PREFIXES = {
    ReasonCode.BASE_REJECTED: "the base's scenario cannot be run: ",
    ReasonCode.LEGAL: "legal: ",
    ReasonCode.REMEDY: "remedy: ",
}
"""Beginning of the sentence of a message from elsewhere, by code."""


def reason_text(reason: Reason) -> str:
    """Return the sentence of a reason or note. It may hold texts of others, unescaped."""
    match reason:
        case KindChanged() | FloatsApart() | NanChanged() | CurveApart():
            return _change_text(reason)
        case SettingChanged(name=name, base=base, head=head):
            was, now = ("absent" if value is None else value for value in (base, head))
            return f"{name} was {was} and is {now}"
        case MoreSettings(num_settings=num_settings):
            return f"and {num_settings} more keys"
        case Named(names=names):
            return _named_text(reason.code, names)
        case OfSide(side=side):
            return f"two runs of the {side} do not agree with each other: nothing follows from how the sides differ"
        case RecordedAlone(side=side, names=names):
            return f"recorded at the {side} alone: {_cut(names)}"
        case Reported(message=message):
            return f"{PREFIXES[reason.code]}{message}"
        case OfTraces(reason=inner):
            return str(inner)
        case RunFailed(side=side, message=message):
            return f"{side}: {message}"
        case NoBase(is_shallow=is_shallow):
            shallow = ", and this is a shallow clone" if is_shallow else ""
            return f"there is no base: no commit before this one, no branch of origin{shallow}: --base REV names one"
        case NoGolden(directory=directory):
            return f"{path_text(directory)} holds no golden: rlharness gate --accept writes one"
        case GoldenReplaced(date=date, change=change):
            return f"in place of {f'that of {date}' if date else 'another'}: {change}"
        case GoldensKept(scenario=scenario, keys=keys):
            which = f"goldens of other machines or environments stay as they were: {', '.join(keys)}"
            return f"{scenario}: {which}; accept it there too"
        case SharedCode(module=module, origin=origin):
            return f"{module}, which is called, comes from {origin}: the same code on both sides"
    return SENTENCES[reason.code]


def _change_text(reason: KindChanged | FloatsApart | NanChanged | CurveApart) -> str:
    """Return what values changed, where first, or by how much."""
    match reason:
        case KindChanged(first_step=step):
            where = "" if step is None else f", first at step {step}"
            if reason.code is ReasonCode.ADVANTAGE_SIGNS_UNKNOWN:
                return f"it is unknown whether signs of advantages changed: they are too large to be kept{where}"
            what = COUNTED[KINDS[reason.code]]
            return (
                f"{what}: {reason.num_different:,} of {reason.num_compared:,}{where}"
                if reason.num_different
                else what + where
            )
        case FloatsApart(phase=phase, share=share):
            if share is None:
                return f"all of {phase} was 0 at the base, and is not"
            return f"{phase} differs by {100 * share:.3g} % of its largest element: more than rounding explains"
        case NanChanged(num_elements=num_elements):
            return f"NaN came or went, in {count(num_elements, 'element')}"
        case CurveApart(name=name, step=step, base=base, head=head):
            return f"{name} of step {step} was {base:.6g} and is {head:.6g}: more than rounding explains"


def _named_text(code: ReasonCode, names: Sequence[str]) -> str:
    if code is ReasonCode.GOLDEN_CONFIGURATION:
        return f"the golden has another configuration: {', '.join(names)}"
    if code is ReasonCode.NUMERICS_DIFFER:
        return f"the head's process is another than the base's in {_cut(names)}"
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return (
        f"the goldens are of other machines or environments: the nearest differs in {', '.join(names[:MAX_NAMES])}"
        f"{more}; compared with the base instead"
    )


def _cut(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (" ..." if len(names) > MAX_NAMES else "")
