"""Our losses against that of TRL 1.16's GRPOTrainer, in float64, values and gradients, on batches hypothesis draws.

Its loss_type is a choice of ours twice: which policy loss, and how tokens are aggregated. Below the tests of agreement,
those of the departures that tests/data/departures.json lists.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.algorithms import correction, kl
from rlcore.algorithms.advantages import per_token
from rlcore.algorithms.aggregation import Denominators, Mode
from rlcore.algorithms.losses import cispo, gspo, ppo_clip
from rlcore.errors import EmptyMaskError
from tests.rlcore.batches import SEEDED, Batch, aggregate, batch_of, compared, count
from tests.rlcore.peers.close import assert_close, departures_from, live_batches, stretched
from tests.rlcore.peers.peer import Peer

pytestmark = pytest.mark.full

MODES: dict[str, Mode] = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}
BATCHES = live_batches(6.0, names=["old_logprobs"])
"""TRL clamps neither log-ratios nor k3: as far as they are the same."""


class Options(NamedTuple):
    """What both sides are told."""

    low: float
    high: float
    kl_coef: float
    is_weighted: bool
    delta: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "epsilon_low": self.low,
            "epsilon_high": self.high,
            "beta": self.kl_coef,
            "use_vllm": self.is_weighted,
        }


LOW, HIGH, COEF = st.floats(0.01, 0.9), st.floats(0.01, 3.0), st.sampled_from([0.0, 0.04, 1.0])
OPTIONS = st.builds(Options, LOW, HIGH, COEF, st.booleans())


def their_loss(trl: Peer, batch: Batch, settings: dict[str, Any], **args: Any) -> dict[str, Any]:
    """TRL's loss of the batch as one microbatch; advantages are those of the samples."""
    tensors = {name: batch[name] for name in ("logprobs", "old_logprobs", "ref_logprobs", "weights")}
    settings = {"max_completion_length": 9} | settings
    return trl(
        "loss",
        tensors=tensors | {"advantages": batch["rewards"]},
        loss_mask=batch.loss_mask,
        settings=settings,
        args=args,
    )


def our_loss(
    losses_of: Callable[[Tensor, Tensor], Tensor], batch: Batch, options: Options, mode: Mode
) -> tuple[Tensor, Tensor]:
    """The aggregated loss and its gradient; weights multiply the policy's part, the KL is beside it."""
    leaf = batch["logprobs"].clone().requires_grad_()
    losses = losses_of(leaf, per_token(batch["rewards"], batch.loss_mask))
    if options.is_weighted:
        losses = correction.reweighted(losses, batch["weights"], batch.loss_mask)
    losses = losses + options.kl_coef * kl.approx_kl(leaf, batch["ref_logprobs"], batch.loss_mask, "k3")
    loss = aggregate(losses, batch.loss_mask, mode, count(batch.loss_mask, horizon=9))
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


@pytest.mark.parametrize("loss_type", MODES)
@SEEDED
@given(batch=BATCHES, options=OPTIONS, more=st.none() | st.floats(0.1, 9.0))
def test_clipped_loss(trl: Peer, loss_type: str, batch: Batch, options: Options, more: float | None) -> None:
    """TRL's `delta` is our dual clip; both want it beyond the upper clip."""
    delta = None if more is None else 1.0 + options.high + more
    theirs = their_loss(trl, batch, options.settings | {"loss_type": loss_type}, delta=delta)

    def losses(logprobs: Tensor, advantages: Tensor) -> Any:
        return ppo_clip(
            compared(logprobs, batch["old_logprobs"], advantages, batch.loss_mask),
            clip_eps_low=options.low,
            clip_eps_high=options.high,
            dual_clip=delta,
        )

    loss, gradient = our_loss(lambda *tensors: losses(*tensors).losses, batch, options, MODES[loss_type])
    assert_close(loss, theirs["loss"])
    assert_close(gradient, theirs["gradient"])
    clipped = losses(batch["logprobs"], per_token(batch["rewards"], batch.loss_mask)).clipped.double()
    share = aggregate(clipped, batch.loss_mask, "token-mean", count(batch.loss_mask))
    assert_close(share, theirs["metrics"]["clip_ratio/region_mean"])


@pytest.mark.parametrize("loss_type", MODES)
@SEEDED
@given(batch=live_batches(), options=OPTIONS)
def test_sequence_level_ratio(trl: Peer, loss_type: str, batch: Batch, options: Options) -> None:
    """TRL's gradient goes through the mean log-ratio, ours is each token's own share: the same, for one advantage."""
    settings = options.settings | {"loss_type": loss_type, "importance_sampling_level": "sequence", "use_vllm": False}
    theirs = their_loss(trl, batch, settings)

    def losses(logprobs: Tensor, advantages: Tensor) -> Tensor:
        return gspo(
            compared(logprobs, batch["old_logprobs"], advantages, batch.loss_mask),
            clip_eps_low=options.low,
            clip_eps_high=options.high,
        ).losses

    loss, gradient = our_loss(losses, batch, options._replace(is_weighted=False), MODES[loss_type])
    assert_close(loss, theirs["loss"])
    assert_close(gradient, theirs["gradient"])


@SEEDED
@given(batch=BATCHES, options=OPTIONS)
def test_cispo(trl: Peer, batch: Batch, options: Options) -> None:
    """TRL bounds the weight from above alone, and by the bound itself."""
    settings = options.settings | {"loss_type": "cispo", "epsilon_high": 1.0 + options.high}
    theirs = their_loss(trl, batch, settings)

    def losses(logprobs: Tensor, advantages: Tensor) -> Tensor:
        old_logprobs, mask = batch["old_logprobs"], batch.loss_mask
        return cispo(
            compared(logprobs, old_logprobs, advantages, mask), clip_eps_low=1.0, clip_eps_high=options.high
        ).losses

    loss, gradient = our_loss(losses, batch, options, "token-mean")
    assert_close(loss, theirs["loss"])
    assert_close(gradient, theirs["gradient"])


# --------------------------------------------------------------------------------------------------------- departures

NAN = float("nan")
WHOLE = batch_of(11, 6, 7)


def sum_of_microbatches(trl: Peer, loss_type: str) -> float:
    """TRL's loss of WHOLE accumulated over two microbatches of 2 and 4 samples."""
    parts = [WHOLE.rows(slice(0, 2)), WHOLE.rows(slice(2, 6))]
    settings = {"loss_type": loss_type, "current_gradient_accumulation_steps": 2}
    num_items = int(WHOLE.loss_mask.sum())
    found = 0.0
    for part in parts:
        tensors = {name: part[name] for name in ("logprobs", "old_logprobs")} | {"advantages": part["rewards"]}
        args = {"steps_per_generation": 2}
        found += float(
            trl(
                "loss",
                tensors=tensors,
                loss_mask=part.loss_mask,
                settings=settings,
                args=args,
                num_items_in_batch=num_items,
            )["loss"]
        )
    return found


def splits_into_microbatches(trl: Peer) -> None:
    options = Options(0.2, 0.2, 0.0, is_weighted=False)

    def losses(logprobs: Tensor, advantages: Tensor) -> Tensor:
        return ppo_clip(compared(logprobs, WHOLE["old_logprobs"], advantages, WHOLE.loss_mask), dual_clip=None).losses

    ours, _ = our_loss(losses, WHOLE, options, "token-mean")
    assert_close(ours, their_loss(trl, WHOLE, options.settings | {"loss_type": "bnpo"})["loss"])
    assert abs(sum_of_microbatches(trl, "bnpo") - ours.item()) > 1e-3
    assert_close(ours, sum_of_microbatches(trl, "dapo"))  # the one that counts the whole batch

    advantages = per_token(WHOLE["rewards"], WHOLE.loss_mask)
    per_part = [
        aggregate(
            losses(WHOLE["logprobs"], advantages)[rows], WHOLE.loss_mask[rows], "token-mean", count(WHOLE.loss_mask)
        )
        for rows in (slice(0, 2), slice(2, 6))
    ]
    assert_close(sum(per_part, torch.tensor(0.0)), ours)


def log_ratios_beyond_20(trl: Peer) -> None:
    batch = stretched(WHOLE, 4000.0)
    theirs = their_loss(trl, batch, {"loss_type": "dapo"})["loss"]
    assert not theirs.isfinite()
    ours = ppo_clip(
        compared(batch["logprobs"], batch["old_logprobs"], batch["advantages"], batch.loss_mask), dual_clip=None
    )
    assert ours.losses.isfinite().all()


def kl_beyond_10(trl: Peer) -> None:
    batch = stretched(WHOLE, 8.0)
    same = Batch(batch.loss_mask, batch.tokens | {"old_logprobs": batch["logprobs"]}, batch.samples)
    theirs = [their_loss(trl, same, {"loss_type": "dapo", "beta": beta})["loss"] for beta in (0.0, 1.0)]
    estimate = kl.approx_kl(batch["logprobs"], batch["ref_logprobs"], batch.loss_mask, "k3")
    assert estimate.max() == kl.MAX_K3
    ours = aggregate(estimate, batch.loss_mask, "token-mean", count(batch.loss_mask))
    assert theirs[1] - theirs[0] > ours + 1.0


def empty_mask(trl: Peer) -> None:
    batch = Batch(torch.zeros_like(WHOLE.loss_mask), WHOLE.tokens, WHOLE.samples)
    assert their_loss(trl, batch, {"loss_type": "bnpo"})["loss"] == 0.0
    with pytest.raises(EmptyMaskError):
        aggregate(batch["losses"], batch.loss_mask, "token-mean", Denominators(1, 6))


def nan_outside_the_mask(trl: Peer) -> None:
    batch = WHOLE.poisoned(NAN)
    assert their_loss(trl, batch, {"loss_type": "dapo"})["loss"].isnan()
    ours = ppo_clip(compared(batch["logprobs"], batch["old_logprobs"], batch["advantages"], batch.loss_mask)).losses
    assert aggregate(ours, batch.loss_mask, "token-mean", count(batch.loss_mask)).isfinite()


DEPARTURES: dict[str, Callable[[Peer], None]] = {
    "denominators": splits_into_microbatches,
    "log-ratios beyond 20": log_ratios_beyond_20,
    "k3 beyond 10": kl_beyond_10,
    "empty mask": empty_mask,
    "NaN outside the mask": nan_outside_the_mask,
}


@pytest.mark.parametrize("departure", DEPARTURES)
def test_a_departure_is_one(trl: Peer, departure: str) -> None:
    DEPARTURES[departure](trl)


def test_the_table_holds_these() -> None:
    assert list(DEPARTURES) == departures_from("TRL 1.16")
