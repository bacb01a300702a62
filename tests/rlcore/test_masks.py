"""What is asked of tensors, and what a refusal says."""

import pytest
import torch
from hypothesis import given

from rlcore.algorithms.arguments import check_finite, check_samples, check_tokens, included_tokens, only, sample_mean
from rlcore.errors import NonFiniteError, ShapeError
from tests.rlcore.batches import SEEDED, Batch, batches
from tests.rlcore.fake_gpu import Launches


def test_a_refusal_says_what_and_what_else() -> None:
    mask = torch.ones(4, 4, dtype=torch.bool)
    with pytest.raises(ShapeError) as refusal:
        check_tokens(mask, advantages=torch.ones(4))
    assert "advantages is float32 [4], loss_mask bool [4, 4]" in str(refusal.value)
    assert "per_token" in refusal.value.remedy


def test_masks_have_two_dimensions() -> None:
    with pytest.raises(ShapeError, match="bool \\[3\\]"):
        check_tokens(torch.ones(3, dtype=torch.bool))


def test_samples_that_spread_are_named() -> None:
    values = torch.tensor([[1.0, torch.inf], [torch.nan, 2.0], [torch.nan, 0.0]])
    with pytest.raises(NonFiniteError, match="x: sample 0, 1, 2 holds inf"):
        check_finite("x", values, torch.ones_like(values, dtype=torch.bool))
    with pytest.raises(NonFiniteError, match="x: sample 1 holds nan"):
        check_finite("x", values, torch.tensor([[True, False], [True, True], [False, False]]))
    check_finite("x", values, torch.zeros_like(values, dtype=torch.bool))


def test_all_samples_count_unless_said_otherwise() -> None:
    values = torch.tensor([1.0, torch.nan])
    assert check_samples("rewards", values, torch.tensor([True, False])).tolist() == [True, False]
    assert check_samples("rewards", values[:1], None).tolist() == [True]
    with pytest.raises(NonFiniteError, match="rewards: sample 1"):
        check_samples("rewards", values, None)
    with pytest.raises(ShapeError, match="groups is int64"):
        check_samples("rewards", values[:1], None, groups=torch.arange(2))
    mask = torch.ones(2, 2, dtype=torch.bool)
    assert included_tokens(mask, None) is mask
    assert included_tokens(mask, torch.tensor([True, False])).tolist() == [[True, True], [False, False]]


@SEEDED
@given(batch=batches())
def test_reading_through_a_mask(batch: Batch) -> None:
    values, mask = batch["values"], batch.loss_mask
    found = only(mask, values)
    assert torch.equal(found[mask], values[mask]) and not found[~mask].any()
    assert found.dtype == values.dtype and only(mask, values.float()).dtype == torch.float32
    means = [values[i][mask[i]].mean() for i in range(len(mask))]
    torch.testing.assert_close(sample_mean(mask, values), torch.stack(means))


def test_no_check_waits_for_the_device() -> None:
    """Each wait for a GPU is a hole in its work."""
    with Launches() as launches:
        check_tokens(torch.ones(3, 4, dtype=torch.bool), values=torch.zeros(3, 4))
    assert launches.num_waits == 0
