"""Models in other processes, as a controller holds them: one generic handle over the dispatch table of the workers."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from rlcore.config import RunConfig
from rlcore.log import Record, Recorder
from rlcore.models.decoder import Decoder
from rlcore.trainers.trainer import Trainer, peak_rate
from rlcore.weights.target import ParameterSpec

if TYPE_CHECKING:
    from rlcore.trainers.worker import ModelWorker


class RemoteModel:
    """A trainer whose methods are those of the dispatch table of `ModelWorker`, called with the model's name."""

    def __init__(self, name: str, workers: "ModelWorker", peak_rate: float) -> None:
        self.name, self.peak_rate, self._workers = name, peak_rate, workers

    def __getattr__(self, method: str) -> Any:
        return partial(getattr(self._workers, method), self.name)

    def weights(self) -> "RemoteWeights":
        """Return the weights as they are now."""
        return RemoteWeights(self.name, self._workers)


def build_remote(config: RunConfig, workers: "ModelWorker", name: str) -> Trainer:
    """Let the workers build the model of this name; return its handle."""
    workers.build(name)
    return cast(Trainer, RemoteModel(name, workers, peak_rate(config, name)))


class RemoteWeights(Mapping[str, Tensor]):
    """The weights of a model of the workers by name; a tensor is fetched when it is asked for, and not kept."""

    def __init__(self, model: str, workers: "ModelWorker") -> None:
        self._model, self._workers, found = model, workers, workers.describe_weights(model)
        self.config, self.dtype, self.names, self.tied = found.config, found.dtype, found.names, found.tied
        self._specs = found.specs

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        return self

    def specs(self) -> dict[str, ParameterSpec]:
        """Return type, shape and memory of each tensor."""
        return self._specs

    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor, computed where it is."""
        return self._workers.weight_digests(self._model)

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Return what the policy gives each token after the first."""
        return self._workers.logprobs(self._model, tokens)

    def decoder(self) -> Decoder:
        """Build a decoder with a copy of the weights."""
        decoder = Decoder(self.config).to(dtype=self.dtype)
        decoder.load_state_dict({name: self[name] for name in self.names}, strict=False)
        return decoder

    def __getitem__(self, parameter: str) -> Tensor:
        if parameter not in self._specs:
            raise KeyError(parameter)
        return self._workers.weight(self._model, parameter)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


class RecordWithWorkers(Record):
    """The record of a controller, whose workers record the same steps."""

    def __init__(self, recorder: Recorder, workers: "ModelWorker") -> None:
        super().__init__(recorder)
        self._workers = workers

    def begin_step(self, step: int) -> None:
        """Begin a step in all processes."""
        self._workers.begin_step(step)
        super().begin_step(step)

    def end_step(self, **curve: float) -> None:
        """End the step in all processes; the curve is the controller's."""
        self._workers.end_step()
        super().end_step(**curve)
