"""Completions that went wrong in a way their reward may not show, and a penalty for those that grow too long.

A filter says which samples it found, bool [samples], and changes nothing. Watching them is the default. To enforce one
is to leave the samples it found out of the loss and to keep their rewards in the baseline, so that the others are
compared with all that was drawn: advantages first, of every sample, then the filter.

`loss_mask` is bool [samples, positions]. What stands where it is False is not looked at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlcore.algorithms.bounds import check_number
from rlcore.algorithms.masks import check_tokens
from rlcore.errors import InvalidValueError, ShapeError


def gibberish(
    tokens: Tensor,
    logprobs: Tensor,
    loss_mask: Tensor,
    *,
    vocab_size: int,
    token_id_threshold: int = 100_000,
    logprob_offset: float = 2.0,
) -> Tensor:
    """Samples with a rare token that nothing spoke for: its number above the threshold, and its log-probability below
    that of a uniform draw, -ln `vocab_size`, by more than the offset. Bool [samples].

    `tokens` is integers, `logprobs` floats, both [samples, positions]. Numbers stand for rarity where a vocabulary was
    built by merges. Both bounds are strict. Raises ShapeError, EmptyMaskError, InvalidValueError. arXiv:2510.02387,
    section 5.2.
    """
    check_tokens(loss_mask, logprobs=logprobs)
    if tokens.shape != loss_mask.shape or tokens.is_floating_point():
        raise ShapeError(f"tokens is {tokens.dtype} {list(tokens.shape)}", legal=f"integers {list(loss_mask.shape)}")
    check_number("logprob_offset", logprob_offset, 0.0)
    if vocab_size < 1:
        raise InvalidValueError(f"vocab_size is {vocab_size}", legal="1 or more")
    is_unlikely = logprobs < -math.log(vocab_size) - logprob_offset
    return ((tokens > token_id_threshold) & is_unlikely & loss_mask).any(dim=-1)


def repetition(logprobs: Tensor, loss_mask: Tensor, *, window: int = 3000, prob_threshold: float = 0.99) -> Tensor:
    """Samples in which `window` tokens in a row are each more probable than the threshold. Bool [samples].

    `logprobs` is floats [samples, positions]. In a row means with no loss token between them. Raises ShapeError,
    EmptyMaskError, InvalidValueError. MiniMax-M1 (arXiv:2506.13585), section 3.2.
    """
    check_tokens(loss_mask, logprobs=logprobs)
    check_number("prob_threshold", prob_threshold, 0.0, 1.0, open_low=True)
    if window < 1:
        raise InvalidValueError(f"window is {window}", legal="1 or more")
    is_sure = (logprobs > math.log(prob_threshold)) & loss_mask
    num_sure = is_sure.cumsum(dim=-1)
    # As many as there were at the last token that broke a row; what is masked breaks none.
    num_before = torch.where(loss_mask & ~is_sure, num_sure, 0).cummax(dim=-1).values
    return (num_sure - num_before).amax(dim=-1) >= window


def overlong_penalty(num_tokens: int, *, max_tokens: int, num_soft: int) -> float:
    """0 up to max_tokens - num_soft tokens, from there down in a straight line to -1 at max_tokens and beyond.

    Raises InvalidValueError. DAPO (arXiv:2503.14476), equation 13; verl and TRL have the same.
    """
    if not 0 < num_soft <= max_tokens:
        raise InvalidValueError(f"num_soft is {num_soft}", legal=f"1 to max_tokens, {max_tokens}")
    return max(-1.0, min(0.0, (max_tokens - num_soft - num_tokens) / num_soft))


@dataclass(frozen=True, slots=True)
class OverlongPenalty:
    """`overlong_penalty` as a reward function, to be added to another: Reward("overlong", OverlongPenalty(32, 8))."""

    max_tokens: int
    num_soft: int

    def __call__(self, completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        """A penalty for each completion."""
        return [
            overlong_penalty(len(tokens), max_tokens=self.max_tokens, num_soft=self.num_soft)
            for tokens in completion_ids
        ]
