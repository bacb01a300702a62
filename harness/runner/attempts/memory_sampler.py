"""Samples the GPU memory of the attempts that run: a few questions to the driver each quarter of a second.

The driver lists the processes on a GPU with their memory. Those below the supervisor of an attempt are the attempt's;
only listed processes are looked up.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from harness.machine.gpu_health import Meter
from harness.process.daemon_thread import in_daemon_thread
from harness.process.supervisor.process_tree import read_process
from harness.runner.units import GpuMemoryUse, Listed, MemoryTally, Unmeasured

POLL_S = 0.25
ANSWER_S = 10.0
T = TypeVar("T")


@dataclass(slots=True)
class _Sampled:
    """An attempt that runs."""

    gpu_ids: tuple[str, ...]
    pid_of: Callable[[], int]
    test_of: Callable[[], str]
    tally: MemoryTally = field(default_factory=MemoryTally)


@dataclass(slots=True)
class MemorySampler:
    """Samples the memory of attempts between `begin` and `end`, in one task for all of them."""

    meter: Meter
    poll_s: float = POLL_S
    answer_s: float = ANSWER_S
    """Seconds for one answer of the driver; after a longer one, nothing more is sampled in this run."""
    is_silent: bool = False
    """Whether the driver did not answer in time."""
    _attempts: dict[int, _Sampled] = field(default_factory=dict)
    _task: "asyncio.Task[None] | None" = None

    def begin(self, number: int, gpu_ids: Sequence[str], pid_of: Callable[[], int], test_of: Callable[[], str]) -> None:
        """Sample attempt `number`.

        `pid_of` returns its supervisor, 0 for none; `test_of` the node id of the test that runs now, empty for none.
        """
        if not gpu_ids or self.meter.is_simulated:
            return
        self._attempts[number] = _Sampled(tuple(gpu_ids), pid_of, test_of)
        if self._task is None:
            self._task = asyncio.create_task(self._sample())

    async def end(self, number: int) -> GpuMemoryUse | None:
        """Return the use of an attempt that has ended; None for one without GPUs, or on simulated ones."""
        attempt = self._attempts.pop(number, None)
        if not self._attempts and (task := self._task) is not None:
            self._task = None
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
        if attempt is None:
            return None
        if self.is_silent:
            attempt.tally.reasons.add(Unmeasured.NO_ANSWER)
        return attempt.tally.finish()

    async def _sample(self) -> None:
        # Until Python 3.12, wait_for may swallow a cancellation; so this task also ends once it is no longer the one.
        while not self.is_silent and self._task is asyncio.current_task():
            await asyncio.sleep(self.poll_s)
            before = {number: (each, each.pid_of(), each.test_of()) for number, each in self._attempts.items()}
            gpu_ids = sorted({gpu_id for each, _, _ in before.values() for gpu_id in each.gpu_ids})
            supervisors = frozenset(pid for _, pid, _ in before.values() if pid)
            if (seen := await self._ask(partial(_look, self.meter, gpu_ids, supervisors))) is None:
                return
            by_gpu, supervisor_of, living = seen
            for attempt, pid, test in before.values():
                if pid and attempt.pid_of() == pid:  # else it ended meanwhile, or its worker has another file
                    on_gpus = [by_gpu[gpu_id] for gpu_id in attempt.gpu_ids]
                    tree = frozenset(each for each, above in supervisor_of.items() if above == pid)
                    throughout = test if attempt.test_of() == test else ""
                    attempt.tally.take(on_gpus, tree=tree, living=living, test=throughout)

    async def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return await in_daemon_thread(question, limit_s=self.answer_s)
        except TimeoutError:
            self.is_silent = True
            return None


def _look(
    meter: Meter, gpu_ids: Sequence[str], supervisors: Collection[int]
) -> tuple[dict[str, Listed], dict[int, int], frozenset[int]]:
    """Return what the driver lists on each GPU, the supervisor above each listed process (0 for none), who lives."""
    by_gpu = {gpu_id: meter.memory_by_pid(gpu_id) for gpu_id in gpu_ids}
    listed = {pid for each in by_gpu.values() for pid in each}
    living = frozenset(pid for pid in listed if read_process(pid) is not None)
    return by_gpu, {pid: _supervisor_above(pid, supervisors) for pid in listed}, living


def _supervisor_above(pid: int, supervisors: Collection[int]) -> int:
    """The first of these processes among the parents of a process; 0 where none is."""
    passed = set()
    while pid > 1 and pid not in passed:
        if pid in supervisors:
            return pid
        passed.add(pid)
        process = read_process(pid)
        pid = process.parent_pid if process is not None else 0
    return 0
