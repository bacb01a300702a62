"""Aggregation: any split of a batch into microbatches and ranks adds up to the batch, losses and gradients."""

import math
from itertools import pairwise
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.algorithms.aggregation import Denominators, Mode, sample_shares
from rlcore.errors import EmptyMaskError
from tests.rlcore.batches import SEEDED, Batch, aggregate, batches, count

MODES = get_args(Mode)


@pytest.mark.parametrize("mode", MODES)
@SEEDED
@given(batch=batches(max_samples=8), cuts=st.sets(st.integers(1, 7), max_size=4))
def test_a_batch_is_the_sum_of_its_parts(mode: Mode, batch: Batch, cuts: set[int]) -> None:
    ends = [0, *sorted(cut for cut in cuts if cut < len(batch.loss_mask)), len(batch.loss_mask)]
    denominators = count(batch.loss_mask, horizon=9)
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
def test_shares_of_samples_by_plain_sums(mode: Mode, batch: Batch) -> None:
    """Divided by the counts of a batch of which this is a part: 50 tokens of 11 samples, of at most 3 tokens each."""
    shares = sample_shares(batch["losses"], batch.loss_mask, mode, Denominators(50, 11, 3))
    for share, losses, mask in zip(shares.tolist(), batch["losses"].tolist(), batch.loss_mask.tolist(), strict=True):
        own = [loss for loss, is_learned in zip(losses, mask, strict=True) if is_learned]
        expected = {
            "token-mean": math.fsum(own) / 50,
            "token-sum": math.fsum(own),
            "seq-mean-token-sum": math.fsum(own) / 11,
            "seq-mean-token-sum-norm": math.fsum(own) / 11 / 3,
            "seq-mean-token-mean": math.fsum(own) / len(own) / 11,
        }
        assert share == pytest.approx(expected[mode], rel=1e-9, abs=1e-12)


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


def test_a_sample_without_a_loss_token_is_named() -> None:
    for num_empty, said in ((1, "sample 0"), (20, "sample 0, 1, 2, 3, 4, 5, 6, 7 and 12 more")):
        mask = torch.zeros(num_empty, 3, dtype=torch.bool)
        with pytest.raises(EmptyMaskError) as refusal:
            aggregate(torch.zeros(mask.shape), mask, "token-mean", Denominators(1, 1))
        assert refusal.value.what == f"no loss token in {said}"
