"""Trainers in other processes, as a controller holds them: handles of a group of model workers.

A handle moves microbatches, losses and small values. Of the weights it fetches one tensor at a time, on request.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlcore.config import RunConfig
from rlcore.data.microbatches import Microbatch
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.observability.events import Event, StepBegins, StepEnds, WarmStartBegins, WarmStartEnds
from rlcore.observability.observers import Observer
from rlcore.trainers.base import Loss, MicrobatchLoss, Reading, TrainerState
from rlcore.weights.source import Groups
from rlcore.weights.target import ParameterSpec

if TYPE_CHECKING:
    from rlcore.trainers.worker import ModelWorker


class RemoteReader:
    """A model of the workers that is read."""

    def __init__(self, name: str, workers: "ModelWorker") -> None:
        """Read the model of this name; `workers` is the handle of a group."""
        self.name = name
        """Name of the model in records and checkpoints: policy, critic, reference."""
        self._workers = workers

    def read(self, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read microbatches without a gradient; return what was read, in their order."""
        return list(self._workers.read(self.name, list(microbatches), reading))

    def weights(self) -> "RemoteWeights":
        """Return the weights as they are now."""
        return RemoteWeights(self.name, self._workers)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the model. Raises CheckpointError if they are of other parameters."""
        self._workers.load_weights(self.name, dict(weights))

    def rest(self, directory: Path | None) -> None:
        """Let the ranks' parts leave their devices until the model is used again, as `Trainer.rest`."""
        self._workers.rest(self.name, directory)


class RemoteTrainer(RemoteReader):
    """A model of the workers that is trained."""

    def __init__(self, name: str, workers: "ModelWorker", peak_rate: float) -> None:
        """Train the model of this name; `workers` is the handle of a group."""
        super().__init__(name, workers)
        self.peak_rate = peak_rate
        """Learning rate before its schedule."""

    def forward_backward(
        self, microbatches: Sequence[Microbatch], loss: Loss, *, num_microbatches: int | None = None
    ) -> tuple[MicrobatchLoss, ...]:
        """Compute the gradient of the sum of the microbatches' losses; return these in the order of microbatches.

        Raises NonFiniteError.
        """
        in_order = sorted(microbatches, key=lambda microbatch: microbatch.number)
        count = len(in_order) if num_microbatches is None else num_microbatches
        return tuple(self._workers.forward_backward(self.name, in_order, loss, count))

    def optimizer_step(self, *, learning_rate: float, max_norm: float | None) -> float:
        """Clip the gradient, move the weights once, and return the gradient's norm before clipping.

        Raises NonFiniteError.
        """
        return self._workers.optimizer_step(self.name, learning_rate, max_norm)

    def gradient_digest(self) -> str:
        """Return the digest of the gradient of all parameters."""
        return self._workers.gradient_digest(self.name)

    def optimizer_digest(self) -> str:
        """Return the digest of all that the optimizer keeps."""
        return self._workers.optimizer_digest(self.name)

    def restart_optimizer(self) -> None:
        """Forget all that the optimizer has seen."""
        self._workers.restart_optimizer(self.name)

    @property
    def has_shards(self) -> bool:
        """Whether several ranks have the state."""
        return True

    def write_state(self, path: Path) -> None:
        """Let the ranks write the state into a directory that exists and each of them sees. Raises OSError."""
        self._workers.write_state(self.name, path)

    def read_state(self, path: Path) -> None:
        """Let the ranks load what `write_state` has written, by any number of ranks. Raises CheckpointError."""
        self._workers.read_state(self.name, path)

    def save(self) -> TrainerState:
        """Return the whole state, copied."""
        return self._workers.save(self.name)

    def load(self, state: TrainerState) -> None:
        """Copy a state into the model and its optimizer. Raises CheckpointError if it is of other parameters."""
        self._workers.load(self.name, TrainerState(dict(state.weights), dict(state.optimizer)))


class RemoteWeights:
    """The weights of a model of the workers, fetched tensor by tensor."""

    def __init__(self, name: str, workers: "ModelWorker") -> None:
        """Read the weights of the model of this name."""
        self._name, self._workers = name, workers
        self._description = workers.describe_weights(name)

    @property
    def config(self) -> DecoderConfig:
        """Sizes of the model."""
        return self._description.config

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self._description.dtype

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors by name; each is fetched when it is asked for, and not kept."""
        return FetchedTensors(self._name, self._workers, tuple(self._description.specs))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in the model's order; of tied ones only the first."""
        return self._description.names

    @property
    def tied(self) -> Groups:
        """Groups of names that are one parameter."""
        return self._description.tied

    def specs(self) -> dict[str, ParameterSpec]:
        """Return type, shape and memory of each tensor."""
        return self._description.specs

    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor, computed where it is."""
        return self._workers.weight_digests(self._name)

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Return what the policy gives each token after the first."""
        return self._workers.logprobs(self._name, tokens)

    def decoder(self) -> Decoder:
        """Build a decoder with a copy of the weights."""
        decoder, tensors = Decoder(self.config), self.tensors
        decoder.to(dtype=self.dtype).load_state_dict({name: tensors[name] for name in self.names}, strict=False)
        return decoder


class FetchedTensors(Mapping[str, Tensor]):
    """Tensors of the workers by name."""

    def __init__(self, name: str, workers: "ModelWorker", parameters: tuple[str, ...]) -> None:
        """Fetch these parameters of the model `name`."""
        self._name, self._workers, self._parameters = name, workers, parameters

    def __getitem__(self, parameter: str) -> Tensor:
        """Fetch a tensor. Raises KeyError."""
        if parameter not in self._parameters:
            raise KeyError(parameter)
        return self._workers.weight(self._name, parameter)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._parameters)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._parameters)


class RemoteModels:
    """Lets the workers build the models of a run."""

    def __init__(self, config: RunConfig, workers: "ModelWorker") -> None:
        """Build them by the handle of a group."""
        self._config, self._workers = config, workers

    def policy(self) -> RemoteTrainer:
        """Build the trainer of the policy."""
        self._workers.build_policy()
        return RemoteTrainer("policy", self._workers, self._config.optimizer.learning_rate)

    def critic(self, learning_rate: float) -> RemoteTrainer:
        """Build the trainer of a critic, which reads as the policy does now, and expects nothing yet."""
        self._workers.build_critic(learning_rate)
        return RemoteTrainer("critic", self._workers, learning_rate)

    def reference(self) -> RemoteReader:
        """Build the reference: the policy as it is now."""
        self._workers.build_reference()
        return RemoteReader("reference", self._workers)

    def check(self) -> None:
        """Let the checks of the workers see what was built."""
        self._workers.check_models()


class StepsOfWorkers(Observer):
    """Passes on to the workers where steps and the warm start begin and end. The curve is the controller's."""

    def __init__(self, workers: "ModelWorker") -> None:
        """Tell the workers of this handle."""
        self._workers = workers

    def observe(self, event: Event) -> None:
        """Pass on an event that every process has to see."""
        match event:
            case StepBegins(step):
                self._workers.observe(StepBegins(step, None))
            case StepEnds():
                self._workers.observe(StepEnds({}))
            case WarmStartBegins() | WarmStartEnds():
                self._workers.observe(event)
