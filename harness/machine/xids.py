"""Errors that NVIDIA's driver reports of a GPU while a run lasts: its Xids.

NVML queues them from the moment at which a GPU is registered, so they are asked for when there is time: nothing waits.
"""

import ctypes
import threading
from contextlib import suppress
from typing import Any

_MAX_PER_QUESTION = 1000
"""A GPU that reports without end must not keep us here."""


class XidWatch:
    """The Xids of every GPU since it was made; empty where the driver does not report them (WSL, some containers)."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._lock = threading.Lock()
        self._uuids: dict[int, str] = {}
        """By the address that stands for a handle: a lost GPU no longer says its UUID."""
        self._seen: dict[str, list[int]] = {}
        self._num_reported: dict[str, int] = {}
        self._events: Any = None
        with suppress(nvml.NVMLError):
            events = nvml.nvmlEventSetCreate()
            for number in range(nvml.nvmlDeviceGetCount()):
                with suppress(nvml.NVMLError):
                    handle = nvml.nvmlDeviceGetHandleByIndex(number)
                    self._uuids[_address(handle)] = nvml.nvmlDeviceGetUUID(handle)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                    self._events = events

    def new(self, gpu_id: str, whole: str) -> tuple[int, ...]:
        """Return the new ones of `gpu_id`: those of the GPU `whole`, which is itself or has it as a part."""
        with self._lock:
            self._read()
            seen = self._seen.get(whole, [])
            begin = self._num_reported.get(gpu_id, 0)
            self._num_reported[gpu_id] = len(seen)
            return tuple(seen[begin:])

    def _read(self) -> None:
        if self._events is None:
            return
        with suppress(self._nvml.NVMLError):  # the last question times out
            for _ in range(_MAX_PER_QUESTION):
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = self._uuids.get(_address(event.device), "")
                self._seen.setdefault(uuid, []).append(event.eventData)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
