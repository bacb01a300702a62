"""Requests to an engine of vLLM and what it draws for them, wherever the engine is.

add, rank ─▶ vLLM ─▶ step ─▶ tokens with log-probabilities
  ▲                    │
  └────── abort ───────┘      preempt, reset_cache, clear_pages
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.samplers.local_target import FencedTarget
from rlcore.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens that a pass drew for one request."""

    request_id: str
    tokens: list[int]
    logprobs: list[float]
    is_finished: bool
    num_cached: int
    """Tokens of the prompt that were found in the prefix cache."""
    ranked: list[tuple[int, float]]
    """Of a request of `rank`: tokens and their log-probabilities, in no order, -inf for none; empty for others."""

    @classmethod
    def of(cls, output: Any) -> "Drawn":
        """Read what vLLM says of a request, a RequestOutput."""
        (one,) = output.outputs
        tokens, reported = list(one.token_ids), one.logprobs or ()
        logprobs = [entry[token].logprob for entry, token in zip(reported, tokens, strict=True)]
        several = [entry for entry in reported if len(entry) > 1]
        ranked = [(token, found.logprob) for entry in several for token, found in entry.items()]
        cached = output.num_cached_tokens or 0
        return cls(output.request_id, tokens, logprobs, bool(output.finished), cached, ranked)


class Exchange(ABC):
    """An engine of vLLM whose model is a decoder of rlcore. Earlier requests are served first."""

    def __init__(self, config: DecoderConfig, *, max_length: int, concurrency: int) -> None:
        """Exchange requests of up to `max_length` tokens, of which `concurrency` are served together."""
        self.config, self.max_length, self.concurrency = config, max_length, concurrency
        self._numbers = count()

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        stop_ids: Sequence[int],
        key: int,
        params: SamplingParams,
        forced: int | None = None,
        is_streamed: bool = True,
    ) -> str:
        """Queue a completion; return its id.

        Tokens are drawn by the noise of `key`; or each is `forced`, and its log-probability is what is wanted. They are
        returned as they are drawn, or together at the end, which costs vLLM and its caller less.
        """
        from rlcore.samplers.vllm.keyed_draw import draw_argument

        return self._add(prompt, max_tokens, stop_ids, draw_argument(key, params, forced), is_streamed=is_streamed)

    def rank(self, prompt: Sequence[int], *, temperature: float, num_tokens: int, num_tokens_known: int) -> str:
        """Queue the question for the most probable next tokens of those below `num_tokens_known`; return its id."""
        from rlcore.samplers.vllm.keyed_draw import rank_argument

        num_tokens = min(num_tokens, self.config.vocab_size)
        num_logprobs = max(num_tokens, 2)  # more than the drawn token's tell this request from a completion
        extra = rank_argument(temperature, num_tokens, num_tokens_known)
        return self._add(prompt, 1, (), extra, num_logprobs=num_logprobs)

    def _add(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        stop_ids: Sequence[int],
        extra: dict[str, Any],
        *,
        num_logprobs: int = 0,
        is_streamed: bool = True,
    ) -> str:
        from vllm import SamplingParams as EngineParams
        from vllm.sampling_params import RequestOutputKind

        number = next(self._numbers)
        wanted = EngineParams(
            max_tokens=max_tokens,
            temperature=0.0,  # the largest logit: KeyedDraw has drawn it
            logprobs=num_logprobs,  # and that of the drawn token
            ignore_eos=True,  # it is one of the stop ids
            stop_token_ids=list(stop_ids),
            detokenize=False,
            extra_args=extra,
            output_kind=RequestOutputKind.DELTA if is_streamed else RequestOutputKind.FINAL_ONLY,
        )
        self._queue(number, list(prompt), wanted)
        return str(number)

    @abstractmethod
    def build_target(self) -> FencedTarget:
        """Return the weight target of this engine's decoder; a sampler has one."""

    @abstractmethod
    def _queue(self, number: int, prompt: list[int], wanted: Any) -> None:
        """Hand a request to vLLM: its number is its id and its priority."""

    @abstractmethod
    def step(self) -> list[Drawn]:
        """Wait for a pass; return what it drew."""

    @abstractmethod
    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests."""

    @abstractmethod
    def preempt(self) -> None:
        """Let all running requests begin again, from their prompts and the tokens that they have."""

    @abstractmethod
    def reset_cache(self) -> bool:
        """Forget the keys and values of finished requests; return whether vLLM did: not while others run."""

    @abstractmethod
    def clear_pages(self) -> None:
        """Overwrite all keys and values with zeros: those of failed logits are NaN."""

    def first_tokens(self, request_ids: Sequence[str]) -> list[Drawn]:
        """Return what is drawn for requests of one token each, in their order; however it ends, none is left."""
        found: dict[str, Drawn] = {}
        left = set(request_ids)
        try:
            while left:
                found |= {drawn.request_id: drawn for drawn in self.step() if drawn.request_id in left}
                left -= found.keys()
        finally:
            if left:
                self.abort(sorted(left))
        return [found[each] for each in request_ids]


class LocalExchange(Exchange):
    """An engine in this process."""

    decoder: Decoder
    """Its live model."""


class RemoteExchange(Exchange):
    """An engine in another process."""

    @abstractmethod
    def ask(self, method: str, *given: Any) -> Any:
        """Return the answer of its `EngineExtension` to a method of `EngineAnswerer`; raises RlcoreError."""

    @abstractmethod
    def pause(self) -> None:
        """Let the engine compute no pass until `resume`; requests wait."""

    @abstractmethod
    def resume(self) -> None:
        """Let the engine compute again."""
