"""Ranks train to the bits of one process; what goes wrong on one is an error on all; a bit that differs is named.

One file, so that four ranks start torch once.
"""

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.errors import ReplicaError
from rlcore.trainers.sentinel import differences
from tests.rlcore.trainers.conftest import NUM_RANKS, OnRanks
from tests.support.rank_corruption import Corruption, corrupted_training
from tests.support.rank_failures import (
    errors_of_assignments,
    errors_of_gradients,
    errors_of_losses,
    errors_of_unread,
    errors_without_the_guard,
)
from tests.support.rank_questions import local_answers, owned_values, parallel_answers, streamed
from tests.support.rank_training import DIVISIONS, Case, local_training, parallel_training

GRIDS = ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 4))
"""Ranks, and shards of each replica: plain, fully sharded and hybrid."""
FP32, BF16 = torch.float32, torch.bfloat16


def cases() -> list[Any]:
    """Every grid, division and type; a few of them in the default tier."""
    found = []
    for num_ranks, num_shards in GRIDS:
        for division in DIVISIONS:
            for dtype in (FP32, BF16):
                is_short = (division, dtype) == ("shuffled", FP32) or (num_shards, division, dtype) == (
                    *(2, "balanced"),
                    BF16,
                )
                marks = () if is_short else pytest.mark.full
                case = Case(num_ranks, num_shards, division, dtype)
                found.append(pytest.param(case, id=f"{num_ranks}-{num_shards}-{division}-{dtype}", marks=marks))
    return found


@pytest.mark.full
@pytest.mark.parametrize("case", cases())
def test_ranks_train_to_the_bits_of_one_process(on_ranks: OnRanks, case: Case) -> None:
    alone = on_ranks(local_training, case.dtype)[0]
    found = on_ranks(parallel_training, case)
    assert found == [alone] * case.num_ranks + [None] * (NUM_RANKS - case.num_ranks)


@pytest.mark.parametrize(("num_ranks", "num_shards"), [(4, 1), (4, 2), (4, 4)])
def test_ranks_train_adapters_to_the_bits_of_one_process(on_ranks: OnRanks, num_ranks: int, num_shards: int) -> None:
    alone = local_training(is_adapted=True)
    assert on_ranks(parallel_training, Case(num_ranks, num_shards, "shuffled", is_adapted=True)) == [alone] * num_ranks


@pytest.mark.full
@pytest.mark.parametrize("num_shards", [1, 2])
def test_tensors_are_summed_in_slices_and_buckets_to_the_same_bits(on_ranks: OnRanks, num_shards: int) -> None:
    """Some tensors are divided, others go together; no slice is as long as the number of ranks asks for."""
    found = on_ranks(parallel_training, Case(NUM_RANKS, num_shards, "shuffled", bucket_elements=301))
    assert found == [on_ranks(local_training)[0]] * NUM_RANKS


@pytest.mark.full
@pytest.mark.parametrize("num_shards", [1, pytest.param(2, marks=pytest.mark.full), 4])
def test_the_librarys_own_sum_has_other_bits_on_four_ranks_and_equal_ones_on_each(
    on_ranks: OnRanks, num_shards: int
) -> None:
    alone, case = on_ranks(local_training)[0], Case(NUM_RANKS, num_shards, "shuffled", is_canonical=False)
    found = on_ranks(parallel_training, case)
    assert found == [found[0]] * NUM_RANKS == on_ranks(parallel_training, case)
    assert found[0].gradients != alone.gradients
    assert found[0].norms == pytest.approx(alone.norms, rel=1e-5)


@pytest.mark.parametrize(
    "case",
    [
        Case(4, 4),
        pytest.param(Case(4, 1), marks=pytest.mark.full),
        pytest.param(Case(4, 2, dtype=BF16), marks=pytest.mark.full),
    ],
)
def test_ranks_answer_as_one_process_does(on_ranks: OnRanks, case: Case) -> None:
    """Digests of weights, gradients and moments; the canary; what is read without a gradient, by whoever has it."""
    alone = on_ranks(local_answers, case.dtype)[0]
    found = on_ranks(parallel_answers, case)
    assert [answers.is_equal(alone) for answers in found] == [True] * NUM_RANKS
    assert sorted(number for answers in found for number in answers.read) == sorted(alone.read)


@pytest.mark.full
def test_each_value_is_handed_to_one_rank(on_ranks: OnRanks) -> None:
    replicated, hybrid, sharded = (on_ranks(owned_values, Case(NUM_RANKS, size)) for size in (1, 2, 4))
    assert replicated == hybrid == sharded
    names = [name for own in sharded for name in own]
    assert len(names) == len(set(names))
    assert {len(own) for own in sharded} == {len(names) // NUM_RANKS, -(-len(names) // NUM_RANKS)}


@pytest.mark.full
def test_weights_are_streamed_a_tensor_at_a_time(on_ranks: OnRanks) -> None:
    """A reader that keeps them all shows what the bound is worth."""
    num_layers, layer_bytes = 32, 2 << 20
    for _, peak_bytes in (found := on_ranks(streamed, num_layers, False)):
        assert peak_bytes < 8 * layer_bytes
    assert [most for most, _ in found] == [1] * NUM_RANKS
    for most, peak_bytes in on_ranks(streamed, num_layers, True):
        assert most == num_layers
        assert peak_bytes > 24 * layer_bytes


# --------------------------------------------------------------------------------------------------------------- errors

LAYOUTS_OF_FAILURES = [Case(4, 1), Case(4, 4), pytest.param(Case(4, 2), marks=pytest.mark.full)]


@pytest.mark.full
@pytest.mark.parametrize("case", LAYOUTS_OF_FAILURES)
def test_ranks_that_disagree_on_the_microbatches_say_so_at_once(on_ranks: OnRanks, case: Case) -> None:
    found = on_ranks(errors_of_assignments, case)
    assert found == [found[0]] * NUM_RANKS
    assert all(each.startswith("InvalidValueError: microbatches ((") for each in found[0])


@pytest.mark.full
def test_without_the_guard_ranks_wait_until_the_groups_timeout(on_ranks: OnRanks) -> None:
    found = on_ranks(errors_without_the_guard, 20.0)
    assert found[0].startswith("RuntimeError: ")
    assert "imed out" in found[0]
    assert found[2:] == ["", ""]


@pytest.mark.full
@pytest.mark.parametrize("case", LAYOUTS_OF_FAILURES)
def test_a_loss_that_is_no_number_is_named_on_every_rank_and_forgotten(on_ranks: OnRanks, case: Case) -> None:
    found = on_ranks(errors_of_losses, case)
    assert found == [found[0]] * NUM_RANKS
    error, after, clean = found[0]
    assert "the loss of fixed microbatch 7 is nan (samples [14, 15])" in error
    assert after == clean


@pytest.mark.full
@pytest.mark.parametrize("case", LAYOUTS_OF_FAILURES)
def test_a_gradient_that_is_no_number_is_named_on_every_rank(on_ranks: OnRanks, case: Case) -> None:
    for row in (0, 30):
        found = on_ranks(errors_of_gradients, case, row)
        assert found == [found[0]] * NUM_RANKS
        assert f"the gradient of decoder.embedding is inf at [{row}, 3]" in found[0]


def test_a_sharded_model_with_a_parameter_that_nothing_reads_is_refused(on_ranks: OnRanks) -> None:
    found = on_ranks(errors_of_unread)
    assert found == [found[0]] * NUM_RANKS
    assert "a pass without the gradient of some parameter of Partial" in found[0]


# --------------------------------------------------------------------------------------------------------- the sentinel

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
    case = Corruption(num_shards, every=1, kind="gradient", update=2, rank=3, index=1, bit=0)
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


def test_errors_of_ranks_reach_their_controller() -> None:
    error = ReplicaError("head has other bits", ranks=(1,), names=("head",))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.what, copy.ranks, copy.names) == (ReplicaError, error.what, (1,), ("head",))


@given(st.integers(2, 6), st.data())
def test_a_planted_difference_is_found_at_its_tensor_and_replica(num_replicas: int, data: st.DataObject) -> None:
    names = data.draw(st.sets(st.text(max_size=5), min_size=1, max_size=5))
    digests = [{name: f"digest of {name}" for name in names} for _ in range(num_replicas)]
    assert differences(digests) == {}
    replica, name = data.draw(st.integers(0, num_replicas - 1)), data.draw(st.sampled_from(sorted(names)))
    digests[replica][name] = "another"
    assert differences(digests) == {name: (replica,) if num_replicas > 2 else (0, 1)}
