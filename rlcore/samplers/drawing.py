"""From logits to a token for each row, and its log-probability; what is random is a hash of key, position and token.

    key of a completion (`rlcore.seeds.completion_key`), position ─▶ state ─▶ noise of each token ─▶ the largest of
    logit / temperature + noise among the tokens that the filters allow

No generator, so nothing to lose or to share: a token's noise is the same in whatever batch, at whatever index and time
it is asked for, and whatever was filtered before. The token with the largest log-probability plus Gumbel noise is a
draw from the distribution (Gumbel 1954; Maddison, Tarlow and Minka 2014). Whole numbers are mixed with splitmix64's
finaliser (Steele, Lea and Flood 2014) in int64, which wraps, and whose bits are those of uint64; only shifts to the
right need a mask. The same on any device, up to the last bit of log.

A log-probability is of the whole vocabulary at its temperature, the same operations as a trainer's
(`rlcore.train.read_tokens`). Filters keep the top k, then the top p of what is left, then what is not
below min p of the best, all in the order of the vocabulary: a filter forbids tokens and moves nothing. Among equals the
lower token comes first. transformers 5 computes the same where no two logits are equal; with equal ones it may keep
more than k.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore.numerics.log_softmax import log_softmax, token_logprobs
from rlcore.types import SamplingParams

BITS = 52
"""Of a uniform number. With 24, no noise is above 17.4, and what is less probable than that is never drawn."""
ELEMENTS_AT_ONCE = 1 << 16
"""Mixed together on a CPU: half a megabyte, which stays in a core's cache."""
GPU_ELEMENTS_AT_ONCE = 1 << 24
"""Mixed together on a GPU, where each piece costs a dozen launches: 128 MB, all rows of most batches."""


def signed(number: int) -> int:
    """The int64 of the same 64 bits, such as of a key."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


GOLDEN = signed(0x9E3779B97F4A7C15)
_FACTORS = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)
_SHIFTS = 30, 27, 31
_ONE = 0x3FF << BITS
"""The bits of 1.0, to which a fraction is added."""


def _shifted(x: Tensor, count: int) -> Tensor:
    """x >> count with zeros from the left."""
    return (x >> count).bitwise_and_((1 << (64 - count)) - 1)


def mixed_(x: Tensor) -> Tensor:
    """splitmix64's finaliser, in place: int64 of any shape, every bit of the result of every bit of x."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        x.bitwise_xor_(_shifted(x, shift)).mul_(factor)
    return x.bitwise_xor_(_shifted(x, _SHIFTS[-1]))


def uniforms(bits: Tensor) -> Tensor:
    """The upper 52 bits n of each int64 -> (n + 1/2) / 2^52 in fp64, exact: never 0, never 1."""
    fractions = _shifted(bits, 64 - BITS).bitwise_or_(_ONE).view(torch.float64)
    return fractions.sub_(1.0 - 0.5 ** (BITS + 1))


def gumbels_(uniform: Tensor) -> Tensor:
    """-log(-log(u)) of numbers in (0, 1), in place."""
    return uniform.log_().neg_().log_().neg_()


def states(keys: Tensor, positions: Tensor) -> Tensor:
    """What the noise of each position begins with: int64 of any shapes that go together -> int64.

    Positions count a completion's tokens from 0. A key begins a splitmix64 sequence of positions, and each number of it
    one of tokens.
    """
    return mixed_((positions + 1) * GOLDEN + keys)


@dataclass(frozen=True, slots=True)
class GumbelNoise:
    """Noise for each token of a vocabulary."""

    ids: Tensor
    """int64 [vocabulary]: what each token's number adds to a state."""

    @classmethod
    def of(cls, vocab_size: int, device: torch.device) -> "GumbelNoise":
        """A token's noise does not depend on how many others there are."""
        return cls(torch.arange(1, vocab_size + 1, device=device) * GOLDEN)

    def __call__(self, states: Tensor) -> Tensor:
        """States int64 [rows] -> fp64 [rows, vocabulary]; pieces have the bits of the whole."""
        elements = ELEMENTS_AT_ONCE if self.ids.is_cpu else GPU_ELEMENTS_AT_ONCE
        rows = max(1, elements // len(self.ids))
        parts = [gumbels_(uniforms(mixed_(part.unsqueeze(1) + self.ids))) for part in torch.split(states, rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


UNIT = float(1 << 40)
"""Shares of the best token's probability are counted in such parts: sums of whole numbers know no order."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of each row."""

    top_k: Tensor
    """int64 [rows, 1]; the whole vocabulary, or more, is no filter."""
    top_p: Tensor
    """fp64 [rows, 1]; infinity is no filter: the last shares may count as 0."""
    min_p: Tensor
    """fp64 [rows, 1]; 0 is no filter."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> "Filters | None":
        """None where no row has one."""
        if not any(row.top_k or row.top_p < 1.0 or row.min_p for row in params):
            return None
        top_p = [row.top_p if row.top_p < 1.0 else float("inf") for row in params]
        return cls(
            torch.tensor([row.top_k or vocab_size for row in params], device=device).unsqueeze(1),
            torch.tensor(top_p, dtype=torch.float64, device=device).unsqueeze(1),
            torch.tensor([row.min_p for row in params], dtype=torch.float64, device=device).unsqueeze(1),
        )

    def allowed(self, logits: Tensor) -> Tensor:
        """Logits at their temperature [rows, vocabulary] -> bool, the same shape; at least one token of each row."""
        falling, order = torch.sort(logits.double(), dim=-1, descending=True, stable=True)
        ranks = torch.arange(logits.shape[-1], device=logits.device)
        left = ranks < self.top_k
        shares = (falling - falling[:, :1]).exp_().masked_fill_(~left, 0.0)
        counts = (shares * UNIT).long()
        above = counts.cumsum(-1) - counts
        left = left & (above < self.top_p * counts.sum(-1, keepdim=True)) & (shares >= self.min_p)
        left[:, 0] = True
        return torch.empty_like(left).scatter_(1, order, left)


Temperatures = tuple[tuple[float, Tensor | None], ...]
"""Each that is neither 0 nor 1, with the rows that have it; None is all of them."""


def by_temperature(given: Sequence[float], device: torch.device) -> Temperatures:
    """Find the rows of each temperature."""
    told: list[tuple[float, Tensor | None]] = []
    for value in sorted({*given} - {0.0, 1.0}):
        rows = [row for row, temperature in enumerate(given) if temperature == value]
        told.append((value, None if len(rows) == len(given) else torch.tensor(rows, device=device)))
    return tuple(told)


@dataclass(frozen=True, slots=True)
class Plan:
    """How the tokens of some rows are drawn, worked out once for as long as they are the same rows."""

    temperatures: Temperatures
    is_drawn: Tensor | None
    """bool [rows, 1]: not the most probable token; None is all of them."""
    is_greedy: bool
    """The most probable token of every row."""
    filters: Filters | None

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> "Plan":
        """Of one row for each of `params`."""
        given = [row.temperature for row in params]
        is_drawn = None if all(given) else torch.tensor([[value > 0] for value in given], device=device)
        filters = Filters.of(params, vocab_size, device)
        return cls(by_temperature(given, device), is_drawn, not any(given), filters)


def at_temperature(logits: Tensor, temperatures: Temperatures) -> Tensor:
    """Logits [rows, vocabulary] over each row's temperature; as they are where it is 0 or 1.

    Divided by a number and in the logits' own type, as a trainer does: a column of temperatures may round differently.
    """
    for temperature, rows in temperatures:
        if rows is None:
            return logits / temperature
        logits = logits.index_copy(0, rows, logits[rows] / temperature)
    return logits


def draw(logits: Tensor, plan: Plan, noise: GumbelNoise, states: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [rows, vocabulary], states of the noise int64 [rows] -> (tokens int64 [rows], logprobs fp32 [rows]).

    Among equals the lowest token. Where logits are NaN, so is the log-probability.
    """
    logits = at_temperature(logits, plan.temperatures)
    scores = logits
    if not plan.is_greedy:
        added = noise(states)
        scores = added.add_(logits) if plan.is_drawn is None else torch.where(plan.is_drawn, added, 0.0).add_(logits)
    if plan.filters is not None:
        scores = scores.masked_fill(~plan.filters.allowed(logits), -torch.inf)
    tokens = scores.argmax(-1)
    return tokens, token_logprobs(logits, tokens)


def logprobs_at(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Return the log-probabilities fp32 [rows, vocabulary] of logits, each row at its temperature; 0 counts as 1."""
    return log_softmax(at_temperature(logits, by_temperature(temperatures, logits.device)))


def ranked(logprobs: Tensor, num_tokens_known: int, most: int) -> tuple[Tensor, Tensor]:
    """Return the first `most` tokens of each row below `num_tokens_known`, and their log-probabilities, falling.

    Among equal log-probabilities the lower token comes first.
    """
    falling, order = torch.sort(logprobs[:, :num_tokens_known], dim=-1, descending=True, stable=True)
    return order[:, :most], falling[:, :most]
