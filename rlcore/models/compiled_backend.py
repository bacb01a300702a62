"""Attention of a layer's heads by compiled kernels, and whole layers in one call."""

from torch import Tensor

from rlcore.models.attention_backend import FusedLayer, HeadNorms
from rlcore.models.cache import CachePositions, KeyValueCache
from rlcore.models.config import DecoderConfig
from rlcore.numerics.compiled.differentiable import Cached, Meeting, Turned, attend, attend_cached, layer_cached
from rlcore.numerics.compiled.differentiable import layer as fused_layer
from rlcore.numerics.compiled.registration import have_callbacks


class CompiledBackend:
    """Attention by one kernel, or by the kernel of the whole layer."""

    def __init__(
        self, config: DecoderConfig, table: Tensor, cache: KeyValueCache | None, at: CachePositions | None
    ) -> None:
        self.config, self.table = config, table
        self.starts = at.starts if at else None
        self.layers = cache.layers(len(at.starts)) if cache and at else ()

    def attend(self, heads: Tensor, layer: HeadNorms) -> Tensor:
        """As `AttentionBackend.attend`."""
        by = Turned(layer.q_norm, layer.k_norm, self.config.norm_eps, self.table)
        if self.starts is None:
            return attend(heads, by, self.config.num_kv_heads).flatten(2)
        return attend_cached(heads, by, self.starts, *self.layers[layer.number]).flatten(2)

    def layer(self, x: Tensor, layer: FusedLayer) -> Tensor | None:
        """As `AttentionBackend.layer`; None while operations are recorded one by one, which has the same bits."""
        if have_callbacks():
            return None
        by = Meeting(self.table, self.config.num_heads, self.config.num_kv_heads, self.config.norm_eps)
        if self.starts is None:
            return fused_layer(x, layer.weights, by)
        return layer_cached(x, layer.weights, by, Cached(self.starts, *self.layers[layer.number]))
