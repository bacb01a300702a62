"""Rollout correction: bounds that may be reached, weights that are constants, completions accepted whole."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.algorithms.correction import (
    accepted,
    icepop,
    mismatch,
    reweighted,
    sequence_weights,
    token_weights,
    truncate,
)
from tests.rlcore.batches import SEEDED, Batch, batches
from tests.rlcore.gradients import gradient, is_gradient


@SEEDED
@given(batch=batches())
def test_equal_logprobs_need_no_correction(batch: Batch) -> None:
    mask = batch.loss_mask
    log_ratio = mismatch(batch["logprobs"], batch["logprobs"], mask)
    assert not log_ratio.any()
    for weights in (token_weights(log_ratio, mask), sequence_weights(log_ratio, mask)):
        assert torch.equal(weights, mask.double())
        assert torch.equal(reweighted(batch["losses"], weights, mask), torch.where(mask, batch["losses"], 0.0))
    assert torch.equal(accepted(log_ratio, mask, max_mean_k3=1e-30), mask)


@SEEDED
@given(batch=batches())
def test_a_completion_weighs_the_product_of_its_tokens(batch: Batch) -> None:
    tokens = token_weights(batch["log_ratio"], batch.loss_mask)
    products = torch.where(batch.loss_mask, tokens, 1.0).prod(-1, keepdim=True)
    found = sequence_weights(batch["log_ratio"], batch.loss_mask)
    torch.testing.assert_close(found, torch.where(batch.loss_mask, products, 0.0))


@pytest.mark.parametrize("distance", [30.0, -30.0, 1e4])
def test_weights_stay_finite(distance: float) -> None:
    mask = torch.ones(1, 2, dtype=torch.bool)
    for weights in (token_weights, sequence_weights):
        found = weights(torch.full((1, 2), distance), mask)
        assert found[0].tolist() == pytest.approx([math.exp(math.copysign(20.0, distance))] * 2)


def test_truncation_and_icepop() -> None:
    weights = torch.tensor([0.0, 0.4, 0.5, 1.0, 2.0, 2.1, math.nan])
    assert truncate(weights, 2.0)[:6].tolist() == pytest.approx([0.0, 0.4, 0.5, 1.0, 2.0, 2.0])
    assert icepop(weights, 0.5, 2.0)[:6].tolist() == [0.0, 0.0, 0.5, 1.0, 2.0, 0.0]
    assert truncate(weights, 2.0)[6].isnan() and icepop(weights, 0.5, 2.0)[6].isnan()


@SEEDED
@given(batch=batches())
def test_gradients_of_reweighted_losses(batch: Batch) -> None:
    weights = icepop(batch["weights"], 0.5, 2.0)
    assert is_gradient(lambda x: reweighted(x, weights, batch.loss_mask), batch["losses"])


def test_what_a_weight_of_0_leaves_out_may_be_anything() -> None:
    losses, weights = torch.tensor([[math.nan, 3.0]]), torch.tensor([[0.0, 2.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert reweighted(losses, weights, mask).tolist() == [[0.0, 6.0]]
    assert gradient(lambda x: reweighted(x, weights, mask), losses).tolist() == [[0.0, 2.0]]


@SEEDED
@given(batch=batches(), high=st.floats(0.01, 1.0))
def test_a_completion_is_accepted_whole_by_the_mean_of_k3(batch: Batch, high: float) -> None:
    found = accepted(batch["log_ratio"], batch.loss_mask, max_mean_k3=high)
    for sample, mask in enumerate(batch.loss_mask):
        k3 = [math.exp(d) - 1 - d for d in batch["log_ratio"][sample][mask].tolist()]
        assert found[sample].tolist() == (mask if math.fsum(k3) / len(k3) <= high else mask & False).tolist()
