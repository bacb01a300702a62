"""The weight target of an engine in another process: the decoder there, and the caches made of older weights."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
from torch import Tensor

from rlcore.samplers.local_target import Fence
from rlcore.samplers.vllm.exchange import RemoteExchange
from rlcore.samplers.vllm.levels import Level
from rlcore.samplers.vllm.target import canary_logprobs, not_reset
from rlcore.weights.remote import RemoteTarget


class ProcessTarget(RemoteTarget):
    """As `LocalTarget`, by questions to the engine's process. From `begin` to the canary vLLM computes no pass.

    The engine computes at the level of the thread that samples, or asks for the canary.
    """

    def __init__(self, engine: RemoteExchange) -> None:
        super().__init__(engine.ask)
        self._engine, self._fence, self._begun = engine, Fence(), 0
        state = self.describe()
        self.policy_version, self.weights_digest = state.policy_version, state.weights_digest
        self._num_threads = torch.get_num_threads()

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`: the engine pauses, and forgets the prefixes that older weights have read."""
        super().begin(policy_version)
        self._engine.pause()
        if not self._engine.reset_cache():
            self._engine.resume()
            raise not_reset()
        self._begun = policy_version

    def canary(self, tokens: Tensor) -> Tensor:
        """As `WeightTarget.canary`, by requests to the engine, which has to compute for them."""
        with self._fence.idle("the canary was asked for"):
            self._engine.resume()
            # With the threads that sample: a sync is computed with other ones, and each change costs milliseconds.
            self._ask("follow", replace(Level.here(), num_threads=self._num_threads))
            return canary_logprobs(self._engine, tokens)

    def commit(self, weights_digest: str) -> None:
        super().commit(weights_digest)
        self.policy_version, self.weights_digest = self._begun, weights_digest
        self._engine.resume()

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """As `FencedTarget.sampling`, by the engine's own target."""
        level = Level.here()
        with self._fence.sampling():
            self._ask("enter", level)
            self._num_threads = level.num_threads
            try:
                yield
            except BaseException:
                with suppress(Exception):  # what went wrong first is what counts: the engine may be ending too
                    self._ask("leave")
                raise
            self._ask("leave")
