"""What of a gate's findings fails it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.exit_codes import ExitCode
from harness.lab.gate.change import Change
from harness.lab.gate.gate import BROKEN, DEFAULT, MEMORY, REASONS, RUN, SECONDS, CostChange, exit_code, failures

SLOW = CostChange(SECONDS, RUN, 1.0, 2.0, 0.0, True, True)
LARGE = CostChange(MEMORY, RUN, 1.0, 2.0, 0.0, True, True)
NOISY = CostChange(SECONDS, RUN, 1.0, 2.0, 3.0, False, True)


@settings(derandomize=True)
@given(st.sampled_from(Change), st.lists(st.sampled_from([SLOW, LARGE, NOISY])), st.sets(st.sampled_from(REASONS)))
def test_what_fails_was_found_and_is_asked_for(change: Change, costs: list[CostChange], fail_on: set[str]) -> None:
    findings, found = failures(change, costs, REASONS), failures(change, costs, fail_on)
    assert set(found) == {each for each in findings if each in fail_on or each == BROKEN}
    assert ("slowdown" in findings, "memory" in findings) == (SLOW in costs, LARGE in costs)
    assert (exit_code(found) == ExitCode.OK) == (not found)


def test_by_default_a_configuration_may_change() -> None:
    assert set(REASONS) - set(DEFAULT) == {"configuration"}
    assert failures(Change.CONFIGURATION, [NOISY]) == ()
    assert failures(Change.BROKEN, [], ()) == (BROKEN,)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ((), 0),
        (("behaviour",), 10),
        (("numerics", "not_comparable", "broken"), 10),
        (("slowdown",), 10),
        (("memory",), 10),
        (("not_comparable", "broken"), 11),
        (("configuration",), 11),
        (("broken",), 12),
    ],
)
def test_exit_codes(found: tuple[str, ...], code: int) -> None:
    assert exit_code(found) == code
