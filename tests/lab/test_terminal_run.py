"""How a run in a terminal has ended, as an exit code and as what is left."""

import json
import shlex
from pathlib import Path

from harness.core.exit_codes import ExitCode
from tests.support.cli_commands import PRETENDER, type_command


def test_a_stop_that_the_disk_did_not_take_costs_no_recording(tmp_path: Path) -> None:
    program = f"{shlex.join(PRETENDER)} && printf '{{' > t/stop.json"
    done = type_command(tmp_path, "trace", "--out", "t", "--break-on", "nan", "--", "sh", "-c", program)
    assert (done.code, "stop.json does not report where the run ended" in done.stderr) == (ExitCode.USAGE_ERROR, True)
    assert json.loads((tmp_path / "t" / "recording.json").read_text("utf-8"))["is_whole"]
