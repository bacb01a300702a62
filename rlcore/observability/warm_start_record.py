"""Recorded values of a warm start. It ends before the first step begins, and is recorded as part of it.

    step 0:  optimizer warm_start.weights_digest │ loss, backward, optimizer of each supervised step │ rollout ...

Scalars and digests: a warm start has hundreds of steps, and where it first differs is what has to be found.
"""

from dataclasses import dataclass
from typing import NamedTuple

from rlcore.log import Record

NAME = "warm_start"


class WarmStep(NamedTuple):
    """Recorded values of one supervised step."""

    loss: float
    """Per token."""
    gradient_digest: str
    """Of the gradient of all parameters, before clipping."""
    gradient_norm: float
    """Before clipping."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What a warm start leaves, kept until the first step records it."""

    weights_digest: str
    """Of the policy before it."""
    steps: tuple[WarmStep, ...]

    def record(self, record: Record) -> None:
        """Record them as the first values of the first step; occurrence k of each is that of supervised step k."""
        record("optimizer", f"{NAME}.weights_digest", self.weights_digest)
        for step in self.steps:
            record("loss", NAME, step.loss)
            record("backward", f"{NAME}.gradient_digest", step.gradient_digest)
            record("optimizer", f"{NAME}.gradient_norm", step.gradient_norm)
