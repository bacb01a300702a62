"""Sentences and JSON of the reasons and notes of verdicts: every code has both."""

import json
from collections.abc import Callable

import pytest

from harness.render.verdict_reasons import SENTENCES, reason_json, verdict_reason_text
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
    VerdictReason,
    WrittenOutside,
)
from harness.trace.reasons import VerdictCode as Code

REASONS = (
    FieldsDiffer(Code.IDENTITY_DIFFERS, ("seed",)),
    FieldsDiffer(Code.IDENTITY_DIFFERS, tuple("abcdefg")),
    FieldsDiffer(Code.CONTENT_DIFFERS, ("prompts", "source of rewards:mine")),
    FieldsDiffer(Code.NUMERICS_DIFFER, ("python", "library libm.so.6")),
    OfTrace(Code.IDENTITY_UNKNOWN, "B"),
    Incomparable(Code.DIGESTS_INCOMPARABLE, 6000),
    ChainBroken(Code.CHAIN_BROKEN, "B", 0, 3),
    RootMismatch(Code.ROOT_MISMATCH, 3),
    TraceFault(Code.TRACE_INCOMPLETE, "B", "rank-1.log is missing"),
    TraceFault(Code.TRACE_DAMAGED, "A", "curve.jsonl is damaged: it was read up to line 2"),
    ProcessesMatched(Code.PROCESSES_MATCHED, ((0, 1), (1, 0))),
    ProcessesMatched(Code.PROCESSES_GUESSED, ((0, 0), (1, 1))),
    RankDisagrees(Code.RANK_DISAGREES, "B", 1, 0, "backward", "w"),
    RanksMissing(Code.RANKS_MISSING, 1, 2),
    CurveDiffers(Code.CURVE_DIFFERS, 0, ("loss", "kl")),
    OfTrace(Code.CURVE_MISSING, "A"),
    CurveLinesMissing(Code.CURVE_LINES_MISSING, "B", (2,)),
    CurveLinesMissing(Code.CURVE_LINES_MISSING, "B", (2, 3)),
    CurveDtypesDiffer(Code.CURVE_DTYPES_DIFFER, 1, ("loss", "kl"), "f32", "f64"),
    OtherSteps(Code.OPERATIONS_OF_OTHER_STEPS, (7, 9), 8),
    BatchOfWorker(Code.BATCH_OF_WORKER, 3, 1, 2, is_seed_equal=True),
    BatchOfWorker(Code.BATCH_OF_WORKER, 0, 0, 1, is_seed_equal=False),
    WrittenOutside(Code.WRITTEN_OUTSIDE, "head.weight", ("B",)),
    WrittenOutside(Code.WRITTEN_OUTSIDE, "head.weight", ("A", "B")),
    Resumed(Code.RESUMED, 4, 4, 9, ("--resume",)),
    Resumed(Code.RESUMED, 4, 4, 9, ()),
    ResumedAt(Code.RESUMED_AT, 4),
    *map(VerdictReason, SENTENCES),
)


def test_the_sentences_are_the_golden(golden: Callable[[str, str], None]) -> None:
    golden("verdict_reasons.txt", "".join(f"{each.code.value}: {verdict_reason_text(each)}\n" for each in REASONS))
    assert {each.code for each in REASONS} == set(Code)


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.code.value)
def test_json_has_the_code_and_plain_values(reason: VerdictReason) -> None:
    fields = json.loads(json.dumps(reason_json(reason), allow_nan=False))
    assert Code(fields["code"]) is reason.code
