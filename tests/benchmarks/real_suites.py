"""Test suites of other projects, run by pytest, by `pytest -n 2 --dist loadfile` and by rlharness, with their times.

    python tests/benchmarks/real_suites.py [--only attrs] [--work DIR]

Downloads the source distributions and installs each into an environment of its own, so it needs a package registry and
some minutes; it is no part of the test run. Exit status 1 where rlharness tells a test's outcome otherwise than pytest.

A test may lean on what another file did in the same process, and end otherwise where its file has a process to itself.
So where the whole suite and rlharness differ, pytest is given that file alone, and that is what rlharness must tell;
such tests are counted under "lean".
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from junitparser import JUnitXml

ROOT = Path(__file__).resolve().parents[2]
Outcomes = Counter[tuple[str, str]]
"""(node id, outcome) -> how often."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A source distribution that ships its tests."""

    name: str
    version: str
    paths: tuple[str, ...]
    """What pytest is given."""
    requirements: tuple[str, ...] = ()
    """Of its tests, beside pytest."""


SUITES = (
    Suite("attrs", "26.1.0", ("tests",), ("hypothesis", "cloudpickle", "pympler")),
    Suite("jinja2", "3.1.6", ("tests",), ("trio",)),
    Suite("networkx", "3.6.1", ("networkx",), ("numpy",)),
    # These two have files that fail when pytest is given them alone: they lean on what another file imported.
    Suite("click", "8.5.1", ("tests",)),
    Suite("astroid", "4.3.4", ("tests",)),
    Suite("marshmallow", "4.4.0", ("tests",), ("simplejson",)),
    Suite("boltons", "26.2.0", ("tests",)),
    Suite("werkzeug", "3.1.9", ("tests",), ("ephemeral-port-reserve", "watchdog", "cryptography", "pytest-timeout")),
    Suite("pluggy", "1.7.0", ("testing",)),
    Suite("cattrs", "26.2.1", ("tests",), ("hypothesis", "attrs", "immutables", "typing-extensions")),
)
TORCH = Suite("files that import torch", "24", ("suite",))
"""Made here, and run by this environment: every file computes a little with torch."""
TORCH_FILE = """
import pytest, torch
@pytest.mark.parametrize("n", range(5))
def test_product(n):
    assert (torch.ones(8, 8) @ torch.ones(8, 8)).sum() == 512
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a suite."""

    wall_s: float
    cpu_s: float
    """Of the whole process tree, as far as it was waited for."""
    outcomes: Outcomes


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where one suite lives."""

    suite: Suite
    source: Path
    python: Path
    scratch: Path

    def pytest(self, name: str, *options: str, path: str = "") -> Measured:
        """Run plain pytest on the whole suite or on `path` alone, its outcomes told by the plugin."""
        report = self.scratch / f"{name}.jsonl"
        paths = [path] if path else self.suite.paths
        arguments = [*options, "-p", "harness.plugin", f"--rlharness-report={report}", "-q", *paths]
        wall_s, cpu_s = self._time(name, "-m", "pytest", *arguments)
        lines = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
        ended = Counter((line["id"], line["outcome"]) for line in lines if line["k"] == "end")
        return Measured(wall_s, cpu_s, ended)

    def rlharness(self, name: str) -> Measured:
        """Run the suite file by file, without a GPU; its outcomes told by --events, its totals checked by --junit."""
        events, junit = self.scratch / f"{name}.jsonl", self.scratch / f"{name}.xml"
        options = ["--gpus", "none", "--events", str(events), "--junit", str(junit)]
        wall_s, cpu_s = self._time(name, "-m", "harness", "run", *options, *self.suite.paths)
        lines = [json.loads(line) for line in events.read_text("utf-8").splitlines()]
        ended = Counter((line["nodeid"], line["outcome"]) for line in lines if line["event"] == "test_finished")
        totals = JUnitXml.fromfile(str(junit))
        num_bad = sum(count for (_, outcome), count in ended.items() if outcome in ("failed", "error"))
        if (totals.tests, totals.failures + totals.errors) != (ended.total(), num_bad):
            print(f"{name}: JUnit counts {totals.tests} tests, {totals.failures} failures, {totals.errors} errors")
        return Measured(wall_s, cpu_s, ended)

    def _time(self, name: str, *command: str) -> tuple[float, float]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.monotonic()
        with (self.scratch / f"{name}.log").open("w") as log:
            subprocess.run(
                [self.python, *command],
                cwd=self.source,
                env=own_environment(os.environ) | {"XDG_CACHE_HOME": str(self.scratch / "cache")},  # for the history
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.monotonic() - start, cpu_s


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the suites are given: no import path and no pytest option of ours."""
    return {name: value for name, value in environ.items() if not name.startswith(("PYTEST", "PYTHONPATH"))}


def prepare(suite: Suite, work: Path) -> Workplace:
    """Unpack the suite below `work` and make its environment, with this checkout's rlharness in it."""
    scratch = work / suite.name
    scratch.mkdir(parents=True)
    requirement = f"{suite.name}=={suite.version}"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    download = ["download", "--no-deps", "--no-binary", suite.name, "--dest", str(scratch), requirement]
    subprocess.run([*pip, *download], check=True)
    (archive,) = scratch.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(scratch, filter="data")
    subprocess.run([sys.executable, "-m", "venv", scratch / "venv"], check=True)
    python = scratch / "venv" / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    wanted = [str(ROOT), requirement, "pytest-xdist", *suite.requirements]
    subprocess.run([python, "-m", *pip[2:], "install", *constraints, *wanted], check=True)
    return Workplace(suite, archive.with_name(archive.name.removesuffix(".tar.gz")), python, scratch)


def prepare_torch(work: Path) -> Workplace:
    """Write the files that import torch."""
    scratch = work / "torch"
    (scratch / "source" / "suite").mkdir(parents=True)
    for number in range(int(TORCH.version)):
        (scratch / "source" / "suite" / f"test_{number:02}.py").write_text(TORCH_FILE)
    return Workplace(TORCH, scratch / "source", Path(sys.executable), scratch)


def compare(suite: Suite, work: Path) -> tuple[str, list[str]]:
    """One row of the table, and the tests that rlharness tells otherwise than pytest."""
    place = prepare_torch(work) if suite is TORCH else prepare(suite, work)
    plain = place.pytest("pytest")
    xdist = place.pytest("pytest-n2", "-n", "2", "--dist", "loadfile")
    fresh = place.rlharness("rlharness")
    again = place.rlharness("rlharness-again")
    leaning = {file_of(nodeid) for run in (fresh, again) for nodeid, _ in symmetric(plain.outcomes, run.outcomes)}
    expected = Counter({key: count for key, count in plain.outcomes.items() if file_of(key[0]) not in leaning})
    for number, path in enumerate(sorted(leaning)):
        expected += place.pytest(f"alone-{number}", path=path).outcomes
    different = sorted({*differences(expected, fresh.outcomes), *differences(expected, again.outcomes)})
    by_outcome = Counter[str]()
    for (_, outcome), count in plain.outcomes.items():
        by_outcome[outcome] += count
    cells = [
        f"{suite.name} {suite.version}",
        str(len({file_of(nodeid) for nodeid, _ in plain.outcomes})),
        ", ".join(f"{count} {outcome}" for outcome, count in by_outcome.most_common()),
        *(f"{run.wall_s:.1f} s ({run.cpu_s:.0f} s)" for run in (plain, xdist, fresh, again)),
        *(f"{run.wall_s / xdist.wall_s:.2f}" for run in (fresh, again)),
        str(len(different)),
        str(len({nodeid for nodeid, _ in symmetric(plain.outcomes, expected)})),
    ]
    return f"| {' | '.join(cells)} |", different


def file_of(nodeid: str) -> str:
    """The path before the first `::`."""
    return nodeid.partition("::")[0]


def symmetric(one: Outcomes, other: Outcomes) -> Outcomes:
    """What only one of them has."""
    return (one - other) + (other - one)


def differences(expected: Outcomes, found: Outcomes) -> list[str]:
    """A line for every (test, outcome) that only one side has."""
    return [f"only pytest:    {nodeid} {outcome}" for nodeid, outcome in (expected - found)] + [
        f"only rlharness: {nodeid} {outcome}" for nodeid, outcome in (found - expected)
    ]


def main() -> int:
    """Compare every suite and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[suite.name for suite in (*SUITES, TORCH)], action="append")
    parser.add_argument("--work", type=Path, help="where to keep sources, environments and logs; must be empty")
    args = parser.parse_args()
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    (pytest_pin,) = (pin for pin in pins if pin.startswith("pytest=="))
    with tempfile.TemporaryDirectory() as scratch:
        rows, different = [], []
        for suite in (*SUITES, TORCH):
            if not args.only or suite.name in args.only:
                row, lines = compare(suite, args.work or Path(scratch))
                rows.append(row)
                different += [f"{suite.name}: {line}" for line in lines]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Python {platform.python_version()},", end=" ")
    print(f"{pytest_pin}, wall time (processor time)\n")
    print("| suite | files | tests | pytest | pytest -n 2 --dist loadfile | rlharness | second run |", end="")
    print(" first / -n 2 | second / -n 2 | differ | lean |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join([*rows, *different]))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
