"""The interface between the trainer and a sampler: rlcore's own decoder, or an engine in another process.

A beam search asks a sampler one question more: which tokens are most probable after a sequence? It holds no state
between calls. An engine answers it with the log-probabilities of its top tokens and `max_tokens=1`; contexts that
requests share are what its prefix cache is for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.errors import InvalidValueError, NonFiniteError
from rlcore.models.config import DecoderConfig
from rlcore.samplers.local_target import FencedTarget
from rlcore.samplers.stopping import StopText, reason
from rlcore.types import SampleRequest, Tokenizer
from rlcore.weights.target import WeightTarget


class Sampler(Protocol):
    """Draws completions with its own copy of the weights, in this process or in another one.

    A completion follows from its request and the weights alone: not from the requests beside it, nor from their order.
    A sampler decodes a bounded number of completions at once, however many it is asked for. Nothing here hands out a
    tensor of the sampler. `tests/conformance/sampler_suite.py` is the contract as tests.
    """

    @property
    def weight_target(self) -> WeightTarget:
        """Target of the syncs that give it other weights; it says which it has."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        """Return a trajectory of one completion for each request, in their order.

        An interruption drops the completions that are not done, and the sampler takes the next call. Raises
        InvalidValueError for a request that cannot be done, before anything is drawn, and WeightSyncError between the
        `begin` and the `commit` of its weight target.
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


class NextTokenSampler(Sampler, Protocol):
    """A sampler that beams can be searched with. `tests/conformance/next_tokens_suite.py` is the contract as tests."""

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """Return the `num_tokens` most probable next tokens of each sequence, the most probable first.

        Among equal log-probabilities the lower token comes first. A token that the tokenizer lacks is never among
        them, nor one of probability 0; there may be fewer tokens than wanted, or none. At level invariant an answer
        follows from its request and the weights alone. Raises NonFiniteError where a log-probability is NaN, and
        WeightSyncError as `sample`.
        """


@dataclass(slots=True, eq=False)
class RunningSequence:
    """A completion on its way."""

    number: int
    """How many requests were put before its own."""
    request: SampleRequest
    text: StopText | None
    """None where no text stops it."""
    ends: frozenset[int]
    """Tokens that stop it."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    is_done: bool = False
    arrival: int = 0
    """How many were admitted up to it."""

    @classmethod
    def of(cls, number: int, request: SampleRequest, tokenizer: Tokenizer) -> "RunningSequence":
        """Begin with nothing said."""
        params = request.params
        text = StopText(tokenizer, params.stop_strings) if params.stop_strings else None
        return cls(number, request, text, frozenset((tokenizer.eos_id, *params.stop_ids)))

    def put(self, token: int, logprob: float) -> None:
        """Append what was drawn, up to the token that ends it."""
        if not self.is_done:
            self.tokens.append(token)
            self.logprobs.append(logprob)
            is_by_text = self.text is not None and self.text.put(token)
            self.is_done = is_by_text or token in self.ends or len(self.tokens) == self.request.params.max_tokens

    @property
    def so_far(self) -> tuple[int, ...]:
        """The prompt and what was drawn."""
        return (*self.request.prompt.tokens, *self.tokens)

    @property
    def num_tokens(self) -> int:
        """The length of `so_far`."""
        return len(self.request.prompt.tokens) + len(self.tokens)

    @property
    def is_by_text(self) -> bool:
        """Whether a stop string is complete."""
        return self.text is not None and self.text.is_found


class DecoderSampler:
    """What the samplers of one decoder share: which requests they take, and what a completion is."""

    def __init__(
        self, config: DecoderConfig, tokenizer: Tokenizer, target: FencedTarget, *, concurrency: int, preempt_every: int
    ) -> None:
        """Raises InvalidValueError for a tokenizer of more tokens than the decoder has."""
        if tokenizer.vocab_size > config.vocab_size:
            raise InvalidValueError(
                f"a tokenizer of {tokenizer.vocab_size} tokens",
                legal=f"up to {config.vocab_size}, the decoder's vocabulary",
            )
        self._config, self._tokenizer, self.weight_target = config, tokenizer, target
        self._concurrency, self._preempt_every = concurrency, preempt_every

    def sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        """As `Sampler.sample`.

        Raises InvalidValueError for a request that cannot be done, NonFiniteError where logits are NaN, and
        WeightSyncError where a sync has not ended, or weights were written without one, before or during it.
        """
        requests = list(requests)
        check_requests(requests, self._config)
        if not requests:
            return []
        with self.weight_target.sampling(), torch.inference_mode():
            return self._sample(requests)

    def _sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        raise NotImplementedError

    def _trajectory(self, running: RunningSequence) -> Trajectory:
        """Return a completion that is done. Raises NonFiniteError."""
        request, tokens, logprobs = running.request, running.tokens, running.logprobs
        return build_single_turn(
            request,
            tokens,
            logprobs,
            text=self._tokenizer.decode(tokens),
            stop_reason=reason(tokens, request.params, self._tokenizer.eos_id, by_text=running.is_by_text),
            policy_version=self.weight_target.policy_version,
            weights_digest=self.weight_target.weights_digest,
        )


def check_requests(requests: Sequence[SampleRequest], config: DecoderConfig) -> None:
    """Raises InvalidValueError, naming the request, for one this decoder cannot do."""
    for request in requests:
        tokens, max_tokens = request.prompt.tokens, request.params.max_tokens
        if not tokens:
            raise InvalidValueError(f"{request.name} has no tokens", legal="a prompt of at least one token")
        if min(tokens) < 0 or max(tokens) >= config.vocab_size:
            raise InvalidValueError(
                f"{request.name} has token {max(tokens) if min(tokens) >= 0 else min(tokens)}",
                legal=f"0 to {config.vocab_size - 1}, the decoder's vocabulary",
                remedy="the tokenizer of this decoder",
            )
        if len(tokens) + max_tokens > config.max_length:
            raise InvalidValueError(
                f"{request.name} has {len(tokens)} tokens and asks for {max_tokens} more",
                legal=f"up to {config.max_length} together, the decoder's max_length",
                remedy="a smaller sampling.max_tokens, or shorter prompts",
            )


def not_finite(request: NextTokenRequest) -> NonFiniteError:
    """Return the error of a sequence after which a log-probability is NaN."""
    return NonFiniteError(
        f"next tokens after {list(request.sequence)[-8:]} have log-probabilities that are NaN",
        remedy="check the weights that the sampler received: logits are NaN or infinite",
        phases=("rollout",),
    )
