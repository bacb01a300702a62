"""How every pytest process of a run begins, and the plugins of this package that it loads by name."""

import sys
from collections.abc import Sequence

from harness.process.invocation import shadowing
from harness.recording.private_package import private
from harness.runner.options import RunOptions

PLUGIN = "harness.plugin"
XDIST = "harness.runner.sessions.xdist_fixtures"
"""Replaces pytest-xdist."""
FORKED_TESTS = "harness.runner.sessions.forked_tests"
"""Forks each test."""
SESSION = "harness.runner.sessions.collected_session"
"""Collects the suite, and forks the processes of its units."""
OWN_COVERAGE = "harness.runner.sessions.own_coverage"
"""Measures the coverage of one process."""


def pytest_command(options: RunOptions, plugins: Sequence[str]) -> tuple[str, ...]:
    """Return the interpreter, pytest, the options that all processes share, and these plugins, PLUGIN first.

    Where a project has a module `harness` of its own, and pytest the working directory on its path, PLUGIN is found by
    its entry point, and makes ours importable under a private name.
    """
    is_hidden = not options.safe_path and bool(shadowing(options.invocation.cwd))
    shown = (PLUGIN, *(private(name) if is_hidden else name for name in plugins))
    return (
        *(sys.executable, *["-P"] * options.safe_path, "-m", "pytest", *["--color=yes"] * options.colour),
        *(word for name in shown for word in ("-p", name)),
    )
