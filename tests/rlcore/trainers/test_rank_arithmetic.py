"""Pure parts of training on ranks: trees over any division, norms over any shards, buckets."""

import math
from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.numerics.probe import num_threads
from rlcore.numerics.tree_sum import TreeSum, complete_subtrees
from rlcore.trainers.fsdp import row_sums
from rlcore.trainers.gradients import global_norm, squared_rows
from rlcore.trainers.reductions import added, buckets, flat_nodes
from tests.support.canonical_sum import leaves, tree_sum


@st.composite
def divisions(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """A tree's size, and its values divided at random among up to five ranks; some are absent."""
    num_values = draw(st.integers(1, 17))
    owners = draw(st.lists(st.integers(-1, 4), min_size=num_values, max_size=num_values))
    return num_values, [[number for number in range(num_values) if owners[number] == rank] for rank in range(5)]


def part_of(num_values: int, numbers: Sequence[int], values: Sequence[Tensor]) -> TreeSum:
    tree = TreeSum(num_values)
    for number in numbers:
        tree.add(number, values[number].clone())
    return tree


@given(divisions())
def test_the_sums_of_ranks_are_added_to_the_bits_of_one_tree(division: tuple[int, list[list[int]]]) -> None:
    num_values, by_rank = division
    values = leaves(num_values)
    given_to = {number for own in by_rank for number in own}
    expected = tree_sum([values[number] if number in given_to else None for number in range(num_values)])
    if expected is None:
        return
    places, rows = [complete_subtrees(own) for own in by_rank], []
    for own, of_rank in zip(by_rank, places, strict=True):
        tree = part_of(num_values, own, values)
        assert [place for place, _ in tree.nodes()] == of_rank
        rows += flat_nodes([tree])
    assert torch.equal(added(num_values, places, torch.stack(rows)), expected)


def test_rows_of_several_tensors_lie_beside_each_other() -> None:
    shapes = [torch.Size([2, 2]), torch.Size([3])]
    trees = []
    for shape in shapes:
        tree = TreeSum(4)
        tree.add(0, torch.full(shape, 1.0))
        tree.add(3, torch.full(shape, float(shape.numel())))
        trees.append(tree)
    assert [node.tolist() for node in flat_nodes(trees)] == [[1.0] * 7, [4.0] * 4 + [3.0] * 3]


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 4))
def test_rows_of_shards_have_the_sums_of_the_whole(num_rows: int, width: int, num_ranks: int) -> None:
    matrix = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(num_rows * width))
    size = -(-num_rows // num_ranks)
    shards = [matrix[size * rank : size * (rank + 1)] for rank in range(num_ranks)]
    sums = torch.cat([row_sums(shard, matrix.shape) for shard in shards])
    assert torch.equal(sums, squared_rows(matrix))
    assert math.sqrt(math.fsum(sums.tolist())) == global_norm([matrix])


def test_a_lone_row_of_a_shard_is_summed_as_one_of_several_with_any_threads() -> None:
    """torch divides the sum of one row among threads if it is long, and then has other bits."""
    matrix = torch.randn(3, 200_001, generator=torch.Generator().manual_seed(0))
    with num_threads(2):
        alone = torch.cat([squared_rows(matrix[row : row + 1]) for row in range(3)])
        found = torch.cat([row_sums(matrix[row : row + 1], matrix.shape) for row in range(3)])
        assert torch.equal(found, squared_rows(matrix))
        assert not torch.equal(alone, squared_rows(matrix))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=20))
def test_buckets_keep_the_order_and_the_bound(sizes: list[int]) -> None:
    found = list(buckets(sizes, max_elements=10))
    assert [index for bucket in found for index in bucket] == list(range(len(sizes)))
    assert all(
        sum(sizes[index] for index in bucket) <= 10 or sum(1 for i in bucket if sizes[i]) == 1 for bucket in found
    )
