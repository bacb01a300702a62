"""A pytest plugin in place of pytest-xdist: its fixtures that identify a worker, for units of a run.

The runner distributes the files. The options of pytest-xdist stay, without effect, and its plugins are out before
others ask for them.
"""

import os

import pytest

OFF = {"numprocesses": 0, "dist": "no", "tx": []}
NUM_WORKERS = pytest.StashKey[int]()
"""Number of workers in pytest's arguments."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Turn pytest-xdist off; its fixtures, which know only its own workers, come before those registered here."""
    config.stash[NUM_WORKERS] = config.getoption("numprocesses", None) or 0
    vars(config.option).update((name, value) for name, value in OFF.items() if hasattr(config.option, name))
    for plugin in config.pluginmanager.get_plugins():
        if getattr(plugin, "__name__", "") in ("xdist.plugin", "xdist.looponfail"):
            config.pluginmanager.unregister(plugin)
    config.pluginmanager.register(_Fixtures(), "rlharness-xdist-fixtures")


class _Fixtures:
    """The fixtures; one that the suite defines itself stands above them."""

    @pytest.fixture(scope="session")
    @staticmethod  # pytest 9.2 warns of one that is bound to an instance
    def worker_id() -> str:
        """Name of this unit's slot or worker: no other unit has it at the same time."""
        return os.environ.get("PYTEST_XDIST_WORKER", "master")

    @pytest.fixture(scope="session")
    @staticmethod
    def testrun_uid() -> str:
        """Name of the run."""
        return os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
