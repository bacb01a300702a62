"""Rewards by a model: the number that a classifier gives to prompt and completion.

    prompts, completions ──own tokenizer──▶ sequences ──in order of arrival──▶ scorer ──▶ rewards, in their order

A scorer computes with torch here, or with vLLM (`rlcore.samplers.vllm.pooling`), which is imported only then. At level
invariant a score depends on its sequence alone.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlcore.config import RunConfig
from rlcore.data.rewards import Reward, TrainerState
from rlcore.data.tasks import Task
from rlcore.determinism import at_level
from rlcore.errors import InvalidValueError, RlcoreError
from rlcore.models.classifier import Classifier, load_classifier, save_classifier
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import load_tokenizer
from rlcore.seeds import key, permutation
from rlcore.types import StopReason, Tokenizer

NAME = "reward_model"
"""Name of the reward among the metrics, and of the directory of a model that is drawn here."""
Scorer = Callable[[Sequence[Sequence[int]]], list[float]]
"""Gives each sequence of tokens a number."""


@dataclass(frozen=True, slots=True)
class ModelReward:
    """A reward function in TRL's signature, by a scorer."""

    scorer: Scorer
    tokenizer: Tokenizer
    """Tokenizer of the reward model."""
    max_length: int
    """Most tokens of a prompt and its completion."""
    arrival_seed: int = 0
    """Order in which sequences reach the scorer; 0 is their own."""

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        stop_reasons: Sequence[str],
        trainer_state: TrainerState,
    ) -> list[float]:
        """Score texts; one that ended by itself has its end of sequence. Raises InvalidValueError for a long one."""
        sequences = [
            self.tokens_of(prompt + text, is_ended=reason == StopReason.EOS)
            for prompt, text, reason in zip(prompts, completions, stop_reasons, strict=True)
        ]
        order = list(range(len(sequences)))
        if self.arrival_seed:
            order = permutation(len(sequences), "rewards arrive", self.arrival_seed, trainer_state.global_step)
        found = dict(zip(order, self.scorer([sequences[at] for at in order]), strict=True))
        return [found[at] for at in range(len(sequences))]

    def tokens_of(self, text: str, *, is_ended: bool) -> list[int]:
        """Return the tokens of a text. Raises InvalidValueError for one that cannot be read, or that is too long."""
        tokens = [*self.tokenizer.encode(text), *[self.tokenizer.eos_id] * is_ended]
        if len(tokens) > self.max_length:
            raise InvalidValueError(
                f"a prompt and completion of {len(tokens)} tokens of the reward model",
                legal=f"up to {self.max_length}",
                remedy="a larger reward_model.max_length, if the model has been trained so far",
            )
        return tokens


class TorchScorer:
    """Scores with rlcore's own operations, up to `batch_size` sequences in a pass.

    `held` enters the level at which bits depend on no other row: without it, they depend on batch and padding.
    """

    def __init__(
        self, classifier: Classifier, *, batch_size: int, held: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        self._classifier, self._batch_size, self._held = classifier, batch_size, held

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """As `Scorer`."""
        scores: list[float] = []
        with self._held(), torch.no_grad():
            for at in range(0, len(sequences), self._batch_size):
                few = [torch.tensor(each) for each in sequences[at : at + self._batch_size]]
                tokens = torch.nn.utils.rnn.pad_sequence(few, batch_first=True).to(self._classifier.score.device)
                scores += self._classifier(tokens, list(map(len, few))).tolist()
        return scores


def add_reward_model(
    task: Task,
    config: RunConfig,
    level: str,
    *,
    tokenizer: Tokenizer,
    decoder: Decoder,
    directory: Path,
    report: Callable[[str], None],
) -> Task:
    """Return the task with the reward of its model, if it has one.

    A model without a path has the policy's sizes and tokenizer, and is written to the run's directory first. Raises
    InvalidValueError for a model that cannot be served, or whose tokenizer cannot read a prompt, and CheckpointError.
    """
    section = config.task.reward_model
    if section is None:
        return task
    path = Path(section.path) if section.path else directory / NAME
    if not section.path:
        drawn = Classifier(decoder.config).initialise(key("reward model", config.seed) >> 1)
        save_classifier(drawn.to(decoder.embedding.dtype), path, pad_id=tokenizer.pad_id)
        tokenizer.save(path)
    try:
        classifier = load_classifier(path, device=config.model.device)
        own = load_tokenizer(path)
    except RlcoreError as error:
        raise InvalidValueError(
            f"task.reward_model.path {path}: {error.what}",
            legal=error.legal or "a directory with config.json, model.safetensors and tokenizer.json of a classifier",
            remedy=error.remedy or "name the checkpoint of a classifier, or none: a model is then drawn from the seed",
        ) from error
    if own.vocab_size > classifier.config.vocab_size:
        raise InvalidValueError(
            f"a tokenizer of {own.vocab_size} tokens for the reward model {path}",
            legal=f"up to {classifier.config.vocab_size}, its vocabulary",
        )
    max_length = min(section.max_length, classifier.config.max_length)
    num_parameters = sum(each.numel() for each in classifier.parameters())
    report(f"reward model: {path}, {num_parameters:,} parameters, by {section.backend}, up to {max_length} tokens")
    batch_size, device = config.runtime.concurrency, config.model.device
    scorer: Scorer
    if section.backend == "vllm":
        from rlcore.samplers.vllm.pooling import VllmScorer

        scorer = VllmScorer(
            path,
            max_length=max_length,
            batch_size=batch_size,
            is_serial=level == "invariant",
            device=device,
            report=report,
        )
    else:
        held = partial(
            at_level,
            level,
            classifier.config,
            dtype=classifier.score.dtype,
            device=device,
            length=max_length,
            threads=(config.runtime.training_threads,),
        )
        scorer = TorchScorer(classifier, batch_size=batch_size, held=held)
    reward = ModelReward(scorer, own, max_length, config.runtime.arrival_seed)
    for prompt in (*task.train, *task.heldout):
        reward.tokens_of(prompt.text, is_ended=True)
    return replace(task, rewards=(*task.rewards, Reward(NAME, reward, section.weight)))
