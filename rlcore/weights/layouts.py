"""What a sampler's parameter holds if it does not hold the policy's: the same rows in another order, or other values.

A target answers by comparisons alone: it is asked whether a parameter is what one of the usual mistakes would make it.
"""

from collections.abc import Iterator, Mapping
from itertools import permutations

import torch
from torch import Tensor

from rlcore.weights.target import WeightTarget

PARTS = ("q", "k", "v")
MOST_QUERIES = 16
"""Query heads per key head, up to which a fused projection's order is tried."""


def layout_of(name: str, source: Mapping[str, Tensor], target: WeightTarget) -> str:
    """Describe what a parameter of the target holds; empty if it is no usual mistake.

    `source` are the policy's parameters.
    """
    return next((told for told, tensor in _mistakes(name, source) if _is_held(target, name, tensor)), "")


def _is_held(target: WeightTarget, name: str, tensor: Tensor) -> bool:
    return target.compare({name: tensor})[name].num_differing == 0


def _mistakes(name: str, source: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield each usual mistake with what it leaves in the parameter."""
    own = source[name]
    for order, tensor in _reordered(own) if "qkv" in name else ():
        yield f"its rows are in the order {order}, the policy's in {', '.join(PARTS)}", tensor
    if "gate_up" in name:
        yield "its rows are in the order up, gate, the policy's in gate, up", own.roll(len(own) // 2, 0)
    if own.dim() == 2 and own.shape[0] == own.shape[1]:
        yield "it is transposed", own.t()
    if own.dtype is torch.float32:
        for dtype in (torch.bfloat16, torch.float16):
            yield f"it was rounded to {str(dtype).removeprefix('torch.')} on its way", own.to(dtype).float()
    for other, tensor in source.items():
        if other != name and tensor.shape == own.shape and tensor.dtype == own.dtype:
            yield f"it is the policy's {other}", tensor


def _reordered(fused: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the rows of queries, keys and values in each other order, for every split into heads that is possible."""
    for queries in range(1, MOST_QUERIES + 1):
        if len(fused) % (queries + 2):
            continue
        unit = len(fused) // (queries + 2)
        parts = dict(zip(PARTS, torch.split(fused, [queries * unit, unit, unit]), strict=True))
        for order in permutations(PARTS):
            if order != PARTS:
                yield ", ".join(order), torch.cat([parts[each] for each in order])
