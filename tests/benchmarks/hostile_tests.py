"""Whether tests can stall a run: hostile files beside honest ones, in one `rlharness run`.

    python tests/benchmarks/hostile_tests.py --files 200 --seed 0

Each hostile file harms in one of some fifty ways (tests/support/hostile_tests.py). The run must end by itself within
its limits, every honest file must have its own outcome, every file exactly one, and no process may be left. Exit status
1 where that is not so.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.hostile_tests import HONEST, Hostile, draw
from tests.support.suite_runs import Done, bearing, ended, started, write_suite

TIMEOUT_S, GRACE_S = 4.0, 1.0
AROUND_S = 12.0
"""What a file may take beside its limit, on a machine that is busy: its start, its stacks, the end of its processes."""
ENDED = {
    "passed",
    "failed",
    "timed_out",
    "crashed",
    "exited_early",
    "supervisor_lost",
    "collect_error",
    "collect_timeout",
    "unkillable",
}


@dataclass(frozen=True, slots=True)
class Result:
    """What a run of hostile and honest files came to."""

    done: Done
    wall_s: float
    limit_s: float
    left: tuple[str, ...]
    """Processes of the run that live on: pid and name."""
    hostile: tuple[Hostile, ...]
    num_honest: int

    @property
    def faults(self) -> list[str]:
        """What is not as it must be."""
        wrong = wrong_results(self.done.results, self.hostile, self.num_honest)
        return [*wrong, *(f"left: {line}" for line in self.left)]


def wrong_results(results: Mapping[str, Any], hostile: Sequence[Hostile], num_honest: int) -> list[str]:
    """Return the files that have lost their outcome, or have another: "path: outcome counts"."""
    wrong = [each.name for each in hostile if results.get(each.name, {}).get("outcome") not in ENDED]
    for number in range(num_honest):
        name = f"test_honest_{number}.py"
        result = results.get(name, {"outcome": None, "tests": {"counts": {}}})
        counts = result["tests"]["counts"]
        if (result["outcome"], counts.get("passed"), counts.get("failed")) != ("failed", 1, 1):
            wrong.append(name)
    return [f"{name}: {results.get(name, {}).get('outcome')}" for name in wrong]


def measure(directory: Path, num_files: int, seed: int, units: int = 4) -> Result:
    """Run so many hostile files, and as many honest ones, `units` at once.

    subprocess.TimeoutExpired if the run exceeds its limits: a stall.
    """
    hostile = draw(num_files, seed)
    files = {each.name: each.text for each in hostile}
    files |= {f"test_honest_{number}.py": HONEST.format(number=number) for number in range(num_files)}
    write_suite(directory, files)
    limits = ("--timeout", str(TIMEOUT_S), "--grace", str(GRACE_S), "--collect-timeout", "60")
    limit_s = 60 + (TIMEOUT_S + GRACE_S + AROUND_S) * 2 * num_files / units
    start = time.monotonic()
    with started(directory, "run", "--gpus", "none", "--cpu-units", str(units), *limits) as process:
        done = ended(process, directory, limit_s)
    left = tuple(f"{each.pid} {each.name}" for each in bearing(done))
    return Result(done, time.monotonic() - start, limit_s, left, tuple(hostile), num_files)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--units", type=int, default=2 * (os.cpu_count() or 1))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = measure(Path(directory), chosen.files, chosen.seed, chosen.units)
        outcomes = result.done.outcomes
        faults = result.faults
    for outcome, number in Counter(outcomes.get(each.name, "none") for each in result.hostile).most_common():
        print(f"{number:5} hostile files: {outcome}")
    print(f"{result.num_honest} honest files beside them; {result.wall_s:.0f} s, of at most {result.limit_s:.0f} s")
    print(f"exit code {result.done.code}; {len(result.left)} processes left")
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, seed {chosen.seed}, Python {platform.python_version()}, {os.cpu_count()} cores"
    )
    for fault in faults:
        print(f"FAULT {fault}", file=sys.stderr)
    if faults:
        print(result.done.stdout[-3000:], result.done.stderr[-2000:], file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
