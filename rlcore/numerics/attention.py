"""Causal attention over a sequence, or over what a cache holds of it."""

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import ShapeError
from rlcore.numerics.level import active, check_length


def attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(width)) v over the keys that each query sees.

    q [batch, heads, queries, width], k and v [batch, kv_heads, keys, width] -> [batch, heads, queries, width]; heads
    is a multiple of kv_heads, and neighbouring heads share one. `seen` comes from `visible`; None is a full pass:
    query i sees keys 0 to i. Keys that no query sees must be finite. A query's bits depend on the keys it sees alone:
    neither on how many keys follow nor on how many queries come with it. Raises ShapeError.
    """
    is_full = seen is not None or q.shape[2] == k.shape[2]
    if q.shape[1] % k.shape[1] or k.shape != v.shape or q.shape[0] != k.shape[0] or not is_full:
        raise ShapeError(
            f"attention of {tuple(q.shape)} over {tuple(k.shape)} and {tuple(v.shape)}",
            legal="[batch, heads, queries, width] over [batch, kv_heads, keys, width], heads a multiple of kv_heads,"
            " and as many queries as keys unless given `seen`",
        )
    strategy = active()
    if strategy is None:
        return plain_attention(q, k, v, seen)
    check_length(k.shape[2])
    return strategy.attention(q, k, v, seen)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """torch's own."""
    is_grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None, enable_gqa=is_grouped)


def visible(starts: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """Which keys each query sees: bool [batch, 1, queries, keys]; query i of sample b stands at starts[b] + i."""
    positions = starts[:, None] + torch.arange(num_queries, device=starts.device)
    return (torch.arange(num_keys, device=starts.device) <= positions[..., None]).unsqueeze(1)


def heads_as_queries(q: Tensor, num_kv_heads: int) -> Tensor:
    """One query a head, the heads of one kv head side by side: to [batch, kv_heads, -1, width].

    They see the same keys, so that one product serves them, and less is padded.
    """
    return q.view(q.shape[0], num_kv_heads, -1, q.shape[-1])


def full_pass(q: Tensor) -> Tensor:
    """What each query sees where there are as many as keys."""
    return visible(torch.zeros(q.shape[0], dtype=torch.int64, device=q.device), q.shape[2], q.shape[2])
