"""From logits to a token for each row, and its log-probability. Pure: what is random comes in as states of the noise.

A token is the largest of logit / temperature + noise among those allowed. Its log-probability is of the whole
vocabulary at that temperature, the same operations as a trainer's `token_logprobs(logits / temperature, tokens)`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore.numerics.log_softmax import token_logprobs
from rlcore.samplers.filters import Filters
from rlcore.samplers.gumbel import GumbelNoise
from rlcore.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Plan:
    """How the tokens of some rows are drawn, worked out once for as long as they are the same rows."""

    temperatures: tuple[tuple[float, Tensor | None], ...]
    """Each that is not 1, with the rows that have it; None is all of them."""
    is_drawn: Tensor | None
    """bool [rows, 1]: not the most probable token; None is all of them."""
    is_greedy: bool
    """The most probable token of every row."""
    filters: Filters | None

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> "Plan":
        """Of one row for each of `params`."""
        given = [row.temperature for row in params]
        told: list[tuple[float, Tensor | None]] = []
        for value in sorted({*given} - {0.0, 1.0}):
            rows = [row for row, temperature in enumerate(given) if temperature == value]
            told.append((value, None if len(rows) == len(given) else torch.tensor(rows, device=device)))
        is_drawn = None if all(given) else torch.tensor([[value > 0] for value in given], device=device)
        filters = Filters.of(params, vocab_size, device)
        return cls(tuple(told), is_drawn, not any(given), filters)


def at_temperature(logits: Tensor, plan: Plan) -> Tensor:
    """Logits [rows, vocabulary] over each row's temperature; as they are where it is 0 or 1.

    Divided by a number and in the logits' own type, as a trainer does: a column of temperatures may round differently.
    """
    for temperature, rows in plan.temperatures:
        if rows is None:
            return logits / temperature
        logits = logits.index_copy(0, rows, logits[rows] / temperature)
    return logits


def draw(logits: Tensor, plan: Plan, noise: GumbelNoise, states: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [rows, vocabulary], states of the noise int64 [rows] -> (tokens int64 [rows], logprobs fp32 [rows]).

    Among equals the lowest token. Where logits are NaN, so is the log-probability.
    """
    logits = at_temperature(logits, plan)
    scores = logits
    if not plan.is_greedy:
        added = noise(states)
        scores = added.add_(logits) if plan.is_drawn is None else torch.where(plan.is_drawn, added, 0.0).add_(logits)
    if plan.filters is not None:
        scores = scores.masked_fill(~plan.filters.allowed(logits), -torch.inf)
    tokens = scores.argmax(-1)
    return tokens, token_logprobs(logits, tokens)
