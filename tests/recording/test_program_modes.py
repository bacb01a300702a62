"""Programs with modes of their own, which intercept what torch does: they see nothing of the recorder."""

from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.recording.program_state import outside_modes
from harness.recording.recorder import as_float, look
from harness.trace import read_trace
from tests.support.recorded_programs import program, record, run


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_see_nothing_of_a_recorder_and_are_active_again_afterwards() -> None:
    with Dispatched() as outer, Seen() as one, Seen() as two:
        look([("number", 0.5), ("tensor", [1.0, 2.0])])
        as_float(0.25)
        assert (outer.names, one.names, two.names) == ([], [], [])
        with pytest.raises(ZeroDivisionError), outside_modes():
            torch.ones(2).add(1)
            raise ZeroDivisionError
        assert (outer.names, one.names, two.names) == ([], [], [])
        torch.ones(2)
        assert (one.names, two.names, len(outer.names)) == (["ones"], ["ones"], 1)


@pytest.mark.full
def test_a_program_that_trains_within_its_own_modes_has_the_same_bits_when_it_is_recorded(tmp_path: Path) -> None:
    weights = [tmp_path / "plain.pt", tmp_path / "recorded.pt"]
    commands = [program("own_modes", "--weights", str(each)) for each in weights]
    assert run(*commands[0]).exit_code == 0
    record(tmp_path / "a", commands[1])
    one, other = (torch.load(each) for each in weights)
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    assert len(read_trace(tmp_path / "a").steps) == 3
