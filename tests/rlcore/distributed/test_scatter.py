"""Splitting and collecting: what is divided comes back in the order of submission, and padding never does."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.data.batch import Batch
from rlcore.distributed.dispatch import Broadcast, Collect, Entry, Mesh, Padding, Partition, Shard, data_parallel
from rlcore.distributed.rows import concatenate, num_rows, select
from rlcore.distributed.scatter import Scattered, collect, divide_rows, scatter
from rlcore.errors import InvalidValueError, ShapeError


def mesh_of(num_stages: int, num_parts: int, num_copies: int) -> Mesh:
    """Stages, of which the last collects, of data-parallel ranks, of copies, of which the first collects."""
    places = list(product(range(num_stages), range(num_parts), range(num_copies)))
    return Mesh(
        tuple(part for _, part, _ in places),
        tuple(stage == num_stages - 1 and copy == 0 for stage, _, copy in places),
    )


MESHES = st.builds(mesh_of, st.integers(1, 2), st.integers(1, 5), st.integers(1, 3))


class Scores(NamedTuple):
    """Results with rows in each field."""

    values: Tensor
    texts: list[str]


@dataclass(frozen=True)
class Samples:
    """A frozen dataclass of tensors."""

    tokens: Tensor
    lengths: Tensor


def values_of(size: int) -> dict[str, Any]:
    """One value of each kind, with rows that differ."""
    numbers = torch.arange(size)
    texts = [f"text {row}" for row in range(size)]
    return {
        "tensor": torch.stack([numbers, numbers * numbers], 1),
        "list": texts,
        "tuple": tuple(texts),
        "mapping": {"numbers": numbers, "texts": texts},
        "batch": Batch({"numbers": numbers, "squares": numbers * numbers}),
        "named tuple": Scores(numbers, texts),
        "dataclass": Samples(numbers, numbers + 1),
    }


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values are of one kind and have the same elements."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Batch | dict):
        return one.keys() == other.keys() and all(is_equal(one[name], other[name]) for name in one)
    if isinstance(one, Samples):
        return is_equal(one.tokens, other.tokens) and is_equal(one.lengths, other.lengths)
    if isinstance(one, Scores):
        return is_equal(one.values, other.values) and one.texts == other.texts
    return bool(one == other)


def run(entry: Entry, mesh: Mesh, arguments: dict[str, Any]) -> tuple[Scattered, Any]:
    """Run the identity on the ranks; those that are not collected return something else."""
    call = scatter(entry, arguments, mesh)
    results = [
        own["value"] if rank in mesh.collecting_ranks else "not collected" for rank, own in enumerate(call.arguments)
    ]
    return call, collect(entry, mesh, call.parts, results)


def random_parts(seed: int) -> Any:
    """A rule that divides rows at random, with empty parts."""

    def divide(value: Any, num_parts: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(num_rows(value), generator=generator).tolist()
        owner = torch.randint(num_parts, (len(order),), generator=generator).tolist()
        return [[row for row, part in zip(order, owner, strict=True) if part == each] for each in range(num_parts)]

    return divide


@given(
    size=st.integers(0, 23),
    mesh=MESHES,
    padding=st.sampled_from(Padding),
)
def test_sharding_and_collecting_is_the_identity(size: int, mesh: Mesh, padding: Padding) -> None:
    assume(padding is not Padding.REFUSE or size % len(mesh.collecting_ranks) == 0)
    entry = Entry({"value": Shard(padding)}, collect=Collect.ROWS)
    for kind, value in values_of(size).items():
        call, result = run(entry, mesh, {"value": value})
        assert is_equal(result, value), kind
        sizes = [len(rows) for rows in call.parts]
        if padding is Padding.WRAP:
            assert len(set(sizes)) == 1, "verl's auto_padding: equal parts"
        assert max(sizes) - min(sizes) <= 1
        for data_rank, own in zip(mesh.data_ranks, call.arguments, strict=True):
            assert is_equal(own["value"], select(value, call.parts[data_rank]))


@given(size=st.integers(0, 17), mesh=MESHES, seed=st.integers(0, 10**6))
def test_a_partition_is_restored_to_the_order_of_submission(size: int, mesh: Mesh, seed: int) -> None:
    entry = Entry({"value": Partition(random_parts(seed))}, collect=Collect.ROWS)
    for kind, value in values_of(size).items():
        _, result = run(entry, mesh, {"value": value})
        assert is_equal(result, value), kind


@given(size=st.integers(1, 23), num_parts=st.integers(1, 8))
def test_padding_repeats_rows_from_the_first(size: int, num_parts: int) -> None:
    missing = -size % num_parts
    wrapped = [row for rows in divide_rows(size, num_parts, Padding.WRAP) for row in rows]
    assert wrapped == [*range(size), *(row % size for row in range(missing))]
    uneven = [row for rows in divide_rows(size, num_parts, Padding.UNEVEN) for row in rows]
    assert uneven == list(range(size))


def test_padding_is_refused_unless_declared() -> None:
    with pytest.raises(ShapeError, match="5 rows for 2 data-parallel ranks") as caught:
        scatter(Entry({"value": Shard()}), {"value": torch.arange(5)}, data_parallel(2))
    assert caught.value.legal == "a multiple of 2"


def test_a_result_of_another_number_of_rows_is_refused() -> None:
    entry, mesh = Entry({"value": Shard()}, collect=Collect.ROWS), data_parallel(2)
    call = scatter(entry, {"value": torch.arange(4)}, mesh)
    with pytest.raises(ShapeError, match="rank 1 returned 1 rows and was given 2"):
        collect(entry, mesh, call.parts, [torch.ones(2), torch.ones(1)])


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (lambda value, size: [[0], [1]], "every row once"),
        (lambda value, size: [[0, 1, 2], [2]], "every row once"),
        (lambda value, size: [[0, 1, 2]], "2 parts"),
    ],
)
def test_a_rule_that_loses_or_repeats_rows_is_refused(rule: Any, what: str) -> None:
    with pytest.raises(ShapeError) as caught:
        scatter(Entry({"value": Partition(rule)}), {"value": [1, 2, 3]}, data_parallel(2))
    assert what in caught.value.legal


def test_arguments_are_divided_alike_and_must_have_the_same_rows() -> None:
    entry = Entry({"a": Shard(), "b": Shard(), "c": Broadcast()})
    call = scatter(entry, {"a": [1, 2], "b": torch.tensor([3, 4]), "c": 5}, data_parallel(2))
    assert call.arguments[1] == {"a": [2], "b": torch.tensor([4]), "c": 5}
    with pytest.raises(ShapeError, match="'a': 2, 'b': 3"):
        scatter(entry, {"a": [1, 2], "b": [1, 2, 3], "c": 5}, data_parallel(2))


def test_what_is_collected() -> None:
    mesh = mesh_of(2, 2, 1)
    for collected, expected in ((Collect.FIRST, "c"), (Collect.LIST, ["a", "b", "c", "d"])):
        assert collect(Entry({}, collect=collected), mesh, (), list("abcd")) == expected


@pytest.mark.parametrize(
    ("split", "value", "what"),
    [
        (Shard(), torch.tensor(3.0), "a tensor without axes has no rows"),
        (Shard(), 3, "a int has no rows"),
        (Shard(), {"a": [1, 2], "b": [1]}, "parts of a dict have rows"),
        (Shard(), torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "nested tensor"),
    ],
)
def test_a_value_that_cannot_be_divided_is_refused(split: Any, value: Any, what: str) -> None:
    with pytest.raises(ShapeError, match=what):
        scatter(Entry({"value": split}), {"value": value}, mesh_of(1, 2, 2))


def test_results_of_different_kinds_or_entries_are_refused() -> None:
    for values in (["a"], torch.ones(1)), ({"a": [1]}, {"b": [1]}):
        with pytest.raises(ShapeError):
            concatenate(values)


def test_an_argument_that_divides_must_be_given() -> None:
    with pytest.raises(InvalidValueError, match="no argument is given that is divided by rows"):
        scatter(Entry({"value": Shard(), "scale": Broadcast()}), {"scale": 2}, data_parallel(2))


def test_neighbouring_rows_are_a_view() -> None:
    whole = torch.arange(6)
    assert select(whole, range(2, 4)).data_ptr() == whole[2:].data_ptr()
    rows: Sequence[int] = [3, 1]
    assert select(whole, rows).tolist() == [3, 1]
