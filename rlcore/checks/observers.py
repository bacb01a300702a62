"""Invariant checks as observers of a run, registered per determinism level.

All of them together take about one percent of a step. Each raises StepError or LevelError, and the step is not learned
from.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from torch import Tensor, nn

from rlcore.algorithms.advantages import TokenAdvantages
from rlcore.checks.advantage_checks import (
    check_estimates,
    check_greedy,
    check_kl_in_rewards,
    check_relative,
    check_scaled,
    check_token_rewards,
    check_whitened,
)
from rlcore.checks.agreement_checks import AgreementChecks
from rlcore.checks.match_checks import MatchChecks
from rlcore.checks.rollout_checks import (
    check_batch,
    check_heldout,
    check_keys,
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
    check_group_rates,
    check_kept,
    check_no_gradient,
    check_norm,
    check_own_memory,
    check_passes,
    check_rate,
    check_scheduled,
    check_stepped,
    kept,
    norm_of,
    num_steps_of,
)
from rlcore.checks.witnesses import DrawChecks, GradientChecks, ReferenceChecks
from rlcore.config import PpoSection, RunConfig
from rlcore.data.trajectory import Trajectory
from rlcore.determinism import check_level
from rlcore.numerics.probe import check_num_threads
from rlcore.observability.events import (
    AdvantagesEstimated,
    BatchExtended,
    ClipBegins,
    Clipped,
    EpochDivided,
    Evaluated,
    Event,
    GradientsReduced,
    GreedyScored,
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
    RunBegins,
    SamplingBegins,
    StepBegins,
    TrajectoriesSampled,
    Updated,
    WeightsMove,
    WeightsMoved,
    WeightsSynced,
)
from rlcore.observability.observers import Observer
from rlcore.recipes.update import learning_rate as rate_of
from rlcore.samplers.drawing import check_known


class ModelChecks(Observer):
    """Check that models share no memory, the sampler has the policy's weights, and the reference does not change."""

    def __init__(self) -> None:
        self._models: Mapping[str, nn.Module] = {}
        self._reference_digest = ""

    def observe(self, event: Event) -> None:
        """Check models when they are built, before each step, when they are used, and after each sync."""
        match event:
            case ModelsBuilt(models):
                self._models = models
                check_own_memory(models)
            case StepBegins():
                check_own_memory(self._models)
            case SamplingBegins(policy, receipt):
                check_sent(policy, receipt)
            case ReferenceUsed(reference):
                self._reference_digest = check_frozen(reference, self._reference_digest)
            case WeightsSynced(receipt, policy):
                check_sent(policy, receipt)
                check_own_memory(self._models)


class RolloutChecks(Observer):
    """Check that requests have their own noise, that the batch holds their trajectories and rewards, and evaluations.

    The noise itself is checked against constants when a run begins.
    """

    def __init__(self) -> None:
        self._keys: frozenset[int] = frozenset()
        self._run: RunBegins | None = None
        self._train: frozenset[str] = frozenset()
        self._step = 0

    def observe(self, event: Event) -> None:
        """Check noise, requests, trajectories, the batch and evaluated prompts."""
        match event:
            case RunBegins(_, train):
                check_known()
                self._run, self._train = event, frozenset(prompt.text for prompt in train)
            case Evaluated(_, trajectories):
                check_heldout(trajectories, self._train)
            case StepBegins(step):
                self._step = step
            case RequestsBuilt(requests):
                if self._run is not None:
                    check_keys(requests, seed=self._run.config.seed, step=self._step)
                self._keys = check_requests(requests, self._keys)
            case TrajectoriesSampled(requests, trajectories, receipt, tokenizer):
                check_trajectories(requests, trajectories, receipt, tokenizer)
            case RolloutBatched(batch, trajectories, scores):
                check_batch(batch, trajectories, scores)


class AdvantageChecks(Observer):
    """Advantages are what their estimator promises."""

    def __init__(self) -> None:
        self._trajectories: Sequence[Trajectory] = ()
        self._greedy: GreedyScored | None = None

    def observe(self, event: Event) -> None:
        """Check baselines and advantages against what they were computed from."""
        match event:
            case RolloutBatched(_, trajectories):
                self._trajectories = trajectories
            case GreedyScored():
                self._greedy = event
            case BatchExtended(batch, _, names) if "greedy_rewards" in names:
                assert self._greedy is not None
                check_greedy(batch, self._trajectories, self._greedy)
            case AdvantagesEstimated(batch, PpoSection() as section, kl_coef):
                check_token_rewards(batch["outcome_rewards"], batch)
                check_kl_in_rewards(batch["token_rewards"], batch, kl_coef)
                estimated = TokenAdvantages(batch["gae"], batch["returns"])
                check_estimates(estimated, batch["token_rewards"], batch, gamma=section.gamma, lam=section.lam)
                if section.whitens_advantages:
                    check_whitened(batch["advantages"], batch["loss_mask"], batch["included"])
            case GroupAdvantagesEstimated(batch, estimator):
                found, rewards, groups = (batch[name] for name in ("group_advantages", "rewards", "groups"))
                check_relative(found, rewards, groups, batch["included"])
                check_scaled(found, rewards, groups, batch["included"], estimator)


class MinibatchChecks(Observer):
    """An epoch has every sample once, its passes read all of it, and nothing of the batch is written meanwhile."""

    def __init__(self) -> None:
        self._kept: Kept = {}

    def observe(self, event: Event) -> None:
        """Check epochs, minibatches and passes."""
        match event:
            case LearningBegins(batch):
                self._kept = kept(batch)
            case EpochDivided(samples):
                check_epoch(samples, self._kept["included"][0].tolist())
            case MinibatchLearned(batch):
                check_kept(batch, self._kept)
            case PassesDone(_, losses, denominators):
                masks = [each.loss_mask for each in losses]
                check_passes(masks, denominators.num_tokens, denominators.num_samples)


class OptimizerChecks(Observer):
    """A pass begins without gradients, a clip has its effect, and each parameter is moved once, as configured."""

    def __init__(self) -> None:
        self._before_clip: Tensor | None = None
        self._norms: dict[str, float | None] = {}
        self._trainer = ""
        self._num_steps: Mapping[Tensor, float] = {}
        self._rates: dict[tuple[str, int], float] = {}
        self._config: RunConfig | None = None

    def observe(self, event: Event) -> None:
        """Check passes and optimizer steps."""
        match event:
            case PassBegins(parameters):
                check_no_gradient(parameters)
            case OptimizerStepBegins(optimizer, section):
                check_configured(optimizer, section)
            case RunBegins(config):
                self._config = config
            case GradientsReduced(trainer, by_name):
                self._trainer, self._norms[trainer] = trainer, norm_of([*by_name.values()])
            case ClipBegins(gradients):
                self._before_clip = gradients[-1].clone()
            case Clipped(gradients, factor, max_norm):
                assert self._before_clip is not None
                check_clipped(self._before_clip, gradients[-1], factor)
                if self._norms[self._trainer] is not None:  # else this process has a part of them
                    check_norm(norm_of(gradients), max_norm, f"gradients of the {self._trainer} after their clip")
            case WeightsMove(optimizer, learning_rate):
                check_group_rates(optimizer, learning_rate)
                self._num_steps = num_steps_of(optimizer)
            case WeightsMoved(_, model, optimizer):
                check_stepped(model, optimizer, self._num_steps)
            case Updated(trainer, step, rate, norm):
                check_norm(norm, self._norms.get(trainer), f"gradients of the {trainer}, as reported,")
                if self._config is not None:
                    check_scheduled(trainer, rate, scheduled_rate(self._config, trainer, step))
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
        self._num_threads: int | None = None

    def observe(self, event: Event) -> None:
        """Check the process before each step, and that torch has the number of threads of the first one."""
        if isinstance(event, StepBegins):
            check_level(self._level)
            self._num_threads = check_num_threads(self._num_threads)


def scheduled_rate(config: RunConfig, trainer: str, step: int) -> float:
    """Return the learning rate of a trainer in a step, from its own peak rate."""
    algorithm, peak = config.algorithm, config.optimizer.learning_rate
    if trainer == "critic" and isinstance(algorithm, PpoSection):
        peak = algorithm.critic_learning_rate
    return rate_of(config.optimizer, peak, step, config.training.num_steps)


ALWAYS: tuple[Callable[[], Observer], ...] = (
    ModelChecks,
    RolloutChecks,
    AdvantageChecks,
    MinibatchChecks,
    OptimizerChecks,
    GradientChecks,
    AgreementChecks,
)
CHECKS: Mapping[str, tuple[Callable[[], Observer], ...]] = {
    "off": ALWAYS,
    "deterministic": (partial(LevelChecks, "deterministic"), *ALWAYS),
    "invariant": (
        partial(LevelChecks, "invariant"),
        *ALWAYS,
        GeneratorChecks,
        MatchChecks,
        ReferenceChecks,
        DrawChecks,
    ),
}
"""Checks by determinism level."""


def checks_of_level(level: str) -> tuple[Observer, ...]:
    """Build the checks of a determinism level, without state of another run."""
    return tuple(build() for build in CHECKS[level])
