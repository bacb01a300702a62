"""Loads the plugin into this repository's own tests, and seeds every test."""

import random
import sys

import pytest

pytest_plugins = ["harness.plugin"]

SEED = 20260301


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
