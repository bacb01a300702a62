"""How long this repository's own tests take: the default tier, or the full one, against the budget.

    python -m tests.benchmarks.suite_time             # the default tier
    python -m tests.benchmarks.suite_time --full      # the full tier; no budget
    python -m tests.benchmarks.suite_time --write     # and store the result in results.json and README.md

The command fails if a test fails, if the default tier takes more than 360 s on two cores, or if the tests of one of its
files take more than 100 s: a file stays with one worker, so a long one bounds the whole. Other work on the machine
counts as well: the load at the start and at the end is printed.
"""

import argparse
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.results import Row, record

ROOT = Path(__file__).resolve().parents[2]
MAX_S = 360.0
"""Wall time of the default tier, with two workers on two cores."""
MAX_FILE_S = 100.0
"""Sum of the durations of one file's tests."""
NUM_FILES = 20
SECTION = re.compile(r"^=+ slowest .* files =+\n((?:.+ s .+\n)+)", re.MULTILINE)
CLOSING = re.compile(r"^=+ (.*) in [\d.]+s\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a tier."""

    backend: str
    wall_s: float
    code: int
    """Exit status of pytest."""
    printed: str
    cpu_s: float = 0.0
    """Processor time of pytest and of all that it has waited for. Other work moves it less than the wall time."""

    @property
    def counts(self) -> str:
        """Outcomes as pytest counts them; a sentence if pytest printed none."""
        found = CLOSING.findall(self.printed)
        return found[-1] if found else "pytest printed no closing line"

    @property
    def slowest(self) -> list[str]:
        """Lines of the section about the slowest files, the sum last."""
        found = SECTION.search(self.printed)
        return found[1].splitlines() if found else []

    @property
    def max_file_s(self) -> float:
        """Seconds of the slowest file."""
        return float(self.slowest[0].split()[0]) if self.slowest else 0.0

    def faults(self) -> list[str]:
        """Return what exceeds the budget or failed, a sentence each."""
        faults = [] if self.code == 0 else [f"pytest exited with {self.code}"]
        if not self.slowest:
            faults.append("pytest printed no slowest files")
        if self.backend == "default" and self.wall_s > MAX_S:
            faults.append(f"the default tier takes {self.wall_s:.0f} s, more than {MAX_S:.0f}")
        if self.backend == "default" and self.max_file_s > MAX_FILE_S:
            faults.append(f"{self.slowest[0].split()[-1]} takes {self.max_file_s:.0f} s, more than {MAX_FILE_S:.0f}")
        return faults


def measure(*, is_full: bool) -> Measured:
    """Run a tier as a user does, and keep what it prints."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--slowest-files={NUM_FILES}"]
    command += ["-m", ""] if is_full else []
    start_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    wall_s, after = time.monotonic() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured("full" if is_full else "default", wall_s, done.returncode, done.stdout, cpu_s)


def report(measured: Measured, load_before: float) -> str:
    """Return the dated figures."""
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, pytest {version('pytest')},"
        f" {platform.machine()}, {os.cpu_count()} cores, load {load_before:.1f} before, {os.getloadavg()[0]:.1f} after",
        f"{measured.backend} tier: {measured.wall_s:.0f} s (processor time {measured.cpu_s:.0f} s); {measured.counts}",
        *measured.slowest,
        *(measured.faults() or ["PASS"]),
    ]
    return "\n".join(lines)


def result(measured: Measured, load_before: float) -> Row:
    """Return the row of results.json."""
    is_default = measured.backend == "default"
    return {
        "section": "runner",
        "benchmark": "suite_time",
        "measured": f"{measured.backend} tier",
        "target": f"{MAX_S:.0f} s" if is_default else "",
        "value": f"{measured.wall_s:,.0f} s, processor time {measured.cpu_s:,.0f} s",
        "verdict": ("missed" if measured.faults() else "met") if is_default else "",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load_before:.1f} before",
        "versions": f"Python {platform.python_version()}, pytest {version('pytest')}",
        "note": "; ".join([measured.counts, *measured.faults()]),
    }


def main(words: Sequence[str]) -> int:
    """Measure, print, and write where asked; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the full tier")
    parser.add_argument("--write", action="store_true", help="put the result into results.json and README.md")
    arguments = parser.parse_args(words)
    load_before = os.getloadavg()[0]
    measured = measure(is_full=arguments.full)
    figures = report(measured, load_before)
    print(figures if measured.code == 0 else f"{measured.printed}\n{figures}")
    if arguments.write:
        record(result(measured, load_before))
    return int(bool(measured.faults()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
