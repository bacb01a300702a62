"""The interface of a transport."""

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

from rlcore.weights.target import WeightTarget

NamedTensors = Iterable[tuple[str, Tensor]]
"""Names and tensors, one after the other: no transport needs all of a model at once."""


class Transport(Protocol):
    """Carries named tensors to a target."""

    def __call__(self, weights: NamedTensors, target: WeightTarget, /) -> Iterable[str]:
        """Write each tensor into the target once; return the names that the target reports as written."""
