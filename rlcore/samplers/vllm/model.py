"""rlcore's decoder as a model of vLLM: one row of all tokens of a pass, in rlcore's own operations.

At level invariant a row's bits do not depend on its company, so that these are the bits of the local sampler and of
the trainer. No layer of vLLM computes anything, so none prepacks weights: they are written by name.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

from rlcore.models.decoder import Decoder
from rlcore.samplers.vllm.attention import PagedBackend, PagedPass
from rlcore.samplers.vllm.versions import pages_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ARCHITECTURE = "RlcoreForCausalLM"
"""Name in vLLM's registry; stock models keep theirs."""


class PlanBuilder(AttentionMetadataBuilder[PagedPass]):
    """Builds the plan of a pass, once for all layers."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._block_size: int = kv_cache_spec.block_size

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> PagedPass:
        """As `AttentionMetadataBuilder.build`."""
        given = common_attn_metadata
        return PagedPass.of(
            given.query_start_loc_cpu[: given.num_reqs + 1].tolist(),
            given.seq_lens[: given.num_reqs].tolist(),
            given.block_table_tensor[: given.num_reqs],
            given.slot_mapping[: given.num_actual_tokens],
            self._block_size,
        )


class NoAttention(AttentionImpl[Any]):
    """An implementation that is never called: the model attends by `PagedBackend`."""

    def __init__(self, *sizes: Any, **options: Any) -> None:
        """Take what vLLM's layer passes to every implementation."""

    def forward(self, *tensors: Any, **options: Any) -> torch.Tensor:
        """Raise AssertionError."""
        raise AssertionError("the model attends by PagedBackend")


class PagedCacheBackend(AttentionBackend):
    """A backend that stands for memory alone: a cache of any head width and block size."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16]
    forward_includes_kv_cache_update = True  # or vLLM writes the cache first, in a layout of its kernels

    @staticmethod
    def get_name() -> str:
        """Return the name that vLLM keeps for backends of others."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[NoAttention]:
        """As `AttentionBackend.get_impl_cls`."""
        return NoAttention

    @staticmethod
    def get_builder_cls() -> type[PlanBuilder]:
        """As `AttentionBackend.get_builder_cls`."""
        return PlanBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *_: Any) -> Any:
        """Return the shape of a layer's cache, for versions of vLLM that ask the backend."""
        return num_blocks, block_size, num_kv_heads, 2 * head_size


class RlcoreForCausalLM(nn.Module):
    """The decoder of the configuration that the trainer has given."""

    def __init__(self, *, vllm_config: "VllmConfig", prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.additional_config.config
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

    def pages(self) -> list[Tensor]:
        """Return the caches of all layers as rows; vLLM allocates them after the model."""
        if not self._pages:
            config = self.decoder.config
            self._pages = [pages_of(each, config.num_kv_heads, config.head_width) for each in self.caches]
        return self._pages
