"""Sentences and JSON of the gate's reasons: every code has both."""

import json
from collections.abc import Callable
from math import nan
from pathlib import Path

import pytest

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
    RecordedAlone,
    Reported,
    RunFailed,
    SettingChanged,
    SharedCode,
)
from harness.lab.gate.reasons import ReasonCode as Code
from harness.render.gate_reasons import SENTENCES, reason_text
from harness.render.serialise import serialised
from harness.trace.reasons import VerdictCode

NAMES = tuple("abcdefg")
REASONS = (
    *(KindChanged(code, 2, 1500, 6400) for code in CODE_OF_KIND.values()),
    KindChanged(Code.TOKENS_CHANGED, 2),
    KindChanged(Code.ADVANTAGE_SIGNS_UNKNOWN, 2),
    KindChanged(Code.ADVANTAGE_SIGNS_UNKNOWN),
    FloatsApart(Code.BEYOND_ROUNDING, "backward", 0.5),
    FloatsApart(Code.ZERO_AT_BASE, "backward"),
    NanChanged(Code.NAN_CHANGED, 3),
    CurveApart(Code.CURVE_BEYOND_ROUNDING, "loss", 1, 4.0, nan),
    SettingChanged(Code.SETTING_CHANGED, "seed", "1", "2"),
    SettingChanged(Code.SETTING_CHANGED, "lr", None, "0.1"),
    MoreSettings(Code.MORE_SETTINGS_CHANGED, 4),
    Named(Code.GOLDEN_CONFIGURATION, ("lr", "seed")),
    Named(Code.NO_GOLDEN_FOR_ENVIRONMENT, ("python",)),
    Named(Code.NO_GOLDEN_FOR_ENVIRONMENT, NAMES),
    Named(Code.NUMERICS_DIFFER, ("package einops",)),
    Named(Code.NUMERICS_DIFFER, NAMES),
    OfSide(Code.SIDE_NONDETERMINISTIC, "head"),
    RecordedAlone(Code.RECORDED_ALONE, "base", ("loss clip_fraction",)),
    RecordedAlone(Code.RECORDED_ALONE, "head", NAMES),
    OfTraces(Code.TRACES_NOT_COMPARABLE, VerdictCode.IDENTITY_UNKNOWN(trace="A")),
    OfTraces(Code.NOTED, VerdictCode.CURVE_DIFFERS(step=3, names=("gradient_norm",))),
    Reported(Code.BASE_REJECTED, "unknown key lrr"),
    Reported(Code.LEGAL, "lr"),
    Reported(Code.REMEDY, "name it lr"),
    RunFailed(Code.RUN_FAILED, "head", "it ended with 1"),
    NoBase(Code.NO_BASE, is_shallow=False),
    NoBase(Code.NO_BASE, is_shallow=True),
    NoGolden(Code.NO_GOLDEN, Path("goldens/sums.smoke")),
    GoldenReplaced(Code.GOLDEN_REPLACED, "2026-11-20", "behaviour"),
    GoldenReplaced(Code.GOLDEN_REPLACED, "", "numerics"),
    GoldensKept(Code.GOLDENS_KEPT, "sums", ("0123456789ab", "ba9876543210")),
    SharedCode(Code.SHARED_CODE, "sums", "lib/sums.py"),
    *map(Reason, SENTENCES),
)


def test_the_sentences_are_the_golden(golden: Callable[[str, str], None]) -> None:
    golden("gate_reasons.txt", "".join(f"{each.code.value}: {reason_text(each)}\n" for each in REASONS))
    assert {each.code for each in REASONS} == set(Code)


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.code.value)
def test_json_has_the_code_and_plain_values(reason: Reason) -> None:
    fields = json.loads(json.dumps(serialised(reason), allow_nan=False))
    assert Code(fields["code"]) is reason.code
