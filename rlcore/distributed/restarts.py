"""What happens when a worker dies: the run ends with the cause, or starts again from its last checkpoint."""

import gc
from collections.abc import Callable
from typing import TypeVar

from rlcore.errors import PlacementError, WorkerDiedError

Result = TypeVar("Result")


def run_with_restarts(start: Callable[[int], Result], max_restarts: int | None, say: Callable[[str], None]) -> Result:
    """Return what `start` returns; call it again, with the number of the restart, after a worker's death.

    `start(n)` starts all workers and trains to the end, for n > 0 from the newest complete checkpoint; it has ended
    what it started when it raises. With None a death ends the run as it is, and so does any other error. Raises
    PlacementError, with every cause, after the last restart.
    """
    causes: list[str] = []
    while True:
        try:
            return start(len(causes))
        except WorkerDiedError as death:
            if max_restarts is None:
                raise
            causes.append(f"{type(death).__name__}: {death}".splitlines()[0])
            if len(causes) > max_restarts:
                raise PlacementError(
                    f"workers died {len(causes)} times: "
                    + "; ".join(f"{at + 1}. {cause}" for at, cause in enumerate(causes)),
                    legal=f"at most {max_restarts} restarts (max_restarts)",
                    remedy="mend the cause, then resume the run from its last checkpoint",
                ) from death
            say(f"restart {len(causes)} of {max_restarts} from the last checkpoint: {causes[-1]}")
        gc.collect()  # what the error held of the last start: engines of samplers that have not died
