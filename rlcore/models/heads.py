"""From a layer's heads to what its queries make of the values they see: by torch's operations, or by compiled kernels,
which take the whole layer at once.

Heads are [batch, length, queries + keys + values, head_width]; what is mixed is [batch, length, queries * head_width].
"""

from typing import Protocol

import torch
from torch import Tensor

from rlcore.models.cache import KeyValueCache, Reach
from rlcore.models.config import DecoderConfig
from rlcore.models.rotary import rotate
from rlcore.numerics.attention import attention, visible
from rlcore.numerics.compiled.differentiable import Cached, Meeting, Turned, attend, attend_cached
from rlcore.numerics.compiled.differentiable import layer as whole_layer
from rlcore.numerics.compiled.differentiable import layer_cached as whole_layer_cached
from rlcore.numerics.compiled.layers import Weights
from rlcore.numerics.compiled.registration import are_watched
from rlcore.numerics.embedding import embedding
from rlcore.numerics.level import is_compiled
from rlcore.numerics.norms import rms_norm


class Norms(Protocol):
    """The weights of a layer that heads are normalised with, [head_width]; None where a family has none."""

    @property
    def number(self) -> int:
        """Of the layer."""

    @property
    def q_norm(self) -> Tensor | None:
        """Of queries."""

    @property
    def k_norm(self) -> Tensor | None:
        """Of keys."""


class WholeLayer(Protocol):
    """A layer with all that belongs to it."""

    @property
    def number(self) -> int:
        """Among the layers."""

    @property
    def weights(self) -> Weights:
        """All of them."""


class Mixer(Protocol):
    """What the layers of one call share: rotations, and what is seen of the cache."""

    def whole(self, x: Tensor, layer: WholeLayer) -> Tensor | None:
        """The stream [batch, length, width] after a layer that is computed in one call; None where it is not."""

    def mix(self, heads: Tensor, layer: Norms) -> Tensor:
        """The heads of one layer -> [batch, length, queries * head_width]."""


def mixer(
    config: DecoderConfig, table: Tensor, length: int, cache: KeyValueCache | None = None, reach: Reach | None = None
) -> Mixer:
    """For a pass over `length` positions, or for what follows a cache; `table` has the rotations of all positions."""
    return (Compiled if is_compiled() else ByTorch)(config, table, length, cache, reach)


class ByTorch:
    """Each by an operation of its own."""

    def __init__(
        self, config: DecoderConfig, table: Tensor, length: int, cache: KeyValueCache | None, reach: Reach | None
    ) -> None:
        self.config, self.cache, self.reach = config, cache, reach
        rotations = table[:length] if reach is None else embedding(reach.positions, table)
        self.cosines, self.sines = (torch.cat([each] * config.num_qk_heads, -1) for each in rotations.chunk(2, -1))
        self.seen = None
        if reach and not reach.is_fresh:
            self.seen = visible(reach.starts, reach.positions.shape[1], reach.num_keys)

    def whole(self, x: Tensor, layer: WholeLayer) -> Tensor | None:
        """As `Mixer.whole`: it never is."""
        return None

    def mix(self, heads: Tensor, layer: Norms) -> Tensor:
        """As `Mixer.mix`."""
        config = self.config
        qk, v = heads.split_with_sizes([config.num_qk_heads, config.num_kv_heads], 2)
        if layer.q_norm is not None and layer.k_norm is not None:
            qk = self._normed(qk, layer.q_norm, layer.k_norm)
        qk = rotate(qk, self.cosines, self.sines)
        q, k = qk.transpose(1, 2).split_with_sizes([config.num_heads, config.num_kv_heads], 1)
        return self._attended(layer.number, q, k, v.transpose(1, 2)).transpose(1, 2).flatten(2)

    def _normed(self, qk: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """Each head by itself, all in one call: a norm takes rows one by one."""
        counts = self.config.num_heads, self.config.num_kv_heads
        weights = [norm.expand(count, -1) for norm, count in zip((q_norm, k_norm), counts, strict=True)]
        return rms_norm(qk, torch.cat(weights), self.config.norm_eps)

    def _attended(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[batch, heads, length, width]: over these keys, or over all that the cache has with them."""
        if self.cache is None or self.reach is None:
            return attention(q, k, v)
        keys, values = self.reach.put(self.cache, layer, k, v)
        return attention(q, k, v) if self.seen is None else attention(q, keys, values, self.seen)


class Compiled:
    """All of it in one kernel, or in that of the whole layer."""

    def __init__(
        self, config: DecoderConfig, table: Tensor, length: int, cache: KeyValueCache | None, reach: Reach | None
    ) -> None:
        self.config, self.table = config, table
        self.starts = reach.starts if reach else None
        self.layers = cache.layers(len(reach.starts)) if cache and reach else ()

    def mix(self, heads: Tensor, layer: Norms) -> Tensor:
        """As `Mixer.mix`."""
        by = Turned(layer.q_norm, layer.k_norm, self.config.norm_eps, self.table)
        if self.starts is None:
            return attend(heads, by, self.config.num_kv_heads).flatten(2)
        return attend_cached(heads, by, self.starts, *self.layers[layer.number]).flatten(2)

    def whole(self, x: Tensor, layer: WholeLayer) -> Tensor | None:
        """As `Mixer.whole`; its parts where somebody watches operations, which has the same bits."""
        if are_watched():
            return None
        by = Meeting(self.table, self.config.num_heads, self.config.num_kv_heads, self.config.norm_eps)
        if self.starts is None:
            return whole_layer(x, layer.weights, by)
        return whole_layer_cached(x, layer.weights, by, Cached(self.starts, *self.layers[layer.number]))
