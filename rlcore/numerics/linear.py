"""Matrix products by rows."""

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import ShapeError
from rlcore.numerics.level import active
from rlcore.numerics.product import product
from rlcore.numerics.row_sum import shift


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias: x [..., inputs], weight [outputs, inputs], bias [outputs] -> [..., outputs].

    At level invariant a row of the result has the bits it has alone, and so has its gradient. The weight's gradient
    depends on all rows: those of a fixed microbatch. Raises ShapeError where the widths differ.
    """
    if x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"linear of {tuple(x.shape)} and {tuple(weight.shape)}", legal="equal last dimensions")
    strategy, rows = active(), x.reshape(-1, x.shape[-1])
    if strategy is None:
        y = product(rows, weight).view(*x.shape[:-1], weight.shape[0])
        return y if bias is None else y + bias
    y = strategy.linear(rows, weight).view(*x.shape[:-1], weight.shape[0])
    return y if bias is None else shift(y, bias)


def padded(x: Tensor, multiple: int, dim: int) -> Tensor:
    """x with zeros up to the next multiple along one dimension; x itself where nothing is missing."""
    missing = -x.shape[dim] % multiple
    if not missing:
        return x
    after = x.dim() - 1 - dim % x.dim()
    return F.pad(x, (0, 0) * after + (0, missing))


def in_tiles(x: Tensor, multiple: int, dim: int) -> tuple[Tensor, ...]:
    """x, padded with zeros, in pieces of `multiple` along one dimension, each contiguous."""
    return tuple(tile.contiguous() for tile in torch.split(padded(x, multiple, dim), multiple, dim))
