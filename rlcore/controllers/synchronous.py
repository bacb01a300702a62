"""The loop of a run in one process: a step, a sync, and what is due between steps."""

from pathlib import Path

from rlcore.config import GrpoSection
from rlcore.controllers.evaluation import evaluate
from rlcore.errors import LevelError
from rlcore.observability.events import Evaluated, StepBegins, StepEnds, WeightsSynced
from rlcore.observability.logs import RunLog
from rlcore.observability.step_metrics import StepMetrics
from rlcore.recipes.grpo import grpo_step
from rlcore.recipes.ppo import ppo_step
from rlcore.resume import DIRECTORY, save_checkpoint
from rlcore.train_state import TrainState
from rlcore.weights.sync import sync

CURVE = {
    "reward_mean": "reward_mean",
    "loss": "loss",
    "gradient_norm": "grad_norm",
    "kl": "approx_kl",
    "entropy": "entropy",
    "completion_length": "completion_length",
}
"""Names in a trace's curve, and in metrics."""


def loop(state: TrainState, first: int, directory: Path, log: RunLog) -> None:
    """Sync the sampler, then make the steps from `first` on, with the evaluations and checkpoints due between them."""
    state.receipt = sync(state.policy.weights(), state.sampler.weight_target, first, None)
    output, num_steps = state.config.output, state.config.training.num_steps
    if first == 0:
        evaluate_heldout(state, log, 0)
    log.phase("training", num_steps, first)
    for step in range(first, num_steps):
        metrics = make_step(state, step).merged()
        log.step(step, metrics | state.mismatches.take() | state.phases.take())
        log.advance(reward=metrics.get("reward_mean", float("nan")), loss=metrics.get("loss", float("nan")))
        done, is_last = step + 1, step + 1 == num_steps
        if is_last or (output.evaluate_every and done % output.evaluate_every == 0):
            evaluate_heldout(state, log, done)
        if is_last or (output.checkpoint_every and done % output.checkpoint_every == 0):
            save_checkpoint(state, directory / DIRECTORY, done)
    if output.shows_progress:
        for line in state.phases.lines():
            log.say(line)


def evaluate_heldout(state: TrainState, log: RunLog, step: int) -> None:
    """Evaluate the held-out prompts after `step` steps, and log it."""
    found = evaluate(state, state.task.heldout, step=step)
    state.observers.emit(Evaluated(step, found.trajectories, found.scores))
    log.evaluation(step, found)


def make_step(state: TrainState, step: int) -> StepMetrics:
    """Make one step of the algorithm and sync its weights; observers see where it begins and ends.

    A LevelError names the step.
    """
    try:
        return _make_step(state, step)
    except LevelError as error:
        raise error.in_step(step) from error.__cause__


def _make_step(state: TrainState, step: int) -> StepMetrics:
    algorithm, observers = state.config.algorithm, state.observers
    observers.emit(StepBegins(step, state.warm_start if step == 0 else None))
    if isinstance(algorithm, GrpoSection):
        metrics = grpo_step(state, algorithm, step)
    else:
        metrics = ppo_step(state, algorithm, step)
    with observers.stage("sync"):
        target = state.sampler.weight_target
        state.receipt = sync(state.policy.weights(), target, step + 1, state.receipt, has_learned=metrics.has_learned)
    observers.emit(WeightsSynced(state.receipt, state.policy.weights()))
    merged = metrics.merged()
    observers.emit(StepEnds({name: merged[ours] for name, ours in CURVE.items() if ours in merged}))
    return metrics
