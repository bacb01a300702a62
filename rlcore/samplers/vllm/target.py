"""The weight target of an engine: the decoder that it serves, and the caches that it has made of older weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.samplers.local_target import LocalTarget
from rlcore.samplers.vllm.engine import Engine
from rlcore.types import SamplingParams
from rlcore.weights.receipts import Check

GREEDY = SamplingParams(1, temperature=0.0)
"""Log-probabilities at temperature 1."""


class VllmTarget(LocalTarget):
    """As `LocalTarget`, for the decoder of an engine in this process; its answers come from the engine's own model."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.decoder)
        self._engine = engine

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`: the engine forgets the prefixes that older weights have read."""
        super().begin(policy_version)
        if not self._engine.reset_cache():
            raise WeightSyncError(
                "vLLM has not reset its prefix cache: requests are left in the engine",
                check=Check.FENCE,
                remedy="let this sampler alone use the engine",
            )

    def canary(self, tokens: Tensor) -> Tensor:
        """As `WeightTarget.canary`, by requests to the engine: one for each token, whose prompt is what precedes it.

        One pass computes them all, if the engine takes so many. Longer prompts read their first block through the
        prefix cache: keys that an earlier canary left there show.
        """
        if self.is_sampling:
            raise WeightSyncError(
                "the canary was asked for while the sampler runs",
                check=Check.FENCE,
                remedy="wait until sample() has returned",
            )
        sequence = tuple(tokens.tolist())
        with torch.inference_mode():
            found = self._logprobs([(sequence[:end], sequence[end]) for end in range(1, len(sequence))])
        # A tensor of inference mode would not be allowed in what a caller computes.
        return torch.tensor(found, dtype=torch.float32)

    def _logprobs(self, pairs: Sequence[tuple[Sequence[int], int]]) -> list[float]:
        """Return the log-probability of a token after each prompt."""
        names = [
            self._engine.add(prompt, max_tokens=1, stop_ids=(), key=0, params=GREEDY, forced=token)
            for prompt, token in pairs
        ]
        return [drawn.logprobs[0] for drawn in self._engine.first_tokens(names)]
