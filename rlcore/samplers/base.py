"""The interface between the trainer and a sampler: rlcore's own decoder, or an engine in another process.

A beam search asks a sampler one question more: which tokens are most probable after a sequence? It holds no state
between calls. An engine answers it with the log-probabilities of its top tokens and `max_tokens=1`; contexts that
requests share are what its prefix cache is for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from rlcore.data.trajectory import Trajectory
from rlcore.errors import InvalidValueError, NonFiniteError
from rlcore.models.config import DecoderConfig
from rlcore.types import SampleRequest, Tokenizer
from rlcore.weights.target import WeightTarget

Progress = Callable[[int, int], None]
"""Called with (completions done, completions asked for) whenever some are done. An exception that it raises cancels."""


class Sampler(Protocol):
    """Draws completions with its own copy of the weights, in this process or in another one.

    A completion follows from its request and the weights alone: not from the requests beside it, nor from their order.
    A sampler decodes a bounded number of completions at once, however many it is asked for. Nothing here hands out a
    tensor of the sampler. `tests/conformance/sampler_suite.py` is the contract as tests.
    """

    @property
    def policy_version(self) -> int:
        """Version of the weights it samples with."""

    @property
    def weights_digest(self) -> str:
        """Digest of the weights it samples with."""

    @property
    def weight_target(self) -> WeightTarget:
        """Target of the syncs that give it other weights."""

    def sample(self, requests: Sequence[SampleRequest], *, progress: Progress | None = None) -> list[Trajectory]:
        """Return a trajectory of one completion for each request, in their order.

        An exception of `progress` cancels the call: the completions that are not done are dropped, and the sampler
        takes the next call. Raises InvalidValueError for a request that cannot be done, before anything is drawn, and
        WeightSyncError between the `begin` and the `commit` of its weight target.
        """


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


def named(request: SampleRequest) -> str:
    """For people."""
    return f"sample {request.sample_index} of prompt {request.prompt.id}"


def check_options(config: DecoderConfig, tokenizer: Tokenizer, *, preempt_every: int) -> None:
    """Check what a sampler is built with. Raises InvalidValueError."""
    if preempt_every < 0:
        raise InvalidValueError(f"preempt_every {preempt_every}", legal="0 (never) or more")
    if tokenizer.vocab_size > config.vocab_size:
        raise InvalidValueError(
            f"a tokenizer of {tokenizer.vocab_size} tokens",
            legal=f"up to {config.vocab_size}, the decoder's vocabulary",
        )


def check_requests(requests: Sequence[SampleRequest], config: DecoderConfig) -> None:
    """Raises InvalidValueError, naming the request, for one this decoder cannot do."""
    for request in requests:
        if request.beams is not None:
            raise InvalidValueError(
                f"{named(request)} asks for items after its completion",
                legal="beams of None where completions are drawn",
                remedy="sample it with rlcore.samplers.two_stage.sample_two_stage",
            )
        tokens, max_tokens = request.prompt.tokens, request.params.max_tokens
        if not tokens:
            raise InvalidValueError(f"{named(request)} has no tokens", legal="a prompt of at least one token")
        if min(tokens) < 0 or max(tokens) >= config.vocab_size:
            raise InvalidValueError(
                f"{named(request)} has token {max(tokens) if min(tokens) >= 0 else min(tokens)}",
                legal=f"0 to {config.vocab_size - 1}, the decoder's vocabulary",
                remedy="the tokenizer of this decoder",
            )
        if len(tokens) + max_tokens > config.max_length:
            raise InvalidValueError(
                f"{named(request)} has {len(tokens)} tokens and asks for {max_tokens} more",
                legal=f"up to {config.max_length} together, the decoder's max_length",
                remedy="a smaller sampling.max_tokens, or shorter prompts",
            )


def check_next_token_requests(requests: Sequence[NextTokenRequest], vocab_size: int, max_length: int) -> None:
    """Raise InvalidValueError for a sequence that this decoder cannot read."""
    for request in requests:
        sequence = request.sequence
        if not request.context or not 1 <= len(sequence) < max_length:
            raise InvalidValueError(
                f"a next token after {len(request.context)} + {len(request.tokens)} tokens",
                legal=f"a context of at least one token, and up to {max_length - 1} together",
                remedy="shorter prompts, reasonings or items",
            )
        if wrong := [token for token in sequence if not 0 <= token < vocab_size]:
            raise InvalidValueError(
                f"a next token after token {wrong[0]}",
                legal=f"0 to {vocab_size - 1}, the decoder's vocabulary",
                remedy="the tokenizer of this decoder",
            )
        if request.num_tokens < 1:
            raise InvalidValueError(f"{request.num_tokens} next tokens", legal="1 or more")


def not_finite(request: NextTokenRequest) -> NonFiniteError:
    """Return the error of a sequence after which a log-probability is NaN."""
    return NonFiniteError(
        f"next tokens after {list(request.sequence)[-8:]} have log-probabilities that are NaN",
        remedy="check the weights that the sampler received: logits are NaN or infinite",
        phases=("rollout",),
    )
