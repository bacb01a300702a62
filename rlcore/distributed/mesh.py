"""Meshes of ranks as data: the part of a batch that each rank reads, and the ranks whose results are collected.

build_mesh({"pipeline": 2, "data": 2, "tensor": 2}).data_ranks     (0, 0, 1, 1, 0, 0, 1, 1)
                                                   .collects       rank 4 and rank 6: last stage, tensor rank 0
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from harness.bits.text import nearest
from rlcore.errors import InvalidValueError

DATA_AXES = ("data", "replicate", "shard")
"""Axes along which ranks read different rows: plain data parallelism, and both axes of FSDP and hybrid sharding."""
FIRST_COLLECTS = ("tensor", "sequence", "context")
"""Axes along which ranks read the same rows, and the result is complete on the first: TP, Ulysses, CP."""
LAST_COLLECTS = ("pipeline",)
"""Axes along which ranks read the same rows, and the result is on the last."""
AXES = (*DATA_AXES, *FIRST_COLLECTS, *LAST_COLLECTS)


@dataclass(frozen=True, slots=True)
class Mesh:
    """The roles of a group's ranks in dividing a batch and collecting results.

    Raises InvalidValueError if a data-parallel rank has no rank that collects, or more than one.
    """

    data_ranks: tuple[int, ...]
    """By rank: index of the part of a batch that it reads."""
    collects: tuple[bool, ...]
    """By rank: whether its result is collected."""

    def __post_init__(self) -> None:
        if len(self.data_ranks) != len(self.collects) or not self.data_ranks:
            raise InvalidValueError(
                f"a mesh of {len(self.data_ranks)} data-parallel ranks and {len(self.collects)} collecting flags",
                legal="one of each for every rank, and one rank or more",
            )
        found = sorted(data for data, collects in zip(self.data_ranks, self.collects, strict=True) if collects)
        if found != list(range(max(self.data_ranks) + 1)):
            raise InvalidValueError(
                f"data-parallel ranks {list(self.data_ranks)} of which {found} are collected",
                legal=f"each of 0 to {max(self.data_ranks)} collected from exactly one rank",
            )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.data_ranks)

    @property
    def data_size(self) -> int:
        """Number of parts that a batch is divided into."""
        return max(self.data_ranks) + 1

    @property
    def collecting_ranks(self) -> tuple[int, ...]:
        """Ranks whose results are collected, by data-parallel rank."""
        pairs = zip(self.data_ranks, range(self.size), self.collects, strict=True)
        return tuple(rank for _, rank in sorted((data, rank) for data, rank, collects in pairs if collects))

    def ranks_of(self, data_rank: int) -> tuple[int, ...]:
        """Return the ranks that read this part of a batch."""
        return tuple(rank for rank, data in enumerate(self.data_ranks) if data == data_rank)


def data_parallel(size: int) -> Mesh:
    """Return the mesh of plain data parallelism and of FSDP: every rank reads rows of its own."""
    return build_mesh({"data": size})


def build_mesh(axes: Mapping[str, int]) -> Mesh:
    """Return the mesh of axes by name, from the slowest to the fastest, as torch's `init_device_mesh` counts ranks.

    The data-parallel rank counts through all axes of `DATA_AXES` in their order. Raises InvalidValueError.
    """
    for name, size in axes.items():
        if name not in AXES:
            raise InvalidValueError(f"axis {name!r} of a mesh", legal=", ".join(AXES), remedy=nearest(name, AXES))
        if size < 1:
            raise InvalidValueError(f"axis {name!r} of a mesh has size {size!r}", legal="1 or more")
    if not axes:
        raise InvalidValueError("a mesh without axes", legal=", ".join(AXES))
    data_sizes = {name: size for name, size in axes.items() if name in DATA_AXES}
    data_ranks, collects = [], []
    for place in product(*(range(size) for size in axes.values())):
        at = dict(zip(axes, place, strict=True))
        strides = [math.prod(list(data_sizes.values())[index + 1 :]) for index in range(len(data_sizes))]
        data_ranks.append(sum(at[name] * stride for name, stride in zip(data_sizes, strides, strict=True)))
        collects.append(
            all(at[name] == 0 for name in axes if name in FIRST_COLLECTS)
            and all(at[name] == axes[name] - 1 for name in axes if name in LAST_COLLECTS)
        )
    return Mesh(tuple(data_ranks), tuple(collects))
