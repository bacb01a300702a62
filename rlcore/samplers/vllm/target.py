"""The weight target of an engine: the decoder that it serves, and the caches that it has made of older weights."""

import torch
from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.samplers.local_target import LocalTarget
from rlcore.samplers.vllm.exchange import Exchange, LocalExchange
from rlcore.types import SamplingParams
from rlcore.weights.receipts import Check

GREEDY = SamplingParams(1, temperature=0.0)
"""Log-probabilities at temperature 1."""


class VllmTarget(LocalTarget):
    """As `LocalTarget`, for the decoder of an engine in this process; its answers come from the engine's own model."""

    def __init__(self, engine: LocalExchange) -> None:
        super().__init__(engine.decoder)
        self._engine = engine

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`: the engine forgets the prefixes that older weights have read."""
        super().begin(policy_version)
        if not self._engine.reset_cache():
            raise not_reset()

    def canary(self, tokens: Tensor) -> Tensor:
        """As `WeightTarget.canary`, by requests to the engine: one for each token, whose prompt is what precedes it.

        One pass computes them all, if the engine takes so many. Longer prompts read their first block through the
        prefix cache: keys that an earlier canary left there show.
        """
        with self.fence.idle("the canary was asked for"), torch.inference_mode():
            return canary_logprobs(self._engine, tokens)

    def _read(self, tokens: Tensor) -> None:
        """Let one request read all tokens but the last, none of them from the prefix cache."""
        sequence = tuple(tokens.tolist())
        self._engine.reset_cache()
        with torch.inference_mode():
            name = self._engine.add(sequence[:-1], max_tokens=1, stop_ids=(), key=0, params=GREEDY, forced=sequence[-1])
            self._engine.first_tokens([name])


def canary_logprobs(engine: Exchange, tokens: Tensor) -> Tensor:
    """Return the log-probability of each token but the first, by requests to an engine."""
    sequence = tuple(tokens.tolist())
    names = [
        engine.add(sequence[:end], max_tokens=1, stop_ids=(), key=0, params=GREEDY, forced=sequence[end])
        for end in range(1, len(sequence))
    ]
    found = [drawn.logprobs[0] for drawn in engine.first_tokens(names)]
    with torch.inference_mode(False):  # or what callers compute with it could not be differentiated
        return torch.tensor(found, dtype=torch.float32)


def not_reset() -> WeightSyncError:
    """Return the error of a prefix cache that vLLM has not reset."""
    return WeightSyncError(
        "vLLM has not reset its prefix cache: requests are left in the engine",
        check=Check.FENCE,
        remedy="let this sampler alone use the engine",
    )
