"""`rlharness chaos` as a user types it: a search is many runs, and takes its time on a busy machine."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.suite_runs import HARNESS, environment

PATIENCE_S = 800.0


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def finding(self) -> dict[str, Any]:
        """Of its JSON."""
        found = json.loads(self.stdout)["finding"]
        assert isinstance(found, dict), self.stdout + self.stderr
        return found


def chaos(directory: Path, *words: str) -> Done:
    done = subprocess.run(
        [*HARNESS, "chaos", *words],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
