"""What happens when a worker dies: the run ends with the cause, or starts again from its last checkpoint."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from rlcore.errors import InvalidValueError, PlacementError

Result = TypeVar("Result")
OnWorkerDeath = Literal["fail", "restart"]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """What the controller does when a worker dies."""

    on_worker_death: OnWorkerDeath = "fail"
    max_restarts: int = 3
    """Most restarts of one run; used with `restart` alone."""

    def __post_init__(self) -> None:
        if self.on_worker_death not in get_args(OnWorkerDeath):
            raise InvalidValueError(
                f"on_worker_death {self.on_worker_death!r}", legal=", ".join(get_args(OnWorkerDeath))
            )
        if self.max_restarts < 0:
            raise InvalidValueError(f"max_restarts {self.max_restarts}", legal="0 or more")


def run_with_restarts(
    start: Callable[[int], Result],
    policy: RestartPolicy,
    *,
    deaths: tuple[type[Exception], ...],
    say: Callable[[str], None],
) -> Result:
    """Return what `start` returns; call it again, with the number of the restart, after a worker's death.

    `start(n)` starts all workers and trains to the end, for n > 0 from the newest complete checkpoint; it has ended
    what it started when it raises. `deaths` are the errors that mean a worker's death; any other error ends the run. So
    does a death under the policy `fail`, as it is. Raises PlacementError, with every cause, after the last restart.
    """
    causes: list[str] = []
    while True:
        try:
            return start(len(causes))
        except deaths as death:
            if policy.on_worker_death == "fail":
                raise
            causes.append(f"{type(death).__name__}: {death}".splitlines()[0])
            if len(causes) > policy.max_restarts:
                raise PlacementError(
                    f"workers died {len(causes)} times: "
                    + "; ".join(f"{at + 1}. {cause}" for at, cause in enumerate(causes)),
                    legal=f"at most {policy.max_restarts} restarts (max_restarts)",
                    remedy="mend the cause, then resume the run from its last checkpoint",
                ) from death
            say(f"restart {len(causes)} of {policy.max_restarts} from the last checkpoint: {causes[-1]}")
        gc.collect()  # what the error held of the last start: engines of samplers that have not died
