"""Processes without a rank are matched by content: another order of arrival is no difference, and hides none."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.trace.diff import diff
from harness.trace.format import RecordedValue
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import Kind, VerdictCode
from harness.trace.writer import TraceWriter
from tests.support.traces import SEEDED, VALUES, Steps, flip_bit, manifest_of, steps_of, value, write


def steps_of_process(process: int, num_steps: int = 3) -> Steps:
    """Steps that no other process has."""

    def change(step: int, recorded_value: RecordedValue) -> RecordedValue:
        return recorded_value._replace(
            digest=bytes([recorded_value.digest[0], recorded_value.digest[1] ^ process, *recorded_value.digest[2:]])
        )

    return steps_of(num_steps, change)


def trace_of_processes(directory: Path, logs: Sequence[Steps], unranked: Sequence[int] | None = None) -> Trace:
    """A trace of processes, numbered in the order of `logs`; by default none has a rank."""
    numbers = range(len(logs)) if unranked is None else unranked
    for number, steps in enumerate(logs):
        write(directory, steps, replace(manifest_of(), world_size=len(logs), unranked=tuple(numbers)), rank=number)
    return read_trace(directory)


@settings(SEEDED, max_examples=25)
@given(st.data(), st.integers(1, 4))
def test_another_order_of_arrival_is_equal(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, num_processes: int
) -> None:
    directory = tmp_path_factory.mktemp("matching")
    # Some processes may do the same as others.
    logs = [steps_of_process(data.draw(st.integers(0, 3))) for _ in range(num_processes)]
    a = trace_of_processes(directory / "a", logs)
    b = trace_of_processes(directory / "b", data.draw(st.permutations(logs)))
    verdict = diff(a, b)
    assert verdict.kind is diff(b, a).kind is Kind.EQUAL
    assert VerdictCode.PROCESSES_GUESSED not in [note.code for note in verdict.notes]


@settings(SEEDED, max_examples=25)
@given(st.data(), st.integers(1, 4), st.sampled_from(VALUES), st.integers(0, 2))
def test_a_difference_is_found_in_any_order_of_arrival(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    num_processes: int,
    recorded_value: tuple[str, str],
    step: int,
) -> None:
    directory = tmp_path_factory.mktemp("matching")
    logs = [steps_of_process(process) for process in range(num_processes)]
    flip = flip_bit(step, *recorded_value)
    changed = data.draw(st.integers(0, num_processes - 1))
    other = [
        [[flip(at, each) for each in recorded_values] for at, recorded_values in enumerate(steps)]
        if process == changed
        else steps
        for process, steps in enumerate(logs)
    ]
    a = trace_of_processes(directory / "a", logs)
    b = trace_of_processes(directory / "b", data.draw(st.permutations(other)))
    verdict = diff(a, b)
    assert verdict.kind is Kind.DIVERGED
    first = verdict.first
    assert first is not None
    assert first.a is not None
    # One log is left in each: which process differed, and where, is known.
    assert (first.step, first.rank, first.a.phase, first.a.name) == (step, changed, *recorded_value)
    assert VerdictCode.PROCESSES_GUESSED not in [note.code for note in verdict.notes]


PROCESSES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=4)
"""(what it does, how many steps it has) of each process: there may be twins, and some end early."""


@settings(SEEDED, max_examples=40)
@given(st.data(), PROCESSES, PROCESSES)
def test_the_verdict_does_not_depend_on_the_order_of_arrival(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    of_a: list[tuple[int, int]],
    of_b: list[tuple[int, int]],
) -> None:
    """Twins, processes that end early, other numbers of processes: only a guess may depend on it, and says so."""
    directory = tmp_path_factory.mktemp("matching")
    logs_a, logs_b = ([steps_of_process(*each) for each in of] for of in (of_a, of_b))
    a = trace_of_processes(directory / "a", logs_a)
    found = []
    for name in ("b", "c"):
        other = trace_of_processes(directory / name, data.draw(st.permutations(logs_b)))
        verdict = diff(a, other)
        if VerdictCode.PROCESSES_GUESSED in [note.code for note in verdict.notes]:
            return
        found.append((verdict.kind, verdict.num_steps, verdict.num_steps_different))
    assert found[0] == found[1]
    if sorted(of_a) == sorted(of_b):
        assert found[0][0] is Kind.EQUAL


def test_the_verdict_says_which_process_is_which(tmp_path: Path) -> None:
    a = trace_of_processes(tmp_path / "a", [steps_of_process(0), steps_of_process(1)])
    b = trace_of_processes(tmp_path / "b", [steps_of_process(1), steps_of_process(0)])
    assert diff(a, b).notes == (
        VerdictCode.PROCESSES_MATCHED(numbers=((0, 1), (1, 0))),
        VerdictCode.CURVES_OF_OTHER_PROCESSES(),
    )
    assert diff(a, a).notes == ()


def test_a_match_that_nothing_supports_is_a_guess(tmp_path: Path) -> None:
    a = trace_of_processes(tmp_path / "a", [steps_of_process(0), steps_of_process(1)])
    b = trace_of_processes(tmp_path / "b", [steps_of_process(2), steps_of_process(3)])
    verdict = diff(a, b)
    assert verdict.kind is Kind.DIVERGED
    assert verdict.notes[0] == VerdictCode.PROCESSES_GUESSED(numbers=((0, 0), (1, 1)))


def test_a_process_with_a_rank_keeps_it(tmp_path: Path) -> None:
    logs = [steps_of_process(0), steps_of_process(1)]
    a, b = trace_of_processes(tmp_path / "a", logs, ()), trace_of_processes(tmp_path / "b", logs[::-1], ())
    assert diff(a, b).kind is Kind.DIVERGED
    # Two ranks, and two children that have none.
    logs += [steps_of_process(2), steps_of_process(3)]
    a = trace_of_processes(tmp_path / "c", logs, (2, 3))
    b = trace_of_processes(tmp_path / "d", [*logs[:2], *logs[:1:-1]], (2, 3))
    assert diff(a, b).kind is Kind.EQUAL


def test_kept_tensors_are_those_of_the_matched_process(tmp_path: Path) -> None:
    values = [value("backward", "weight", "f32", (8,), bytes([index]) * 32) for index in range(3)]

    def written(directory: Path, kept: Sequence[int]) -> Trace:
        for number, index in enumerate(kept):
            manifest = replace(manifest_of(), world_size=2, unranked=(0, 1))
            with TraceWriter(directory, manifest, rank=number, say=print) as writer:
                writer.append(0, [values[index][0]], tensors=[values[index]])
        return read_trace(directory)

    first = diff(written(tmp_path / "a", (0, 1)), written(tmp_path / "b", (2, 0))).first
    assert first is not None
    assert first.rank == 1
    assert first.value is not None
    assert first.value.num_different == 8
