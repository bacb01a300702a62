"""The example in the docstring of the recorder's package."""

import sys
import textwrap
from pathlib import Path

import pytest

import harness.recording
from harness.trace.reader import read_trace
from tests.support.recorded_programs import record, run


def example() -> str:
    """The indented lines of the docstring."""
    text = harness.recording.__doc__ or ""
    return textwrap.dedent("".join(line for line in text.splitlines(keepends=True) if line.startswith("    ")))


@pytest.mark.full
def test_the_example_runs_and_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(example(), encoding="utf-8")
    command = [sys.executable, str(path)]

    alone = run(*command)
    assert (alone.exit_code, alone.output, alone.errors) == (0, "", "")

    record(tmp_path / "trace", command)
    trace = read_trace(tmp_path / "trace")
    assert trace.steps == (0, 1)
