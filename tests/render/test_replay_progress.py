"""Runs of a replay while they go on, as lines."""

import pytest

from harness.render.run_lines import RunLines


def test_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    lines = RunLines(2)
    lines.begin(1, has_operations=False)
    for second in range(70):
        lines.progress(second, float(second))
    lines.end("run 1: 70 steps in 70.0 s")
    lines.begin(2, has_operations=True)
    lines.progress(1, 29.0)
    lines.close()
    assert capsys.readouterr().err.splitlines() == [
        "rlharness: run 1 of 2 begins",
        "rlharness: run 1 of 2: 30 steps after 30 s",
        "rlharness: run 1 of 2: 60 steps after 60 s",
        "rlharness: run 1: 70 steps in 70.0 s",
        "rlharness: run 2 of 2, with operations, begins",
    ]
