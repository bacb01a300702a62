"""What `rlharness trace` says at its end."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.lab.experiments.recording_result import Problem, Recording
from harness.render.recording import recording_lines, size

WHOLE = Recording(Path("/tmp/a b"), 0, 1200, (0, 1, 2), 29_065)


def test_a_whole_recording() -> None:
    assert list(recording_lines(WHOLE)) == [
        "recorded 1,200 steps of ranks 0-2, 29.1 kB, in '/tmp/a b'",
        "  compare it with another:  rlharness diff '/tmp/a b' OTHER",
    ]


def test_what_else_has_come_of_the_run_stands_in_the_place_of_what_it_is_good_for() -> None:
    lines = list(recording_lines(WHOLE, iter(["STOPPED  nan at step 3", "  look closer: rlharness replay"])))
    assert lines[1:] == ["STOPPED  nan at step 3", "  look closer: rlharness replay"]


def test_one_that_is_not_whole() -> None:
    problems = (Problem("rank-0.log is torn", "try again"), Problem("a\nsecond \x1b[2J one"))
    assert list(recording_lines(replace(WHOLE, ranks=(0,), num_steps=1, problems=problems, notes=("look",)))) == [
        "INCOMPLETE: recorded 1 step of rank 0, 29.1 kB, in '/tmp/a b'",
        "  rank-0.log is torn",
        "    remedy: try again",
        "  a second \\x1b[2J one",
        "  note: look",
    ]


def test_nothing_at_all() -> None:
    lines = list(recording_lines(replace(WHOLE, ranks=(), num_steps=0, problems=(Problem("no torch"),))))
    assert lines == ["NOTHING RECORDED in '/tmp/a b'", "  no torch"]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (2_560_000, "2.6 MB"),
        (10**12, "1.0 TB"),
        (10**15, "1000.0 TB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text
