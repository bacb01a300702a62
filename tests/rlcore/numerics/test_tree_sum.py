"""One tree of additions, whoever owns the leaves and in whatever order they come; a plain sum is not one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.errors import InvalidValueError
from rlcore.numerics.tree_sum import TreeSum
from tests.support.canonical_sum import leaves, tree_sum


def bits(x: torch.Tensor | None) -> list[int]:
    assert x is not None
    return [int(number) for number in x.view(torch.int32)]


@settings(max_examples=40)
@given(st.integers(1, 17), st.data())
def test_owners_and_order_do_not_matter(num_values: int, data: st.DataObject) -> None:
    given_leaves = leaves(num_values)
    absent = data.draw(st.sets(st.integers(0, num_values - 1), max_size=num_values - 1))
    num_parts = data.draw(st.integers(1, 4))
    parts = [TreeSum(num_values) for _ in range(num_parts)]
    for leaf in data.draw(st.permutations([leaf for leaf in range(num_values) if leaf not in absent])):
        parts[data.draw(st.integers(0, num_parts - 1))].add(leaf, given_leaves[leaf].clone())
    whole = TreeSum(num_values)
    for part in data.draw(st.permutations(parts)):
        whole.absorb(part)
    expected = tree_sum(None if leaf in absent else value for leaf, value in enumerate(given_leaves))
    assert bits(whole.total()) == bits(expected)


def test_a_plain_sum_depends_on_who_adds() -> None:
    given_leaves = leaves(8)
    one = sum(given_leaves[1:], given_leaves[0])
    two = sum(given_leaves[1:4], given_leaves[0]) + sum(given_leaves[5:], given_leaves[4])
    assert bits(one) != bits(two)


def test_an_absent_leaf_is_no_zero() -> None:
    minus = torch.tensor([-0.0])
    assert bits(tree_sum([None, minus, None, None])) == bits(minus)
    assert bits(tree_sum([torch.zeros(1), minus, None, None])) != bits(minus)
    assert bits(tree_sum([minus, minus])) == bits(minus)
    assert tree_sum([None, None]) is None


def test_leaves_in_order_need_few_tensors() -> None:
    tree, most = TreeSum(64), 0
    for leaf, value in enumerate(leaves(64)):
        tree.add(leaf, value)
        most = max(most, len(list(tree.nodes())))
    assert most <= 7


def test_sums_take_no_new_memory() -> None:
    given_leaves = leaves(4)
    tree = TreeSum(4)
    for leaf, value in enumerate(given_leaves):
        tree.add(leaf, value)
    total = tree.total()
    assert total is not None
    assert total.data_ptr() in {value.data_ptr() for value in given_leaves}


def test_wrong_leaves_are_refused() -> None:
    tree = TreeSum(2)
    tree.add(1, torch.ones(1))
    other = TreeSum(4)
    other.add(2, torch.ones(1))
    with pytest.raises(InvalidValueError, match=r"values \[1\] of 2: \[1\] were added before"):
        tree.add(1, torch.ones(1))
    with pytest.raises(InvalidValueError, match=r"values \[2\] of 2"):
        tree.add(2, torch.ones(1))
    with pytest.raises(InvalidValueError, match=r"\[1\] were added"):
        tree.absorb(tree)
    with pytest.raises(InvalidValueError, match=r"values \[2\]"):
        tree.absorb(other)
