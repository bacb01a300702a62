"""Invariant checks as observers of a run, registered per determinism level.

All of them together take about one percent of a step. Each raises StepError or LevelError, and the step is not learned
from.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from torch import Tensor

from rlcore.algorithms.advantages import TokenAdvantages
from rlcore.checks.advantage_checks import check_estimates, check_relative, check_token_rewards, check_whitened
from rlcore.checks.match_checks import MatchChecks
from rlcore.checks.rollout_checks import (
    check_batch,
    check_requests,
    check_sent,
    check_trajectories,
    check_undrawn,
)
from rlcore.checks.update_checks import (
    Kept,
    check_clipped,
    check_configured,
    check_epoch,
    check_frozen,
    check_kept,
    check_no_gradient,
    check_own_memory,
    check_passes,
    check_rate,
    check_stepped,
    kept,
    num_steps_of,
)
from rlcore.config import PpoSection
from rlcore.determinism import check_level
from rlcore.observability.events import (
    AdvantagesEstimated,
    ClipBegins,
    Clipped,
    EpochDivided,
    Event,
    GroupAdvantagesEstimated,
    LearningBegins,
    MinibatchLearned,
    ModelsBuilt,
    OptimizerStepBegins,
    PassBegins,
    PassesDone,
    ReferenceUsed,
    RequestsBuilt,
    RolloutBatched,
    SamplingBegins,
    StepBegins,
    TrajectoriesSampled,
    Updated,
    WeightsMove,
    WeightsMoved,
)
from rlcore.observability.observers import Observer


class ModelChecks(Observer):
    """Check that models share no memory, the sampler has the policy's weights, and the reference does not change."""

    def __init__(self) -> None:
        self._num_reference_writes: int | None = None

    def observe(self, event: Event) -> None:
        """Check models when they are built, sent and used."""
        match event:
            case ModelsBuilt(models):
                check_own_memory(models)
            case SamplingBegins(policy, receipt):
                check_sent(policy, receipt)
            case ReferenceUsed(reference):
                self._num_reference_writes = check_frozen(reference, self._num_reference_writes)


class RolloutChecks(Observer):
    """Check that requests have distinct noise, and that the batch holds their own trajectories and rewards."""

    def __init__(self) -> None:
        self._keys: frozenset[int] = frozenset()

    def observe(self, event: Event) -> None:
        """Check requests, trajectories and the batch."""
        match event:
            case RequestsBuilt(requests):
                self._keys = check_requests(requests, self._keys)
            case TrajectoriesSampled(requests, trajectories, receipt, tokenizer):
                check_trajectories(requests, trajectories, receipt, tokenizer)
            case RolloutBatched(batch, trajectories, scores):
                check_batch(batch, trajectories, scores)


class AdvantageChecks(Observer):
    """Advantages are what their estimator promises."""

    def observe(self, event: Event) -> None:
        """Check advantages against what they were computed from."""
        match event:
            case AdvantagesEstimated(batch, PpoSection() as section):
                check_token_rewards(batch["outcome_rewards"], batch)
                estimated = TokenAdvantages(batch["gae"], batch["returns"])
                check_estimates(estimated, batch["token_rewards"], batch, gamma=section.gamma, lam=section.lam)
                if section.whitens_advantages:
                    check_whitened(batch["advantages"], batch["loss_mask"], batch["included"])
            case GroupAdvantagesEstimated(batch):
                check_relative(batch["group_advantages"], batch["rewards"], batch["groups"], batch["included"])


class MinibatchChecks(Observer):
    """An epoch has every sample once, its passes read all of it, and nothing of the batch is written meanwhile."""

    def __init__(self) -> None:
        self._kept: Kept = {}

    def observe(self, event: Event) -> None:
        """Check epochs, minibatches and passes."""
        match event:
            case LearningBegins(batch):
                self._kept = kept(batch)
            case EpochDivided(samples, num_samples):
                check_epoch(samples, num_samples)
            case MinibatchLearned(batch):
                check_kept(batch, self._kept)
            case PassesDone(_, losses, denominators):
                masks = [each.loss_mask for each in losses]
                check_passes(masks, denominators.num_tokens, denominators.num_samples)


class OptimizerChecks(Observer):
    """A pass begins without gradients, a clip has its effect, and each parameter is moved once, as configured."""

    def __init__(self) -> None:
        self._before_clip: Tensor | None = None
        self._num_steps: Mapping[Tensor, float] = {}
        self._rates: dict[tuple[str, int], float] = {}

    def observe(self, event: Event) -> None:
        """Check passes and optimizer steps."""
        match event:
            case PassBegins(parameters):
                check_no_gradient(parameters)
            case OptimizerStepBegins(optimizer, section):
                check_configured(optimizer, section)
            case ClipBegins(gradients):
                self._before_clip = gradients[-1].clone()
            case Clipped(gradients, factor):
                assert self._before_clip is not None
                check_clipped(self._before_clip, gradients[-1], factor)
            case WeightsMove(optimizer):
                self._num_steps = num_steps_of(optimizer)
            case WeightsMoved(_, model, optimizer):
                check_stepped(model, optimizer, self._num_steps)
            case Updated(trainer, step, rate):
                before = {key: value for key, value in self._rates.items() if key[1] == step}
                check_rate(rate, before.get((trainer, step)))
                self._rates = {**before, (trainer, step): rate}


class GeneratorChecks(Observer):
    """Nothing draws from the generators of torch and Python, which no checkpoint has."""

    PHASES: Mapping[str, tuple[str, ...]] = {
        "rollout": ("rollout",),
        "update": ("forward", "loss", "backward"),
        "critic": ("reference", "optimizer"),
    }
    """Stages that are checked, with the phases of a trace that they belong to."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Check the generators around a stage."""
        return check_undrawn(*self.PHASES[name]) if name in self.PHASES else nullcontext()


class LevelChecks(Observer):
    """The process still computes as the level has set it up."""

    def __init__(self, level: str) -> None:
        self._level = level

    def observe(self, event: Event) -> None:
        """Check the process before each step."""
        if isinstance(event, StepBegins):
            check_level(self._level)


ALWAYS: tuple[Callable[[], Observer], ...] = (
    ModelChecks,
    RolloutChecks,
    AdvantageChecks,
    MinibatchChecks,
    OptimizerChecks,
)
CHECKS: Mapping[str, tuple[Callable[[], Observer], ...]] = {
    "off": ALWAYS,
    "deterministic": (partial(LevelChecks, "deterministic"), *ALWAYS),
    "invariant": (partial(LevelChecks, "invariant"), *ALWAYS, GeneratorChecks, MatchChecks),
}
"""Checks by determinism level."""


def checks_of_level(level: str) -> tuple[Observer, ...]:
    """Build the checks of a determinism level, without state of another run."""
    return tuple(build() for build in CHECKS[level])
