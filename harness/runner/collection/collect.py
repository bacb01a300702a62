"""The units of a run, from what the session of the suite has collected: one for each file, with its need.

A file that cannot be collected is a unit with the reason, and so is one of which a node id names no test.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.runner.need import Need, NeedsTable
from harness.runner.options import RunOptions
from harness.runner.report_file import ListedTest
from harness.runner.schedule.splitting import Split
from harness.runner.selections import selected, split_node_id, split_selections
from harness.runner.sessions.combined_coverage import CoverageOptions
from harness.runner.sessions.suite import CollectedFile, Suite
from harness.runner.units import NeedSource, Unit, UnitResult

NO_WORKERS = "-n0"


@dataclass(frozen=True, slots=True)
class Collected:
    """The units of a run."""

    units: tuple[Unit, ...]
    rootdir: Path
    pytest_args: tuple[str, ...]
    """Arguments of a pytest process of this run before its file, so that it sees the suite as the session does: the
    same root directory and configuration file, and no distribution by xdist."""
    sizes_bytes: Mapping[str, int] = field(default_factory=dict)
    """Size of each file, by the path of its unit."""
    files: Mapping[str, CollectedFile] = field(default_factory=dict)
    """What pytest collected, by path."""
    parts: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Numbers of the tests of each part of a file, by the path of its unit."""
    splits: tuple[Split, ...] = ()
    """Files that are split, and those that would be but for an obstacle."""
    not_found: Mapping[str, str] = field(default_factory=dict)
    """Pytest's message for node ids that name no test, by the path of their unit."""
    coverage: CoverageOptions | None = None
    """What pytest-cov measures; None where it measures nothing."""
    kept: Mapping[str, UnitResult] = field(default_factory=dict)
    """Results of units that do not run, by path: those that a resumed run keeps, and files without a selected test."""
    num_workers: int = 0
    """Number of xdist workers in pytest's arguments, which rlharness does not start."""
    notes: tuple[str, ...] = ()
    """Notes for the user, each shown once."""

    def asks_of(self, unit: Unit) -> dict[str, Need]:
        """Return the need of each test of a unit, by its name; none where the needs table decides."""
        if unit.source is NeedSource.TABLE:
            return {}
        return dict(self.files[unit.file_path].asks) if unit.file_path in self.files else {}

    def tests_of(self, unit: Unit, rest: Sequence[str] = ()) -> list[ListedTest] | None:
        """Return the tests that a process of a unit runs, in order; None where they are not known.

        `rest` are the node ids of those that an earlier process has not begun.
        """
        wanted = (unit.file_path,) if rest else unit.selection or (unit.file_path,)
        found: dict[int, ListedTest] = {}
        for each in wanted:
            path = split_node_id(each)[0]
            tests = self.files[path].tests if path in self.files else None
            if tests is None:
                return None
            found |= {test.number: test for test in tests if each == path or is_part(test.nodeid, each)}
        of_part = self.parts.get(unit.path) if not unit.selection and not rest else None
        named = frozenset(rest)
        return [
            test
            for test in found.values()
            if (of_part is None or test.number in of_part) and (not rest or test.nodeid in named)
        ]


def is_part(test: str, nodeid: str) -> bool:
    """Return whether a node id names this test, or a class or function that it is part of."""
    return test == nodeid or test.startswith((f"{nodeid}::", f"{nodeid}["))


async def collect(options: RunOptions, suite: Suite) -> Collected:
    """The units below the paths of the command line; UsageError, CollectionError as `Suite.collect`."""
    files = await suite.collect()
    facts = suite.facts
    rootdir, inifile = Path(facts["rootdir"]), facts["inifile"]
    cwd, table = options.invocation.cwd, NeedsTable(options.needs)
    selections = split_selections(options.paths, cwd)
    not_found: dict[str, str] = {}
    for argument, text in facts["not_found"].items():
        asked = os.path.abspath(cwd / split_node_id(argument)[0])
        path = Path(os.path.relpath(asked, rootdir)).as_posix()
        not_found[path] = "; ".join(filter(None, (not_found.get(path, ""), text.splitlines()[0])))
        files.setdefault(path, CollectedFile())
    units = []
    for path, file in files.items():
        given = table.need(path)
        runs = not file.error or (facts["runs_with_errors"] and bool(file.tests))
        units.append(
            Unit(
                path,
                file.need if given is None else given,
                NeedSource.IMPORT if given is None else NeedSource.TABLE,
                table.timeout_s(path),
                selected(selections, Path(os.path.abspath(rootdir / path)), path),
                collect_error="" if runs else file.error,
                collect_timed_out=file.timed_out,
            )
        )
    combine, fail_under = facts["coverage"]
    args = ("--rootdir", str(rootdir), *(("-c", inifile) if inifile else ()))
    return Collected(
        units=tuple(units),
        rootdir=rootdir,
        pytest_args=(*args, NO_WORKERS) if facts["has_xdist"] else args,
        sizes_bytes={path: _size_bytes(rootdir / path) for path in files},
        files=files,
        not_found={path: text for path, text in not_found.items() if not files[path].error},
        coverage=CoverageOptions(tuple(combine), fail_under) if combine is not None else None,
        num_workers=facts["num_workers"],
        notes=tuple(suite.notes),
    )


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
