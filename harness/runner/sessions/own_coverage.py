"""A pytest plugin for suites that measure coverage: each test file is measured for itself.

    --cov (pytest-cov)       each process has its own COVERAGE_FILE and prints no report; the runner combines them
    COVERAGE_PROCESS_START   coverage.py itself starts in each process, and continues in a fork of the warm session

The warm session imports no module that is measured: such lines would count though no test file imports the module.
What conftest files import is measured in the warm session, as pytest itself would, and belongs to each of its forks.
"""

import os
import sys
import sysconfig
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
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


def is_measured(module: str) -> bool:
    """Whether coverage is measured in this process and, as far as can be known without importing it, of `module`."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    if current is None:
        return False
    sources = [str(each) for name in ("source", "source_pkgs", "source_dirs") for each in _option(current, name)]
    top = module.partition(".")[0]
    if top in {source.partition(".")[0] for source in sources}:
        return True
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [Path(os.path.realpath(place)) for place in (spec.submodule_search_locations or [spec.origin or ""])]
    installed = [Path(os.path.realpath(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib")]
    wanted = [Path(os.path.realpath(source)) for source in sources if os.path.isdir(source)]
    named = [place for place in wanted if _is_below(place, installed)]
    is_installed = spec.origin in ("built-in", "frozen") or all(_is_below(place, installed) for place in places)
    return not is_installed or any(_is_below(place, named) for place in places)


def _option(coverage: Any, name: str) -> Iterable[str]:
    try:
        return coverage.get_option(f"run:{name}") or ()
    except Exception:  # versions differ in what options there are, and so in the exception
        return ()


def _is_below(path: Path, directories: Iterable[Path]) -> bool:
    return any(path == directory or directory in path.parents for directory in directories)


def measure_afresh(config: pytest.Config, *, is_run: bool = True) -> None:
    """Start pytest-cov anew with the present COVERAGE_FILE, and with what it has measured and not yet written.

    For a fork of the warm session, or the next file of a worker. A fork that only collects (not `is_run`) measures
    nothing.
    """
    plugin: Any = config.pluginmanager.get_plugin("_cov")
    if plugin is None or plugin.cov_controller is None:
        return
    before = plugin.cov_controller
    central = sys.modules[type(before).__module__].Central  # with -n, pytest-cov has started its controller for xdist
    is_measuring = before.started
    if is_measuring:
        before.pause()
    if not is_run:
        plugin._disabled = True
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no data yet, or modules that were imported before: both are as they should be
        kept = sys.modules["coverage"].CoverageData(no_disk=True)
        if is_measuring:
            kept.update(before.cov.get_data())
        plugin.start(central)  # it removes the files that are there
        plugin.cov_controller.cov.get_data().update(kept)


@contextmanager
def measured_apart(config: pytest.Config) -> Iterator[None]:
    """Measure what a worker does after its last file, into a file of its own beside the last one."""
    plugin: Any = config.pluginmanager.get_plugin("_cov")
    if plugin is None or plugin.cov_controller is None or COVERAGE_FILE not in os.environ:
        yield
        return
    os.environ[COVERAGE_FILE] += "-end"
    measure_afresh(config)
    try:
        yield
    finally:
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
