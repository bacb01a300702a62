"""The question that a beam search asks of a sampler: which tokens are most probable after a sequence?

It holds no state between calls, so that a sampler may be an engine in another process. An engine answers it with the
log-probabilities of its top tokens and `max_tokens=1`; contexts that requests share are what its prefix cache is for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from rlcore.samplers.base import Sampler


class NextToken(NamedTuple):
    """A token that may come next."""

    token: int
    logprob: float
    """Of the whole vocabulary at the request's temperature: an fp32 number."""


@dataclass(frozen=True, slots=True)
class NextTokenRequest:
    """A sequence whose next token is wanted, in two parts."""

    context: tuple[int, ...]
    """Begin of the sequence, at least one token; several requests may share it."""
    tokens: tuple[int, ...]
    """Rest of the sequence; may be empty."""
    num_tokens: int
    """Most tokens that are wanted."""
    temperature: float
    """0 counts as 1: nothing is drawn."""

    @property
    def sequence(self) -> tuple[int, ...]:
        """All tokens that come before."""
        return self.context + self.tokens


@runtime_checkable
class NextTokenSampler(Sampler, Protocol):
    """A sampler that beams can be searched with. `tests/conformance/next_tokens_suite.py` is the contract as tests."""

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence, what is drawn included."""

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """Return the `num_tokens` most probable next tokens of each sequence, the most probable first.

        Among equal log-probabilities the lower token comes first. A token that the tokenizer lacks is never among
        them, nor one of probability 0; there may be fewer tokens than wanted, or none. At level invariant an answer
        follows from its request and the weights alone. Raises InvalidValueError for a sequence without a context or
        above `max_length`, NonFiniteError where a log-probability is NaN, and WeightSyncError as `sample`.
        """
