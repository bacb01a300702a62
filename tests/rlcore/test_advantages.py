"""Advantages: known numbers, groups of any size in any order, equal rewards, samples that nobody could judge."""

import math
from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.algorithms.advantages import (
    at_last_token,
    discounted_returns,
    dr_grpo,
    gae,
    grpo,
    length_weighted,
    per_token,
    reinforce_pp_baseline,
    remax,
    rloo,
    whiten,
)
from rlcore.errors import EmptyMaskError, NonFiniteError, ShapeError
from tests.rlcore.batches import POISONS, SEEDED, Batch, batches, permutations

Estimator = Callable[..., Tensor]
ESTIMATORS = {
    "grpo": grpo,
    "grpo/ddof-0": lambda *args: grpo(*args, ddof=0),
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "rloo/lone-0": lambda *args: rloo(*args, keep_lone=False),
}
REWARDS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=12)
every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


def numbered(num: int, of: int = 3) -> Tensor:
    """Groups 0, 1, 2, 0, 1, 2, ..."""
    return torch.arange(num) % of


# ------------------------------------------------------------------------------------------------ relative to a group


def test_known_numbers() -> None:
    rewards, groups = torch.tensor([1.0, 7.0, 3.0, 5.0, 9.0]), torch.tensor([40, -1, 40, 40, -1])
    assert dr_grpo(rewards, groups).tolist() == [-2.0, -1.0, 0.0, 2.0, 1.0]
    assert rloo(rewards, groups).tolist() == [-3.0, -2.0, 0.0, 3.0, 2.0]
    assert grpo(rewards, groups, eps=1e-12).tolist() == pytest.approx([-1.0, -(0.5**0.5), 0.0, 1.0, 0.5**0.5])
    assert grpo(rewards, groups, eps=1e-12, ddof=0)[[1, 4]].tolist() == pytest.approx([-1.0, 1.0])


@every_estimator
@SEEDED
@given(reward=st.floats(-1e6, 1e6), num=st.integers(2, 40), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_equal_rewards_give_exactly_zero(estimate: Estimator, reward: float, num: int, dtype: torch.dtype) -> None:
    assert estimate(torch.full((num,), reward, dtype=dtype), torch.zeros(num, dtype=torch.long)).tolist() == [0.0] * num


@every_estimator
@SEEDED
@given(rewards=REWARDS, random=st.randoms(use_true_random=False))
def test_order_and_names_of_groups_change_no_bit(estimate: Estimator, rewards: list[float], random: Random) -> None:
    values, groups = torch.tensor(rewards, dtype=torch.float64), numbered(len(rewards))
    order = permutations(len(rewards), random)
    names = torch.tensor([17, -4, 2**40])
    assert torch.equal(estimate(values[order], names[groups[order]]), estimate(values, groups)[order])


@every_estimator
def test_order_changes_no_bit_of_a_large_group(estimate: Estimator) -> None:
    rewards, group = torch.randn(64, dtype=torch.float64), torch.zeros(64, dtype=torch.long)
    orders = [torch.randperm(64) for _ in range(16)]
    for order in orders:
        assert torch.equal(estimate(rewards[order], group), estimate(rewards, group)[order])
    assert len({rewards[order].sum().item() for order in orders}) > 1, "an ordinary sum would not have done it"


@every_estimator
@SEEDED
@given(rewards=REWARDS)
def test_a_group_knows_nothing_of_the_others(estimate: Estimator, rewards: list[float]) -> None:
    values, groups = torch.tensor(rewards, dtype=torch.float64), numbered(len(rewards))
    together = estimate(values, groups)
    for group in range(3):
        own = groups == group
        if own.any():
            assert torch.equal(together[own], estimate(values[own], groups[own]))


@every_estimator
@SEEDED
@given(rewards=REWARDS, seed=st.integers(0, 2**12), poison=POISONS)
def test_what_is_not_included_counts_nowhere(
    estimate: Estimator, rewards: list[float], seed: int, poison: float
) -> None:
    values, groups = torch.tensor(rewards, dtype=torch.float64), numbered(len(rewards))
    included = torch.tensor([bool(seed >> i & 1) for i in range(len(rewards))])
    included[0] = True
    found = estimate(torch.where(included, values, poison), groups, included)
    assert torch.equal(found[included], estimate(values[included], groups[included]))
    assert not found[~included].any()


@SEEDED
@given(rewards=REWARDS.filter(lambda rewards: len(rewards) > 1))
def test_rloo_is_dr_grpo_scaled_and_grpo_of_unit_spread_is_dr_grpo(rewards: list[float]) -> None:
    values = torch.tensor(rewards, dtype=torch.float64)
    groups, num = torch.zeros(len(rewards), dtype=torch.long), len(rewards)
    torch.testing.assert_close(rloo(values, groups), dr_grpo(values, groups) * num / (num - 1))
    others = (values.sum() - values) / (num - 1)
    torch.testing.assert_close(rloo(values, groups), values - others, atol=1e-7, rtol=1e-6)
    if values.std() > 1e-3:
        unit = values / values.std()
        torch.testing.assert_close(grpo(unit, groups, eps=1e-12), dr_grpo(unit, groups))


def test_a_group_of_one() -> None:
    alone, group = torch.tensor([-2.0]), torch.tensor([7])
    assert grpo(alone, group).item() == pytest.approx(-2.0 / (1 + 1e-6), abs=1e-6)
    assert dr_grpo(alone, group).item() == rloo(alone, group).item() == -2.0
    for estimate in (grpo, dr_grpo, rloo):
        assert estimate(alone, group, keep_lone=False).item() == 0.0


def test_rewards_that_cannot_be_used() -> None:
    groups = torch.tensor([0, 0])
    with pytest.raises(NonFiniteError, match="sample 1 holds nan"):
        grpo(torch.tensor([1.0, math.nan]), groups)
    with pytest.raises(EmptyMaskError, match="no sample is included"):
        grpo(torch.tensor([1.0, 2.0]), groups, torch.tensor([False, False]))
    with pytest.raises(EmptyMaskError):
        grpo(torch.zeros(0), torch.zeros(0, dtype=torch.long))
    for rewards, of, included in (
        (torch.tensor([1, 2]), groups, None),
        (torch.ones(2, 2), groups, None),
        (torch.ones(2), groups[:1], None),
        (torch.ones(2), groups.float(), None),
        (torch.ones(2), groups, torch.tensor([1, 0])),
        (torch.ones(2), groups, torch.tensor([True])),
    ):
        with pytest.raises(ShapeError):
            grpo(rewards, of, included)


# ------------------------------------------------------------------------------------------------------ along tokens


@SEEDED
@given(batch=batches())
def test_gae_at_its_ends(batch: Batch) -> None:
    """Lambda 1 is the return minus the value, lambda 0 one step of bootstrapping; holes do not matter."""
    rewards, values, mask = batch["token_rewards"], batch["values"], batch.loss_mask
    full = gae(rewards, values, mask, gamma=0.9, lam=1.0)
    torch.testing.assert_close(full.returns, discounted_returns(rewards, mask, gamma=0.9))
    one_step = gae(rewards, values, mask, gamma=0.9, lam=0.0).advantages
    for sample in range(len(mask)):
        v, r = values[sample][mask[sample]], rewards[sample][mask[sample]]
        after = torch.cat([v[1:], v.new_zeros(1)])
        torch.testing.assert_close(one_step[sample][mask[sample]], r + 0.9 * after - v)
        no_holes = gae(r[None], v[None], torch.ones(1, len(v), dtype=torch.bool), gamma=0.9, lam=0.7)
        with_holes = gae(rewards, values, mask, gamma=0.9, lam=0.7)
        assert torch.equal(with_holes.advantages[sample][mask[sample]], no_holes.advantages[0])


@SEEDED
@given(batch=batches(), gamma=st.floats(0, 1))
def test_discounted_returns(batch: Batch, gamma: float) -> None:
    found = discounted_returns(batch["token_rewards"], batch.loss_mask, gamma=gamma)
    for sample, mask in enumerate(batch.loss_mask):
        rewards = batch["token_rewards"][sample][mask].tolist()
        expected = [math.fsum(r * gamma**k for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]
        assert found[sample][mask].tolist() == pytest.approx(expected, abs=1e-9)


@SEEDED
@given(batch=batches())
def test_remax_of_a_reward_at_the_end_is_reward_minus_baseline(batch: Batch) -> None:
    rewards, baselines, mask = batch["rewards"], batch["baselines"], batch.loss_mask
    found = remax(at_last_token(rewards, mask), baselines, mask)
    assert torch.equal(found.advantages, per_token(rewards - baselines, mask))
    assert torch.equal(found.returns, per_token(rewards, mask))


@SEEDED
@given(batch=batches(min_samples=2, min_positions=2))
def test_reinforce_pp_where_every_group_is_of_one_is_the_whitened_reward(batch: Batch) -> None:
    rewards, mask = batch["rewards"], batch.loss_mask
    alone = reinforce_pp_baseline(rewards, torch.arange(len(rewards)), mask)
    assert torch.equal(alone, whiten(per_token(rewards, mask), mask))


@SEEDED
@given(batch=batches(min_samples=3, min_positions=2), poison=POISONS)
def test_tokens_of_samples_not_included_count_nowhere(batch: Batch, poison: float) -> None:
    included = torch.ones(len(batch.loss_mask), dtype=torch.bool)
    included[1] = False
    left = batch.rows(included)
    spoilt = {n: torch.where(included[:, None], t, poison) for n, t in batch.tokens.items() if n != "logits"}
    rewards = torch.where(included, batch["rewards"], poison)
    mask, groups = batch.loss_mask, batch["groups"]
    pairs = [
        (
            gae(spoilt["token_rewards"], spoilt["values"], mask, included, lam=0.9).returns,
            gae(left["token_rewards"], left["values"], left.loss_mask, lam=0.9).returns,
        ),
        (
            remax(spoilt["token_rewards"], rewards, mask, included).advantages,
            remax(left["token_rewards"], left["rewards"], left.loss_mask).advantages,
        ),
        (at_last_token(rewards, mask, included), at_last_token(left["rewards"], left.loss_mask)),
    ]
    if left.loss_mask.sum() > 1:
        pairs += [
            (whiten(spoilt["values"], mask, included), whiten(left["values"], left.loss_mask)),
            (
                reinforce_pp_baseline(rewards, groups, mask, included),
                reinforce_pp_baseline(left["rewards"], left["groups"], left.loss_mask),
            ),
        ]
    for found, expected in pairs:
        assert torch.equal(found[included], expected)
        assert not found[~included].any()


# ---------------------------------------------------------------------------------------------- from one to the other


@SEEDED
@given(batch=batches())
def test_a_reward_lands_on_the_last_loss_token(batch: Batch) -> None:
    """Never on padding, nor on what an environment said after it."""
    found = at_last_token(batch["rewards"], batch.loss_mask)
    for sample, mask in enumerate(batch.loss_mask):
        last = int(mask.nonzero()[-1])
        expected = [0.0] * len(mask)
        expected[last] = batch["rewards"][sample].item()
        assert found[sample].tolist() == expected


@SEEDED
@given(batch=batches(min_samples=2, min_positions=3).filter(lambda batch: int(batch.loss_mask.sum()) > 2))
def test_whitened_values_have_mean_0_and_variance_1(batch: Batch) -> None:
    found = whiten(batch["values"], batch.loss_mask)[batch.loss_mask]
    assert found.mean().item() == pytest.approx(0.0, abs=1e-9)
    assert found.var().item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("value", [0.1, 0.9, -5.3, 0.0])
def test_whitening_equal_values_gives_exactly_zero(value: float) -> None:
    for num in range(2, 50):
        mask = torch.ones(2, num, dtype=torch.bool)
        mask[0, 1:] = False
        assert not whiten(torch.full((2, num), value, dtype=torch.float64), mask).any()


def test_what_cannot_be_whitened() -> None:
    with pytest.raises(EmptyMaskError, match="1 loss tokens"):
        whiten(torch.ones(1, 2), torch.tensor([[True, False]]))
    with pytest.raises(EmptyMaskError, match="0 loss tokens"):
        whiten(torch.ones(1, 2), torch.tensor([[True, True]]), torch.tensor([False]))


def test_numbers_of_samples_have_to_fit_the_mask() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    three, two = torch.ones(3), torch.ones(2)
    calls: tuple[Callable[[], object], ...] = (
        lambda: gae(torch.ones(2, 3), torch.ones(2, 3), mask, three > 0),
        lambda: whiten(torch.ones(2, 3), mask, two),
    )
    for call in calls:
        with pytest.raises(ShapeError):
            call()


def test_a_long_completion_weighs_more_in_the_mean_of_its_group() -> None:
    rewards, lengths = torch.tensor([1.0, 0.0, 0.5, 7.0]), torch.tensor([3, 1, 5, 2])
    groups, included = torch.tensor([0, 0, 1, 0]), torch.tensor([True, True, True, False])
    assert length_weighted(rewards, lengths, groups, included).tolist() == [0.25, -0.75, 0.0, 0.0]
    assert torch.equal(length_weighted(rewards, torch.ones(4), groups), dr_grpo(rewards, groups, keep_lone=False))
