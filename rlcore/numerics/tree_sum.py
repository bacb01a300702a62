"""One canonical tree of additions, whatever the number of parts that add, and in whatever order they come.

Fixed microbatch i is value i of a binary tree; neighbours 2i and 2i+1 are added, then the pairs, up to the root. The
sum does not depend on who holds which values: each part adds its complete subtrees, and `absorb` adds the rest. An
absent value (no sample in it) is skipped, not counted as zero: -0.0 + 0.0 would be 0.0.
"""

from collections.abc import Iterable, Iterator

from torch import Tensor

from rlcore.errors import InvalidValueError

NodePosition = tuple[int, int]
"""(level, index) in the tree; level 0 holds the leaves."""


class TreeSum:
    """The sum of up to `num_values` tensors of one shape; leaves in order need log2(num_values) + 1 at a time."""

    def __init__(self, num_values: int) -> None:
        if num_values < 1:
            raise InvalidValueError(f"a sum over {num_values} values", legal="1 or more")
        self.num_values = num_values
        self._seen: set[int] = set()
        self._nodes: dict[NodePosition, Tensor] = {}

    @classmethod
    def of_nodes(cls, num_values: int, nodes: Iterable[tuple[NodePosition, Tensor]]) -> "TreeSum":
        """Build a part from the sums of its complete subtrees, as `nodes` yields them, which it owns from now on."""
        part = cls(num_values)
        for place, value in nodes:
            level, index = place
            part._seen |= set(range(index << level, index + 1 << level))
            part._put(place, value)
        return part

    def add(self, leaf: int, value: Tensor) -> None:
        """Add one value's tensor, which the tree owns from now on: sums are written into it.

        Raises InvalidValueError for a value that does not exist or was added before.
        """
        if not 0 <= leaf < self.num_values:
            raise InvalidValueError(f"value {leaf}", legal=f"0 to {self.num_values - 1}")
        if leaf in self._seen:
            raise InvalidValueError(f"value {leaf} was added before", remedy="add each value once")
        self._seen.add(leaf)
        self._put((0, leaf), value)

    def absorb(self, other: "TreeSum") -> None:
        """Add the sums of another part of the same tree, which is used no more; each value is in one part."""
        if other.num_values != self.num_values:
            raise InvalidValueError(
                f"a tree of {other.num_values} values", legal=f"{self.num_values} values, as this one"
            )
        if twice := self._seen & other._seen:
            raise InvalidValueError(f"values {sorted(twice)} are in both parts", remedy="give each value to one part")
        self._seen |= other._seen
        for place, value in other.nodes():
            self._put(place, value)

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

    def _put(self, place: NodePosition, value: Tensor) -> None:
        """Add upwards for as long as the neighbour is there."""
        level, index = place
        while (neighbour := self._nodes.pop((level, index ^ 1), None)) is not None:
            value = neighbour.add_(value)  # whichever is the left one: a sum of two is the same from either side
            level, index = level + 1, index // 2
        self._nodes[level, index] = value


def complete_subtrees(leaves: Iterable[int]) -> list[NodePosition]:
    """Return where the sums of a part that was given these values stand, in the order of `TreeSum.nodes`."""
    whole: set[NodePosition] = set()
    for leaf in leaves:
        level, index = 0, leaf
        while (level, index ^ 1) in whole:
            whole.remove((level, index ^ 1))
            level, index = level + 1, index // 2
        whole.add((level, index))
    return sorted(whole, key=lambda place: place[1] << place[0])
