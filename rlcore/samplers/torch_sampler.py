"""The sampler of rlcore's own decoder, in the trainer's process, with a copy of the weights."""

import copy
from collections.abc import Sequence

import torch

from rlcore.environments.trajectory import Trajectory, build_single_turn
from rlcore.errors import InvalidValueError
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import Progress
from rlcore.samplers.batching import ContinuousBatch, Finished
from rlcore.samplers.local_target import LocalTarget
from rlcore.samplers.requests import check_requests
from rlcore.types import SampleRequest, Tokenizer


class TorchSampler:
    """Decodes up to `concurrency` completions together, each with the next token of all in one pass.

    `preempt_every` takes the youngest out after so many steps, to begin again later: what a sampler that is short of
    memory does, here to show that it changes nothing; 0 is never. Raises InvalidValueError.
    """

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, *, concurrency: int = 64, preempt_every: int = 0
    ) -> None:
        if concurrency < 1:
            raise InvalidValueError(f"concurrency {concurrency}", legal="1 or more")
        if preempt_every < 0:
            raise InvalidValueError(f"preempt_every {preempt_every}", legal="0 (never) or more")
        if tokenizer.vocab_size > decoder.config.vocab_size:
            raise InvalidValueError(
                f"a tokenizer of {tokenizer.vocab_size} tokens",
                legal=f"up to {decoder.config.vocab_size}, the decoder's vocabulary",
            )
        self._decoder = copy.deepcopy(decoder).requires_grad_(False)
        self._tokenizer, self._concurrency, self._preempt_every = tokenizer, concurrency, preempt_every
        self._target = LocalTarget(self._decoder)

    @property
    def policy_version(self) -> int:
        """As `Sampler.policy_version`; 0 until weights are committed."""
        return self._target.policy_version

    @property
    def weights_digest(self) -> str:
        """As `Sampler.weights_digest`."""
        return self._target.weights_digest

    @property
    def weight_target(self) -> LocalTarget:
        """As `Sampler.weight_target`."""
        return self._target

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
