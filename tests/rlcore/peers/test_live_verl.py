"""Our algorithms against verl 0.9.1's own functions, in float64, values and gradients, on batches hypothesis draws.

Where the two are meant to differ, test_verl_departures.py sees that they do.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.algorithms import advantages, correction, kl
from rlcore.algorithms.aggregation import Denominators, Mode
from rlcore.algorithms.losses import PolicyLoss, cispo, dppo_tv, gspo, ppo_clip, value_loss
from tests.rlcore.batches import SEEDED, Batch, aggregate, compared, count
from tests.rlcore.peers.close import assert_close, judged_right_or_wrong, live_batches
from tests.rlcore.peers.peer import Peer

pytestmark = pytest.mark.full

MODES = get_args(Mode)
FAR = 90.0
"""Stretches log-ratios to beyond 20, where both sides clamp them."""
SHARES = st.floats(0.0, 1.0, allow_subnormal=False)


def rewards_of(batch: Batch) -> Tensor:
    """[samples], the sum that verl makes of rewards of tokens."""
    return batch["token_rewards"].sum(dim=-1)


def loss_and_gradient(loss_of: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    leaf = at.clone().requires_grad_()
    loss = loss_of(leaf)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), gradient


# --------------------------------------------------------------------------------------------------------- advantages

OURS: dict[str, Callable[[Batch], Tensor]] = {
    "grpo": lambda b: advantages.per_token(advantages.grpo(rewards_of(b), b["groups"]), b.loss_mask),
    "dr_grpo": lambda b: advantages.per_token(advantages.dr_grpo(rewards_of(b), b["groups"]), b.loss_mask),
    "rloo": lambda b: advantages.per_token(advantages.rloo(rewards_of(b), b["groups"]), b.loss_mask),
    "rloo without lone": lambda b: advantages.per_token(
        advantages.rloo(rewards_of(b), b["groups"], keep_lone=False), b.loss_mask
    ),
    "reinforce_pp_baseline": lambda b: advantages.reinforce_pp_baseline(rewards_of(b), b["groups"], b.loss_mask),
}
# Not verl's vectorised GRPO: it is the same, in float32 whatever it is given.
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "dr_grpo": ("grpo", {"divides_by_std": False}),
    "rloo": ("rloo", {}),
    "rloo without lone": ("rloo_vectorized", {}),
    "reinforce_pp_baseline": ("reinforce_pp_baseline", {}),
}


@pytest.mark.parametrize("name", THEIRS)
@SEEDED
@given(batch=live_batches(), is_verdict=st.booleans())
def test_advantages_relative_to_a_group(verl: Peer, name: str, batch: Batch, is_verdict: bool) -> None:
    batch = judged_right_or_wrong(batch) if is_verdict else batch
    estimator, options = THEIRS[name]
    theirs = verl(
        "group_relative",
        estimator=estimator,
        token_rewards=batch["token_rewards"],
        groups=batch["groups"],
        loss_mask=batch.loss_mask,
        **options,
    )
    assert_close(OURS[name](batch), theirs["advantages"])


@SEEDED
@given(batch=live_batches(), gamma=SHARES, lam=SHARES)
def test_gae(verl: Peer, batch: Batch, gamma: float, lam: float) -> None:
    tensors = {name: batch[name] for name in ("token_rewards", "values", "loss_mask")}
    theirs = verl("gae", **tensors, gamma=gamma, lam=lam)
    found = advantages.gae(**tensors, gamma=gamma, lam=lam)
    assert_close(found.returns, theirs["returns"], batch.loss_mask)
    assert_close(advantages.whiten(found.advantages, batch.loss_mask), theirs["advantages"], batch.loss_mask)


@SEEDED
@given(batch=live_batches())
def test_remax(verl: Peer, batch: Batch) -> None:
    tensors = {name: batch[name] for name in ("token_rewards", "baselines", "loss_mask")}
    theirs, found = verl("remax", **tensors), advantages.remax(**tensors)
    assert_close(found.returns, theirs["returns"], batch.loss_mask)
    assert_close(found.advantages, theirs["advantages"], batch.loss_mask)


@SEEDED
@given(batch=live_batches())
def test_whitening(verl: Peer, batch: Batch) -> None:
    theirs = verl("whiten", values=batch["values"], loss_mask=batch.loss_mask)
    assert_close(advantages.whiten(batch["values"], batch.loss_mask), theirs["values"], batch.loss_mask)


# ------------------------------------------------------------------------------------------------------------- losses


def batch_info(whole: Denominators, num_ranks: int = 1) -> dict[str, Any]:
    """What verl's aggregation is told of the whole batch."""
    return {
        "dp_size": num_ranks,
        "batch_num_tokens": whole.num_tokens,
        "global_batch_size": whole.num_samples,
        "loss_scale_factor": whole.horizon,
    }


class Part(NamedTuple):
    """A batch that is a part of a larger one, and what that one's losses are divided by."""

    batch: Batch
    whole: Denominators


@st.composite
def parts(draw: st.DrawFn, max_stretch: float = 1.0) -> Part:
    batch = draw(live_batches(max_stretch))
    here = count(batch.loss_mask, horizon=draw(st.integers(1, 50)))
    more = (here.num_tokens + draw(st.integers(0, 40)), here.num_samples + draw(st.integers(0, 9)))
    return Part(batch, replace(here, num_tokens=more[0], num_samples=more[1]))


@pytest.mark.parametrize("mode", MODES)
@SEEDED
@given(part=parts(), num_ranks=st.integers(1, 4))
def test_aggregation_of_a_part_of_the_batch(verl: Peer, mode: Mode, part: Part, num_ranks: int) -> None:
    batch, whole = part
    theirs = verl(
        "aggregate", losses=batch["losses"], loss_mask=batch.loss_mask, mode=mode, batch=batch_info(whole, num_ranks)
    )
    # verl's gradients are averaged over the ranks, ours are summed
    assert_close(num_ranks * aggregate(batch["losses"], batch.loss_mask, mode, whole), theirs["loss"])


class Clip(NamedTuple):
    """Bounds of a ratio."""

    low: float
    high: float
    dual: float

    @property
    def ours(self) -> dict[str, float]:
        return {"clip_eps_low": self.low, "clip_eps_high": self.high}

    @property
    def theirs(self) -> dict[str, float]:
        return {"clip_ratio_low": self.low, "clip_ratio_high": self.high, "clip_ratio_c": self.dual}


CLIPS = st.builds(Clip, st.floats(0.01, 0.9), st.floats(0.01, 3.0), st.floats(1.01, 20.0))
LOSSES: dict[str, Callable[[Tensor, Batch, Clip], PolicyLoss]] = {
    "vanilla": lambda logprobs, b, clip: ppo_clip(
        compared(logprobs, b["old_logprobs"], b["advantages"], b.loss_mask), dual_clip=clip.dual, **clip.ours
    ),
    "gspo": lambda logprobs, b, clip: gspo(
        compared(logprobs, b["old_logprobs"], b["advantages"], b.loss_mask), **clip.ours
    ),
    "cispo": lambda logprobs, b, clip: cispo(
        compared(logprobs, b["old_logprobs"], b["advantages"], b.loss_mask), **clip.ours
    ),
}


def their_policy_loss(verl: Peer, name: str, batch: Batch, clip: Clip, mode: Mode, **more: Any) -> dict[str, Any]:
    """`weights` and `batch_info` may be given beside."""
    tensors = {name: batch[name] for name in ("logprobs", "old_logprobs", "advantages")}
    if "weights" in more:
        tensors["weights"] = more["weights"]
    return verl(
        "policy_loss",
        name=name,
        tensors=tensors,
        loss_mask=batch.loss_mask,
        mode=mode,
        options=clip.theirs,
        batch=more.get("batch_info", {}),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LOSSES)
@SEEDED
@given(part=parts(FAR), clip=CLIPS)
def test_policy_losses(verl: Peer, name: str, mode: Mode, part: Part, clip: Clip) -> None:
    batch, whole = part
    theirs = their_policy_loss(verl, name, batch, clip, mode, batch_info=batch_info(whole))
    details = LOSSES[name](batch["logprobs"], batch, clip)
    loss, gradient = loss_and_gradient(
        lambda logprobs: aggregate(LOSSES[name](logprobs, batch, clip).losses, batch.loss_mask, mode, whole),
        batch["logprobs"],
    )
    assert_close(loss, theirs["loss"])
    assert_close(gradient, theirs["gradient"])
    here = count(batch.loss_mask)
    for flags, metric in ((details.clipped, "pg_clipfrac"), (details.capped, "pg_clipfrac_lower")):
        assert_close(
            aggregate(flags.double(), batch.loss_mask, "token-mean", here), theirs["metrics"][f"actor/{metric}"]
        )


@pytest.mark.parametrize("name", LOSSES)
@SEEDED
@given(batch=live_batches(), clip=CLIPS, bounds=st.sampled_from([(0.0, 2.0), (0.7, 1.4)]))
def test_losses_with_importance_weights(
    verl: Peer, name: str, batch: Batch, clip: Clip, bounds: tuple[float, float]
) -> None:
    """Weights multiply after clipping; those that IcePop sets to 0 are among them."""
    weights = correction.token_weights(batch["log_ratio"], batch.loss_mask)
    weights = correction.icepop(weights, *bounds) if bounds[0] else correction.truncate(weights, bounds[1])
    theirs = their_policy_loss(verl, name, batch, clip, "token-mean", weights=weights)

    def ours(logprobs: Tensor) -> Tensor:
        losses = correction.reweighted(LOSSES[name](logprobs, batch, clip).losses, weights, batch.loss_mask)
        return aggregate(losses, batch.loss_mask, "token-mean", count(batch.loss_mask))

    loss, gradient = loss_and_gradient(ours, batch["logprobs"])
    assert_close(loss, theirs["loss"])
    assert_close(gradient, theirs["gradient"])


@SEEDED
@given(batch=live_batches(6.0), clip=st.builds(Clip, st.floats(0.05, 0.5), st.floats(0.05, 0.5), st.floats(1.01, 20.0)))
def test_the_gradient_of_dppo_tv(verl: Peer, batch: Batch, clip: Clip) -> None:
    theirs = their_policy_loss(verl, "dppo_tv", batch, clip, "token-mean")

    def ours(logprobs: Tensor) -> PolicyLoss:
        return dppo_tv(
            compared(logprobs, batch["old_logprobs"], batch["advantages"], batch.loss_mask),
            mask_low=clip.low,
            mask_high=clip.high,
            proximal_coef=0.0,
            ratio_cap=clip.dual,
        )

    def mean(losses: Tensor) -> Tensor:
        return aggregate(losses, batch.loss_mask, "token-mean", count(batch.loss_mask))

    _, gradient = loss_and_gradient(lambda logprobs: mean(ours(logprobs).losses), batch["logprobs"])
    assert_close(gradient, theirs["gradient"])
    assert_close(mean(ours(batch["logprobs"]).clipped.double()), theirs["metrics"]["actor/pg_clipfrac"])


@pytest.mark.parametrize("mode", MODES)
@SEEDED
@given(batch=live_batches(), clip_eps=st.floats(0.0, 1.0))
def test_value_loss(verl: Peer, mode: Mode, batch: Batch, clip_eps: float) -> None:
    tensors = {name: batch[name] for name in ("values", "old_values", "returns", "loss_mask")}
    theirs = verl("value_loss", **tensors, clip_eps=clip_eps, mode=mode)
    here = count(batch.loss_mask, horizon=batch.loss_mask.shape[1])

    def ours(values: Tensor) -> Tensor:
        found = value_loss(values, batch["old_values"], batch["returns"], batch.loss_mask, clip_eps=clip_eps)
        return aggregate(found.losses, batch.loss_mask, mode, here)

    loss, gradient = loss_and_gradient(ours, batch["values"])
    assert_close(loss, theirs["loss"])
    assert_close(gradient, theirs["gradient"])
    clipped = value_loss(**tensors, clip_eps=clip_eps).clipped.double()
    assert_close(aggregate(clipped, batch.loss_mask, "token-mean", here), theirs["clipped"])


# ------------------------------------------------------------------------------------------------------ KL and entropy


@pytest.mark.parametrize("estimator", get_args(kl.Estimator))
@SEEDED
@given(batch=live_batches(FAR))
def test_kl(verl: Peer, estimator: kl.Estimator, batch: Batch) -> None:
    theirs = verl("approx_kl", logprobs=batch["logprobs"], ref_logprobs=batch["ref_logprobs"], estimator=estimator)
    estimate, gradient = loss_and_gradient(
        lambda logprobs: kl.approx_kl(logprobs, batch["ref_logprobs"], batch.loss_mask, estimator), batch["logprobs"]
    )
    assert_close(estimate, theirs["estimate"], batch.loss_mask)
    assert_close(gradient, theirs["gradient"], batch.loss_mask)


@SEEDED
@given(batch=live_batches(FAR), kl_coef=SHARES)
def test_kl_in_rewards(verl: Peer, batch: Batch, kl_coef: float) -> None:
    tensors = {name: batch[name] for name in ("token_rewards", "old_logprobs", "ref_logprobs")}
    theirs = verl("in_rewards", **tensors, kl_coef=kl_coef)
    found = kl.in_rewards(
        batch["token_rewards"], batch["old_logprobs"], batch["ref_logprobs"], batch.loss_mask, kl_coef=kl_coef
    )
    assert_close(found, theirs["rewards"], batch.loss_mask)


@SEEDED
@given(
    current_kls=st.lists(st.floats(-1.0, 10.0), min_size=1, max_size=8),
    kl_coef=SHARES,
    target_kl=st.floats(0.01, 5.0),
    num_samples=st.integers(0, 512),
    horizon=st.integers(200, 10_000),
)
def test_the_adaptive_coefficient(verl: Peer, current_kls: list[float], kl_coef: float, **options: Any) -> None:
    theirs = verl("adaptive_kl_coef", kl_coef=kl_coef, current_kls=current_kls, **options)["coefficients"]
    for current_kl, coefficient in zip(current_kls, theirs, strict=True):
        kl_coef = kl.adaptive_kl_coef(kl_coef, current_kl, **options)
        assert kl_coef == pytest.approx(coefficient, rel=1e-12)


# --------------------------------------------------------------------------------------------------------- correction


@pytest.mark.parametrize("threshold", ["1.5", "0.6_1.5"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@SEEDED
@given(batch=live_batches(FAR))
def test_importance_weights(verl: Peer, level: str, threshold: str, batch: Batch) -> None:
    weights_of = {"token": correction.token_weights, "sequence": correction.sequence_weights}[level]
    weights = weights_of(batch["log_ratio"], batch.loss_mask)
    bounds = [float(bound) for bound in threshold.split("_")]
    found = correction.icepop(weights, *bounds) if len(bounds) == 2 else correction.truncate(weights, *bounds)
    assume(found.any())  # else verl divides by 0
    tensors = {name: batch[name] for name in ("log_ratio", "loss_mask")}
    assert_close(found, verl("weights", **tensors, level=level, threshold=threshold)["weights"])


@SEEDED
@given(batch=live_batches(FAR), high=st.floats(0.0025, 0.5))
def test_rejection(verl: Peer, batch: Batch, high: float) -> None:
    tensors = {name: batch[name] for name in ("log_ratio", "loss_mask")}
    theirs = verl("accepted", **tensors, option="seq_mean_k3", threshold=f"{high!r}")
    found = correction.accepted(**tensors, max_mean_k3=high)
    assert torch.equal(found, theirs["mask"])
