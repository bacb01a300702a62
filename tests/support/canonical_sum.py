"""The canonical tree over values that one owner has, as a test expects it of several."""

from collections.abc import Iterable

import torch
from torch import Tensor

from rlcore.numerics.tree_sum import TreeSum


def leaves(num_values: int) -> list[Tensor]:
    """Return values whose sum depends on the order of additions."""
    generator = torch.Generator().manual_seed(num_values)
    return [torch.randn(50, generator=generator) * 10.0 ** (leaf % 5) for leaf in range(num_values)]


def tree_sum(leaves: Iterable[Tensor | None]) -> Tensor | None:
    """Return the sum of values 0, 1, ... by the canonical tree; None is an absent value, and the sum of nothing."""
    given = list(leaves)
    tree = TreeSum(len(given))
    for leaf, value in enumerate(given):
        if value is not None:
            tree.add(leaf, value.clone())
    return tree.total()
