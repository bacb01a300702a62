"""Which tokens may be drawn: the top k, then the top p of what is left, then what is not below min p of the best.

All in the order of the vocabulary: a filter forbids tokens and moves nothing. Among equals the lower token comes first.
transformers 5 computes the same where no two logits are equal; with equal ones it may keep more than k.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore.types import SamplingParams

UNIT = float(1 << 40)
"""Shares of the best token's probability are counted in such parts: sums of whole numbers know no order."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of each row."""

    top_k: Tensor
    """int64 [rows, 1]; the whole vocabulary, or more, is no filter."""
    top_p: Tensor
    """fp64 [rows, 1]; infinity is no filter: the last shares may count as 0."""
    min_p: Tensor
    """fp64 [rows, 1]; 0 is no filter."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> "Filters | None":
        """None where no row has one."""
        if not any(row.top_k or row.top_p < 1.0 or row.min_p for row in params):
            return None
        top_p = [row.top_p if row.top_p < 1.0 else float("inf") for row in params]
        return cls(
            torch.tensor([row.top_k or vocab_size for row in params], device=device).unsqueeze(1),
            torch.tensor(top_p, dtype=torch.float64, device=device).unsqueeze(1),
            torch.tensor([row.min_p for row in params], dtype=torch.float64, device=device).unsqueeze(1),
        )

    def allowed(self, logits: Tensor) -> Tensor:
        """Logits at their temperature [rows, vocabulary] -> bool, the same shape; at least one token of each row."""
        falling, order = torch.sort(logits.double(), dim=-1, descending=True, stable=True)
        ranks = torch.arange(logits.shape[-1], device=logits.device)
        left = ranks < self.top_k
        shares = (falling - falling[:, :1]).exp_().masked_fill_(~left, 0.0)
        counts = (shares * UNIT).long()
        above = counts.cumsum(-1) - counts
        left = left & (above < self.top_p * counts.sum(-1, keepdim=True)) & (shares >= self.min_p)
        left[:, 0] = True
        return torch.empty_like(left).scatter_(1, order, left)
