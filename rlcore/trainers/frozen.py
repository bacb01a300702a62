"""A model that is read and never trained: the reference policy."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rlcore.batching.microbatches import Microbatch
from rlcore.config import RuntimeSection
from rlcore.numerics.probe import num_threads
from rlcore.observability.events import ReferenceUsed
from rlcore.observability.observers import Observers
from rlcore.trainers.base import Reading
from rlcore.weights.source import LiveWeights


class FrozenModel:
    """Reads microbatches by a model of this process."""

    def __init__(self, name: str, model: nn.Module, *, runtime: RuntimeSection, observers: Observers) -> None:
        self.name = name
        """Name of the model in records and checkpoints: reference."""
        self.model = model.requires_grad_(False)
        self._runtime = runtime
        self._observers = observers

    def read(self, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read microbatches; return what was read, in their order."""
        self._observers.emit(ReferenceUsed(self.model))
        with torch.no_grad(), num_threads(self._runtime.training_threads):
            return [reading(self.model, microbatch) for microbatch in microbatches]

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the model."""
        self.model.load_state_dict(weights)

    def weights(self) -> LiveWeights:
        """Return the live weights."""
        return LiveWeights(self.model)
