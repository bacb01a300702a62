"""Whether the GPUs of a lease are back as they were: polled with patience, but never longer than a limit.

A driver may hang with every question it is asked, so each is asked in a thread that is given up on.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.core.clock import Clock
from harness.machine.gpu_health import GpuFault
from harness.machine.meter import GpuProcess, MemoryMeter, return_to_baseline
from harness.process.daemon_thread import in_daemon_thread

POLL_S = 0.25
WAIT_S = 20.0
HURRIED_WAIT_S = 2.0
ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Reading of one GPU."""

    used_bytes: int | None
    """None where it cannot be read."""
    processes: tuple[GpuProcess, ...]
    fault: GpuFault | None = None
    """Fault of a GPU that is about to be leased; None without one."""


@dataclass(frozen=True, slots=True)
class GpuWatch:
    """Asks `meter` about the GPUs of a lease, before an attempt and after it."""

    meter: MemoryMeter
    clock: Clock
    poll_s: float = POLL_S
    wait_s: float = WAIT_S
    """How long memory may take to come back after the last process has gone."""
    answer_s: float = ANSWER_S
    """How long one answer of the driver may take."""

    async def check(self, gpu_ids: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the memory in use on each GPU before an attempt, and why GPUs are unfit for it, by GPU.

        A GPU is unfit if its driver does not answer in time, if it has a fault, or if a process that can be named
        holds it: nothing of the run uses a GPU that was free. Memory that cannot be read is left out.
        """
        baseline: dict[str, int] = {}
        unfit: dict[str, str] = {}
        for gpu_id, reading in (await self._readings(gpu_ids, finds_faults=True)).items():
            if reading is None:
                unfit[gpu_id] = self._silence
                continue
            if reading.fault is not None:
                unfit[gpu_id] = f"found before the lease: {reading.fault}"
                continue
            if reading.used_bytes is not None:
                baseline[gpu_id] = reading.used_bytes
            if named := [process for process in reading.processes if process.command]:
                unfit[gpu_id] = f"busy before the lease: held by {', '.join(map(str, named))}"
        return baseline, unfit

    @property
    def _silence(self) -> str:
        return f"it cannot be read: the driver did not answer within {self.answer_s:g} s"

    async def not_back(
        self, gpu_ids: Sequence[str], baseline: Mapping[str, int], hurry: Callable[[], bool] = lambda: False
    ) -> dict[str, str]:
        """The GPUs that did not come back to their `baseline` in time, each with who holds it.

        Once there is a `hurry`, the driver has two seconds to free what a killed process held, no more.
        """
        began_s = self.clock.monotonic_s()
        silent: dict[str, str] = {}
        asked = tuple(gpu_ids)
        while True:
            held: dict[str, str] = {}
            for gpu_id, reading in (await self._readings(asked)).items():
                if reading is None:
                    silent[gpu_id] = self._silence
                    continue
                still = return_to_baseline(baseline.get(gpu_id), reading.used_bytes, reading.processes, our_pids=())
                if still is not None:
                    held[gpu_id] = still.reason
            patience_s = min(self.wait_s, HURRIED_WAIT_S) if hurry() else self.wait_s
            if not held or self.clock.monotonic_s() - began_s >= patience_s:
                return silent | held
            asked = tuple(held)
            await asyncio.sleep(self.poll_s)

    async def _readings(self, gpu_ids: Sequence[str], *, finds_faults: bool = False) -> dict[str, Reading | None]:
        """What each GPU says; None for one that does not answer."""
        answers = await asyncio.gather(*(self.reading(gpu_id, finds_faults=finds_faults) for gpu_id in gpu_ids))
        return dict(zip(gpu_ids, answers, strict=True))

    async def reading(self, gpu_id: str, *, finds_faults: bool) -> Reading | None:
        """Return the reading of one GPU; None where its driver does not answer in time."""

        def ask() -> Reading:
            fault = self.meter.fault(gpu_id) if finds_faults else None
            used = self.meter.used_memory_bytes((gpu_id,))
            return Reading(used.get(gpu_id), self.meter.processes_on(gpu_id), fault)

        try:
            return await in_daemon_thread(ask, limit_s=self.answer_s)
        except TimeoutError:
            return None
