"""The loop of a run in one process: a step, a sync, and what is due between steps."""

from pathlib import Path

from rlcore.checkpoints.resume import DIRECTORY, save_checkpoint
from rlcore.config import GrpoSection
from rlcore.controllers.evaluation import evaluate
from rlcore.determinism import check_level
from rlcore.observability.logs import RunLog
from rlcore.observability.step_metrics import StepMetrics
from rlcore.recipes.grpo import grpo_step
from rlcore.recipes.ppo import ppo_step
from rlcore.train_state import Engine
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


def loop(engine: Engine, first: int, directory: Path, log: RunLog) -> None:
    """The steps from `first` on, with what is due between them; the sampler has the policy's weights from here on."""
    engine.receipt = sync(engine.decoder, engine.sampler, first, None)
    output, num_steps = engine.config.output, engine.config.training.num_steps
    if first == 0:
        log.evaluation(0, evaluate(engine, engine.task.heldout, step=0))
    log.phase("training", num_steps, first)
    for step in range(first, num_steps):
        metrics = recorded_step(engine, step)
        told = metrics.told()
        log.step(step, told | engine.phases.taken())
        log.advance(reward=told.get("reward_mean", float("nan")), loss=told.get("loss", float("nan")))
        done, is_last = step + 1, step + 1 == num_steps
        if is_last or (output.evaluate_every and done % output.evaluate_every == 0):
            log.evaluation(done, evaluate(engine, engine.task.heldout, step=done))
        if is_last or (output.checkpoint_every and done % output.checkpoint_every == 0):
            save_checkpoint(engine, directory / DIRECTORY, done)


def recorded_step(engine: Engine, step: int) -> StepMetrics:
    """One step, its weights handed on, everything recorded."""
    check_level(engine.level)
    algorithm, recorder = engine.config.algorithm, engine.recorder
    recorder.begin_step(step)
    if step == 0 and engine.warm_start is not None:
        engine.warm_start.record(recorder)
        engine.warm_start = None
    if isinstance(algorithm, GrpoSection):
        metrics = grpo_step(engine, algorithm, step)
    else:
        metrics = ppo_step(engine, algorithm, step)
    with engine.phases("sync"):
        engine.receipt = sync(engine.decoder, engine.sampler, step + 1, engine.receipt, has_learned=metrics.has_learned)
    recorder.record("sync", "weights_digest", engine.receipt.weights_digest)
    told = metrics.told()
    recorder.end_step(**{name: told[ours] for name, ours in CURVE.items() if ours in told})
    return metrics
