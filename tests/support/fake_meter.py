"""A memory meter for tests."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.machine.gpu_health import GpuFault, GpuProcess, Meter


@dataclass
class FakeMeter(Meter):
    """A `Meter` that reports what its fields hold."""

    used_bytes: dict[str, int] = field(default_factory=dict)
    processes: dict[str, tuple[GpuProcess, ...]] = field(default_factory=dict)
    faults: dict[str, GpuFault] = field(default_factory=dict)
    xids: dict[str, list[int]] = field(default_factory=dict)
    """Errors that the driver has not reported yet."""
    silent: set[str] = field(default_factory=set)
    """GPUs on which the driver hangs: a question about one of them never returns."""

    def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
        if self.silent.intersection(gpu_ids):
            threading.Event().wait()
        return {gpu_id: self.used_bytes[gpu_id] for gpu_id in gpu_ids if gpu_id in self.used_bytes}

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        return self.processes.get(gpu_id, ())

    def fault(self, gpu_id: str) -> GpuFault | None:
        return self.faults.get(gpu_id)

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        return tuple(self.xids.pop(gpu_id, ()))

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        return {process.pid: process.used_bytes for process in self.processes.get(gpu_id, ())}
