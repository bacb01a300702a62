"""vLLM's scheduler, which waits for the trainer after each pass where bits depend on what a pass computes together.

Requests come and go between passes then, and never while one runs: two runs have the same passes.
"""

from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

from rlcore.numerics.level import is_invariant


class WaitingScheduler(Scheduler):
    """Pauses itself with each pass that has given tokens; `EngineProcess.step` resumes it."""

    def update_from_output(self, *given: Any) -> Any:
        """As `Scheduler.update_from_output`."""
        found = super().update_from_output(*given)
        if found and not is_invariant():
            self.set_pause_state(PauseState.PAUSED_ALL)
        return found

    def has_requests(self) -> bool:
        """As `Scheduler.has_requests`, but not to report finished requests to the worker: the next pass does."""
        return self.pause_state != PauseState.PAUSED_ALL and bool(super().has_requests())
