"""rlcore's decoder as a model of vLLM: one row of all tokens of a pass, in rlcore's own operations.

At level invariant a row's bits do not depend on its company, so that these are the bits of the local sampler and of
the trainer. No layer of vLLM computes anything, so none prepacks weights: they are written by name.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention

from rlcore.models.checkpoints import CONFIG, fill, read_json
from rlcore.models.config import read_config
from rlcore.models.decoder import Decoder
from rlcore.samplers.vllm.attention import PagedCacheBackend
from rlcore.samplers.vllm.paged_attention import PagedBackend, PagedPass
from rlcore.samplers.vllm.versions import pages_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ARCHITECTURE = "RlcoreForCausalLM"
"""Name in vLLM's registry; stock models keep theirs."""
OWN_ARCHITECTURE = "rlcore_architecture"
"""Key of config.json with the architecture that rlcore reads."""


class RlcoreForCausalLM(nn.Module):
    """The decoder of a config.json that `engine.write_model` has written."""

    def __init__(self, *, vllm_config: "VllmConfig", prefix: str = "") -> None:
        super().__init__()
        found = read_json(Path(vllm_config.model_config.model) / CONFIG)
        config = read_config(found | {"architectures": [found[OWN_ARCHITECTURE]]})
        self.decoder = Decoder(config).requires_grad_(False)
        self.caches = nn.ModuleList(
            Attention(
                config.num_heads,
                config.head_width,
                config.head_width**-0.5,
                num_kv_heads=config.num_kv_heads,
                cache_config=vllm_config.cache_config,
                prefix=f"layers.{number}.cache",
                attn_backend=PagedCacheBackend,
            )
            for number in range(config.num_layers)
        )
        self._pages: list[Tensor] = []

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of tokens."""
        return embedding(input_ids, self.decoder.embedding)

    def forward(self, input_ids: Tensor, positions: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return the normalised stream: tokens and positions [tokens] -> [tokens, width]."""
        plans = get_forward_context().attn_metadata
        if plans is None:  # vLLM measures memory
            return torch.zeros(len(input_ids), self.decoder.config.width, dtype=self.decoder.embedding.dtype)
        plan = next(iter(plans.values())) if isinstance(plans, dict) else plans
        assert isinstance(plan, PagedPass)
        by = PagedBackend(self.decoder.config, self.decoder.rotations(), positions, plan, self.pages())
        return self.decoder.through(input_ids[None], by)[0]

    def compute_logits(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return the logits [rows, vocabulary] of rows of the stream."""
        return self.decoder.logits(hidden_states[None])[0]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Write tensors of a checkpoint, as vLLM's own loaders and weight updates bring them; return the parameters."""
        return {f"decoder.{name}" for name in fill(self.decoder, weights)}

    def pages(self) -> list[Tensor]:
        """Return the caches of all layers as rows; vLLM allocates them after the model."""
        if not self._pages:
            config = self.decoder.config
            self._pages = [pages_of(each, config.num_kv_heads, config.head_width) for each in self.caches]
        return self._pages
