"""Names of the pytest plugins of this package, by which the processes of a run load them."""

from collections.abc import Sequence
from pathlib import Path

from harness.process.invocation import shadowing
from harness.recording.private_package import private

PLUGIN = "harness.plugin"
XDIST = "harness.runner.sessions.xdist_fixtures"
"""Replaces pytest-xdist."""
FORKED_TESTS = "harness.runner.sessions.forked_tests"
"""Forks each test."""
SESSION = "harness.runner.sessions.collected_session"
"""Collects the suite, and forks the processes of its units."""
OWN_COVERAGE = "harness.runner.sessions.own_coverage"
"""Measures the coverage of one process."""


def plugin_arguments(names: Sequence[str], cwd: Path, *, is_safe: bool) -> tuple[str, ...]:
    """Return the arguments with which pytest loads these plugins, PLUGIN first.

    Where a project has a module `harness` of its own, and pytest the working directory on its path (not `is_safe`),
    PLUGIN is found by its entry point, and makes ours importable under a private name.
    """
    is_hidden = not is_safe and bool(shadowing(cwd))
    shown = (private(name) if is_hidden else name for name in names)
    return tuple(word for name in (PLUGIN, *shown) for word in ("-p", name))
