"""A pytest plugin: the fixtures of pytest-xdist that identify a worker, for units of a run."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures after those of pytest-xdist, which know only its own workers."""
    config.pluginmanager.register(_Fixtures(), "rlharness-xdist-fixtures")


class _Fixtures:
    """The fixtures; one that the suite defines itself stands above them."""

    @pytest.fixture(scope="session")
    def worker_id(self) -> str:
        """Name of this unit's slot or worker: no other unit has it at the same time."""
        return os.environ.get("PYTEST_XDIST_WORKER", "master")

    @pytest.fixture(scope="session")
    def testrun_uid(self) -> str:
        """Name of the run."""
        return os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
