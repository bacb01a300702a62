"""A fixed sequence, and its log-probabilities: shows that a sampler computes with the weights it holds."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.streams import first_different, read_streams
from rlcore.numerics.level import is_invariant
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.seeds import key
from rlcore.weights.receipts import Check
from rlcore.weights.target import WeightTarget

NUM_TOKENS = 17
"""Sixteen are read, which is what strategies of level invariant pad to."""
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Nats, outside level invariant: a pass and a decode round differently there."""


def canary_tokens(config: DecoderConfig) -> Tensor:
    """Return the canary of a vocabulary, int64 [tokens]: the same in every run, so that receipts of runs compare."""
    length = min(NUM_TOKENS, config.max_length)
    return torch.tensor([key("canary", position) % config.vocab_size for position in range(length)])


@torch.no_grad()
def policy_logprobs(policy: Decoder, tokens: Tensor) -> Tensor:
    """Return a policy's log-probability of each token after the first: [length] -> fp32 [length - 1], on the CPU."""
    tokens = tokens.to(policy.embedding.device)
    logits = policy.logits(policy.hidden(tokens[None, :-1]))
    return token_logprobs(logits, tokens[None, 1:])[0].cpu()


@runtime_checkable
class ReadsStreams(Protocol):
    """A weight target that shows what its model computes."""

    def streams(self, tokens: Tensor) -> Mapping[str, Tensor]:
        """Return the streams of a pass over all tokens but the last, as `rlcore.models.streams.read_streams`."""


def different_layer(policy: Decoder, target: WeightTarget, tokens: Tensor) -> str:
    """Describe the first layer whose activations differ between policy and target, if the target shows them."""
    if not isinstance(target, ReadsStreams):
        return "the sampler's activations cannot be read from here"
    return first_different(read_streams(policy, tokens), target.streams(tokens))


def canary_distance(
    expected: Tensor, given: Tensor, dtype: torch.dtype, explain: Callable[[], str] = lambda: ""
) -> float:
    """Return the largest distance of log-probabilities, in nats; `dtype` is that of the weights.

    `explain` says more of a difference at level invariant. Raises WeightSyncError where any bit differs at level
    invariant, or by more than rounding outside it.
    """
    tolerance = 0.0 if is_invariant() else TOLERANCES.get(dtype, max(TOLERANCES.values()))
    if (given.shape, given.dtype) != (expected.shape, expected.dtype):
        raise WeightSyncError(
            f"the sampler gives {given.dtype} {list(given.shape)}",
            check=Check.CANARY,
            legal=f"{expected.dtype} {list(expected.shape)}",
        )
    distances = (given.cpu() - expected).abs()
    wrong = (~(distances <= tolerance)).nonzero().flatten().tolist()  # NaN too
    if wrong:
        first, why = wrong[0], explain() if is_invariant() else ""
        raise WeightSyncError(
            f"{len(wrong)} of {len(expected)} log-probabilities differ, the first at token {first + 1}: "
            f"{given[first].item():.9g} of the sampler, {expected[first].item():.9g} of the policy"
            + (f"; {why}" if why else ""),
            check=Check.CANARY,
            legal=f"a distance of at most {tolerance:g}",
            remedy="let the sampler drop what it has made of older weights: caches, fused or converted copies; else"
            " compare the operations of both",
        )
    return max(distances.tolist(), default=0.0)
