"""Supervised steps on a task's own answers: from random weights no reward is ever seen to rise.

The same fixed microbatches and the same tree as in training: the result is as independent of threads and workers.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from rlcore.algorithms.aggregation import Denominators, sample_shares
from rlcore.algorithms.schedules import linear_lr
from rlcore.data.batch import Batch, collate
from rlcore.data.microbatches import Microbatch
from rlcore.data.minibatches import Minibatch
from rlcore.errors import InvalidValueError
from rlcore.keys import epoch_items
from rlcore.observability.events import WarmStartBegins, WarmStartEnds
from rlcore.observability.warm_start_record import WarmStart, WarmStep
from rlcore.train_state import TrainState
from rlcore.trainers.gradients import MicrobatchLoss
from rlcore.trainers.scoring import score
from rlcore.types import Prompt, Tokenizer
from rlcore.weights.source import digest_of

MAX_NORM = 1.0
"""Norm that gradients of a warm start are clipped to."""


def warm_start(
    state: TrainState,
    *,
    report: Callable[[float], None] = lambda loss: None,
    is_enough: Callable[[], bool] = lambda: False,
) -> WarmStart:
    """Teach the policy the answers of training prompts; `report` is given each step's loss, per token.

    `is_enough` is asked after every `check_every` steps, and ends it. Raises InvalidValueError if the task has no
    answers.
    """
    config, trainer = state.config, state.policy
    section, prompts = config.warm_start, state.task.train
    state.observers.emit(WarmStartBegins())
    before, steps = digest_of(trainer.weights()), list[WarmStep]()
    for step in range(section.num_steps):
        chosen = epoch_items(step * section.batch_size, section.batch_size, len(prompts), config.seed, "warm_start")
        batch = answers([prompts[index] for index in chosen], state.tokenizer).to(config.model.device)
        minibatch = Minibatch(batch, list(range(section.batch_size)), config, state.level)
        losses = trainer.forward_backward(minibatch.microbatches, partial(answer_loss, minibatch.denominators))
        digest = trainer.gradient_digest()
        rate = linear_lr(step, peak=section.learning_rate, num_steps=section.num_steps, final_ratio=0.1)
        norm = trainer.optimizer_step(learning_rate=rate, max_norm=MAX_NORM)
        steps.append(WarmStep(math.fsum(float(each.loss) for each in losses), digest, norm))
        report(steps[-1].loss)
        if (step + 1) % section.check_every == 0 and is_enough():
            break
    trainer.restart_optimizer()
    state.observers.emit(WarmStartEnds())
    return WarmStart(before, tuple(steps))


def answer_loss(denominators: Denominators, policy: nn.Module, microbatch: Microbatch) -> MicrobatchLoss:
    """Compute the cross-entropy of answers as a microbatch's share of the loss."""
    mask, losses = microbatch["loss_mask"], -score(policy, microbatch, 1.0).logprobs
    return MicrobatchLoss(sample_shares(losses, mask, "token-mean", denominators).sum(), observed={}, loss_mask=mask)


def answers(prompts: list[Prompt], tokenizer: Tokenizer) -> Batch:
    """Build a dense batch of prompts with their answers and an end of sequence; the answers are learned."""
    pairs = []
    for prompt in prompts:
        if not isinstance(answer := prompt.columns.get("answer"), str):
            raise InvalidValueError(
                f"prompt {prompt.text!r} has no column `answer`, which a warm start learns",
                remedy="warm_start.num_steps: 0, or a column of texts",
            )
        pairs.append((list(prompt.tokens), [*tokenizer.encode(answer), tokenizer.eos_id]))
    sequences = {
        "tokens": [torch.tensor(prompt + answer) for prompt, answer in pairs],
        "loss_mask": [torch.tensor([False] * len(prompt) + [True] * len(answer)) for prompt, answer in pairs],
    }
    batch = collate(sequences, pad_values={"tokens": tokenizer.pad_id})
    return batch.extended(prompt_lengths=torch.tensor([len(prompt) for prompt, _ in pairs]))
