"""Ranks that hold other bits than their replicas are named, and nothing but a difference ends a training."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.checks.replicas import differences, suspects_of
from rlcore.errors import ReplicaError
from rlcore.trainers.sentinel import sentinels
from tests.rlcore.trainers.conftest import OnRanks
from tests.support.rank_corruption import Corruption, corrupted_training

LAYOUTS = [1, pytest.param(2, marks=pytest.mark.full), pytest.param(4, marks=pytest.mark.full)]


@pytest.mark.full
@pytest.mark.parametrize("num_shards", LAYOUTS, ids=["replicated", "hybrid", "sharded"])
def test_a_training_without_a_fault_keeps_its_bits(num_shards: int, on_ranks: OnRanks) -> None:
    case = Corruption(num_shards, every=1)
    watched = on_ranks(corrupted_training, case)
    assert watched == on_ranks(corrupted_training, replace(case, every=0))
    assert {each.num_updates for each in watched} == {4}


@pytest.mark.parametrize(
    ("kind", "num_shards", "named"),
    [
        ("weight", 1, (2,)),
        pytest.param("moment", 1, (2,), marks=pytest.mark.full),
        pytest.param("weight", 2, (0, 2), marks=pytest.mark.full),
        pytest.param("weight", 4, (2,), marks=pytest.mark.full),
        pytest.param("moment", 4, (2,), marks=pytest.mark.full),
    ],
)
def test_a_flip_is_named_within_the_cadence(
    kind: str, num_shards: int, named: tuple[int, ...], on_ranks: OnRanks
) -> None:
    case = Corruption(num_shards, num_updates=5, every=2, kind=kind, update=1, rank=2, index=2, bit=21)
    outcomes = on_ranks(corrupted_training, case)
    assert {each.ranks for each in outcomes} == {named}
    assert {each.num_updates for each in outcomes} == {2}, "the update at which they compare is not made"
    assert all("rank 2 on " in each.what and "update 2, before its weights moved" in each.what for each in outcomes)
    unwatched = on_ranks(corrupted_training, replace(case, every=0))
    assert {(each.num_updates, each.ranks) for each in unwatched} == {(5, ())}


@pytest.mark.full
@pytest.mark.parametrize(("num_shards", "named"), [(1, {3}), (2, {1, 3})])
def test_a_gradient_that_differs_moves_no_weight(num_shards: int, named: set[int], on_ranks: OnRanks) -> None:
    case = Corruption(num_shards, every=1, kind="gradient", update=2, rank=3, index=1, bit=9)
    outcomes = on_ranks(corrupted_training, case)
    assert {frozenset(each.ranks) for each in outcomes} == {frozenset(named)}
    before = on_ranks(corrupted_training, Corruption(num_shards, num_updates=2))
    assert [each.weights for each in outcomes] == [each.weights for each in before]


@pytest.mark.full
@settings(max_examples=12)
@given(
    kind=st.sampled_from(["weight", "moment"]),
    num_shards=st.sampled_from([1, 2]),
    rank=st.integers(0, 3),
    index=st.integers(0, 8),
    bit=st.integers(0, 10_000),
)
def test_any_bit_of_a_replica_is_found_before_weights_move(
    kind: str, num_shards: int, rank: int, index: int, *, bit: int, on_ranks: OnRanks
) -> None:
    case = Corruption(num_shards, 3, every=1, kind=kind, update=1, rank=rank, index=index, bit=bit)
    outcomes = on_ranks(corrupted_training, case)
    assert {each.num_updates for each in outcomes} == {1}
    assert all(rank in each.ranks for each in outcomes)


def test_a_process_without_others_has_no_sentinel() -> None:
    assert sentinels(None, 10) == ()


def test_errors_of_ranks_reach_their_controller() -> None:
    error = ReplicaError("head has other bits", ranks=(1,), names=("head",))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.what, copy.ranks, copy.names) == (ReplicaError, error.what, (1,), ("head",))


@given(st.integers(2, 6), st.data())
def test_a_planted_difference_is_found_at_its_tensor_and_replica(num_replicas: int, data: st.DataObject) -> None:
    names = data.draw(st.sets(st.text(max_size=5), min_size=1, max_size=5))
    digests = [{name: f"digest of {name}" for name in names} for _ in range(num_replicas)]
    assert differences(digests) == []
    replica, name = data.draw(st.integers(0, num_replicas - 1)), data.draw(st.sampled_from(sorted(names)))
    digests[replica][name] = "another"
    [found] = differences(digests)
    assert found.name == name
    assert suspects_of([found]) == ((replica,) if num_replicas > 2 else (0, 1))
