"""Nothing of ours initialises CUDA in a process that has not done so itself: forks and late variables go on to work."""

import sys
from pathlib import Path

import pytest
import torch

from harness.recording.program_state import is_capturing, is_used, read_states
from harness.recording.sentinel import this_location
from harness.trace import read_trace
from tests.support.recorded_programs import program, record


@pytest.mark.full
def test_a_recorded_program_may_fork_and_choose_its_devices_late(tmp_path: Path) -> None:
    done = record(tmp_path / "a", program("late_devices"))
    assert done.output.splitlines() == ["late {}", "1 {}", "1 {}"], "somebody has asked CUDA for devices"
    assert set(read_trace(tmp_path / "a").ranks) == {0, 1}


def test_a_process_that_has_not_initialised_cuda_is_never_asked_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("this initialises CUDA")

    for name in ("is_available", "device_count", "current_device", "get_rng_state_all", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    monkeypatch.setattr(torch.cuda, "_initialized", False)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    assert not is_used() and not is_capturing()
    assert "random.cuda0" not in read_states()
    assert this_location().device == "CPU"


def test_the_forked_child_of_a_process_with_cuda_asks_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """There torch says that CUDA is initialised, and every call of it is an error."""
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: sys.exit("CUDA error"))
    assert not is_used() and not is_capturing()


def test_a_process_with_cuda_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.zeros(16, dtype=torch.uint8)])
    assert is_used() and is_capturing()
    assert "random.cuda0" in read_states()
