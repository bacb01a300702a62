"""KL: estimators against the KL itself over a whole vocabulary, their gradients, rewards and the controller."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.algorithms.kl import Estimator, adaptive_kl_coef, approx_kl, in_rewards
from rlcore.errors import InvalidValueError, NonFiniteError
from tests.rlcore.batches import SEEDED, Batch, batches
from tests.rlcore.gradients import gradient, has_gradient_of, is_gradient

ESTIMATORS = get_args(Estimator)


def policies(seed: int) -> tuple[Tensor, Tensor]:
    """Logits of two policies over one vocabulary, [1, 7]."""
    draw = torch.Generator().manual_seed(seed)
    policy, reference = torch.randn(2, 1, 7, generator=draw, dtype=torch.float64)
    return policy, policy + 0.5 * reference


def expected(estimator: Estimator, policy: Tensor, reference: Tensor) -> Tensor:
    """The estimator's mean over the policy's tokens: its gradient is that of a loss, not of where tokens come from."""
    logprobs, ref_logprobs = policy.log_softmax(-1), reference.log_softmax(-1)
    everywhere = torch.ones_like(policy, dtype=torch.bool)
    return (logprobs.exp().detach() * approx_kl(logprobs, ref_logprobs, everywhere, estimator)).sum()


def true_kl(policy: Tensor, reference: Tensor) -> Tensor:
    logprobs = policy.log_softmax(-1)
    return (logprobs.exp() * (logprobs - reference.log_softmax(-1))).sum()


@SEEDED
@given(seed=st.integers(0, 2**32 - 1))
def test_k1_and_k3_are_unbiased(seed: int) -> None:
    policy, reference = policies(seed)
    for estimator in ("k1", "k3", "k1+", "k3+"):
        torch.testing.assert_close(expected(estimator, policy, reference), true_kl(policy, reference))


@SEEDED
@given(seed=st.integers(0, 2**32 - 1))
def test_whose_gradient_is_whose(seed: int) -> None:
    """As the table at the head of kl.py says."""
    policy, reference = policies(seed)
    forward = gradient(lambda x: true_kl(x, reference), policy)
    backward = gradient(lambda x: true_kl(reference, x), policy)
    nothing = torch.zeros_like(policy)
    for estimator, slope in {
        "k1": nothing,
        "k2": forward,
        "k1+": forward,
        "abs+": forward,
        "k3+": forward,
        "k3": backward,
    }.items():
        found = gradient(lambda x, e=estimator: expected(e, x, reference), policy)  # type: ignore[misc]
        torch.testing.assert_close(found, slope, atol=1e-9, rtol=1e-7)


@SEEDED
@given(seed=st.integers(0, 2**32 - 1))
def test_of_tokens_of_an_earlier_policy_value_and_gradient_are_those_of_the_policy(seed: int) -> None:
    policy, reference = policies(seed)
    earlier = (policy + 0.3 * reference.sin()).log_softmax(-1)
    everywhere = torch.ones_like(policy, dtype=torch.bool)

    def over_earlier(x: Tensor, estimator: Estimator) -> Tensor:
        logprobs, ref_logprobs = x.log_softmax(-1), reference.log_softmax(-1)
        estimates = approx_kl(logprobs, ref_logprobs, everywhere, estimator, old_logprobs=earlier)
        return (earlier.exp() * estimates).sum()

    for estimator in ("k1", "k3", "k1+", "k3+"):
        torch.testing.assert_close(over_earlier(policy, estimator), true_kl(policy, reference))
    for estimator in ("k1", "k2", "k3", "k1+", "abs+", "k3+"):
        found = gradient(lambda x, e=estimator: over_earlier(x, e), policy)  # type: ignore[misc]
        forward = gradient(lambda x: true_kl(x, reference), policy)
        torch.testing.assert_close(found, forward, atol=1e-9, rtol=1e-7)


@SEEDED
@given(batch=batches(), estimator=st.sampled_from(ESTIMATORS))
def test_gradients(batch: Batch, estimator: Estimator) -> None:
    logprobs, ref_logprobs, mask = batch["logprobs"], batch["ref_logprobs"], batch.loss_mask

    def estimate(x: Tensor) -> Tensor:
        return approx_kl(x, ref_logprobs, mask, estimator)

    if estimator.endswith("+"):
        assert has_gradient_of(estimate, lambda x: approx_kl(x, ref_logprobs, mask, "k2"), logprobs)
        assert torch.equal(estimate(logprobs), approx_kl(logprobs, ref_logprobs, mask, estimator.rstrip("+")))  # type: ignore[arg-type]
    else:
        assert is_gradient(estimate, logprobs)


@SEEDED
@given(batch=batches())
def test_k3_is_never_negative_and_equal_policies_are_0_apart(batch: Batch) -> None:
    logprobs, mask = batch["logprobs"], batch.loss_mask
    assert (approx_kl(logprobs, batch["ref_logprobs"], mask, "k3") >= 0).all()
    for estimator in ESTIMATORS:
        assert not approx_kl(logprobs, logprobs, mask, estimator).any()


@pytest.mark.parametrize("distance", [25.0, -25.0, 1e4, -1e4])
def test_k3_far_away(distance: float) -> None:
    one = torch.ones(1, 1, dtype=torch.bool)
    at = torch.tensor([[distance]])
    assert approx_kl(at, torch.zeros(1, 1), one, "k3").item() == 10.0
    assert gradient(lambda x: approx_kl(x, torch.zeros(1, 1), one, "k3"), at).item() == 0.0
    near = approx_kl(torch.tensor([[-2.0]]), torch.zeros(1, 1), one, "k3").item()
    assert near == pytest.approx(math.exp(2) - 3)


@SEEDED
@given(batch=batches(), kl_coef=st.floats(0, 1), estimator=st.sampled_from(ESTIMATORS))
def test_in_rewards(batch: Batch, kl_coef: float, estimator: Estimator) -> None:
    rewards, old, ref, mask = (batch[n] for n in ("token_rewards", "old_logprobs", "ref_logprobs", "loss_mask"))
    found = in_rewards(rewards, old, ref, mask, kl_coef=kl_coef, estimator=estimator)
    expected = rewards - kl_coef * approx_kl(old, ref, mask, estimator)
    torch.testing.assert_close(found, torch.where(mask, expected, 0.0))
    if estimator not in ("k1", "k1+"):
        assert (found <= torch.where(mask, rewards, 0.0)).all()


def test_the_controller_by_hand() -> None:
    def after(current_kl: float) -> float:
        return adaptive_kl_coef(0.2, current_kl, target_kl=0.1, num_samples=50, horizon=1000)

    assert after(0.1) == 0.2
    assert after(0.11) == pytest.approx(0.2 * (1 + 0.1 * 0.05))
    assert after(9.0) == pytest.approx(0.2 * (1 + 0.2 * 0.05))
    assert after(0.0) == pytest.approx(0.2 * (1 - 0.2 * 0.05))
    assert after(-1.0) == after(0.0)


@SEEDED
@given(
    kl_coef=st.floats(0, 10),
    current_kl=st.floats(-10, 10),
    target_kl=st.floats(1e-6, 10),
    num_samples=st.integers(0, 5000),
)
def test_the_controller_moves_towards_the_target(
    kl_coef: float, current_kl: float, target_kl: float, num_samples: int
) -> None:
    found = adaptive_kl_coef(kl_coef, current_kl, target_kl=target_kl, num_samples=num_samples, horizon=1000)
    assert found >= 0
    assert (found - kl_coef) * (current_kl - target_kl) >= 0
    assert abs(found - kl_coef) <= 0.2 * kl_coef * num_samples / 1000 * (1 + 1e-9) + 1e-300


def test_what_cannot_be_used() -> None:
    for kl in (math.nan, math.inf):
        with pytest.raises(NonFiniteError):
            adaptive_kl_coef(0.2, kl, target_kl=0.1, num_samples=1, horizon=10)
    with pytest.raises(InvalidValueError, match="num_samples is 51"):
        adaptive_kl_coef(0.2, 0.1, target_kl=0.1, num_samples=51, horizon=10)
