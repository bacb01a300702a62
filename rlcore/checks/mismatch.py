"""Mismatch: tokens whose log-probability the trainer and the sampler disagree on. Pure functions of tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore.types import Tokenizer

CONTEXT = 8
"""Tokens that are shown before and after the worst one."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Comparison of two kinds of log-probabilities of the same tokens."""

    num_different: int
    num_tokens: int
    largest: float
    """Largest difference in nats; inf if a value is NaN."""
    row: int
    """Row of the token with the largest difference, the first of several."""
    column: int
    trainer: float
    sampler: float


def mismatch_of(trainer: Tensor, sampler: Tensor, mask: Tensor) -> Mismatch | None:
    """Compare log-probabilities [samples, positions] where the mask is true; None if all bits are equal."""
    differs = mask & (trainer != sampler)
    if not bool(differs.any()):
        return None
    distances = (trainer.double() - sampler.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    distances = torch.where(differs, distances, -1.0)
    row, column = divmod(int(distances.argmax()), mask.shape[1])
    return Mismatch(
        num_different=int(differs.sum()),
        num_tokens=int(mask.sum()),
        largest=float(distances[row, column]),
        row=row,
        column=column,
        trainer=float(trainer[row, column]),
        sampler=float(sampler[row, column]),
    )


def in_context(tokenizer: Tokenizer, tokens: tuple[int, ...], position: int) -> str:
    """Return the text around a token, which stands between « and »."""
    before, after = tokens[max(0, position - CONTEXT) : position], tokens[position + 1 : position + 1 + CONTEXT]
    left, token, right = (tokenizer.decode(part) for part in (before, tokens[position : position + 1], after))
    return repr(f"{left}«{token}»{right}")
