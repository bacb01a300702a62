"""A fixed sequence, and what a policy thinks of it: shows that a sampler computes with the weights it holds."""

import torch
from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.keys import key
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import is_invariant
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.weights.receipts import Check

NUM_TOKENS = 17
"""Sixteen are read, which is what the recipes of level invariant pad to."""
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Nats, outside level invariant: a pass and a decode round differently there."""


def canary_tokens(config: DecoderConfig) -> Tensor:
    """The canary of a vocabulary, int64 [tokens]: the same in every run, so that receipts of runs compare."""
    length = min(NUM_TOKENS, config.max_length)
    return torch.tensor([key("canary", position) % config.vocab_size for position in range(length)])


@torch.no_grad()
def policy_logprobs(policy: Decoder, tokens: Tensor) -> Tensor:
    """What a policy gives each token after the first: [length] -> fp32 [length - 1], on the CPU."""
    tokens = tokens.to(policy.embedding.device)
    logits = policy.logits(policy.hidden(tokens[None, :-1]))
    return token_logprobs(logits, tokens[None, 1:])[0].cpu()


def canary_distance(expected: Tensor, given: Tensor, dtype: torch.dtype) -> float:
    """The largest distance of log-probabilities, in nats; `dtype` is that of the weights.

    Raises WeightSyncError where any bit differs at level invariant, or by more than rounding outside it.
    """
    tolerance = 0.0 if is_invariant() else TOLERANCES.get(dtype, max(TOLERANCES.values()))
    if given.shape != expected.shape or given.dtype != expected.dtype:
        raise WeightSyncError(
            f"the sampler gives {given.dtype} {list(given.shape)}",
            check=Check.CANARY,
            legal=f"{expected.dtype} {list(expected.shape)}",
        )
    distances = (given.cpu() - expected).abs()
    # Not `distances > tolerance`: NaN has to fail.
    wrong = (~(distances <= tolerance)).nonzero().flatten().tolist()
    if wrong:
        first = wrong[0]
        raise WeightSyncError(
            f"{len(wrong)} of {len(expected)} log-probabilities differ, the first at token {first + 1}: "
            f"{given[first].item():.9g} of the sampler, {expected[first].item():.9g} of the policy",
            check=Check.CANARY,
            legal=f"a distance of at most {tolerance:g}",
            remedy="let the sampler drop what it has made of older weights: caches, fused or converted copies",
        )
    return max((float(distance) for distance in distances), default=0.0)
