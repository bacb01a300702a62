"""A pytest plugin: the processes of a run share pytest's cache of failed tests, as one process would have kept it.

Each process knows the failures that pytest had kept before, and those of its own files. If each wrote what it knows,
the last one would undo what the others have written. So each adds and removes its own, under a lock, and `pytest --lf`
runs what failed in the whole run. The cache of all node ids, which `--nf` alone reads, is left as it is.
"""

import fcntl
from collections.abc import Generator
from typing import Any

import pytest

from harness.bits.files import open_for_writing

LAST_FAILED = "cache/lastfailed"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Take over from pytest, which writes at the end of the session; not if its options use what it knows."""
    config = session.config
    plugin: Any = config.pluginmanager.get_plugin("lfplugin")
    if plugin is not None and not plugin.active and not config.option.collectonly:
        config.pluginmanager.unregister(plugin)
        config.pluginmanager.register(_FailedTests(config))
    if config.pluginmanager.hasplugin("nfplugin") and not config.option.newfirst:
        config.pluginmanager.unregister(name="nfplugin")


class _FailedTests:
    """How the tests of this process ended, until it is written."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._has_failed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended."""
        if report.failed:
            self._has_failed[report.nodeid] = True
        elif report.when == "call" or report.skipped:
            self._has_failed.setdefault(report.nodeid, False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be collected, or can be again."""
        self._has_failed[report.nodeid] = report.failed

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Write what has changed, at the end of the tests of a file."""
        try:
            return (yield)
        finally:
            self._write()
            self._has_failed.clear()

    def _write(self) -> None:
        """Read the file, and write it if it changes, under the lock: pytest truncates it before it writes."""
        cache: Any = self._config.cache
        if not any(self._has_failed.values()) and not cache._getvaluepath(LAST_FAILED).exists():
            return
        try:
            with open_for_writing(cache.mkdir("rlharness") / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                before = set(cache.get(LAST_FAILED, {}))
                after = {nodeid for nodeid in before if self._has_failed.get(nodeid, True)}
                after |= {nodeid for nodeid, failed in self._has_failed.items() if failed}
                if after != before:
                    cache.set(LAST_FAILED, dict.fromkeys(sorted(after), True))
        except (OSError, pytest.PytestWarning) as error:  # no warning: filters that make it an error would end pytest
            if terminal := self._config.pluginmanager.get_plugin("terminalreporter"):
                terminal.ensure_newline()
                terminal.write_line(f"pytest's cache of failed tests was not written: {error}")
