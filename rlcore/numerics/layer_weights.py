"""The weights of one decoder layer, by name."""

from typing import NamedTuple

from torch import Tensor


class LayerWeights(NamedTuple):
    """The weights of a `rlcore.models.decoder.Layer`; None for those that its family does not have."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
