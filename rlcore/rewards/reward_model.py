"""Rewards by a model: the number that a classifier gives to prompt and completion.

    prompts, completions ──own tokenizer──▶ sequences ──in order of arrival──▶ scorer ──▶ rewards, in their order

A scorer computes with torch here, or with vLLM (`rlcore.samplers.vllm.pooling`). At level invariant a score depends on
its sequence alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rlcore.data.rewards import TrainerState
from rlcore.errors import InvalidValueError
from rlcore.keys import permutation
from rlcore.models.classifier import Classifier
from rlcore.types import StopReason, Tokenizer

Tokens = Sequence[int]


class Scorer(Protocol):
    """Gives each sequence of tokens a number."""

    def __call__(self, sequences: Sequence[Tokens]) -> list[float]:
        """Return a score for each sequence, in their order."""


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
            self._sequence(prompt + text, is_ended=reason == StopReason.EOS)
            for prompt, text, reason in zip(prompts, completions, stop_reasons, strict=True)
        ]
        order = list(range(len(sequences)))
        if self.arrival_seed:
            order = permutation(len(sequences), "rewards arrive", self.arrival_seed, trainer_state.global_step)
        arrived = self.scorer([sequences[at] for at in order])
        found = dict(zip(order, arrived, strict=True))
        return [found[at] for at in range(len(sequences))]

    def check_prompt(self, text: str) -> None:
        """Raise InvalidValueError for a prompt that the tokenizer cannot read, or that is too long."""
        self._sequence(text, is_ended=True)

    def _sequence(self, text: str, *, is_ended: bool) -> list[int]:
        tokens = [*self.tokenizer.encode(text), *[self.tokenizer.eos_id] * is_ended]
        if len(tokens) > self.max_length:
            raise InvalidValueError(
                f"a prompt and completion of {len(tokens)} tokens of the reward model",
                legal=f"up to {self.max_length}",
                remedy="a larger reward_model.max_length, if the model has been trained so far",
            )
        return tokens


Held = Callable[[], AbstractContextManager[Any]]


class TorchScorer:
    """Scores with rlcore's own operations, up to `batch_size` sequences in a pass.

    `held` enters the level at which bits depend on no other row: without it, they depend on batch and padding.
    """

    def __init__(self, classifier: Classifier, *, batch_size: int, held: Held = nullcontext) -> None:
        self._classifier, self._batch_size, self._held = classifier, batch_size, held

    def __call__(self, sequences: Sequence[Tokens]) -> list[float]:
        """As `Scorer`."""
        with self._held(), torch.no_grad():
            return [score for few in _chunks(sequences, self._batch_size) for score in self._scores(few)]

    def _scores(self, sequences: Sequence[Tokens]) -> list[float]:
        lengths = [len(each) for each in sequences]
        tokens = torch.zeros(len(sequences), max(lengths), dtype=torch.int64)
        for row, each in enumerate(sequences):
            tokens[row, : len(each)] = torch.tensor(each)
        scores: list[float] = self._classifier(tokens.to(self._classifier.score.device), lengths).tolist()
        return scores


def _chunks(sequences: Sequence[Tokens], size: int) -> Iterator[Sequence[Tokens]]:
    return (sequences[at : at + size] for at in range(0, len(sequences), size))
