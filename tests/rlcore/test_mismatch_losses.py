"""Losses against the sampler: what is dropped, at which bound, and gradients against finite differences."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlcore.algorithms.losses import PolicyLoss, dppo_tv, ipo, masked_is, masked_is_keep
from tests.rlcore.batches import SEEDED, Batch, batches, compared
from tests.rlcore.gradients import gradient, has_gradient_of, is_gradient

every_proximal = pytest.mark.parametrize("loss", [dppo_tv, ipo])
THREE = torch.ones(1, 3, dtype=torch.bool)
WIDE = (0.0, math.inf)


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


@pytest.mark.parametrize(
    ("bounds", "keep"),
    [
        ({}, [True, True, True]),
        ({"token": (0.5, 8.0)}, [True, True, True]),  # a bound may be reached
        ({"token": (0.51, 8.0)}, [False, True, True]),
        ({"token": (0.1, 3.9)}, [True, True, False]),
        ({"geometric": (1.27, 10.0)}, [False, False, False]),  # exp(mean d) = 2^(1/3) = 1.26
        ({"geometric": (0.1, 1.25)}, [False, False, False]),
        ({"sequence": (0.5, 4.0)}, [True, True, True]),
        ({"sequence": (0.51, 4.0)}, [False, False, False]),
        ({"sequence": (0.0, 3.9)}, [False, False, False]),
    ],
)
def test_what_is_kept(bounds: dict[str, tuple[float, float]], keep: list[bool]) -> None:
    logprobs = row(0.5, 1.0, 4.0).log()
    found = masked_is_keep(
        compared(logprobs, row(0, 0, 0), logprobs, THREE),
        **{"token": WIDE, "geometric": WIDE, "sequence": WIDE, **bounds},
    )
    assert found[0].tolist() == keep


@SEEDED
@given(batch=batches())
def test_gradients_of_masked_is(batch: Batch) -> None:
    logprobs, rollout, advantages, mask = (
        batch[n] for n in ("logprobs", "rollout_logprobs", "advantages", "loss_mask")
    )
    keep = masked_is_keep(compared(logprobs, rollout, logprobs, mask), token=(0.8, 1.5))
    d = torch.where(mask, logprobs - rollout, 0.0)

    def losses(x: Tensor) -> Tensor:
        return masked_is(compared(x, rollout, advantages, mask), keep, proximal_coef=0.3).losses

    def frozen(x: Tensor) -> Tensor:
        return torch.where(keep, -d.exp() * (advantages - 0.3 * d) * x, 0.0)

    assert has_gradient_of(losses, frozen, logprobs)


@pytest.mark.full
@every_proximal
@SEEDED
@given(batch=batches())
def test_gradients_of_dppo_and_ipo(loss: Callable[..., PolicyLoss], batch: Batch) -> None:
    tensors = (batch["rollout_logprobs"], batch["advantages"], batch.loss_mask)
    assert is_gradient(lambda x: loss(compared(x, *tensors), proximal_coef=0.2).losses, batch["logprobs"])


@every_proximal
@SEEDED
@given(batch=batches())
def test_on_policy_they_are_reinforce(loss: Callable[..., PolicyLoss], batch: Batch) -> None:
    logprobs, advantages, mask = batch["logprobs"], batch["advantages"], batch.loss_mask
    found = gradient(lambda x: loss(compared(x, logprobs, advantages, mask)).losses, logprobs)
    torch.testing.assert_close(found, torch.where(mask, -advantages, 0.0))


@SEEDED
@given(batch=batches())
def test_on_policy_masked_is_is_reinforce(batch: Batch) -> None:
    logprobs, advantages, mask = batch["logprobs"], batch["advantages"], batch.loss_mask
    keep = masked_is_keep(compared(logprobs, logprobs, logprobs, mask))
    assert torch.equal(keep, mask)
    found = gradient(lambda x: masked_is(compared(x, logprobs, advantages, mask), keep).losses, logprobs)
    torch.testing.assert_close(found, torch.where(mask, -advantages, 0.0))


@pytest.mark.parametrize(
    ("advantage", "change", "dppo_keeps", "ipo_keeps"),
    [
        (1.0, 0.15, True, False),
        (1.0, 0.25, False, False),
        (1.0, -0.25, True, False),
        (-1.0, -0.25, False, False),
        (-1.0, 0.25, True, False),
        (0.0, -0.25, False, False),
        (1.0, 0.05, True, True),
        (-1.0, -0.05, True, True),
    ],
)
def test_what_moved_enough_is_dropped(advantage: float, change: float, dppo_keeps: bool, ipo_keeps: bool) -> None:
    tensors = (row(0.5 + change, 0.5, 0.5).log(), row(0.5, 0.5, 0.5).log(), row(advantage, 0, 0), THREE)
    assert dppo_tv(compared(*tensors)).clipped[0, 0] != dppo_keeps
    assert ipo(compared(*tensors)).clipped[0, 0] != ipo_keeps


@every_proximal
def test_an_infinite_ratio_that_is_dropped_is_harmless(loss: Callable[..., PolicyLoss]) -> None:
    """float32: exp(90) is infinite, and 0 * inf would be NaN."""
    logprobs, rollout = row(-0.01, -0.01, -0.01).float(), row(-90, -0.01, -0.01).float()

    def losses(x: Tensor) -> Tensor:
        return loss(compared(x, rollout, row(1, 1, 1).float(), THREE), proximal_coef=0.0).losses

    assert losses(logprobs)[0].tolist() == pytest.approx([0.0, -1.0, -1.0])
    assert gradient(losses, logprobs)[0].tolist() == pytest.approx([0.0, -1.0, -1.0])


def test_an_infinite_weight_that_is_dropped_is_harmless() -> None:
    logprobs, rollout = row(-0.01, -0.01, -0.01).float(), row(-90, -0.01, -0.01).float()
    keep = masked_is_keep(compared(logprobs, rollout, logprobs, THREE), geometric=WIDE, sequence=WIDE)
    assert keep[0].tolist() == [False, True, True]
    assert masked_is(compared(logprobs, rollout, row(1, 1, 1).float(), THREE), keep).losses.isfinite().all()


@pytest.mark.parametrize(
    ("ratios", "keep"),
    [
        ((0.12, 1.0, 8.1), [False, True, False]),
        ((1.0, 1.0, 101.0), [False] * 3),
        ((9.9, 9.9, 10.3), [False] * 3),
        ((0.1, 0.1, 0.09), [False] * 3),
    ],
)
def test_bounds_that_nobody_has_set(ratios: tuple[float, ...], keep: list[bool]) -> None:
    assert masked_is_keep(compared(row(*ratios).log(), row(0, 0, 0), row(*ratios).log(), THREE))[0].tolist() == keep
