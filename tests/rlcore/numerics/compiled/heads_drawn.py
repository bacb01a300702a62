"""Heads, what they go through before they meet, and sums with their norms, as tests of the kernels take them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from rlcore.numerics.compiled.differentiable import Turned, add_rms_norm, attend
from rlcore.numerics.compiled.library import SOURCES

NUM_POSITIONS = 48
EPS = 1e-5
WORTH = next(
    float(line.split()[2])
    for path in SOURCES
    if path.name == "threads.h"
    for line in path.read_text().splitlines()
    if line.startswith("#define WORTH ")
)
"""Operations that a thread is begun for."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def add_norm(x: Tensor, added: Tensor, weight: Tensor) -> Tensor:
    """A sum of rows, and beside it its norm."""
    return torch.cat(add_rms_norm(x, added, weight, EPS), -1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a call of attention."""

    batch: int
    length: int
    num_kv_heads: int
    group: int
    """Queries that share a key."""
    width: int
    has_norms: bool

    @property
    def num_heads(self) -> int:
        """Of queries."""
        return self.num_kv_heads * self.group

    def heads(self) -> Tensor:
        """[batch, length, queries + keys + values, width]."""
        return drawn(self.batch, self.length, self.num_heads + 2 * self.num_kv_heads, self.width)

    def grad(self) -> Tensor:
        """Of what is mixed: [batch, length, queries, width]."""
        return drawn(self.batch, self.length, self.num_heads, self.width, seed=1)

    def by(self) -> Turned:
        """Norms that differ, and any angles."""
        q_norm, k_norm = drawn(2, self.width, seed=2) + 1
        angles = drawn(NUM_POSITIONS, self.width // 2, seed=3) * 3
        turns = torch.cat((angles.cos(), angles.cos(), -angles.sin(), angles.sin()), 1)
        return Turned(q_norm, k_norm, EPS, turns) if self.has_norms else Turned(None, None, EPS, turns)

    def norms(self) -> list[Tensor]:
        """Both, or none."""
        return [x for x in self.by()[:2] if x is not None]

    def attended(self) -> Callable[..., Tensor]:
        """(heads, both norms where there are some) -> what is mixed: what gradients are asked of."""
        by = self.by()

        def computed(heads: Tensor, *norms: Tensor) -> Tensor:
            own = by._replace(q_norm=norms[0], k_norm=norms[1]) if norms else by
            return attend(heads, own, self.num_kv_heads)

        return computed

    def cache(self, num_slots: int, capacity: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of NaN."""
        keys = torch.full((num_slots, self.num_kv_heads, self.width, capacity), torch.nan)
        return keys, keys.transpose(2, 3).contiguous()


SIZES = st.builds(
    Sizes,
    batch=st.integers(1, 3),
    length=st.integers(1, 40),
    num_kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 4, 7]),
    width=st.sampled_from([16, 32, 64, 80]),
    has_norms=st.booleans(),
)
