"""The weight target of an engine in another process: the decoder there, and the caches made of older weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
from torch import Tensor

from rlcore.samplers.vllm.exchange import RemoteExchange
from rlcore.samplers.vllm.levels import Level
from rlcore.samplers.vllm.target import canary_logprobs, canary_while_sampling, not_reset
from rlcore.weights.remote import RemoteTarget
from rlcore.weights.transports.shared_memory import SharedMemoryTransport


class ProcessTarget(RemoteTarget):
    """As `LocalTarget`, by questions to the engine's process. From `begin` to the canary vLLM computes no pass.

    The engine computes at the level of the thread that samples, or asks for the canary.
    """

    def __init__(self, engine: RemoteExchange) -> None:
        super().__init__(engine.ask)
        self._engine = engine
        state = self.describe()
        self._policy_version, self._weights_digest = state.policy_version, state.weights_digest
        self._begun, self._is_sampling = 0, False
        self._num_threads = torch.get_num_threads()
        self._shared = SharedMemoryTransport()

    @property
    def policy_version(self) -> int:
        """Version of the last commit; 0 before the first."""
        return self._policy_version

    @property
    def weights_digest(self) -> str:
        """Digest of the last commit; before the first, that of the weights that the engine was started with."""
        return self._weights_digest

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`: the engine pauses, and forgets the prefixes that older weights have read."""
        super().begin(policy_version)
        self._engine.pause()
        if not self._engine.reset_cache():
            self._engine.resume()
            raise not_reset()
        self._begun = policy_version

    def write(self, chunk: Mapping[str, Tensor]) -> Sequence[str]:
        """As `WeightTarget.write`, through memory that both processes have mapped."""
        return self._shared(chunk.items(), self)

    def canary(self, tokens: Tensor) -> Tensor:
        """As `WeightTarget.canary`, by requests to the engine, which has to compute for them."""
        if self._is_sampling:
            raise canary_while_sampling()
        self._engine.resume()
        # With the threads that sample: a sync is computed with other ones, and each change costs milliseconds.
        self._ask("follow", replace(Level.here(), num_threads=self._num_threads))
        return canary_logprobs(self._engine, tokens)

    def commit(self, weights_digest: str) -> None:
        """As `WeightTarget.commit`."""
        super().commit(weights_digest)
        self._policy_version, self._weights_digest = self._begun, weights_digest
        self._engine.resume()

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """As `LocalTarget.sampling`, by the engine's own target."""
        level = Level.here()
        self._ask("enter", level)
        self._num_threads = level.num_threads
        self._is_sampling = True
        try:
            yield
        except BaseException:
            with suppress(Exception):  # what went wrong first is what counts: the engine may be ending too
                self._leave()
            raise
        self._leave()

    def _leave(self) -> None:
        self._is_sampling = False
        self._ask("leave")
