"""The engine's errors say the value, what is legal and the remedy, and are what a caller expects to catch."""

import inspect
import subprocess
import sys

import pytest

from rlcore import errors
from rlcore.errors import InvalidValueError, RlcoreError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


def test_a_refusal_reads_in_three_lines() -> None:
    refusal = InvalidValueError("eps is -1", legal="at least 0", remedy="leave it out")
    assert str(refusal) == "eps is -1\n  legal:  at least 0\n  remedy: leave it out"
    assert str(RlcoreError("it broke")) == "it broke"
    assert refusal.args == ("eps is -1",)


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_in_the_family_and_in_its_table(kind: type[RlcoreError]) -> None:
    assert issubclass(kind, RlcoreError)
    assert kind is RlcoreError or issubclass(kind, (ValueError, RuntimeError))
    assert kind.__name__ in (errors.__doc__ or "")


def test_they_need_no_torch() -> None:
    code = "import rlcore.errors, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
