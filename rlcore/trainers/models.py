"""The models of a run and their trainers: the policy first, and from it the critic and the reference."""

import copy

from torch import nn

from rlcore.config import RunConfig
from rlcore.models.decoder import Decoder
from rlcore.models.value_head import Critic
from rlcore.observability.events import ModelsBuilt
from rlcore.observability.observers import Observers
from rlcore.trainers.frozen import FrozenModel
from rlcore.trainers.local import LocalTrainer


class LocalModels:
    """Builds what trains and reads the models of this process."""

    def __init__(self, config: RunConfig, decoder: Decoder, observers: Observers) -> None:
        self._config, self._decoder, self._observers = config, decoder, observers
        self._built: dict[str, nn.Module] = {}

    def policy(self) -> LocalTrainer:
        """Build the trainer of the policy."""
        return self._trainer("policy", self._decoder, self._config.optimizer.learning_rate)

    def critic(self, learning_rate: float) -> LocalTrainer:
        """Build the trainer of a critic, which reads as the policy does now, and expects nothing yet."""
        return self._trainer("critic", build_critic(self._decoder), learning_rate)

    def reference(self) -> FrozenModel:
        """Build the reference: the policy as it is now."""
        model = self._built["reference"] = copy.deepcopy(self._decoder)
        return FrozenModel("reference", model, runtime=self._config.runtime, observers=self._observers)

    def check(self) -> None:
        """Let the observers see what was built; nothing has been trained with rewards yet."""
        self._observers.emit(ModelsBuilt(self._built))

    def _trainer(self, name: str, model: nn.Module, rate: float) -> LocalTrainer:
        self._built[name] = model
        section, runtime = self._config.optimizer, self._config.runtime
        return LocalTrainer(name, model, rate, section=section, runtime=runtime, observers=self._observers)


def build_critic(decoder: Decoder) -> Critic:
    """Build a critic that reads as the policy does, and expects nothing yet."""
    critic = Critic(decoder.config).to(decoder.embedding.device, decoder.embedding.dtype)
    critic.decoder.load_state_dict({name: value for name, value in decoder.state_dict().items() if name != "head"})
    return critic
