"""How a run in a terminal has ended, as an exit code and as what is left."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

from harness.core.exit_codes import ExitCode
from harness.lab.experiments.entry_call import EntryCall
from harness.lab.experiments.recording_result import Problem, Recording
from harness.lab.experiments.run_spec import RunSpec
from harness.lab.experiments.terminal_run import TerminalRun
from harness.recording.conditions import Stop
from tests.support.cli_commands import PRETENDER, type_command

SCENARIO, PROGRAM = RunSpec(("python",), call=EntryCall("a:b", {})), RunSpec(("python",))
WHOLE = Recording(Path("run"), 0, 5, (0,), 100)


def codes(run_spec: RunSpec, *, is_complete: bool, stop: Stop | None = None) -> list[int]:
    """Those of the command, for these of the program."""
    problems = () if is_complete else (Problem("it is torn"),)
    runs = [replace(WHOLE, exit_code=code, problems=problems) for code in (0, 1, 130, 137)]
    return [int(TerminalRun(run_spec, (), run, stop).exit_code) for run in runs]


def test_it_is_the_programs_own_but_for_an_interrupted_entry() -> None:
    assert codes(PROGRAM, is_complete=True) == [0, 1, 130, 137]
    assert codes(SCENARIO, is_complete=True) == [0, 1, ExitCode.INTERRUPTED, 137]
    assert codes(PROGRAM, is_complete=False) == [ExitCode.INCOMPLETE_RECORDING, 1, 130, 137]


def test_a_condition_that_held_is_the_answer_whatever_the_program_made_of_it() -> None:
    assert codes(SCENARIO, is_complete=False, stop=Stop("nan", 3)) == [ExitCode.OK] * 4
    assert codes(SCENARIO, is_complete=True, stop=Stop("divergence", 3)) == [ExitCode.DIVERGED] * 4


def test_a_stop_that_the_disk_did_not_take_costs_no_recording(tmp_path: Path) -> None:
    program = f"{shlex.join(PRETENDER)} && printf '{{' > t/stop.json"
    done = type_command(tmp_path, "trace", "--out", "t", "--break-on", "nan", "--", "sh", "-c", program)
    assert (done.code, "stop.json does not report where the run ended" in done.stderr) == (ExitCode.USAGE_ERROR, True)
    assert json.loads((tmp_path / "t" / "recording.json").read_text("utf-8"))["is_whole"]
