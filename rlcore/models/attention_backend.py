"""Attention of a layer's heads, by torch's operations.

Heads are [batch, length, queries + keys + values, head_width], their attention [batch, length, queries * head_width].
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding

from rlcore.models.cache import CachePositions, KeyValueCache
from rlcore.models.config import DecoderConfig
from rlcore.models.rotary import rotate
from rlcore.numerics.attention import attention, visible
from rlcore.numerics.norms import rms_norm


class HeadNorms(Protocol):
    """The weights of a layer that normalise its heads, [head_width]; None if the family has none."""

    @property
    def number(self) -> int:
        """Index of the layer."""

    @property
    def q_norm(self) -> Tensor | None:
        """Weight of the queries' norm."""

    @property
    def k_norm(self) -> Tensor | None:
        """Weight of the keys' norm."""


class TorchBackend:
    """One call of the decoder: what its layers share, and how they attend."""

    def __init__(
        self, config: DecoderConfig, table: Tensor, length: int, cache: KeyValueCache | None, at: CachePositions | None
    ) -> None:
        self.config, self.cache, self.at = config, cache, at
        rotations = table[:length] if at is None else embedding(at.positions, table)
        self.cosines, self.sines = rotations_of_heads(rotations, config)
        self.mask = None
        if at and not at.is_fresh:
            self.mask = visible(at.starts, at.positions.shape[1], at.num_keys)

    def attend(self, heads: Tensor, layer: HeadNorms) -> Tensor:
        """Return the attention of one layer's heads, [batch, length, queries * head_width]."""
        config = self.config
        qk, v = heads.split_with_sizes([config.num_qk_heads, config.num_kv_heads], 2)
        if layer.q_norm is not None and layer.k_norm is not None:
            qk = self._normed(qk, layer.q_norm, layer.k_norm)
        qk = rotate(qk, self.cosines, self.sines)
        q, k = qk.transpose(1, 2).split_with_sizes([config.num_heads, config.num_kv_heads], 1)
        return self._attended(layer.number, q, k, v.transpose(1, 2)).transpose(1, 2).flatten(2)

    def _normed(self, qk: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """Normalise each head by itself, all in one call: a norm takes rows one by one."""
        counts = self.config.num_heads, self.config.num_kv_heads
        weights = [norm.expand(count, -1) for norm, count in zip((q_norm, k_norm), counts, strict=True)]
        return rms_norm(qk, torch.cat(weights), self.config.norm_eps)

    def _attended(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend over these keys, or over all that the cache has with them: [batch, heads, length, width]."""
        if self.cache is None or self.at is None:
            return attention(q, k, v)
        keys, values = self.at.put(self.cache, layer, k, v)
        return attention(q, k, v) if self.mask is None else attention(q, keys, values, self.mask)


def rotations_of_heads(rotations: Tensor, config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Return (cosines, sines) [..., length, heads * head_width] for queries and keys: one head's, repeated."""
    cosines, sines = (torch.cat([each] * config.num_qk_heads, -1) for each in rotations.chunk(2, -1))
    return cosines, sines
