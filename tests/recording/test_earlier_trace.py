"""A trace of an earlier version, such as a golden in a repository, is equal to one that is recorded now."""

import json
import subprocess
import sys
from pathlib import Path

TRACES = Path(__file__).parents[1] / "data" / "traces"
COMMAND = [sys.executable, "-m", "harness"]


def test_what_was_recorded_earlier_is_recorded_now(tmp_path: Path) -> None:
    program, earlier = TRACES / "programs" / "exact_steps.py", str(TRACES / "exact_steps")
    recorded = [*COMMAND, "trace", "--out", "now", "--", sys.executable, str(program)]
    subprocess.run(recorded, cwd=tmp_path, check=True, timeout=300)
    for a, b in ((earlier, "now"), ("now", earlier)):
        line = [*COMMAND, "diff", "--json", a, b]  # "not comparable" on another machine, though nothing differs
        found = json.loads(subprocess.run(line, cwd=tmp_path, check=False, capture_output=True, timeout=60).stdout)
        assert (found["num_steps"], found["first"], found["num_steps_different"]) == (10, None, 0)
