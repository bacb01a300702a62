"""The sampler of rlcore's own decoder, in the trainer's process, with a copy of the weights."""

import copy
from collections.abc import Sequence

import torch

from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.errors import InvalidValueError
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import Progress
from rlcore.samplers.batching import ContinuousBatch, Finished
from rlcore.samplers.local_target import LocalTarget, OfTarget
from rlcore.samplers.next_token_passes import check_next_token_requests, most_probable
from rlcore.samplers.next_tokens import NextToken, NextTokenRequest
from rlcore.samplers.requests import check_options, check_requests
from rlcore.types import SampleRequest, Tokenizer


class TorchSampler(OfTarget):
    """Decodes up to `concurrency` completions together, each with the next token of all in one pass.

    `preempt_every` takes the youngest out after so many steps, to begin again later: what a sampler that is short of
    memory does, here to show that it changes nothing; 0 is never. Raises InvalidValueError.
    """

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, *, concurrency: int = 64, preempt_every: int = 0
    ) -> None:
        if concurrency < 1:
            raise InvalidValueError(f"concurrency {concurrency}", legal="1 or more")
        check_options(decoder.config, tokenizer, preempt_every=preempt_every)
        self._decoder = copy.deepcopy(decoder).requires_grad_(False)
        self._tokenizer, self._concurrency, self._preempt_every = tokenizer, concurrency, preempt_every
        self._target = LocalTarget(self._decoder)

    def sample(self, requests: Sequence[SampleRequest], *, progress: Progress | None = None) -> list[Trajectory]:
        """As `Sampler.sample`.

        Raises InvalidValueError for a request that cannot be done, NonFiniteError where logits are NaN, and
        WeightSyncError where a sync has not ended, or weights were written without one, before or during it.
        """
        requests = list(requests)
        check_requests(requests, self._decoder.config)
        if not requests:
            return []
        with self._target.sampling():
            with torch.inference_mode():
                finished = self._batch(requests).run(progress)
            return [self._trajectory(each) for each in finished]

    @property
    def max_length(self) -> int:
        """As `NextTokenSampler.max_length`."""
        return self._decoder.config.max_length

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """As `NextTokenSampler.next_tokens`."""
        config = self._decoder.config
        check_next_token_requests(requests, config.vocab_size, config.max_length)
        with self._target.sampling(), torch.inference_mode():
            return most_probable(
                self._decoder,
                requests,
                num_tokens_known=self._tokenizer.vocab_size,
                concurrency=self._concurrency,
            )

    def _batch(self, requests: Sequence[SampleRequest]) -> ContinuousBatch:
        return ContinuousBatch(
            self._decoder,
            self._tokenizer,
            requests,
            concurrency=self._concurrency,
            preempt_every=self._preempt_every,
        )

    def _trajectory(self, finished: Finished) -> Trajectory:
        running = finished.running
        return build_single_turn(
            running.request,
            running.tokens,
            running.logprobs,
            text=self._tokenizer.decode(running.tokens),
            stop_reason=finished.reason,
            policy_version=self._target.policy_version,
            weights_digest=self._target.weights_digest,
        )
