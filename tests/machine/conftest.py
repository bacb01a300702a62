"""The pretended drivers of NVIDIA and AMD, built once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.amdsmi_stub.build import build as build_rocm
from tests.support.amdsmi_stub.driver import AmdDriver
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


@pytest.fixture(scope="session")
def rocm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pretended ROCm."""
    return build_rocm(tmp_path_factory.mktemp("rocm"))


@pytest.fixture(scope="session")
def amd_driver(rocm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmdDriver]:
    """A running child; each test shows it a machine of its own."""
    opened = AmdDriver(rocm, tmp_path_factory.mktemp("amdsmi_file") / "machine.json")
    yield opened
    opened.close()
