"""The sampler of rlcore's own decoder, in the trainer's process, with a copy of the weights."""

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.samplers.base import Progress
from rlcore.samplers.batching import ContinuousBatch, Finished
from rlcore.samplers.requests import check_requests
from rlcore.types import Completion, SampleRequest, Tokenizer
from rlcore.weights.digests import weights_digest
from rlcore.weights.receipts import Check


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
        self._fence = threading.Lock()
        self._policy_version, self._weights_digest = 0, weights_digest(self.parameters())
        self._writes = self._count_writes()

    @property
    def policy_version(self) -> int:
        """As `Sampler.policy_version`; 0 until weights are loaded."""
        return self._policy_version

    @property
    def weights_digest(self) -> str:
        """As `Sampler.weights_digest`."""
        return self._weights_digest

    def parameters(self) -> dict[str, Tensor]:
        """As `Sampler.parameters`."""
        return {**dict(self._decoder.named_parameters())}

    def loaded(self, policy_version: int, weights_digest: str) -> None:
        """As `Sampler.loaded`; nothing is kept from one call of `sample` to the next, so nothing has to be dropped."""
        with self._fenced("weights are loaded"):
            self._policy_version, self._weights_digest = policy_version, weights_digest
            self._writes = self._count_writes()

    @torch.no_grad()
    def canary(self, tokens: Tensor) -> Tensor:
        """As `Sampler.canary`."""
        tokens = tokens.to(self._decoder.embedding.device)
        return token_logprobs(self._decoder(tokens[None, :-1])[0], tokens[1:]).cpu()

    def sample(self, requests: Sequence[SampleRequest], *, progress: Progress | None = None) -> list[Completion]:
        """As `Sampler.sample`.

        Raises InvalidValueError for a request that cannot be done, NonFiniteError where logits are NaN, and
        WeightSyncError where weights were written and `loaded` was not told, before or during it.
        """
        requests = list(requests)
        check_requests(requests, self._decoder.config)
        if not requests:
            return []
        with self._fenced("completions are drawn"):
            self._check_writes()
            with torch.inference_mode():
                finished = self._batch(requests).run(progress)
            self._check_writes()
            # Outside inference mode: what is made in it cannot be a part of a loss.
            return [self._completion(each) for each in finished]

    def _batch(self, requests: Sequence[SampleRequest]) -> ContinuousBatch:
        return ContinuousBatch(
            self._decoder,
            self._tokenizer,
            requests,
            concurrency=self._concurrency,
            preempt_every=self._preempt_every,
        )

    def _completion(self, finished: Finished) -> Completion:
        draft = finished.draft
        return Completion(
            request=draft.request,
            tokens=tuple(draft.tokens),
            logprobs=torch.tensor(draft.logprobs, dtype=torch.float32),
            text=self._tokenizer.decode(draft.tokens),
            stop_reason=finished.reason,
            policy_version=self._policy_version,
            weights_digest=self._weights_digest,
        )

    @contextmanager
    def _fenced(self, what: str) -> Iterator[None]:
        """Nobody else samples or loads meanwhile."""
        if not self._fence.acquire(blocking=False):
            raise WeightSyncError(
                f"the sampler is at work while {what}", check=Check.FENCE, remedy="wait until sample() has returned"
            )
        try:
            yield
        finally:
            self._fence.release()

    def _count_writes(self) -> int:
        """How often torch has seen the parameters written."""
        return sum(parameter._version for parameter in self._decoder.parameters())

    def _check_writes(self) -> None:
        """Completions carry the digest of the weights that drew them: these have to be those that were told."""
        if self._count_writes() != self._writes:
            raise WeightSyncError(
                "the sampler's weights were written after it was told which they are",
                check=Check.FENCE,
                remedy="write weights between two calls of sample(), then call loaded()",
            )
