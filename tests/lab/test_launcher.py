"""How a run that was launched ended, and what is left of one that its entry refused."""

from math import inf
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.lab.experiment.launcher import Run, exit_code, problems_of_end, refuse
from harness.lab.experiment.preparation import OutDirectory
from harness.lab.experiment.recording_result import Recording
from harness.process.supervisor_client import ProcessEnd
from harness.recording.run_spec import Rejection


@pytest.mark.parametrize("has_earlier_run", [False, True])
def test_of_a_run_that_was_refused_nothing_is_left_but_earlier_ones(tmp_path: Path, *, has_earlier_run: bool) -> None:
    directory = tmp_path / "replay"
    out = OutDirectory(directory)
    (directory / "run-2").mkdir(parents=True)
    run = Run(2, False, Recording(directory / "run-2", 4, 0, (), 0), 1.0)
    refuse(run, out)
    assert (directory / "run-2").exists(), "nobody has refused it"
    if has_earlier_run:
        (directory / "run-1").mkdir()
    Rejection("the seed is 'x'", "a number", "say so").write(directory / "run-2")
    with pytest.raises(UsageError, match=r"the seed is 'x'\n  legal:  a number\n  remedy: say so"):
        refuse(run, out)
    assert [path.name for path in tmp_path.rglob("run-*")] == ["run-1"] * has_earlier_run
    assert directory.exists() is has_earlier_run


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        (ProcessEnd(7, None, "", (), (), 1.0), 7, ""),
        (ProcessEnd(None, 9, "", (), (), 1.0), 137, ""),
        (ProcessEnd(None, 2, "cancelled", (), (), 1.0), 130, "it was ended by SIGINT"),
        (ProcessEnd(None, None, "supervisor_lost", (), (), 1.0), 1, "its supervisor died, so rlharness ended it"),
        (ProcessEnd(0, None, "", (), ("12 D python",), 1.0), 0, "SIGKILL does not end 12 D python"),
    ],
)
def test_exit_codes_are_those_of_a_shell_and_what_others_did_is_told(end: ProcessEnd, code: int, message: str) -> None:
    assert exit_code(end) == code
    assert [problem.what for problem in problems_of_end(end, inf, "SIGINT")] == [message] * bool(message)
