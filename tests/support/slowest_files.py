"""A plugin for pytest that prints the slowest test files: setup, call and teardown of their tests, over all workers."""

from collections.abc import Iterable
from typing import Any

import pytest


def seconds_by_file(reports: Iterable[Any]) -> dict[str, float]:
    """Sum the durations of test reports by file, in seconds; whatever has no duration is no report of a test."""
    seconds: dict[str, float] = {}
    for report in reports:
        if isinstance(report, pytest.TestReport):
            file = report.nodeid.partition("::")[0]
            seconds[file] = seconds.get(file, 0.0) + report.duration
    return seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --slowest-files."""
    parser.addoption(
        "--slowest-files",
        type=int,
        default=0,
        metavar="N",
        help="print the N files whose tests took longest, and the sum over all files",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the slowest files, where the option asks for them."""
    if not (num_files := config.getoption("--slowest-files")):
        return
    seconds = seconds_by_file(report for reports in terminalreporter.stats.values() for report in reports)
    terminalreporter.write_sep("=", f"slowest {min(num_files, len(seconds))} of {len(seconds)} files")
    for file, file_s in sorted(seconds.items(), key=lambda each: -each[1])[:num_files]:
        terminalreporter.write_line(f"{file_s:8.1f} s {file}")
    terminalreporter.write_line(f"{sum(seconds.values()):8.1f} s in all files, summed over workers")
