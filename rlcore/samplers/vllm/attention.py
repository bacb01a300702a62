"""vLLM's side of the paged cache: it allocates the memory, and plans each pass by our `PagedPass`."""

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

from rlcore.samplers.vllm.paged_attention import PagedPass


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
