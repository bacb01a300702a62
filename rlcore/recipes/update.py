"""One optimizer step of a model over a minibatch, at the learning rate of the step."""

from rlcore.algorithms.schedules import constant_lr, cosine_lr, linear_lr
from rlcore.config import OptimizerSection
from rlcore.data.minibatches import Minibatch
from rlcore.observability.events import PassesDone, Updated
from rlcore.recipes.policy_pass import match_policy
from rlcore.train_state import TrainState
from rlcore.trainers.gradients import Loss
from rlcore.trainers.trainer import Trainer, Update


def update(state: TrainState, trainer: Trainer, minibatch: Minibatch, loss: Loss, step: int) -> Update:
    """Compute the gradient of a minibatch and move the weights once. Raises NonFiniteError."""
    section, observers = state.config.optimizer, state.observers
    with observers.stage("update"):
        losses = trainer.forward_backward(minibatch.microbatches, loss)
    observers.emit(PassesDone(trainer.name, losses, minibatch.denominators))
    if trainer is state.policy:
        match_policy(state, minibatch, losses)
    rate = learning_rate(section, trainer.peak_rate, step, state.config.training.num_steps)
    with observers.stage("optimizer"):
        norm = trainer.optimizer_step(learning_rate=rate, max_norm=section.max_gradient_norm)
    observers.emit(Updated(trainer.name, step, rate, norm))
    return Update(trainer.name, norm, rate, losses)


def learning_rate(section: OptimizerSection, peak: float, step: int, num_steps: int) -> float:
    """Return the learning rate of a step, which follows from its number alone."""
    match section.schedule:
        case "constant":
            return constant_lr(step, peak=peak, num_warmup_steps=section.num_warmup_steps)
        case "linear":
            decay = linear_lr
        case "cosine":
            decay = cosine_lr
    return decay(
        step,
        peak=peak,
        num_steps=num_steps,
        num_warmup_steps=section.num_warmup_steps,
        final_ratio=section.final_ratio,
    )
