"""A pytest plugin for `rlharness profile`: PyTorch's allocator gets a limit when it first initialises CUDA.

The limit in bytes is in a variable, 0 for none. Beside the report, the plugin leaves a file that says whether the limit
was set, and how much the allocator reserved at most. Memory of other libraries is not limited,
nor are CUDA contexts and processes that the tests start.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.recording.post_import import after_import

LIMIT = "RLHARNESS_MEMORY_LIMIT_BYTES"
REPORT = "memory_limit.json"
NAME = "rlharness-memory-limit"


def pytest_configure(config: pytest.Config) -> None:
    """Wait for PyTorch to be imported, and then for it to initialise CUDA."""
    report = Path(config.getoption("rlharness_report")).with_name(REPORT)
    limit = _Limit(int(os.environ[LIMIT]), report)
    config.pluginmanager.register(limit, NAME)
    after_import({"torch.cuda": limit.wait_for_cuda})


class _Limit:
    """The limit of one process."""

    def __init__(self, limit_bytes: int, report: Path) -> None:
        self._limit_bytes = limit_bytes
        self._report = report
        self._is_set = False

    def wait_for_cuda(self, cuda: Any) -> None:
        """Have the limit set when `torch.cuda` is initialised; at once if it is."""
        cuda._lazy_call(lambda: self._set(cuda))

    def _set(self, cuda: Any) -> None:
        for device in range(cuda.device_count()):
            total_bytes = cuda.get_device_properties(device).total_memory
            if self._limit_bytes:
                cuda.set_per_process_memory_fraction(min(1.0, self._limit_bytes / total_bytes), device)
        self._is_set = True

    def pytest_unconfigure(self) -> None:
        """Leave the file."""
        cuda: ModuleType | Any = sys.modules.get("torch.cuda")
        reserved = [cuda.max_memory_reserved(each) for each in range(cuda.device_count())] if self._is_set else []
        found = {"is_set": self._is_set, "reserved_bytes": max(reserved, default=0)}
        self._report.write_text(json.dumps(found), encoding="utf-8")
