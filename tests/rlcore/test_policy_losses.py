"""Policy losses: where they clip, what they reduce to, and gradients against finite differences."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.algorithms.advantages import per_token
from rlcore.algorithms.losses import PolicyLoss, cispo, gspo, ppo_clip
from tests.rlcore.batches import SEEDED, Batch, batches, compared
from tests.rlcore.gradients import gradient, has_gradient_of, is_gradient

every_loss = pytest.mark.parametrize("loss", [ppo_clip, gspo, cispo])
ONE = torch.ones(1, 1, dtype=torch.bool)


def token(number: float) -> Tensor:
    return torch.tensor([[number]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped", "capped"),
    [
        (1.1, 2.0, -2.2, -2.2, False, False),
        (1.5, 2.0, -2.6, 0.0, True, False),  # clip-higher: at 1.3
        (0.5, 2.0, -1.0, -1.0, False, False),  # a better token that became rarer is never held back
        (0.5, -2.0, 1.6, 0.0, True, False),
        (1.5, -2.0, 3.0, 3.0, False, False),
        (4.0, -2.0, 6.0, 0.0, False, True),  # dual clip: at 3
        (4.0, 2.0, -2.6, 0.0, True, False),
        (1.0, 0.0, 0.0, 0.0, False, False),
    ],
)
def test_ppo_by_hand(  # noqa: PLR0917 - a row of the table
    ratio: float, advantage: float, loss: float, slope: float, clipped: bool, capped: bool
) -> None:
    bounds = {"clip_eps_low": 0.2, "clip_eps_high": 0.3, "dual_clip": 3.0}

    def found(logprobs: Tensor) -> Tensor:
        return ppo_clip(compared(logprobs, token(0.0), token(advantage), ONE), **bounds).losses

    at = token(math.log(ratio))
    assert found(at).item() == pytest.approx(loss)
    assert gradient(found, at).item() == pytest.approx(slope)
    kind = ppo_clip(compared(at, token(0.0), token(advantage), ONE), **bounds)
    assert (kind.clipped.item(), kind.capped.item()) == (clipped, capped)


@every_loss
@SEEDED
@given(batch=batches())
def test_on_policy_it_is_reinforce(loss: Callable[..., PolicyLoss], batch: Batch) -> None:
    """Where nothing has moved the gradient is -A at each loss token, and nothing is clipped."""
    logprobs, advantages, mask = batch["logprobs"], batch["advantages"], batch.loss_mask

    def losses(x: Tensor) -> Tensor:
        return loss(compared(x, logprobs, advantages, mask)).losses

    torch.testing.assert_close(gradient(losses, logprobs), torch.where(mask, -advantages, 0.0))
    found = loss(compared(logprobs, logprobs, advantages, mask))
    assert not found.clipped.any() and not found.capped.any()


@SEEDED
@given(batch=batches(), eps=st.floats(0.05, 0.5))
def test_gradients(batch: Batch, eps: float) -> None:
    logprobs, old, mask = batch["logprobs"], batch["old_logprobs"], batch.loss_mask
    advantages = batch["advantages"]
    assert is_gradient(
        lambda x: ppo_clip(compared(x, old, advantages, mask), clip_eps_high=eps, dual_clip=1.2).losses, logprobs
    )
    # GSPO's tokens share their sample's ratio: with one advantage a sample theirs is the true gradient of the sum.
    shared = per_token(batch["rewards"], mask)
    assert is_gradient(
        lambda x: gspo(compared(x, old, shared, mask), clip_eps_low=eps, clip_eps_high=eps).losses, logprobs
    )
    weights = (logprobs - old).exp().clamp(1 - eps, 1 + eps)
    assert has_gradient_of(
        lambda x: cispo(compared(x, old, advantages, mask), clip_eps_low=eps, clip_eps_high=eps).losses,
        lambda x: torch.where(mask, -weights * advantages * x, 0.0),
        logprobs,
    )


@SEEDED
@given(batch=batches(max_samples=4), eps=st.floats(0.05, 0.5))
def test_gspo_of_one_token_is_ppo_without_dual_clip(batch: Batch, eps: float) -> None:
    first = batch.loss_mask.int().argmax(dim=-1, keepdim=True)
    mask = torch.zeros_like(batch.loss_mask).scatter(1, first, True)
    tensors = (batch["old_logprobs"], batch["advantages"], mask)

    def of_gspo(x: Tensor) -> Tensor:
        return gspo(compared(x, *tensors), clip_eps_low=eps, clip_eps_high=eps).losses

    def of_ppo(x: Tensor) -> Tensor:
        return ppo_clip(compared(x, *tensors), clip_eps_low=eps, clip_eps_high=eps, dual_clip=None).losses

    torch.testing.assert_close(gradient(of_gspo, batch["logprobs"]), gradient(of_ppo, batch["logprobs"]))


@SEEDED
@given(batch=batches())
def test_no_clip_is_importance_sampling(batch: Batch) -> None:
    logprobs, old, advantages, mask = (batch[n] for n in ("logprobs", "old_logprobs", "advantages", "loss_mask"))
    found = ppo_clip(
        compared(logprobs, old, advantages, mask), clip_eps_low=1.0, clip_eps_high=math.inf, dual_clip=None
    )
    torch.testing.assert_close(found.losses, torch.where(mask, -(logprobs - old).exp() * advantages, 0.0))
    assert not found.clipped.any()


@pytest.mark.parametrize("distance", [30.0, 1e4, -30.0, -1e4])
@every_loss
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_ratios_out_of_range_stay_finite(loss: Callable[..., PolicyLoss], distance: float, advantage: float) -> None:
    options = {"dual_clip": None} if loss is ppo_clip else {}
    logprobs = torch.tensor([[distance, distance]])
    mask = torch.ones(1, 2, dtype=torch.bool)

    def losses(x: Tensor) -> Tensor:
        return loss(compared(x, torch.zeros(1, 2), torch.full((1, 2), advantage), mask), **options).losses

    assert losses(logprobs).isfinite().all()
    assert gradient(losses, logprobs).isfinite().all()
