"""The pieces of a supervised run that need no process: lines that are counted, ends that are told."""

import tempfile
from math import inf
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.lab.experiments.launcher import CountedLines, exit_code, problems_of_end
from harness.lab.experiments.run import run_name
from harness.process.supervisor_client import ProcessEnd


def end(*, exit_code: int | None = 0, signal: int | None = None, reason: str = "", stuck: str = "") -> ProcessEnd:
    return ProcessEnd(exit_code, signal, reason, (), (stuck,) if stuck else (), 1.0)


@settings(derandomize=True)
@given(st.lists(st.text("ab\n", max_size=5)))
def test_lines_are_counted_as_the_file_grows(pieces: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "curve.jsonl")
        lines = CountedLines(path)
        assert lines.count() == 0
        with path.open("a", encoding="utf-8") as file:
            for number in range(len(pieces)):
                file.write(pieces[number])
                file.flush()
                assert lines.count() == "".join(pieces[: number + 1]).count("\n")


def test_exit_codes_are_those_of_a_shell() -> None:
    assert exit_code(end(exit_code=7)) == 7
    assert exit_code(end(exit_code=None, signal=9)) == 137
    assert exit_code(end(exit_code=None, reason="supervisor_lost")) == 1


def test_what_others_did_to_its_end_is_told() -> None:
    assert problems_of_end(end(exit_code=7), inf, "") == []
    told = {
        "timeout": "it was ended after its limit of 2.5 s",
        "cancelled": "it was ended by SIGINT",
        "killed": "it was ended by SIGINT",
        "supervisor_lost": "its supervisor died, so rlharness ended it",
    }
    for reason, text in told.items():
        assert [problem.what for problem in problems_of_end(end(reason=reason), 2.5, "SIGINT")] == [text]
    (stuck,) = problems_of_end(end(stuck="12 D python"), inf, "")
    assert stuck.what == "SIGKILL does not end 12 D python"


def test_names_of_runs() -> None:
    assert run_name(1, has_operations=False) == "run 1"
    assert run_name(2, has_operations=True) == "run 2 with operations"
