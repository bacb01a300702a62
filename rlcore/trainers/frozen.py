"""A model that is read and never trained: the reference policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from rlcore.data.microbatches import Microbatch
from rlcore.observability.events import ReferenceUsed
from rlcore.observability.observers import Observers
from rlcore.trainers.base import Reader, Reading
from rlcore.weights.source import WeightSource


class FrozenModel:
    """Reads microbatches, and lets observers see the model each time."""

    def __init__(self, reader: Reader, model: nn.Module, observers: Observers) -> None:
        """Read by `reader`; `model` is what this process has of its model."""
        self.name = reader.name
        """Name of the model in records and checkpoints: reference."""
        self.model = model
        self._reader, self._observers = reader, observers

    def read(self, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read microbatches; return what was read, in their order."""
        self._observers.emit(ReferenceUsed(self.model))
        return self._reader.read(microbatches, reading)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the model."""
        self._reader.load_weights(weights)

    def rest(self, directory: Path | None) -> None:
        """Leave the device until the model is read again."""
        self._reader.rest(directory)

    def weights(self) -> WeightSource:
        """Return the weights as they are now."""
        return self._reader.weights()
