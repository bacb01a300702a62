"""Log-probabilities over a vocabulary."""

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.numerics.level import uses_triton


def log_softmax(logits: Tensor) -> Tensor:
    """Over the last dimension, in fp32 whatever the logits' type; a contiguous one is taken row by row."""
    if not uses_triton():
        return F.log_softmax(logits.contiguous(), dim=-1, dtype=torch.float32)
    from rlcore.numerics import gpu

    return gpu.log_softmax(logits)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of each token: logits [..., vocabulary], tokens [...] -> fp32 [...]."""
    if not uses_triton():
        return log_softmax(logits).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    from rlcore.numerics import gpu

    return gpu.token_logprobs(logits, tokens)[0]


def token_logprobs_and_entropy(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each token, and the entropy of its distribution in nats: fp32 [...] each."""
    if not uses_triton():
        vocabulary = log_softmax(logits)
        drawn = vocabulary.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        return drawn, -(vocabulary.exp() * vocabulary).sum(-1)
    from rlcore.numerics import gpu

    logprobs, entropy = gpu.token_logprobs(logits, tokens, has_entropy=True)
    assert entropy is not None
    return logprobs, entropy
