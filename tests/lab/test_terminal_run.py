"""How a run in a terminal has ended, as an exit code and as what is left."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.experiment.recording_result import Problem, Recording
from harness.lab.experiment.single_run import TerminalRun
from harness.recording.metrics import Stop
from harness.recording.run_spec import EntryCall, RunSpec
from tests.support.cli_commands import PRETENDER, type_command

SCENARIO, PROGRAM = RunSpec(("python",), call=EntryCall("a:b", {})), RunSpec(("python",))
WHOLE = Recording(Path("run"), 0, 5, (0,), 100)
TORN = replace(WHOLE, problems=(Problem("it is torn"),))


@pytest.mark.parametrize(
    ("run_spec", "recording", "stop", "codes"),
    [
        (PROGRAM, WHOLE, None, [0, 1, 130, 137]),
        (SCENARIO, WHOLE, None, [0, 1, ExitCode.INTERRUPTED, 137]),
        (PROGRAM, TORN, None, [ExitCode.INCOMPLETE_RECORDING, 1, 130, 137]),
        (SCENARIO, TORN, Stop("nan", 3), [ExitCode.OK] * 4),
    ],
)
def test_it_is_the_programs_own_but_for_an_interrupted_entry_and_a_condition_that_held(
    run_spec: RunSpec, recording: Recording, stop: Stop | None, codes: list[int]
) -> None:
    runs = [replace(recording, exit_code=code) for code in (0, 1, 130, 137)]
    assert [TerminalRun(run_spec, (), run, stop).exit_code for run in runs] == codes


def test_a_stop_that_the_disk_did_not_take_costs_no_recording(tmp_path: Path) -> None:
    program = f"{shlex.join(PRETENDER)} && printf '{{' > t/stop.json"
    done = type_command(tmp_path, "trace", "--out", "t", "--break-on", "nan", "--", "sh", "-c", program)
    assert (done.code, "stop.json does not report where the run ended" in done.stderr) == (ExitCode.USAGE_ERROR, True)
    assert json.loads((tmp_path / "t" / "recording.json").read_text("utf-8"))["is_whole"]
