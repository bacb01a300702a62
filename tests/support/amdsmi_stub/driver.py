"""The pretended ROCm, asked through `harness.machine` by a child process that was started with it."""

from pathlib import Path

from tests.support.amdsmi_stub.build import stub_env
from tests.support.nvml_stub.driver import Driver


class AmdDriver(Driver):
    """A child process whose AMD SMI shows what `file` says."""

    _is_amd = True

    def __init__(self, rocm: Path, file: Path) -> None:
        self._file = file
        self._start(stub_env(rocm, file))
