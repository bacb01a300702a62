"""Aggregation: any split of a batch into microbatches and ranks adds up to the batch, losses and gradients."""

from itertools import pairwise
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.algorithms.aggregation import Denominators, Mode, aggregate, count, sample_shares, total
from rlcore.errors import EmptyMaskError, InvalidValueError
from tests.rlcore.batches import SEEDED, Batch, batches

MODES = get_args(Mode)
LOSSES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [False, True, False]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 23 / 3),
        ("token-sum", 23.0),
        ("seq-mean-token-sum", 23 / 2),
        ("seq-mean-token-sum-norm", 23 / 2 / 4),
        ("seq-mean-token-mean", (1.5 + 20) / 2),
    ],
)
def test_by_hand(mode: Mode, expected: float) -> None:
    assert aggregate(LOSSES, MASK, mode, count(MASK, horizon=4)).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@SEEDED
@given(batch=batches(max_samples=8), cuts=st.sets(st.integers(1, 7), max_size=4))
def test_a_batch_is_the_sum_of_its_parts(mode: Mode, batch: Batch, cuts: set[int]) -> None:
    ends = [0, *sorted(cut for cut in cuts if cut < len(batch.loss_mask)), len(batch.loss_mask)]
    parts = [batch.rows(slice(*ends_of_part)) for ends_of_part in pairwise(ends)]
    denominators = total(count(part.loss_mask, horizon=9) for part in parts)
    assert denominators == count(batch.loss_mask, horizon=9)
    leaf = batch["losses"].clone().requires_grad_()
    aggregate(leaf, batch.loss_mask, mode, denominators).backward()  # type: ignore[no-untyped-call]
    split = batch["losses"].clone().requires_grad_()
    sums = [
        aggregate(split[start:end], batch.loss_mask[start:end], mode, denominators) for start, end in pairwise(ends)
    ]
    for loss in sums:
        loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(sum(sums), aggregate(leaf, batch.loss_mask, mode, denominators))
    assert leaf.grad is not None and split.grad is not None
    assert torch.equal(split.grad, leaf.grad)


@pytest.mark.parametrize("mode", MODES)
@SEEDED
@given(batch=batches())
def test_shares_add_up(mode: Mode, batch: Batch) -> None:
    denominators = count(batch.loss_mask, horizon=3)
    shares = sample_shares(batch["losses"], batch.loss_mask, mode, denominators)
    assert shares.shape == (len(batch.loss_mask),)
    torch.testing.assert_close(shares.sum(), aggregate(batch["losses"], batch.loss_mask, mode, denominators))


@SEEDED
@given(batch=batches())
def test_a_dropped_token_counts_in_the_denominator(batch: Batch) -> None:
    """Rejection makes losses 0, and leaves the mask: a sample that is rejected whole is no empty mask."""
    losses = batch["losses"].clone()
    losses[0] = 0.0
    found = aggregate(losses, batch.loss_mask, "token-mean", count(batch.loss_mask))
    assert found.item() == pytest.approx(
        losses[batch.loss_mask].sum().item() / int(batch.loss_mask.sum()), rel=1e-9, abs=1e-12
    )


def test_what_cannot_be_divided_by() -> None:
    with pytest.raises(InvalidValueError, match="mode is 'mean'") as refusal:
        aggregate(LOSSES, MASK, "mean", count(MASK))  # type: ignore[arg-type]
    assert all(mode in refusal.value.legal for mode in MODES)
    for denominators, name in (
        (Denominators(0, 2), "num_tokens"),
        (Denominators(3, 0), "num_samples"),
        (Denominators(3, 2), "horizon"),
        (Denominators(3, 2, -1.0), "horizon"),
    ):
        with pytest.raises(InvalidValueError, match=name):
            aggregate(LOSSES, MASK, "seq-mean-token-sum-norm", denominators)
    with pytest.raises(EmptyMaskError):
        count(torch.tensor([[True], [False]]))
    with pytest.raises(InvalidValueError, match="horizons"):
        total([Denominators(1, 1, 4), Denominators(1, 1, 5)])
    with pytest.raises(InvalidValueError, match="horizons"):
        total([])
