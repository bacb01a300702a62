"""The models of a run and their trainers: the policy first, and from it the critic and the reference."""

import copy
from collections.abc import Callable

from torch import nn

from rlcore.config import RunConfig
from rlcore.models.decoder import Critic, Decoder
from rlcore.observability.events import ModelsBuilt
from rlcore.observability.observers import Observers
from rlcore.trainers.base import Trainer
from rlcore.trainers.frozen import FrozenModel
from rlcore.trainers.local import LocalTrainer


def alone(local: LocalTrainer) -> Trainer:
    """Return the trainer of a process that trains alone."""
    return local


class LocalModels:
    """Builds what trains and reads the models of this process, or this rank's part of them."""

    def __init__(
        self,
        config: RunConfig,
        decoder: Decoder,
        observers: Observers,
        *,
        parallel: Callable[[LocalTrainer], Trainer] = alone,
    ) -> None:
        """Build them from a decoder; `parallel` makes a trainer of several ranks of one that trains alone."""
        self._config, self._decoder, self._observers, self._parallel = config, decoder, observers, parallel
        self.built: dict[str, nn.Module] = {}
        """Models by name, or what this rank has of them."""
        self._policy: Trainer | None = None

    def policy(self) -> Trainer:
        """Build the trainer of the policy."""
        self._policy = self._trainer("policy", self._decoder, self._config.optimizer.learning_rate)
        return self._policy

    def critic(self, learning_rate: float) -> Trainer:
        """Build the trainer of a critic, which reads as the policy does now, and expects nothing yet."""
        return self._trainer("critic", build_critic(self._whole_policy()), learning_rate)

    def reference(self) -> FrozenModel:
        """Build the reference: the policy as it is now."""
        model = copy.deepcopy(self._whole_policy()).requires_grad_(False)
        return FrozenModel(self._trainer("reference", model, 0.0), model, self._observers)

    def check(self) -> None:
        """Let the observers see what was built; nothing has been trained with rewards yet."""
        self._observers.emit(ModelsBuilt(self.built))

    def _whole_policy(self) -> Decoder:
        assert self._policy is not None, "the policy is built first"
        return self._policy.weights().decoder()

    def _trainer(self, name: str, model: nn.Module, rate: float) -> Trainer:
        self.built[name] = model
        section, runtime = self._config.optimizer, self._config.runtime
        if self._parallel is alone:
            num_workers = max(runtime.world_size, self._config.deployment.num_ranks)
            runtime = runtime.model_copy(update={"world_size": num_workers})
        local = LocalTrainer(name, model, rate, section=section, runtime=runtime, observers=self._observers)
        return self._parallel(local)


def build_critic(decoder: Decoder) -> Critic:
    """Build a critic that reads as the policy does, and expects nothing yet."""
    critic = Critic(decoder.config).to(decoder.embedding.device, decoder.embedding.dtype)
    critic.decoder.load_state_dict({name: value for name, value in decoder.state_dict().items() if name != "head"})
    return critic
