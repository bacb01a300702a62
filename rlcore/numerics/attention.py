"""Causal attention over a sequence, or over what a cache holds of it."""

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import LevelError, ShapeError
from rlcore.numerics.level import Padding, active, longest, padded


def attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(width)) v over the keys that each query sees.

    q [batch, heads, queries, width], k and v [batch, kv_heads, keys, width] -> [batch, heads, queries, width]; heads
    is a multiple of kv_heads, and neighbouring heads share one. `seen` comes from `visible`; None is a full pass:
    query i sees keys 0 to i. Keys that no query sees must be finite. A query's bits depend on the keys it sees alone:
    neither on how many keys follow nor on how many queries come with it. Raises ShapeError, and LevelError for more
    keys than the padding was probed with.
    """
    is_full = seen is not None or q.shape[2] == k.shape[2]
    if q.shape[1] % k.shape[1] or k.shape != v.shape or q.shape[0] != k.shape[0] or not is_full:
        raise ShapeError(
            f"attention of {tuple(q.shape)} over {tuple(k.shape)} and {tuple(v.shape)}",
            legal="[batch, heads, queries, width] over [batch, kv_heads, keys, width], heads a multiple of kv_heads,"
            " and as many queries as keys unless given `seen`",
        )
    if (padding := active()) is None:
        return plain_attention(q, k, v, seen)
    if (most := longest()) is not None and k.shape[2] > most:  # kernels cut longer sums elsewhere
        raise LevelError(
            f"attention over {k.shape[2]} keys", legal=f"up to {most}, as certified", remedy="certify(length=...)"
        )
    return _padded_attention(padding, q, k, v, seen)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """torch's own."""
    is_grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None, enable_gqa=is_grouped)


def visible(starts: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """Which keys each query sees: bool [batch, 1, queries, keys]; query i of sample b stands at starts[b] + i."""
    positions = starts[:, None] + torch.arange(num_queries, device=starts.device)
    return (torch.arange(num_keys, device=starts.device) <= positions[..., None]).unsqueeze(1)


def _padded_attention(padding: Padding, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    num_queries = q.shape[2]
    k, v = padded(k, padding.keys, 2), padded(v, padding.keys, 2)
    if seen is None and padding.keys > padding.rows:  # a mask, so that queries need not be padded as far as keys
        seen = visible(torch.zeros(q.shape[0], dtype=torch.int64, device=q.device), num_queries, num_queries)
    if seen is None:
        y = plain_attention(padded(q, padding.queries, 2), k, v, None)
        return y if y.shape[2] == num_queries else y[:, :, :num_queries]
    seen = padded(seen, padding.keys, 3)
    if num_queries > 1:
        seen = F.pad(seen, (0, 0, 0, -num_queries % padding.queries), value=True)
        return plain_attention(padded(q, padding.queries, 2), k, v, seen)[:, :, :num_queries]
    # The heads of one kv head see the same keys: as queries side by side one product serves them, and less is padded.
    rows = q.view(q.shape[0], k.shape[1], -1, q.shape[-1])
    y = plain_attention(padded(rows, padding.queries, 2), k, v, seen)
    return y[:, :, : rows.shape[2]].reshape(q.shape)
