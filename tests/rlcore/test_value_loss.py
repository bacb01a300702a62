"""The value loss: by hand, its gradient, and what clipping is for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.algorithms.losses import value_loss
from tests.rlcore.batches import SEEDED, Batch, batches
from tests.rlcore.gradients import gradient, is_gradient

ONE = torch.ones(1, 1, dtype=torch.bool)


def token(number: float) -> Tensor:
    return torch.tensor([[number]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("value", "loss", "slope", "clipped"),
    [
        (0.1, 0.5 * 0.9**2, -0.9, False),
        (0.5, 0.5 * 0.8**2, 0.0, True),  # moved from 0 towards 1 by more than 0.2: no further in this step
        (-0.5, 0.5 * 1.5**2, -1.5, False),  # moved away: it is called back
        (3.0, 0.5 * 2.0**2, 2.0, False),
    ],
)
def test_by_hand(value: float, loss: float, slope: float, clipped: bool) -> None:
    tensors = (token(0.0), token(1.0), ONE)
    found = value_loss(token(value), *tensors, clip_eps=0.2)
    assert found.losses.item() == pytest.approx(loss)
    assert found.clipped.item() == clipped
    assert gradient(lambda x: value_loss(x, *tensors, clip_eps=0.2).losses, token(value)).item() == pytest.approx(slope)


@SEEDED
@given(batch=batches(), eps=st.floats(0.01, 1.0) | st.none())
def test_gradients(batch: Batch, eps: float | None) -> None:
    tensors = (batch["old_values"], batch["returns"], batch.loss_mask)
    assert is_gradient(lambda x: value_loss(x, *tensors, clip_eps=eps).losses, batch["values"])


@SEEDED
@given(batch=batches())
def test_without_clip_it_is_half_the_square(batch: Batch) -> None:
    values, old_values, returns, mask = (batch[n] for n in ("values", "old_values", "returns", "loss_mask"))
    found = value_loss(values, old_values, returns, mask, clip_eps=None)
    torch.testing.assert_close(found.losses, torch.where(mask, (values - returns) ** 2 / 2, 0.0))
    assert not found.clipped.any()
    assert torch.equal(value_loss(values, old_values, returns, mask, clip_eps=1e9).losses, found.losses)
    assert (value_loss(values, old_values, returns, mask, clip_eps=0.1).losses >= found.losses).all()
