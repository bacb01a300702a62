"""Ranks train to the bits of one process, whatever their number and whoever computes which microbatch."""

from typing import Any

import pytest
import torch

from tests.rlcore.trainers.conftest import NUM_RANKS, OnRanks
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
    alone, case = on_ranks(local_training)[0], Case(NUM_RANKS, num_shards, is_canonical=False)
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
