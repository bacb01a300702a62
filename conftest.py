"""Loads the plugin into this repository's own tests, seeds every test, and gives them signals that are heard."""

import random
import signal
import sys

import pytest

pytest_plugins = ["harness.plugin", "harness.fixtures"]

SEED = 20260301


def pytest_configure() -> None:
    """Undo what a shell's `&` or nohup left ignored: the tests, and the runs they start, are sent these signals."""
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum is signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> str:
    """Seed `random`, and numpy and torch where the test file has imported them, from the test's own id.

    Returns the seed: a text, since two tests of one run should not draw the same numbers.
    """
    value = f"{SEED}:{request.node.nodeid}"
    random.seed(value)
    bits = random.Random(value).getrandbits(32)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(bits)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(bits)
    return value
