"""What of a gate's findings fails it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.exit_codes import ExitCode
from harness.lab.gate.change import Change
from harness.lab.gate.gate import BROKEN, DEFAULT, REASONS, exit_code, failure


@settings(derandomize=True)
@given(st.sampled_from(Change), st.sets(st.sampled_from(REASONS)))
def test_what_fails_was_found_and_is_asked_for(change: Change, fail_on: set[str]) -> None:
    finding, found = failure(change, REASONS), failure(change, fail_on)
    assert set(found) == {each for each in finding if each in fail_on or each == BROKEN}
    assert (exit_code(found) == ExitCode.OK) == (not found)


def test_by_default_a_configuration_may_change() -> None:
    assert set(REASONS) - set(DEFAULT) == {"configuration"}
    assert failure(Change.CONFIGURATION) == ()
    assert failure(Change.BROKEN, ()) == (BROKEN,)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ((), 0),
        (("behaviour",), 10),
        (("numerics", "not_comparable", "broken"), 10),
        (("not_comparable", "broken"), 11),
        (("configuration",), 11),
        (("broken",), 12),
    ],
)
def test_exit_codes(found: tuple[str, ...], code: int) -> None:
    assert exit_code(found) == code
