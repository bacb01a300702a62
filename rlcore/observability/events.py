"""Events of a run, as its observers see them: one frozen dataclass for each point at which something can be seen.

    models ─▶ requests ─▶ trajectories ─▶ batch ─▶ log-probabilities ─▶ advantages ─▶ minibatches ─▶ passes ─▶ update

An event holds live objects. Observers read them; nothing that they do is part of the computation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlcore.algorithms.aggregation import Denominators
from rlcore.config import GrpoSection, OptimizerSection, PpoSection, RunConfig
from rlcore.data.batch import Batch
from rlcore.data.scoring import Scores
from rlcore.data.trajectory import Trajectory
from rlcore.observability.warm_start_record import WarmStart
from rlcore.types import Prompt, SampleRequest, Tokenizer
from rlcore.weights.receipts import Receipt
from rlcore.weights.target import WeightTarget

if TYPE_CHECKING:
    from rlcore.trainers.gradients import MicrobatchLoss
    from rlcore.weights.source import WeightSource


@dataclass(frozen=True, slots=True)
class RunBegins:
    """A run has its configuration and its task; nothing has been computed yet."""

    config: RunConfig
    train: Sequence[Prompt]
    """Prompts of training."""


@dataclass(frozen=True, slots=True)
class ModelsBuilt:
    """All models of the run exist, and none has been trained yet."""

    models: Mapping[str, nn.Module]


@dataclass(frozen=True, slots=True)
class WarmStartBegins:
    """Supervised updates follow, before the first step."""


@dataclass(frozen=True, slots=True)
class WarmStartEnds:
    """The warm start is done."""


@dataclass(frozen=True, slots=True)
class StepBegins:
    """A step begins."""

    step: int
    warm_start: WarmStart | None
    """Warm start that preceded the first step, if there was one."""


@dataclass(frozen=True, slots=True)
class StepEnds:
    """A step has ended; its weights are synced."""

    curve: Mapping[str, float]
    """Values of the step's training curve by name."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Held-out prompts have been sampled and scored, between steps."""

    step: int
    """Steps that were made before it."""
    trajectories: Sequence[Trajectory]
    scores: Scores


@dataclass(frozen=True, slots=True)
class SamplingBegins:
    """The step is about to sample with the weights of the last receipt."""

    policy: "WeightSource"
    receipt: Receipt | None
    target: WeightTarget
    """Weights of the sampler."""


@dataclass(frozen=True, slots=True)
class RequestsBuilt:
    """The requests of a step, in canonical order."""

    requests: Sequence[SampleRequest]


@dataclass(frozen=True, slots=True)
class TrajectoriesSampled:
    """The trajectories of the requests, in the order of the requests."""

    requests: Sequence[SampleRequest]
    trajectories: Sequence[Trajectory]
    receipt: Receipt | None
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class RolloutBatched:
    """The trajectories of a step and their rewards are a dense batch."""

    batch: Batch
    trajectories: Sequence[Trajectory]
    scores: Scores


@dataclass(frozen=True, slots=True)
class GreedyScored:
    """The greedy completions of a step, one for each prompt, have their rewards."""

    trajectories: Sequence[Trajectory]
    scores: Scores


@dataclass(frozen=True, slots=True)
class ReferenceUsed:
    """The reference policy is about to be read."""

    reference: nn.Module


@dataclass(frozen=True, slots=True)
class BatchExtended:
    """A stage has added entries to the batch."""

    batch: Batch
    phase: str
    """Phase of the trace that the entries belong to."""
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PolicyMatched:
    """Log-probabilities of the policy that sampled, by the trainer and by the sampler; the same shape each."""

    logprobs: Tensor
    rollout_logprobs: Tensor
    loss_mask: Tensor
    samples: Sequence[int]
    """Row of the batch of each row of these."""
    first: int
    """Position of the first column."""


@dataclass(frozen=True, slots=True)
class GroupAdvantagesEstimated:
    """The batch has an advantage for each sample, relative to those of its prompt."""

    batch: Batch
    estimator: str
    """Value of algorithm.advantage."""


@dataclass(frozen=True, slots=True)
class AdvantagesEstimated:
    """The batch has its advantages, and what they were computed from."""

    batch: Batch
    section: GrpoSection | PpoSection
    kl_coef: float
    """Coefficient of the KL in the rewards of tokens; 0 if it is not in them."""


@dataclass(frozen=True, slots=True)
class LearningBegins:
    """The batch is complete: nothing of it may be written until the step has learned from it."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class EpochDivided:
    """The rows that the minibatches of an epoch have, in their order."""

    samples: Sequence[int]


@dataclass(frozen=True, slots=True)
class MinibatchLearned:
    """A minibatch of the batch has been learned from."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class PassBegins:
    """A forward pass with a gradient is about to begin."""

    parameters: Sequence[nn.Parameter]


@dataclass(frozen=True, slots=True)
class BackwardBegins:
    """The backward pass of a microbatch's loss is about to begin."""

    trainer: str
    parameters: Sequence[nn.Parameter]
    loss: Tensor


@dataclass(frozen=True, slots=True)
class GradientsSummed:
    """The gradients of all microbatches of an update are summed in this process, fp32, in the order of parameters."""

    trainer: str
    gradients: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class PassesDone:
    """The forward and backward passes of an update are done; losses in the order of microbatches."""

    trainer: str
    losses: "Sequence[MicrobatchLoss]"
    denominators: Denominators


@dataclass(frozen=True, slots=True)
class OptimizerStepBegins:
    """An optimizer step is about to be made."""

    optimizer: torch.optim.Optimizer
    section: OptimizerSection


@dataclass(frozen=True, slots=True)
class GradientsReduced:
    """The sum of the gradients of an update, by parameter, before clipping."""

    trainer: str
    gradients: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class ClipBegins:
    """Gradients are about to be multiplied by a factor, in place."""

    gradients: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Clipped:
    """Gradients have been multiplied by the factor."""

    gradients: Sequence[Tensor]
    factor: float
    max_norm: float


@dataclass(frozen=True, slots=True)
class WeightsMove:
    """The optimizer is about to write the weights."""

    optimizer: torch.optim.Optimizer
    learning_rate: float


@dataclass(frozen=True, slots=True)
class WeightsMoved:
    """The optimizer has written the weights of a model."""

    trainer: str
    model: nn.Module
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, slots=True)
class Updated:
    """An update of one model is done."""

    trainer: str
    step: int
    learning_rate: float
    norm: float
    """Norm of the gradient, before clipping."""


@dataclass(frozen=True, slots=True)
class WeightsSynced:
    """The sampler has the policy's weights; the receipt proves it."""

    receipt: Receipt
    policy: "WeightSource"


Event = (
    RunBegins
    | ModelsBuilt
    | WarmStartBegins
    | WarmStartEnds
    | StepBegins
    | StepEnds
    | Evaluated
    | SamplingBegins
    | RequestsBuilt
    | TrajectoriesSampled
    | RolloutBatched
    | GreedyScored
    | ReferenceUsed
    | BatchExtended
    | PolicyMatched
    | GroupAdvantagesEstimated
    | AdvantagesEstimated
    | LearningBegins
    | EpochDivided
    | MinibatchLearned
    | PassBegins
    | BackwardBegins
    | GradientsSummed
    | PassesDone
    | OptimizerStepBegins
    | GradientsReduced
    | ClipBegins
    | Clipped
    | WeightsMove
    | WeightsMoved
    | Updated
    | WeightsSynced
)
