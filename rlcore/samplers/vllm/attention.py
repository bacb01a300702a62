"""Attention over a paged cache: rlcore's own operation on the keys that each request's blocks hold. No vLLM.

    heads of all tokens ──norm, rotate──▶ write keys and values to their slots ──▶ group of requests: gather, attend

Slot s of a block b is row b * block_size + s of the cache. All keys of a pass are written before any is read: requests
of one pass may share a prefix that one of them has just computed. Requests with equally many queries attend together:
rows do not depend on their company.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from rlcore.models.cache import KEYS_AT_ONCE
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import TorchBackend, rotations_of_heads
from rlcore.numerics.attention import attention, visible


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of a pass with equally many queries."""

    tokens: Tensor
    """int64 [requests, queries]: indices of their tokens in the pass."""
    slots: Tensor | None
    """int64 [requests, keys]: rows of the cache that hold their keys; None if all of their keys are in this pass."""
    visible: Tensor | None
    """bool [requests, 1, queries, keys]; None with `slots`."""


@dataclass(frozen=True, slots=True)
class PagedPass:
    """Slots and groups of one forward pass, computed once for all layers."""

    slots: Tensor
    """int64 [tokens]: row of the cache for each token's key and value."""
    groups: tuple[Group, ...]

    @classmethod
    def of(
        cls, query_starts: Sequence[int], num_keys: Sequence[int], blocks: Tensor, slots: Tensor, block_size: int
    ) -> "PagedPass":
        """Plan a pass.

        Request r has the tokens query_starts[r] to query_starts[r + 1] - 1 and, with those before, num_keys[r] keys in
        the blocks[r]: int [requests, most blocks]. Requests without a token are skipped.
        """
        by_count: dict[tuple[int, bool], list[int]] = {}
        for request, keys in enumerate(num_keys):
            count = query_starts[request + 1] - query_starts[request]
            if count:
                by_count.setdefault((count, keys == count), []).append(request)
        groups = []
        for (count, is_fresh), requests in by_count.items():
            firsts = torch.tensor([query_starts[request] for request in requests])
            tokens = (firsts[:, None] + torch.arange(count)).to(slots.device)
            if is_fresh:
                groups.append(Group(tokens, None, None))
                continue
            longest = max(num_keys[request] for request in requests)
            longest += -longest % KEYS_AT_ONCE
            places = torch.arange(longest, device=slots.device)
            # A request's table may end before the longest's: its last block stands in, and no query sees those keys.
            columns = (places // block_size).clamp_(max=blocks.shape[1] - 1)
            held = blocks[torch.tensor(requests, device=blocks.device)].to(torch.int64)
            rows = held.index_select(1, columns) * block_size + places % block_size
            starts = torch.tensor([num_keys[request] - count for request in requests], device=slots.device)
            groups.append(Group(tokens, rows, visible(starts, count, longest)))
        return cls(slots.to(torch.int64), tuple(groups))


class PagedBackend(TorchBackend):
    """As `rlcore.models.decoder.TorchBackend`, for the tokens of many requests in one row of a batch."""

    def __init__(
        self, config: DecoderConfig, table: Tensor, positions: Tensor, plan: PagedPass, caches: Sequence[Tensor]
    ) -> None:
        """Prepare a pass: positions int64 [tokens]; caches [slots, kv_heads, 2 * head_width], one per layer."""
        self.config, self.plan, self.caches = config, plan, caches
        self.cosines, self.sines = rotations_of_heads(embedding(positions[None], table), config)

    def _attended(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend: q [1, heads, tokens, width], k and v [1, kv_heads, tokens, width] -> as q."""
        cache, plan = self.caches[layer], self.plan
        num_tokens = len(plan.slots)  # fewer than there are if the pass is padded
        new = torch.cat((k[0, :, :num_tokens], v[0, :, :num_tokens]), -1)
        cache.index_copy_(0, plan.slots, new.transpose(0, 1))
        out = torch.zeros_like(q)
        for group in plan.groups:
            keys, values = self._held(cache, k, v, group)
            queries = q[0][:, group.tokens].transpose(0, 1)
            out[0][:, group.tokens] = attention(queries, keys, values, group.visible).transpose(0, 1)
        return out

    def _held(self, cache: Tensor, k: Tensor, v: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        """Return keys and values [requests, kv_heads, keys, width] of a group."""
        if group.slots is None:
            keys, values = (each[0][:, group.tokens].transpose(0, 1) for each in (k, v))
            return keys, values
        held = cache.index_select(0, group.slots.flatten()).view(*group.slots.shape, *cache.shape[1:])
        keys, values = held.transpose(1, 2).chunk(2, -1)
        return keys.contiguous(), values.contiguous()
