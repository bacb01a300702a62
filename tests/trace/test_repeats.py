"""What one trace shows by itself."""

import struct
from pathlib import Path

import pytest

from harness.trace.explanation import repeats
from harness.trace.format import RecordedValue, Scope
from tests.support import traces


def batch(number: int) -> RecordedValue:
    return traces.recorded_value("rollout", "batch.0", number, scope=Scope.PHYSICAL)


def rewards(*values: float) -> RecordedValue:
    return traces.value("reward", "rewards", "f32", (len(values),), b"".join(map(_f32, values)))[0]


def _f32(value: float) -> bytes:
    return struct.pack("<f", value)


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([0, 1, 2, 3], []),
        ([0, 0, 0], []),  # all of the data in each step
        ([0, 1, 2, 0, 1], ["2 of the 5 batches came before: step 3 has that of step 0"]),
    ],
)
def test_batches_that_come_again(batches: list[int], found: list[str], tmp_path: Path) -> None:
    trace = traces.trace(tmp_path, [[batch(each)] for each in batches])
    assert [str(each) for each in repeats(trace)] == found


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1, 0, 0, 0], ["all rewards are 0 since step 1"]),
        ([0, 0, 0, 1], []),
        ([1, 0, 0], []),
    ],
)
def test_rewards_that_stay_0(values: list[float], found: list[str], tmp_path: Path) -> None:
    trace = traces.trace(tmp_path, [[rewards(0, each, 0, 0, 0)] for each in values])
    assert [str(each) for each in repeats(trace)] == found
