"""Operations that torch documents as nondeterministic: their sums may be added in a different order each time. Pure.

From the documentation of torch.use_deterministic_algorithms. A record of operations does not say on which device one
ran: in a program that uses no GPU, only those count that are nondeterministic with several threads of a processor.
"""

from collections.abc import Iterable

from harness.trace.ops import Operation

_OTHER_KERNEL = """
index_put index_add index_copy index_select_backward put scatter scatter_add scatter_reduce gather_backward
embedding_dense_backward repeat_interleave cumsum bmm convolution convolution_backward cudnn_convolution
cudnn_convolution_transpose replication_pad2d_backward _scaled_dot_product_flash_attention_backward
_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward
_flash_attention_backward _efficient_attention_backward
"""
_NO_KERNEL = """
avg_pool3d_backward adaptive_avg_pool2d_backward adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
max_pool3d_with_indices_backward fractional_max_pool2d_backward fractional_max_pool3d_backward max_unpool2d
max_unpool3d upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward
upsample_trilinear3d_backward upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward
replication_pad3d_backward nll_loss2d_forward nll_loss2d_backward _ctc_loss _ctc_loss_backward _embedding_bag
_embedding_bag_dense_backward grid_sampler_2d_backward grid_sampler_3d_backward histc bincount kthvalue median
_cdist_backward segment_reduce _segment_reduce_backward
"""
_ON_HOST = """
index_put index_add put scatter scatter_add scatter_reduce embedding_dense_backward _embedding_bag_dense_backward
index_reduce histc bincount
"""
HAVE_OTHER_KERNEL = frozenset(_OTHER_KERNEL.split())
"""Those for which torch has a deterministic kernel, which level deterministic chooses."""
DOCUMENTED = HAVE_OTHER_KERNEL | frozenset(_NO_KERNEL.split())
ON_HOST = frozenset(_ON_HOST.split())
"""Those that are nondeterministic on a processor with several threads."""


def suspects(operations: Iterable[Operation], *, has_gpu: bool) -> tuple[Operation, ...]:
    """Return the operations that torch documents as nondeterministic, one for each name and line, in their order."""
    names = DOCUMENTED if has_gpu else ON_HOST
    found: dict[tuple[str, str, str], Operation] = {}
    for each in operations:
        if base_name(each.name) in names:
            found.setdefault((each.phase, each.name, each.at), each)
    return tuple(found.values())


def has_deterministic_kernel(operation: Operation) -> bool:
    """Whether level deterministic makes a suspect repeatable, by torch's documentation."""
    return base_name(operation.name) in HAVE_OTHER_KERNEL


def base_name(name: str) -> str:
    """index_put of aten.index_put_.default and of aten._index_put_impl_.default."""
    base = name.split(".")[1] if name.count(".") else name
    base = "index_put" if base.startswith("_index_put_impl") else base
    return base.removesuffix("_")
