"""Whether the GPUs of a lease are back as they were: polled with patience, but never longer than a limit.

A driver may hang with every question it is asked, so each is asked in a thread that is given up on.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from harness.machine.gpu_health import FATAL_XIDS, GpuFault, GpuProcess, Meter, describe_xid, why_not_back
from harness.machine.inventory import IDLE_MEMORY_BYTES, Gpu
from harness.process.clock import Clock
from harness.process.daemon_thread import in_daemon_thread

T = TypeVar("T")
POLL_S = 0.25
WAIT_S = 20.0
HURRIED_WAIT_S = 2.0
ANSWER_S = 10.0
STRANGER_BYTES = 256 * 10**6
"""Memory by which a GPU may have filled since the inventory was read, without a process that could be named: more
than what drivers keep for themselves, less than a program that computes."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Reading of one GPU."""

    used_bytes: int | None
    """None where it cannot be read."""
    processes: tuple[GpuProcess, ...]
    fault: GpuFault | None = None
    """Fault of a GPU that is about to be leased; None without one."""
    xids: tuple[int, ...] = ()
    """Errors that the driver has reported since the last lease ended."""


@dataclass(frozen=True, slots=True)
class GpuWatch:
    """Asks `meter` about the GPUs of a lease, before an attempt and after it."""

    meter: Meter
    clock: Clock
    gpus: tuple[Gpu, ...] = ()
    """Those of the run, as they were found; of others nothing is known."""
    poll_s: float = POLL_S
    wait_s: float = WAIT_S
    """How long memory may take to come back after the last process has gone."""
    answer_s: float = ANSWER_S
    """How long one answer of the driver may take."""
    _residents: dict[str, frozenset[int]] = field(default_factory=dict, init=False)
    """Processes on GPUs that are taken as they are, when their lease began: no leak of a test."""

    async def check(self, gpu_ids: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the memory in use on each GPU before an attempt, and why GPUs are unfit for it, by GPU.

        A GPU is unfit if its driver does not answer in time, if it has a fault, or if it has come into use:
        nothing of the run uses a GPU that was free. Memory that cannot be read is left out.
        """
        baseline: dict[str, int] = {}
        unfit: dict[str, str] = {}
        known = {gpu.gpu_id: gpu for gpu in self.gpus}
        for gpu_id, reading in (await self._readings(gpu_ids, finds_faults=True)).items():
            gpu = known.get(gpu_id)
            if reading is None:
                unfit[gpu_id] = self._silence
            elif reading.fault is not None:
                unfit[gpu_id] = f"found before the lease: {reading.fault}"
            elif fatal := [describe_xid(xid) for xid in reading.xids if xid in FATAL_XIDS]:
                unfit[gpu_id] = f"found before the lease: the driver reported {', '.join(fatal)}"
            else:
                if reading.used_bytes is not None:
                    baseline[gpu_id] = reading.used_bytes
                if gpu is not None and gpu.is_as_is:
                    self._residents[gpu_id] = frozenset(process.pid for process in reading.processes)
                elif busy := _who_came(gpu, reading):
                    unfit[gpu_id] = f"busy before the lease: {busy}"
        return baseline, unfit

    async def _ask_each(self, gpu_ids: Sequence[str], ask: Callable[[str], T]) -> dict[str, T | None]:
        """Return the driver's answer on each GPU; None if it does not answer in time."""

        async def one(gpu_id: str) -> T | None:
            try:
                return await in_daemon_thread(lambda: ask(gpu_id), limit_s=self.answer_s)
            except TimeoutError:
                return None

        return dict(zip(gpu_ids, await asyncio.gather(*map(one, gpu_ids)), strict=True))

    async def new_xids(self, gpu_ids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return the errors that the driver has reported of each GPU since the last question; without those of none."""
        answers = await self._ask_each(gpu_ids, self.meter.new_xids)
        return {gpu_id: xids for gpu_id, xids in answers.items() if xids}

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
        tolerances = {gpu.gpu_id: gpu.idle_bytes for gpu in self.gpus}
        asked = tuple(gpu_ids)
        while True:
            held: dict[str, str] = {}
            for gpu_id, reading in (await self._readings(asked)).items():
                if reading is None:
                    silent[gpu_id] = self._silence
                    continue
                residents = self._residents.get(gpu_id, ())
                processes = [process for process in reading.processes if process.pid not in residents]
                tolerance_bytes = tolerances.get(gpu_id, IDLE_MEMORY_BYTES)
                if why := why_not_back(baseline.get(gpu_id), reading.used_bytes, processes, tolerance_bytes):
                    held[gpu_id] = why
            patience_s = min(self.wait_s, HURRIED_WAIT_S) if hurry() else self.wait_s
            if not held or self.clock.monotonic_s() - began_s >= patience_s:
                return silent | held
            asked = tuple(held)
            await asyncio.sleep(self.poll_s)

    async def _readings(self, gpu_ids: Sequence[str], *, finds_faults: bool = False) -> dict[str, Reading | None]:
        """What each GPU says; None for one that does not answer."""

        def read(gpu_id: str) -> Reading:
            fault = self.meter.fault(gpu_id) if finds_faults else None
            used = self.meter.used_memory_bytes((gpu_id,))
            xids = self.meter.new_xids(gpu_id) if finds_faults else ()
            return Reading(used.get(gpu_id), self.meter.processes_on(gpu_id), fault, xids)

        return await self._ask_each(gpu_ids, read)


def _who_came(gpu: Gpu | None, reading: Reading) -> str:
    """Return who uses a GPU that was free when the inventory was read; empty for none."""
    if named := [process for process in reading.processes if process.command]:
        return f"held by {', '.join(map(str, named))}"
    if gpu is None or reading.used_bytes is None:
        return ""
    more_bytes = reading.used_bytes - gpu.used_bytes
    if more_bytes <= max(STRANGER_BYTES, gpu.idle_bytes):
        return ""
    return f"{more_bytes / 1e9:.1f} GB more in use than when the run began, by no process that can be named"
