"""What a step works with: built once, handed to the recipe. It holds, and does nothing."""

from dataclasses import dataclass, field

from rlcore.config import RunConfig
from rlcore.data.tasks import Task
from rlcore.models.decoder import Decoder
from rlcore.observability.mismatches import Mismatches
from rlcore.observability.observers import Observers
from rlcore.observability.phases import Phases
from rlcore.observability.warm_start_record import WarmStart
from rlcore.samplers.base import Sampler
from rlcore.trainers.trainer import Trainer
from rlcore.types import Tokenizer
from rlcore.weights.receipts import Receipt


@dataclass(slots=True)
class TrainState:
    """The parts of one run."""

    config: RunConfig
    level: str
    task: Task
    tokenizer: Tokenizer
    policy: Trainer
    sampler: Sampler
    observers: Observers
    phases: Phases = field(default_factory=Phases)
    """Seconds and memory of the step; one of the observers."""
    mismatches: Mismatches = field(default_factory=Mismatches)
    """Mismatch of trainer and sampler in the step; one of the observers."""
    critic: Trainer | None = None
    """Trainer of PPO's critic."""
    reference: Trainer | None = None
    """Policy as it was after the warm start, if a KL coefficient asks for it."""
    kl_coef: float = 0.0
    """KL coefficient; it moves if it is adaptive."""
    receipt: Receipt | None = None
    """Receipt of the weights that the sampler has."""
    warm_start: WarmStart | None = None
    """What there is to record of the warm start, in step 0; None if the run is resumed or has none."""

    @property
    def decoder(self) -> Decoder:
        """The policy's model: the live one of a trainer of this process, else a copy of its weights."""
        return self.policy.weights().decoder()

    @property
    def models(self) -> tuple[Trainer, ...]:
        """All models of the run, the policy first."""
        return tuple(model for model in (self.policy, self.critic, self.reference) if model is not None)

    @property
    def trainers(self) -> tuple[Trainer, ...]:
        """All trainers of the run, the policy's first."""
        return (self.policy,) if self.critic is None else (self.policy, self.critic)
