"""The sampler of rlcore's own decoder, in the trainer's process, with a copy of the weights."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.data.trajectory import Trajectory
from rlcore.models.cache import KeyValueCache
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import DecoderSampler, NextToken, NextTokenRequest, not_finite
from rlcore.samplers.batching import ContinuousBatch, read_prompts, read_together
from rlcore.samplers.drawing import logprobs_at, ranked
from rlcore.samplers.local_target import LocalTarget
from rlcore.types import SampleRequest, Tokenizer


class TorchSampler(DecoderSampler):
    """Decodes up to `concurrency` completions together, each with the next token of all in one pass.

    `preempt_every` takes the youngest out after so many steps, to begin again later: what a sampler that is short of
    memory does, here to show that it changes nothing; 0 is never.
    """

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, *, concurrency: int = 64, preempt_every: int = 0
    ) -> None:
        self._decoder = copy.deepcopy(decoder).requires_grad_(False)
        self._kept: ContinuousBatch | None = None
        target = LocalTarget(self._decoder)
        super().__init__(decoder.config, tokenizer, target, concurrency=concurrency, preempt_every=preempt_every)

    def _sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        batch, self._kept = self._kept, None
        batch = batch or ContinuousBatch(
            self._decoder, self._tokenizer, concurrency=self._concurrency, preempt_every=self._preempt_every
        )
        finished = batch.run(requests)
        if batch.has_graphs:
            self._kept = batch
        return [self._trajectory(each) for each in finished]

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """As `NextTokenSampler.next_tokens`."""
        with self.weight_target.sampling(), torch.inference_mode():
            return _most_probable(
                self._decoder,
                requests,
                num_tokens_known=self._tokenizer.vocab_size,
                concurrency=self._concurrency,
            )


def _most_probable(
    decoder: Decoder, requests: Sequence[NextTokenRequest], *, num_tokens_known: int, concurrency: int
) -> list[list[NextToken]]:
    """Return the answers to requests, up to `concurrency` of them in one pass.

    Tokens from `num_tokens_known` on are never among them. Raises NonFiniteError for a log-probability that is NaN.
    """
    found: dict[int, list[NextToken]] = {}
    for has_own in (False, True):
        numbers = [number for number, request in enumerate(requests) if bool(request.tokens) is has_own]
        for begin in range(0, len(numbers), concurrency):
            part = numbers[begin : begin + concurrency]
            asked = [requests[number] for number in part]
            found.update(zip(part, _best(_logits(decoder, asked), asked, num_tokens_known), strict=True))
    return [found[number] for number in range(len(requests))]


def _logits(decoder: Decoder, requests: Sequence[NextTokenRequest]) -> Tensor:
    """Read sequences, either all with tokens of their own or none -> [requests, vocabulary] after the last of each."""
    contexts = list(dict.fromkeys(request.context for request in requests))
    longest = max(map(len, contexts))
    most_own = max(len(request.tokens) for request in requests)
    cache = KeyValueCache.empty(decoder.config, len(requests), longest + most_own, like=decoder.embedding)
    ends = read_prompts(decoder, contexts, cache)
    slots = {context: slot for slot, context in enumerate(contexts)}
    which = torch.tensor([slots[request.context] for request in requests], device=ends.device)
    if not most_own:
        return decoder.logits(ends)[which]
    cache.spread(0, which, longest)
    starts = [len(request.context) for request in requests]
    return decoder.logits(read_together(decoder, [request.tokens for request in requests], cache, starts))


def _best(logits: Tensor, requests: Sequence[NextTokenRequest], num_tokens_known: int) -> list[list[NextToken]]:
    """Choose from logits [requests, vocabulary]; log-probabilities are the trainer's operation, of all its tokens."""
    logprobs = logprobs_at(logits, [request.temperature for request in requests])
    if bool((is_nan := logprobs.isnan().any(-1)).any()):
        raise not_finite(requests[int(is_nan.nonzero()[0])])
    tokens, values = ranked(logprobs, num_tokens_known, max(request.num_tokens for request in requests))
    return [
        [NextToken(*pair) for pair in zip(own, falling, strict=True) if pair[1] > float("-inf")][: request.num_tokens]
        for request, own, falling in zip(requests, tokens.tolist(), values.tolist(), strict=True)
    ]
