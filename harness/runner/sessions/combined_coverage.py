"""One data file of coverage out of those of all processes of a run."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.bits.text import count, one_line

LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class CoverageOptions:
    """What pytest-cov was asked for."""

    combine: tuple[str, ...]
    """Options of `coverage combine`."""
    fail_under: float | None
    """Least percentage, which no single process can check; None without one."""


def combine_coverage(directory: Path, cwd: Path, environ: Mapping[str, str], options: CoverageOptions) -> str:
    """Combine the data files of the attempts in the run's `directory` as `coverage combine` does; a note on it.

    The file is where coverage.py has it: COVERAGE_FILE, or what the configuration
    of coverage says, or `.coverage` in `cwd`.
    """
    files = sorted(str(path) for path in directory.glob("units/*/.coverage*"))
    if not files:
        return "no process has measured coverage: those that are killed write no data"
    command = [sys.executable, "-m", "coverage", "combine", "--quiet", *options.combine, *files]
    try:
        done = subprocess.run(
            command, cwd=cwd, env=dict(environ), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"coverage could not be combined: {one_line(str(error))}"
    if done.returncode:
        return f"coverage could not be combined: {one_line(done.stdout + done.stderr)}"
    note = f"combined {count(len(files), 'file')} of coverage data: coverage report shows the result"
    if options.fail_under:
        least = f"{options.fail_under:g}"
        note += f"; --cov-fail-under={least} was not checked: coverage report --fail-under={least} does"
    return note
