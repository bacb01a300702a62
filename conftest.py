"""Loads the plugin into this repository's own tests, seeds every test, and gives them signals that are heard.

OpenMP's threads sleep while they wait for each other: several test processes share the cores, and waiting by spinning
made small runs of two threads up to nine times slower. No bit depends on it. Nor does hypothesis judge by the clock how
long a draw or an example takes: a busy machine is no fault of a test. A fixture may serve all examples of one test. All
of this stands here only, since settings of a test's own that suppress a check would bring the others back.
"""

import compileall
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from harness.bits.levels import STRICT, is_intels

pytest_plugins = ["harness.plugin", "harness.fixtures", "tests.support.slowest_files"]
collect_ignore = ["tests/support", "harness/lab/demo/project"]
"""Test files there misbehave on purpose: tests/test_misbehaving.py runs those, and `rlharness demo` a copy of these."""

SEED = 20260301

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# MKL keeps the mode of its first work in a process, which other tests may do before those of rlcore are collected.
os.environ.setdefault("MKL_CBWR", STRICT["MKL_CBWR"] if is_intels() else "AUTO")
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("default tier", settings.get_profile("untimed"), max_examples=20)
settings.load_profile("untimed")

if sys.dont_write_bytecode:  # else each of the thousands of processes that tests start would compile these again
    for _package in ("harness", "rlcore", "tests/support"):
        compileall.compile_dir(Path(__file__).parent / _package, quiet=2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --update-goldens, which writes what renderers print now to tests/golden and the pages."""
    parser.addoption("--update-goldens", action="store_true", help="Rewrite the golden files of renderers.")


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples in the default tier, and undo what a shell's `&` or nohup left ignored.

    The tests, and the runs they start, are sent these signals.
    """
    if "not full" in config.option.markexpr:
        settings.load_profile("default tier")
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum is signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Keep the bytecode of test files: several processes import the same one, and pytest rewrites it for each."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


@pytest.fixture(autouse=True, scope="session")
def _no_plugins_below() -> Iterator[None]:
    """The runs of pytest that tests start load what they name: most of a small one was hypothesis, imported at its end.

    In a fixture, since pytest-xdist's own processes come before any, and need theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        yield


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def own_cache(_cache: Path) -> Iterator[Path]:
    """A cache directory of the session in place of the user's, for tests whose commands remember something there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_cache))
        yield _cache


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
