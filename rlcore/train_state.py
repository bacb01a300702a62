"""What a step works with: made once by `run.py`, handed to the algorithm's step. It holds, and does nothing."""

from dataclasses import dataclass, field

from torch import nn

from rlcore.config import RunConfig
from rlcore.models.decoder import Decoder
from rlcore.models.value_head import Critic
from rlcore.observability.phases import Phases
from rlcore.observability.warm_start_record import WarmStart
from rlcore.samplers.base import Sampler
from rlcore.tasks.base import Task
from rlcore.trace import Recorder
from rlcore.trainers.local import Learner
from rlcore.types import Tokenizer
from rlcore.weights.receipts import Receipt


@dataclass(slots=True)
class Engine:
    """The parts of one run."""

    config: RunConfig
    level: str
    task: Task
    tokenizer: Tokenizer
    policy: Learner
    sampler: Sampler
    recorder: Recorder
    critic: Learner | None = None
    """PPO's."""
    reference: Decoder | None = None
    """The policy as it was after the warm start, where a KL coefficient asks for it."""
    kl_coef: float = 0.0
    """Moves where it is adaptive."""
    receipt: Receipt | None = None
    """Of the weights that the sampler has."""
    keys: frozenset[int] = frozenset()
    """Those that the completions of the step before were drawn with."""
    num_reference_writes: int | None = None
    """How often the reference had been written when it was first read; nobody writes it afterwards."""
    warm_start: WarmStart | None = None
    """What there is to record of it, in step 0; None where a run goes on, or begins without."""
    phases: Phases = field(default_factory=Phases)

    @property
    def decoder(self) -> Decoder:
        """The policy's model."""
        assert isinstance(self.policy.model, Decoder)
        return self.policy.model

    @property
    def value_model(self) -> Critic:
        """The critic's model; only where there is one."""
        assert self.critic is not None and isinstance(self.critic.model, Critic)
        return self.critic.model

    @property
    def models(self) -> dict[str, nn.Module]:
        """All that there are but the sampler's, by name."""
        named: dict[str, nn.Module] = {learner.name: learner.model for learner in self.learners}
        return named if self.reference is None else named | {"reference": self.reference}

    @property
    def learners(self) -> tuple[Learner, ...]:
        """Those that there are."""
        return (self.policy,) if self.critic is None else (self.policy, self.critic)
