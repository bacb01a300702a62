"""What goes wrong on one rank is an error on all of them, at once, and leaves a trainer that goes on."""

import pytest

from tests.rlcore.trainers.conftest import NUM_RANKS, OnRanks
from tests.support.rank_failures import (
    errors_of_counts,
    errors_of_gradients,
    errors_of_losses,
    errors_of_models,
    errors_without_the_guard,
)
from tests.support.rank_training import Case

GRIDS = [Case(4, 1), Case(4, 4), pytest.param(Case(4, 2), marks=pytest.mark.full)]


@pytest.mark.full
@pytest.mark.parametrize("case", GRIDS)
def test_ranks_that_disagree_on_the_microbatches_say_so_at_once(on_ranks: OnRanks, case: Case) -> None:
    found = on_ranks(errors_of_counts, case)
    assert found == [found[0]] * NUM_RANKS
    counts, twice, beyond = found[0]
    assert "13 on rank 0, 14 on rank 1, 13 on rank 2, 13 on rank 3" in counts
    assert twice.startswith("InvalidValueError: microbatch 0 was given to ranks [")
    assert "whose number is not of this minibatch: 1 on rank 0" in beyond


@pytest.mark.full
def test_without_the_guard_ranks_wait_until_the_groups_timeout(on_ranks: OnRanks) -> None:
    found = on_ranks(errors_without_the_guard, 20.0)
    assert found[0].startswith("RuntimeError: ")
    assert "imed out" in found[0]
    assert found[2:] == ["", ""]


@pytest.mark.full
@pytest.mark.parametrize("case", GRIDS)
def test_a_loss_that_is_no_number_is_named_on_every_rank_and_forgotten(on_ranks: OnRanks, case: Case) -> None:
    found = on_ranks(errors_of_losses, case)
    assert found == [found[0]] * NUM_RANKS
    error, after, clean = found[0]
    assert "the loss of fixed microbatch 7 is nan (samples [14, 15])" in error
    assert after == clean


@pytest.mark.full
@pytest.mark.parametrize("case", GRIDS)
def test_a_gradient_that_is_no_number_is_named_on_every_rank(on_ranks: OnRanks, case: Case) -> None:
    for row in (0, 30):
        found = on_ranks(errors_of_gradients, case, row)
        assert found == [found[0]] * NUM_RANKS
        assert f"the gradient of decoder.embedding is inf at [{row}, 3]" in found[0]


def test_models_that_cannot_be_sharded_are_refused(on_ranks: OnRanks) -> None:
    found = on_ranks(errors_of_models)
    assert found == [found[0]] * NUM_RANKS
    unread, number, alone = found[0]
    assert "a pass without the gradient of some parameter of Partial" in unread
    assert "scale has no dimension to be sharded along" in number
    assert "shards on one rank" in alone
