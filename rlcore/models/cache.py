"""Keys and values of the positions read so far, a slot for each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import InvalidValueError
from rlcore.models.config import DecoderConfig
from rlcore.numerics.attention import write_rows

KEYS_AT_ONCE = 16
"""A capacity, and what is read of it, is a multiple: then no padding has to copy it."""


@dataclass(frozen=True, slots=True)
class KeyValueCache:
    """Room for `num_slots` sequences of up to `capacity` positions; the caller knows how long each is.

    Positions after a sequence's length are finite and never read, so a slot is reused as it is.
    """

    keys: Tensor
    values: Tensor
    """[layers, slots, kv_heads, capacity, head_width], as keys."""

    @classmethod
    def empty(cls, config: DecoderConfig, num_slots: int, capacity: int, *, like: Tensor) -> "KeyValueCache":
        """Zeros of the type and on the device of `like`; the capacity is rounded up to a multiple of 16."""
        capacity += -capacity % KEYS_AT_ONCE
        shape = config.num_layers, num_slots, config.num_kv_heads, capacity, config.head_width
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    @property
    def capacity(self) -> int:
        """How many positions of each."""
        return self.values.shape[3]

    def slots(self, first: int, last: int) -> "KeyValueCache":
        """Slots first to last - 1, the same memory."""
        return KeyValueCache(self.keys[:, first:last], self.values[:, first:last])

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slots over others: a batch stays dense when sequences in its middle end."""
        for held in (self.keys, self.values):
            held[:, list(targets)] = held[:, list(sources)]

    def spread(self, first: int, which: Tensor, length: int) -> None:
        """Slot first + i takes `length` positions of slot first + which[i]: int64 [slots]."""
        for held in (self.keys[..., :length, :], self.values[..., :length, :]):
            held[:, first : first + len(which)] = held[:, first + which]

    def grown(self, capacity: int, num_slots: int) -> "KeyValueCache":
        """Return the same sequences with room for more; the capacity is rounded up to a multiple of 16."""
        missing = capacity + -capacity % KEYS_AT_ONCE - self.capacity
        sizes = (0, 0, 0, missing, 0, 0, 0, num_slots - self.keys.shape[1])
        return KeyValueCache(F.pad(self.keys, sizes), F.pad(self.values, sizes))


@dataclass(frozen=True)
class CachePositions:
    """Where the tokens of one call stand, worked out once for all layers."""

    cache: KeyValueCache
    starts: Tensor
    """[batch]: the position of each sample's first token."""
    positions: Tensor
    """[batch, length]."""
    num_keys: int
    """How much of the cache is read."""
    is_fresh: bool
    """All samples start at 0: nothing before is to be read."""

    @classmethod
    def of(cls, cache: KeyValueCache, starts: Tensor, length: int, *, longest: int) -> "CachePositions":
        """Work out the positions of `length` tokens of each sample, for starts [batch] of at most `longest`.

        Nothing waits for the device. Raises InvalidValueError where the tokens do not fit.
        """
        end = longest + length
        if len(starts) > cache.keys.shape[1] or end > cache.capacity:
            legal = f"up to {cache.keys.shape[1]} slots of {cache.capacity} positions"
            raise InvalidValueError(f"{len(starts)} sequences up to position {end}", legal=legal)
        positions = starts.unsqueeze(1)
        if length > 1:
            positions = positions + torch.arange(length, device=starts.device)
        return cls(cache, starts, positions, end + -end % KEYS_AT_ONCE, is_fresh=longest == 0)

    @cached_property
    def places(self) -> Tensor:
        """[batch * kv_heads * length]: where each new key lies among all keys of a layer, and each value alike."""
        (batch, length), (_, _, kv_heads, capacity, _) = self.positions.shape, self.cache.keys.shape
        new = torch.arange(length, device=self.starts.device) + self.starts.unsqueeze(1)
        firsts = torch.arange(0, batch * kv_heads * capacity, capacity, device=self.starts.device)
        return (firsts.view(-1, kv_heads, 1) + new.unsqueeze(1)).view(-1)

    def put(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [batch, kv_heads, length, width], and give those of the whole sequences so far."""
        batch, width = k.shape[0], k.shape[-1]
        whole = self.cache.keys[layer], self.cache.values[layer]
        for stored, new in zip(whole, (k, v), strict=True):
            write_rows(stored.view(-1, width), self.places, new.reshape(-1, width))
        return whole[0][:batch, :, : self.num_keys], whole[1][:batch, :, : self.num_keys]
