"""Whether a GPU that units share is back as it was, compared only once the last of them has ended."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.machine.gpu_watch import GpuWatch


@dataclass(slots=True)
class _Sharing:
    """A GPU while units share it."""

    checked: asyncio.Future[tuple[dict[str, int], dict[str, str]]]
    """Result of the check before the first unit; every unit starts after it."""
    num_holders: int = 0
    num_served: int = 0
    turn: int = 0
    """Number of times that the GPU was left by its last holder; only the latest such time decides."""

    def is_held(self) -> bool:
        """Whether a unit runs on the GPU."""
        return self.num_holders > 0


class SharedWatch:
    """Asks a `GpuWatch` about shared GPUs, so that no unit takes the memory of its neighbours for a leak.

    The baseline is the one before the first unit. A unit that leaves others on the GPU is not checked, nor is one
    whose GPU is shared anew while its memory is polled: the last of the units answers for all.
    """

    def __init__(self, watch: GpuWatch) -> None:
        self._watch = watch
        self._sharing: dict[str, _Sharing] = {}

    async def check(self, gpu_ids: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Memory in use on the one GPU before the first of the units that share it, and why it is unfit."""
        (gpu_id,) = gpu_ids
        sharing = self._sharing.get(gpu_id)
        if sharing is None:
            sharing = self._sharing[gpu_id] = _Sharing(asyncio.ensure_future(self._watch.check(gpu_ids)))
        sharing.num_holders += 1
        sharing.num_served += 1
        baseline, unfit = await asyncio.shield(sharing.checked)
        if unfit:
            sharing.num_holders -= 1
            self._sharing.pop(gpu_id, None)
        return baseline, unfit

    async def not_back(
        self, gpu_ids: Sequence[str], baseline: Mapping[str, int], hurry: Callable[[], bool] = lambda: False
    ) -> dict[str, str]:
        """The GPU, and who holds it, if it did not come back after its last unit; empty while others share it."""
        (gpu_id,) = gpu_ids
        sharing = self._sharing[gpu_id]
        sharing.num_holders -= 1
        if sharing.is_held():
            return {}
        sharing.turn += 1
        turn = sharing.turn
        held = await self._watch.not_back(gpu_ids, baseline, lambda: hurry() or sharing.is_held())
        if sharing.is_held() or sharing.turn != turn:
            return {}
        del self._sharing[gpu_id]
        if sharing.num_served == 1:
            return held
        return {
            gpu: f"{reason}; {sharing.num_served} units shared it, and any of them may be the cause"
            for gpu, reason in held.items()
        }
