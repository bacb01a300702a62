"""The weight target of an engine: the decoder in its process, and the caches that it has made of older weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
from torch import Tensor

from rlcore.errors import NonFiniteError, WeightSyncError
from rlcore.samplers.local_target import Fence
from rlcore.samplers.vllm.draw import draw_argument
from rlcore.samplers.vllm.engine import Engine
from rlcore.samplers.vllm.extension import Level
from rlcore.types import SamplingParams
from rlcore.weights.receipts import Check
from rlcore.weights.remote import RemoteTarget


class VllmTarget(RemoteTarget):
    """As `LocalTarget`, by questions to the engine's process.

    The engine computes at the level of the thread that samples, or asks for the canary.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.ask)
        self._engine, self._fence, self._begun = engine, Fence(), 0
        state = self.describe()
        self.policy_version, self.weights_digest = state.policy_version, state.weights_digest
        self._num_threads = torch.get_num_threads()

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`: the engine forgets the prefixes that older weights have read."""
        super().begin(policy_version)
        if not self._engine.reset_cache():
            raise WeightSyncError(
                "vLLM has not reset its prefix cache: requests are left in the engine",
                check=Check.FENCE,
                remedy="let this sampler alone use the engine",
            )
        self._begun = policy_version

    def canary(self, tokens: Tensor) -> Tensor:
        """As `WeightTarget.canary`, by requests to the engine: one for each token, whose prompt is what precedes it.

        One pass computes them all, if the engine takes so many. Longer prompts read their first block through the
        prefix cache: keys that an earlier canary left there show.
        """
        with self._fence.idle("the canary was asked for"):
            self._ask("follow", self._level())
            names = [self._add(tokens[: end + 1].tolist()) for end in range(1, len(tokens))]
            found = [drawn.logprobs[0] for drawn in self._engine.first_tokens(names)]
        with torch.inference_mode(False):  # or what callers compute with it could not be differentiated
            return torch.tensor(found, dtype=torch.float32)

    def streams(self, tokens: Tensor) -> Mapping[str, Tensor]:
        """As `LocalTarget.streams`, by one request that reads all tokens but the last, none from the prefix cache."""
        self._engine.reset_cache()
        self._ask("watch", self._level())
        self._engine.first_tokens([self._add(tokens.tolist())])
        found: Mapping[str, Tensor] = self._ask("streams", len(tokens) - 1)
        return found

    def commit(self, weights_digest: str) -> None:
        super().commit(weights_digest)
        self.policy_version, self.weights_digest = self._begun, weights_digest

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """As `FencedTarget.sampling`, by the engine's own target."""
        level = Level.here()
        with self._fence.sampling():
            self._ask("enter", level)
            self._num_threads = level.num_threads
            try:
                yield
            except BaseException as error:
                if isinstance(error, NonFiniteError):
                    self._engine.clear_pages()  # later requests would read NaN
                with suppress(Exception):  # what went wrong first is what counts: the engine may have ended
                    self._ask("leave")
                raise
            self._ask("leave")

    def _level(self) -> Level:
        """The caller's, with the threads that sample: a sync has other ones, and each change costs milliseconds."""
        return replace(Level.here(), num_threads=self._num_threads)

    def _add(self, sequence: Sequence[int]) -> str:
        """Ask for the log-probability of the last token."""
        return self._engine.add(sequence[:-1], draw_argument(0, SamplingParams(1), forced=sequence[-1]))
