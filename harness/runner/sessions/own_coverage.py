"""A pytest plugin for suites that measure coverage: each test file is measured for itself.

    --cov (pytest-cov)       each process has its own COVERAGE_FILE and prints no report; the runner combines them
    COVERAGE_PROCESS_START   coverage.py itself starts in each process, and continues in a fork of the session

What is imported while the suite is collected is measured in the session, and belongs to each of its forks.
"""

import os
import sys
import warnings
from collections.abc import Generator
from typing import Any

import pytest

COVERAGE_FILE = "COVERAGE_FILE"
DEFAULT_CONFIG = ".coveragerc"
"""With this, pytest-cov leaves it to coverage.py to find its configuration."""
NO_REPORT = {"": None}
"""What `--cov-report=` sets."""


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Before pytest-cov starts: no report and no threshold, which would be those of a single file."""
    options = early_config.known_args_namespace
    if getattr(options, "cov_source", None):
        options.cov_report, options.cov_fail_under = dict(NO_REPORT), 0
        if getattr(options, "rlharness_serve", -1) >= 0:  # beside its TMPDIR, which has to stay empty
            os.environ[COVERAGE_FILE] = f"{os.environ['TMPDIR']}-coverage"
    return (yield)


def combine_options(options: Any) -> list[str] | None:
    """Return the options of `coverage combine` that belong to those of pytest-cov; None where it measures nothing."""
    if not getattr(options, "cov_source", None) or getattr(options, "no_cov", False):
        return None
    config = getattr(options, "cov_config", DEFAULT_CONFIG)
    of_config = [] if config == DEFAULT_CONFIG else [f"--rcfile={config}"]
    return [*of_config, *(["--append"] if getattr(options, "cov_append", False) else [])]


def threshold(options: Any) -> float | None:
    """Return the percentage below which pytest-cov would fail the run; None without such an option."""
    return getattr(options, "cov_fail_under", None)


def measure_afresh(config: pytest.Config) -> None:
    """In a fork of the session: start pytest-cov anew, with its own COVERAGE_FILE and what the session has measured."""
    plugin: Any = config.pluginmanager.get_plugin("_cov")
    if plugin is None or plugin.cov_controller is None:
        return
    before = plugin.cov_controller
    central = sys.modules[type(before).__module__].Central  # with -n, pytest-cov has started its controller for xdist
    is_measuring = before.started
    if is_measuring:
        before.pause()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no data yet, or modules that were imported before: both are as they should be
        kept = sys.modules["coverage"].CoverageData(no_disk=True)
        if is_measuring:
            kept.update(before.cov.get_data())
        plugin.start(central)  # it removes the files that are there
        plugin.cov_controller.cov.get_data().update(kept)


def finish(config: pytest.Config) -> None:
    """Write what a fork of the session has measured, at its end."""
    plugin: Any = config.pluginmanager.get_plugin("_cov")
    if plugin is None or plugin.cov_controller is None:
        save()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plugin.cov_controller.finish()


def save() -> None:
    """Write what this process has measured: in a fork that ends without the end of a session."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    if current is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            current.stop()
            current.save()
