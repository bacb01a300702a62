"""vLLM's own Qwen3, Qwen2 or Llama as the sampler's model: its layers, its attention, and its parameters.

vLLM fuses parameters as rlcore does, so that each of ours is a view of one of its own. Tokens are drawn by rlcore's
keyed noise, from vLLM's logits.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rlcore.errors import InvalidValueError
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder

NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": "input_layernorm.weight",
    "qkv": "self_attn.qkv_proj.weight",
    "qkv_bias": "self_attn.qkv_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "out": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate_up": "mlp.gate_up_proj.weight",
    "down": "mlp.down_proj.weight",
}
"""Our parameter, of a layer or outside -> vLLM's."""


def decoder_of(model: Any, config: DecoderConfig) -> Decoder:
    """Return rlcore's decoder within a model; or one whose parameters are views of a vLLM model's.

    vLLM pads the vocabulary; the views end before. Raises ValueError for a parameter of another shape.
    """
    if isinstance(own := getattr(model, "decoder", None), Decoder):
        return own
    with torch.device("meta"):
        decoder = Decoder(config)
    theirs = dict(model.named_parameters())
    for name, wanted in list(decoder.named_parameters()):
        owner, _, short = name.rpartition(".")
        view = theirs[f"model.{owner}.{NAMES[short]}" if owner else NAMES[short]].detach()[: len(wanted)]
        if view.shape != wanted.shape:
            raise ValueError(f"{name} is {list(view.shape)} in vLLM, and {list(wanted.shape)} here")
        setattr(decoder.get_submodule(owner), short, nn.Parameter(view, requires_grad=False))
    return decoder


def check_head_width(head_width: int, what: str, remedy: str) -> None:
    """Raise InvalidValueError for heads that vLLM's own attention does not compute."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    legal = CPUAttentionBackend.get_supported_head_sizes()
    if current_platform.device_type == "cpu" and head_width not in legal:
        raise InvalidValueError(
            f"{what} whose heads are {head_width} wide",
            legal=f"{', '.join(map(str, legal))}: what vLLM's attention computes on a CPU",
            remedy=remedy,
        )
