"""Reasons and notes of verdicts: one sentence for each code, and the code with its values as JSON."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

from harness.trace.layout import CURVE
from harness.trace.reasons import (
    BatchOfWorker,
    ChainBroken,
    CurveDiffers,
    CurveDtypesDiffer,
    CurveLinesMissing,
    FieldsDiffer,
    Incomparable,
    OfTrace,
    OtherSteps,
    ProcessesMatched,
    RankDisagrees,
    RanksMissing,
    Resumed,
    ResumedAt,
    RootMismatch,
    TraceFault,
    VerdictCode,
    VerdictReason,
    WrittenOutside,
)

MAX_NAMES = 5
"""Maximum number of names of a fingerprint in a sentence."""
SENTENCES = {
    VerdictCode.NO_STEP: "no step was recorded",
    VerdictCode.NO_VALUE: "no value was recorded that could differ",
    VerdictCode.CURVES_OF_OTHER_PROCESSES: "the curves were not compared: each is that of its trace's process 0",
}
"""Sentences of codes without values."""


def verdict_reason_text(reason: VerdictReason) -> str:
    """Return the sentence of a reason or note. It may hold texts of others, unescaped."""
    match reason:
        case FieldsDiffer(names=names):
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            return f"{reason.code.value.replace('_', ' ')}: {', '.join(names[:MAX_NAMES])}{more}"
        case Incomparable(num_values=num_values):
            return f"digests of different algorithms: {num_values:,} values cannot be compared"
        case ChainBroken(trace=trace, rank=rank, step=step):
            return f"{trace}, rank {rank}: the chain of step {step} does not follow from the one before"
        case RootMismatch(step=step):
            return f"the roots of step {step} differ, but its values do not: a root does not match its values"
        case TraceFault(trace=trace, message=message):
            return f"{trace}: {message}"
        case ProcessesMatched(numbers=numbers):
            return _matched(reason.code, numbers)
        case RankDisagrees(trace=trace, rank=rank, step=step, phase=phase, name=name):
            return f"rank {rank} of {trace} disagrees with a lower rank on {phase} {name} of step {step}"
        case RanksMissing(num_compared=num_compared, num_ranks=num_ranks):
            return f"compared {num_compared} of {num_ranks} ranks: those with a log in both traces"
        case OtherSteps(steps=steps, first_step=first):
            recorded = ", ".join(map(str, steps))
            return f"operations were recorded for step {recorded}, but the first difference is in step {first}"
        case BatchOfWorker():
            return _batch_text(reason)
        case WrittenOutside(name=name, traces=traces):
            where = f"in {traces[0]} only" if len(traces) == 1 else "in both, with different values"
            return f"{name} was written outside the optimizer {where}: after its last step, before this forward pass"
        case Resumed(shift=shift, first_step=first, last_step=last, names=names):
            identity = f"; not compared: identity ({', '.join(names[:MAX_NAMES])})" if names else ""
            return f"B's step 0 is A's step {shift}: compared steps {first} to {last}, curves were not{identity}"
        case ResumedAt(shift=shift):
            return f"B begins with A's weights after step {shift - 1}, as a resumed run does: --shift {shift} aligns it"
        case CurveDiffers() | CurveLinesMissing() | CurveDtypesDiffer():
            return _curve_text(reason)
        case OfTrace(code=VerdictCode.IDENTITY_UNKNOWN, trace=trace):
            return f"the identity of {trace} is unknown"
        case OfTrace(trace=trace):
            return f"{trace}: {CURVE} is missing or empty: logged values were not compared"
    return SENTENCES[reason.code]


def _batch_text(reason: BatchOfWorker) -> str:
    where = f"batch {reason.index} was made by DataLoader worker {reason.worker} of {reason.num_workers}"
    if reason.is_seed_equal:
        return f"{where}, its seed is equal: look at __getitem__, and at generators that the worker does not seed"
    return f"{where}, its seed differs: look at the generator of the loader, and at torch.manual_seed"


def _matched(code: VerdictCode, numbers: Sequence[tuple[int, int]]) -> str:
    pairs = ", ".join(f"A's process {number} is B's process {other}" for number, other in numbers)
    if code is VerdictCode.PROCESSES_MATCHED:
        return f"the processes have no ranks, and were matched by content: {pairs}"
    advice = "set RANK and WORLD_SIZE for each process"
    return f"the processes have no ranks, and their matching is a guess: {pairs}; {advice}"


def _curve_text(reason: CurveDiffers | CurveLinesMissing | CurveDtypesDiffer) -> str:
    match reason:
        case CurveDiffers(step=step, names=names):
            return f"logged values differ from step {step} on, but recorded values do not: {', '.join(names)}"
        case CurveLinesMissing(trace=trace, steps=steps):
            return f"{trace}: {CURVE} has no line for step {_and_more(steps)}: its logged values were not compared"
        case CurveDtypesDiffer(step=step, names=names, a=a, b=b):
            dtypes = f"{a} in A, {b} in B"
            return f"logged values of {_and_more(names)} at step {step} have different dtypes ({dtypes}): not compared"


def _and_more(names: Sequence[object]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else f"{names[0]}"


def reason_json(reason: Any) -> dict[str, Any]:
    """Return a reason, a dataclass, as plain values: {"code": "identity_differs", "names": ["seed"]}."""
    return {field.name: _plain(getattr(reason, field.name)) for field in fields(reason)}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return reason_json(value) if is_dataclass(value) else value
