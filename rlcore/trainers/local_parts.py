"""The part of a tensor that this process has, without the modules that sharded tensors need."""

import sys

from torch import Tensor


def local_part(tensor: Tensor) -> Tensor:
    """Return the rows of this rank, not copied; the tensor itself if it is not sharded."""
    distributed = sys.modules.get("torch.distributed.tensor")  # its import takes seconds, and only shards need it
    return tensor if distributed is None or not isinstance(tensor, distributed.DTensor) else tensor.to_local()
