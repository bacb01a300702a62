"""One canonical tree of additions, whatever the number of parts that add, and in whatever order they come.

Fixed microbatch i is value i of a binary tree; neighbours 2i and 2i+1 are added, then the pairs, up to the root. The
sum does not depend on who holds which values: each part adds its complete subtrees, and `absorb` adds the rest. An
absent value (no sample in it) is skipped, not counted as zero: -0.0 + 0.0 would be 0.0.
"""

from collections.abc import Iterable, Iterator

from torch import Tensor

from rlcore.errors import InvalidValueError

NodePosition = tuple[int, int]
"""(level, index) in the tree; level 0 holds the values."""


class TreeSum:
    """The sum of up to `num_values` tensors of one shape; values in order need log2(num_values) + 1 at a time."""

    def __init__(self, num_values: int) -> None:
        self.num_values = num_values
        self._seen: set[int] = set()
        self._nodes: dict[NodePosition, Tensor] = {}

    def add(self, number: int, value: Tensor) -> None:
        """Add one value, as `put`."""
        self.put((0, number), value)

    def absorb(self, other: "TreeSum") -> None:
        """Add the sums of another part of the same tree, which is used no more; each value is in one part."""
        for position, value in other.nodes():
            self.put(position, value)

    def nodes(self) -> Iterator[tuple[NodePosition, Tensor]]:
        """Yield the sums so far that wait for a neighbour, in the order of their values."""
        yield from sorted(self._nodes.items(), key=lambda node: node[0][1] << node[0][0])

    def total(self) -> Tensor | None:
        """Return the sum of the values that were added, or None if there are none; absent values are skipped."""
        nodes = dict(self._nodes)
        top = (self.num_values - 1).bit_length()
        for level in range(top):
            for index in sorted(index for at, index in nodes if at == level):
                value = nodes.pop((level, index))
                above = (level + 1, index // 2)
                nodes[above] = nodes[above] + value if above in nodes else value
        return nodes.get((top, 0))

    def put(self, position: NodePosition, value: Tensor) -> None:
        """Add the sum of a complete subtree, which the tree owns from now on: sums are written into it.

        Raises InvalidValueError for a value that does not exist or was added before.
        """
        level, index = position
        numbers = range(index << level, index + 1 << level)
        if numbers[-1] >= self.num_values or not self._seen.isdisjoint(numbers):
            raise InvalidValueError(
                f"values {list(numbers)} of {self.num_values}: {sorted(self._seen)} were added before"
            )
        self._seen.update(numbers)
        while (neighbour := self._nodes.pop((level, index ^ 1), None)) is not None:
            value = neighbour.add_(value)  # whichever is the left one: a sum of two is the same from either side
            level, index = level + 1, index // 2
        self._nodes[level, index] = value


def complete_subtrees(numbers: Iterable[int]) -> list[NodePosition]:
    """Return where the sums of a part that was given these values stand, in the order of `TreeSum.nodes`."""
    whole: set[NodePosition] = set()
    for number in numbers:
        level, index = 0, number
        while (level, index ^ 1) in whole:
            whole.remove((level, index ^ 1))
            level, index = level + 1, index // 2
        whole.add((level, index))
    return sorted(whole, key=lambda position: position[1] << position[0])
