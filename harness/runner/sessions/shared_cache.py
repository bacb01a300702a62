"""A pytest plugin: the processes of a run share pytest's cache of failed tests, as one process would have kept it.

Each process knows the failures that pytest had kept before, and those of its own files. If each wrote what it knows,
the last one would undo what the others have written. So each adds and removes its own, under a lock, and `pytest --lf`
runs what failed in the whole run. The cache of all node ids, which `--nf` alone reads, is left as it is.
"""

import fcntl
from collections.abc import Generator
from typing import Any

import pytest

LAST_FAILED = "cache/lastfailed"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Take over from pytest, which writes at the end of the session; not if its options use what it knows."""
    config = session.config
    plugin: Any = config.pluginmanager.get_plugin("lfplugin")
    if plugin is not None and not plugin.active and not config.option.collectonly:
        config.pluginmanager.unregister(plugin)
        config.pluginmanager.register(_FailedTests(config, {str(nodeid) for nodeid in plugin.lastfailed}))
    if config.pluginmanager.hasplugin("nfplugin") and not config.option.newfirst:
        config.pluginmanager.unregister(name="nfplugin")


class _FailedTests:
    """The tests that failed last, as far as this process knows."""

    def __init__(self, config: pytest.Config, failed: set[str]) -> None:
        self._config, self._failed = config, failed
        self._changed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended."""
        if report.failed:
            self._changed[report.nodeid] = True
        elif report.when == "call" or report.skipped:
            self._changed.setdefault(report.nodeid, False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be collected, or can be again."""
        self._changed[report.nodeid] = report.failed

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Write what has changed, at the end of the tests of a file."""
        try:
            return (yield)
        finally:
            if any(failed != (nodeid in self._failed) for nodeid, failed in self._changed.items()):
                self._write()
            self._changed.clear()

    def _write(self) -> None:
        cache: Any = self._config.cache
        try:
            with open(cache.mkdir("rlharness") / "lock", "wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._failed = set(cache.get(LAST_FAILED, {}))
                self._failed |= {nodeid for nodeid, failed in self._changed.items() if failed}
                self._failed -= {nodeid for nodeid, failed in self._changed.items() if not failed}
                cache.set(LAST_FAILED, dict.fromkeys(sorted(self._failed), True))
        except (OSError, pytest.PytestWarning) as error:  # no warning: filters that make it an error would end pytest
            if terminal := self._config.pluginmanager.get_plugin("terminalreporter"):
                terminal.ensure_newline()
                terminal.write_line(f"pytest's cache of failed tests was not written: {error}")
