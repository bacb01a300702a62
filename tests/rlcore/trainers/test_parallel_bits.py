"""Ranks train to the bits of one process, whatever their number and whoever computes which microbatch."""

import pytest
import torch

from tests.rlcore.trainers.conftest import NUM_RANKS, OnRanks
from tests.support.rank_training import DIVISIONS, Case, Trained, local_training, parallel_training

GRIDS = ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 4))
"""Ranks, and shards of each replica: plain, fully sharded and hybrid."""


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def expected(on_ranks: OnRanks, request: pytest.FixtureRequest) -> tuple[torch.dtype, Trained]:
    """What one process trains: the first rank, alone."""
    return request.param, on_ranks(local_training, request.param)[0]


@pytest.mark.parametrize(("num_ranks", "num_shards"), GRIDS)
def test_ranks_train_to_the_bits_of_one_process(
    on_ranks: OnRanks, expected: tuple[torch.dtype, Trained], num_ranks: int, num_shards: int
) -> None:
    dtype, alone = expected
    for division in DIVISIONS:
        found = on_ranks(parallel_training, Case(num_ranks, num_shards, division, dtype))
        assert found == [alone] * num_ranks + [None] * (NUM_RANKS - num_ranks), division


@pytest.mark.parametrize("num_shards", [1, 2, 4])
def test_the_librarys_own_sum_has_other_bits_on_four_ranks_and_equal_ones_on_each(
    on_ranks: OnRanks, num_shards: int
) -> None:
    alone, case = on_ranks(local_training)[0], Case(NUM_RANKS, num_shards, is_canonical=False)
    found = on_ranks(parallel_training, case)
    assert found == [found[0]] * NUM_RANKS == on_ranks(parallel_training, case)
    assert found[0].gradients != alone.gradients
    assert found[0].norms == pytest.approx(alone.norms, rel=1e-5)
