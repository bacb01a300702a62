"""Causal attention over a sequence, or over what a cache holds of it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import LevelError
from rlcore.numerics.level import Strategy, active, in_tiles, padded, uses_triton


def attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(width)) v over the keys that each query sees.

    q [batch, heads, queries, width], k and v [batch, kv_heads, keys, width] -> [batch, heads, queries, width]; heads
    is a multiple of kv_heads, and neighbouring heads share one. `seen` comes from `visible`; None is a full pass, of as
    many queries as keys: query i sees keys 0 to i. Keys that no query sees must be finite. A query's bits depend on the
    keys it sees alone: neither on how many keys follow nor on how many queries come with it. Raises LevelError for more
    keys than the strategy was probed with.
    """
    if (strategy := active()) is None:
        return plain_attention(q, k, v, seen)
    if (most := strategy.longest) is not None and k.shape[2] > most:  # kernels cut longer sums elsewhere
        raise LevelError(
            f"attention over {k.shape[2]} keys", legal=f"up to {most}, as certified", remedy="certify(length=...)"
        )
    if strategy.is_triton:
        from rlcore.numerics import gpu

        return gpu.attention(q, k, v, seen)
    return (_tiled_attention if strategy.is_tiled else _padded_attention)(strategy, q, k, v, seen)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """torch's own."""
    is_grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None, enable_gqa=is_grouped)


def visible(starts: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """Which keys each query sees, for `attention`; query i of sample b stands at starts[b] + i.

    A mask, bool [batch, 1, queries, keys]; kernels of a GPU take the starts themselves.
    """
    if uses_triton():
        return starts
    positions = starts[:, None] + torch.arange(num_queries, device=starts.device)
    return (torch.arange(num_keys, device=starts.device) <= positions[..., None]).unsqueeze(1)


def write_rows(target: Tensor, places: Tensor, source: Tensor) -> None:
    """target[places] = source, of [rows, width], by distinct places; the target is contiguous."""
    if not uses_triton():
        target.index_copy_(0, places, source)
        return
    from rlcore.numerics import gpu

    gpu.write_rows(target, places, source)


def _full_pass(q: Tensor) -> Tensor:
    return visible(torch.zeros(q.shape[0], dtype=torch.int64, device=q.device), q.shape[2], q.shape[2])


def _heads_as_queries(q: Tensor, num_kv_heads: int) -> Tensor:
    """One query a head, those of one kv head side by side: they see the same keys, and one product serves them."""
    return q.view(q.shape[0], num_kv_heads, -1, q.shape[-1])


def _padded_attention(by: Strategy, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    num_queries = q.shape[2]
    k, v = padded(k, by.keys, 2), padded(v, by.keys, 2)
    if seen is None and by.keys > by.rows:
        seen = _full_pass(q)  # then queries need not be padded as far as keys
    if seen is None:
        y = plain_attention(padded(q, by.queries, 2), k, v, None)
        return y if y.shape[2] == num_queries else y[:, :, :num_queries]
    seen = padded(seen, by.keys, 3)
    if num_queries > 1:
        seen = F.pad(seen, (0, 0, 0, -num_queries % by.queries), value=True)
        return plain_attention(padded(q, by.queries, 2), k, v, seen)[:, :, :num_queries]
    rows = _heads_as_queries(q, k.shape[1])
    y = plain_attention(padded(rows, by.queries, 2), k, v, seen)
    return y[:, :, : rows.shape[2]].reshape(q.shape)


def _tiled_attention(by: Strategy, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """Go over blocks of keys with a running maximum and sum (Milakov and Gimelshein 2018).

    A block none of whose keys is seen leaves both as they are, to the bit, so neither the number of blocks matters.
    """
    seen = _full_pass(q) if seen is None else seen
    if q.shape[2] == 1:
        rows = _heads_as_queries(q, k.shape[1])
        seen = seen.expand(-1, -1, rows.shape[2], -1)
    else:
        rows = q
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    keys, values = in_tiles(k, by.keys, 2), in_tiles(v, by.keys, 2)
    parts = torch.split(padded(padded(seen, by.keys, 3), by.queries, 2), by.queries, 2)
    tiles = zip(in_tiles(rows, by.queries, 2), parts, strict=True)
    y = torch.cat([_tile(tile, keys, values, torch.split(part, by.keys, 3)) for tile, part in tiles], 2)
    return y[:, :, : rows.shape[2]].reshape(q.shape)


def _tile(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], masks: Sequence[Tensor]) -> Tensor:
    """One tile of queries over every block of keys; masks [batch, 1, queries, keys] each."""
    wide = q.float() * q.shape[-1] ** -0.5
    top = torch.full_like(wide[..., :1], torch.finfo(torch.float32).min)
    weight, total = torch.zeros_like(top), torch.zeros_like(wide)
    for key, value, mask in zip(keys, values, masks, strict=True):
        scores = _products(wide, key.float().transpose(-1, -2)).masked_fill(~mask, -torch.inf)
        higher = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
        fade, portions = (top - higher).exp(), (scores - higher).exp()
        weight = weight * fade + portions.sum(-1, keepdim=True)
        total = total * fade + _products(portions, value.float())
        top = higher
    return (total / weight.clamp_min(torch.finfo(torch.float32).tiny)).to(q.dtype)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """[batch, heads, n, k] @ [batch, heads, k, m], a product of its own for each: a batched one may choose by count."""
    pairs = zip(a.flatten(0, 1), b.flatten(0, 1), strict=True)
    return torch.stack([x @ y for x, y in pairs]).view(*a.shape[:2], a.shape[2], b.shape[3])
