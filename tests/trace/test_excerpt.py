"""Some steps of a trace, compared with those of another."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trace.diff import diff
from harness.trace.format import log_name
from harness.trace.reader import excerpt, read_trace
from harness.trace.verdict import Kind
from tests.support.traces import SEEDED, flip_bit, steps_of, write
from tests.support.verified import verify

NUM_STEPS = 6


@SEEDED
@given(
    at=st.integers(0, NUM_STEPS - 1),
    span=st.tuples(st.integers(0, NUM_STEPS - 1), st.integers(0, NUM_STEPS - 1)).map(sorted),
)
def test_a_difference_is_seen_where_its_step_is_within(
    tmp_path_factory: pytest.TempPathFactory, at: int, span: list[int]
) -> None:
    first, last = span
    directory = tmp_path_factory.mktemp("traces")
    a = read_trace(write(directory / "a", steps_of(NUM_STEPS)))
    b = read_trace(write(directory / "b", steps_of(NUM_STEPS, flip_bit(at, "loss", "loss"))))

    verdict = diff(excerpt(a, first, last), excerpt(b, first, last))

    assert verdict.kind is (Kind.DIVERGED if at <= last else Kind.EQUAL)
    assert verdict.num_steps == last - first + 1
    assert verdict.first is None or verdict.first.step == max(at, first)


def test_the_steps_of_a_torn_trace_are_complete_up_to_the_last_whole_one(tmp_path: Path) -> None:
    whole = read_trace(write(tmp_path / "whole", steps_of(4)))
    torn_directory = write(tmp_path / "torn", steps_of(4), complete=False)
    log = torn_directory / log_name(0)
    log.write_bytes(log.read_bytes()[:-3])
    torn = read_trace(torn_directory)
    assert torn.gaps

    assert not excerpt(torn, 1, 2).gaps
    assert diff(excerpt(whole, 1, 2), excerpt(torn, 1, 2)).kind is Kind.EQUAL
    assert excerpt(torn, 1, 3).gaps
    assert diff(excerpt(whole, 1, 3), excerpt(torn, 1, 3)).kind is Kind.INCOMPLETE


def test_its_curve_and_chain_are_those_of_its_steps(tmp_path: Path) -> None:
    found = excerpt(read_trace(write(tmp_path / "a", steps_of(5))), 2, 3)

    assert [point.step for point in found.curve] == [2, 3]
    assert found.steps == (2, 3)
    assert verify(found) == []
