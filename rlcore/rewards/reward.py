"""A reward function, and how it counts."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlcore.errors import InvalidValueError

RewardFunction = Callable[..., Any]
"""`f(prompts, completions, completion_ids, **columns)`, a list of one number or None a completion; or `async def`."""
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What TRL calls `trainer_state`, as far as a reward may depend on it."""

    global_step: int


@dataclass(frozen=True, slots=True)
class Reward:
    """A function and its share of the total."""

    name: str
    """Of its column in the metrics; no two rewards have the same."""
    function: RewardFunction
    weight: float = 1.0
    timeout_s: float = TIMEOUT_S
    """What an async function may take for a batch; one that is not async cannot be stopped."""

    def __post_init__(self) -> None:
        """Raises InvalidValueError."""
        if not callable(self.function):
            raise InvalidValueError(f"{self.name} is {self.function!r}", legal="a function")
        if not math.isfinite(self.weight):
            raise InvalidValueError(f"{self.name}: weight {self.weight!r}", legal="a finite number")
        if not self.timeout_s > 0:
            raise InvalidValueError(f"{self.name}: timeout_s {self.timeout_s!r}", legal="above 0; math.inf for none")

    @property
    def is_async(self) -> bool:
        """Whether its result is awaited; an object may have an async `__call__`."""
        return any(map(inspect.iscoroutinefunction, (self.function, type(self.function).__call__)))
