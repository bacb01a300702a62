"""Supervised steps on a task's own answers: from random weights no reward is ever seen to rise.

The same lanes and the same tree as in training, so that what comes out is as free of threads and workers.
"""

import math
from collections.abc import Callable

import torch
from tensordict import TensorDict

from rlcore.algorithms.aggregation import sample_shares
from rlcore.algorithms.schedules import linear_lr
from rlcore.batching.collate import collate, pad
from rlcore.batching.microbatches import Lane
from rlcore.batching.minibatches import Minibatch
from rlcore.errors import InvalidValueError
from rlcore.keys import epoch_items
from rlcore.numerics.probe import num_threads
from rlcore.observability.warm_start_record import WarmStart, WarmStep
from rlcore.trace import NullRecorder
from rlcore.train_state import Engine
from rlcore.trainers.local import LanePart, Learner, adamw, gradient, step_optimizer
from rlcore.trainers.scoring import score
from rlcore.types import Prompt, Tokenizer
from rlcore.weights.digests import tensor_digest, weights_digest


def warm_start(
    engine: Engine,
    *,
    told: Callable[[float], None] = lambda loss: None,
    is_enough: Callable[[], bool] = lambda: False,
) -> WarmStart:
    """Teach the policy the answers of training prompts; `told` hears of each step's loss, per token.

    `is_enough` is asked after every `check_every` steps, and ends it. Raises InvalidValueError where the task has no
    answers.
    """
    config, decoder = engine.config, engine.decoder
    section, prompts = config.warm_start, engine.task.train
    learner = Learner("policy", decoder, adamw(decoder, config.optimizer, section.learning_rate), section.learning_rate)
    before, steps = weights_digest(dict(decoder.named_parameters())), list[WarmStep]()
    for step in range(section.num_steps):
        chosen = epoch_items(step * section.batch_size, section.batch_size, len(prompts), config.seed, "warm_start")
        batch = answers([prompts[index] for index in chosen], engine.tokenizer).to(config.model.device)
        minibatch = Minibatch(batch, list(range(section.batch_size)), config, engine.level)

        def loss_of(lane: Lane, batch: TensorDict = batch, minibatch: Minibatch = minibatch) -> LanePart:
            mask = lane.of(batch["loss_mask"])
            shares = sample_shares(-score(decoder, lane, 1.0).logprobs, mask, "token-mean", minibatch.denominators)
            return LanePart(shares.sum(), {}, mask)

        with num_threads(config.perturbation.training_threads):
            found = gradient(decoder, minibatch.workers, loss_of)
            rate = linear_lr(step, peak=learner.peak_rate, num_steps=section.num_steps, final_ratio=0.1)
            digest = tensor_digest(found.flat)
            norm = step_optimizer(learner, found.flat, learning_rate=rate, max_norm=1.0, recorder=NullRecorder())
        steps.append(WarmStep(math.fsum(float(part.loss) for part in found.parts), digest, norm))
        told(steps[-1].loss)
        if (step + 1) % section.check_every == 0 and is_enough():
            break
    return WarmStart(before, tuple(steps))


def answers(prompts: list[Prompt], tokenizer: Tokenizer) -> TensorDict:
    """Prompts with their answers and an end of sequence, dense; the answers are learned."""
    pairs = []
    for prompt in prompts:
        if not isinstance(answer := prompt.columns.get("answer"), str):
            raise InvalidValueError(
                f"prompt {prompt.text!r} has no column `answer`, which a warm start learns",
                remedy="warm_start.num_steps: 0, or a column of texts",
            )
        pairs.append((list(prompt.tokens), [*tokenizer.encode(answer), tokenizer.eos_id]))
    batch = collate(
        sequences={
            "tokens": [torch.tensor(prompt + answer) for prompt, answer in pairs],
            "loss_mask": [torch.tensor([False] * len(prompt) + [True] * len(answer)) for prompt, answer in pairs],
        },
        numbers={"prompt_lengths": torch.tensor([len(prompt) for prompt, _ in pairs])},
    )
    return pad(batch, pad_values={"tokens": tokenizer.pad_id})
