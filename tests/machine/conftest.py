"""The pretended driver of NVIDIA, built once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvml_stub.build import build, compiler
from tests.support.nvml_stub.driver import Driver


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pretended libnvidia-ml.so.1."""
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def driver(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A running child; each test shows it a machine of its own."""
    opened = Driver(nvml_library, tmp_path_factory.mktemp("nvml_file") / "machine.txt")
    yield opened
    opened.close()
