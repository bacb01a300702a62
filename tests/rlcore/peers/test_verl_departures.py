"""Where we differ from verl 0.9.1 on purpose: each row of tests/data/departures.json, seen on both sides."""

import math
from collections.abc import Callable

import pytest
import torch

from rlcore.algorithms import advantages, correction
from rlcore.algorithms.aggregation import Denominators
from rlcore.algorithms.losses import PolicyLoss, Tokens, cispo, dppo_tv, gspo, ppo_clip
from rlcore.errors import EmptyMaskError
from tests.rlcore.batches import Batch, aggregate, batch_of, compared, count
from tests.rlcore.peers.close import assert_close, departures_from
from tests.rlcore.peers.peer import Peer

NAN = float("nan")


def batch() -> Batch:
    """A batch with tokens outside its mask."""
    drawn = batch_of(7, 4, 6)
    assert not drawn.loss_mask.all()
    return drawn


def equal_rewards(verl: Peer) -> None:
    for reward, num_samples, least in ((0.9, 8, 0.05), (5.3, 8, 0.3)):
        mask = torch.ones(num_samples, 1, dtype=torch.bool)
        token_rewards, groups = torch.full((num_samples, 1), reward), torch.zeros(num_samples, dtype=torch.long)
        theirs = verl("group_relative", estimator="grpo", token_rewards=token_rewards, groups=groups, loss_mask=mask)
        assert theirs["advantages"].abs().max() > least
        assert not advantages.grpo(token_rewards[:, 0], groups).any()


def empty_mask(verl: Peer) -> None:
    losses, mask = torch.ones(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.bool)
    theirs = verl("aggregate", losses=losses, loss_mask=mask, mode="token-mean", batch={})
    assert math.isnan(theirs["loss"])
    with pytest.raises(EmptyMaskError):
        aggregate(losses, mask, "token-mean", count(torch.ones_like(mask)))


def outside_the_mask(verl: Peer) -> None:
    b = batch()
    tensors = {name: b[name] for name in ("token_rewards", "values", "loss_mask")}
    theirs, found = verl("gae", **tensors, gamma=0.9, lam=0.8), advantages.gae(**tensors, gamma=0.9, lam=0.8)
    for name in ("advantages", "returns"):
        assert theirs[name][~b.loss_mask].any()
        assert not getattr(found, name)[~b.loss_mask].any()
    tensors = {name: b[name] for name in ("token_rewards", "baselines", "loss_mask")}
    assert verl("remax", **tensors)["returns"][~b.loss_mask].any()
    assert not advantages.remax(**tensors).returns[~b.loss_mask].any()


def nan_outside_the_mask(verl: Peer) -> None:
    b = batch().poisoned(NAN)
    tensors = {name: b[name] for name in ("token_rewards", "values", "loss_mask")}
    assert verl("gae", **tensors, gamma=0.9, lam=0.8)["advantages"].isnan().all()
    found = advantages.gae(b["token_rewards"], b["values"], b.loss_mask)
    assert found.advantages.isfinite().all()

    tensors = {name: b[name] for name in ("logprobs", "old_logprobs", "advantages")}
    given = {"tensors": tensors, "loss_mask": b.loss_mask, "options": {}, "batch": {}}
    assert verl("policy_loss", name="vanilla", mode="token-mean", **given)["gradient"].isfinite().all()
    assert verl("policy_loss", name="vanilla", mode="seq-mean-token-sum", **given)["loss"].isnan()
    assert verl("policy_loss", name="gspo", mode="token-mean", **given)["loss"].isnan()
    theirs = verl("policy_loss", name="cispo", mode="token-mean", **given)
    assert theirs["loss"].isfinite()
    assert theirs["gradient"].isnan().any()
    losses_of: tuple[Callable[[Tokens], PolicyLoss], ...] = (ppo_clip, gspo, cispo)
    for loss_of in losses_of:
        leaf = b["logprobs"].clone().requires_grad_()
        losses = loss_of(compared(leaf, b["old_logprobs"], b["advantages"], b.loss_mask)).losses
        loss = aggregate(losses, b.loss_mask, "seq-mean-token-sum", count(b.loss_mask))
        (gradient,) = torch.autograd.grad(loss, leaf)
        assert loss.isfinite() and gradient.isfinite().all()


def equal_values(verl: Peer) -> None:
    values, mask = torch.full((8, 9), 5.3), torch.ones(8, 9, dtype=torch.bool)
    assert verl("whiten", values=values, loss_mask=mask)["values"].abs().max() > 1e-3
    assert not advantages.whiten(values, mask).any()


def ranks(verl: Peer) -> None:
    b = batch()
    for num_ranks in (1, 3):
        info = {"dp_size": num_ranks, "batch_num_tokens": 50}
        theirs = verl("aggregate", losses=b["losses"], loss_mask=b.loss_mask, mode="token-mean", batch=info)
        ours = aggregate(b["losses"], b.loss_mask, "token-mean", Denominators(50, 4))
        assert_close(num_ranks * ours, theirs["loss"])


def value_of_dppo_tv(verl: Peer) -> None:
    b = batch()
    tensors = {name: b[name] for name in ("logprobs", "old_logprobs", "advantages")}
    options = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 20.0}
    theirs = verl(
        "policy_loss",
        name="dppo_tv",
        tensors=tensors,
        loss_mask=b.loss_mask,
        mode="token-mean",
        options=options,
        batch={},
    )
    tokens = compared(b["logprobs"], b["old_logprobs"], b["advantages"], b.loss_mask)
    found = dppo_tv(tokens, proximal_coef=0.0)
    ours = aggregate(found.losses, b.loss_mask, "token-mean", count(b.loss_mask))
    assert abs(ours.item() - theirs["loss"]) > 0.01
    constant = aggregate(found.losses * b["logprobs"], b.loss_mask, "token-mean", count(b.loss_mask))
    assert_close(constant, theirs["loss"])  # the gradient is that of ours: test_live_verl.py


def nothing_kept(verl: Peer) -> None:
    log_ratio, mask = torch.full((2, 3), 5.0, dtype=torch.float64), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        verl("weights", log_ratio=log_ratio, loss_mask=mask, level="token", threshold="0.6_1.5")
    assert not correction.icepop(correction.token_weights(log_ratio, mask), 0.6, 1.5).any()


DEPARTURES: dict[str, Callable[[Peer], None]] = {
    "groups of equal rewards": equal_rewards,
    "empty mask": empty_mask,
    "GAE and ReMax outside the mask": outside_the_mask,
    "NaN outside the mask": nan_outside_the_mask,
    "whitening of equal values": equal_values,
    "aggregation": ranks,
    "values of DPPO-TV": value_of_dppo_tv,
    "IcePop that keeps no token": nothing_kept,
}


@pytest.mark.parametrize("departure", DEPARTURES)
def test_a_departure_is_one(verl: Peer, departure: str) -> None:
    DEPARTURES[departure](verl)


def test_the_table_holds_these() -> None:
    assert list(DEPARTURES) == departures_from("verl 0.9.1")
