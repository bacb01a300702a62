"""Findings: a sentence stands beside its code, and shows the values of the finding."""

import json

import pytest

from harness.bits.findings import FindingCode, Severity
from harness.render.serialise import serialised
from harness.trace.verdict import CauseCode, VerdictCode


class Code(FindingCode):
    NAMED = "named", "{num:step}: {names}", "rename {names}"
    PLAIN = "plain", "nothing to fill in"


def test_a_sentence_shows_its_values() -> None:
    finding = Code.NAMED(num=1, names=("a", "b"))
    assert (str(finding), finding.remedy) == ("1 step: a, b", "rename a, b")
    assert str(Code.NAMED(num=1200, names=tuple("abcdefg"))) == "1,200 steps: a, b, c, d, e and 2 more"
    assert str(Code.NAMED(num=0, names=())) == "0 steps: none"
    assert (str(Code.PLAIN()), Code.PLAIN().remedy) == ("nothing to fill in", "")


def test_json_has_the_code_and_every_value() -> None:
    finding = Code.NAMED(Severity.WARNING, num=2, names=tuple("abcdefg"))
    assert json.loads(json.dumps(serialised(finding))) == {"code": "named", "num": 2, "names": list("abcdefg")}


@pytest.mark.parametrize("codes", [VerdictCode, CauseCode])
def test_codes_are_their_names(codes: type[FindingCode]) -> None:
    assert [code.value for code in codes] == [code.name.lower() for code in codes]
    assert all(code.sentence for code in codes)
