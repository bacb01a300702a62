"""Every number that the notes of tests/data/pins require, within 1e-6, gradients included."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from rlcore.algorithms import advantages, correction, kl
from rlcore.algorithms.aggregation import Denominators, Mode
from rlcore.algorithms.losses import (
    PolicyLoss,
    cispo,
    dppo_tv,
    gspo,
    ipo,
    masked_is,
    masked_is_keep,
    ppo_clip,
    value_loss,
)
from rlcore.algorithms.schedules import noise_sigma, temperature
from tests.rlcore.batches import aggregate, compared
from tests.rlcore.pins import assert_pinned, groups, loss_mask, of_verl, single, single_samples, verl

MODES = get_args(Mode)
BATCH = Denominators(num_tokens=22, num_samples=6, horizon=5)
GAMMA, LAM = 0.97, 0.95


def rewards() -> Tensor:
    return of_verl("inputs", "token_level_rewards").sum(dim=-1)


def token_mean(values: Tensor) -> Tensor:
    return aggregate(values.float(), loss_mask(), "token-mean", BATCH)


# --------------------------------------------------------------------------------------------------------- advantages


@pytest.mark.parametrize(
    ("name", "estimate"),
    [
        ("grpo", lambda: advantages.grpo(rewards(), groups())),
        ("grpo_vectorized", lambda: advantages.grpo(rewards(), groups())),
        ("grpo_no_std", lambda: advantages.dr_grpo(rewards(), groups())),
        ("rloo", lambda: advantages.rloo(rewards(), groups())),
        ("rloo_vectorized", lambda: advantages.rloo(rewards(), groups(), keep_lone=False)),
    ],
)
def test_advantages_of_samples(name: str, estimate: Callable[[], Tensor]) -> None:
    found = advantages.per_token(estimate(), loss_mask())
    assert_pinned(found, of_verl("advantages", name, "advantages"))


def test_reinforce_pp_with_baseline() -> None:
    found = advantages.reinforce_pp_baseline(rewards(), groups(), loss_mask())
    assert_pinned(found, of_verl("advantages", "reinforce_plus_plus_baseline", "advantages"))


@pytest.mark.parametrize("name", ["gae", "remax"])
def test_advantages_of_tokens(name: str) -> None:
    token_rewards = of_verl("inputs", "token_level_rewards")
    match name:
        case "gae":
            found = advantages.gae(token_rewards, of_verl("inputs", "values"), loss_mask(), gamma=GAMMA, lam=LAM)
            found = found._replace(advantages=advantages.whiten(found.advantages, loss_mask()))
        case _:
            found = advantages.remax(token_rewards, torch.full((6,), 0.25), loss_mask())
    # Outside the mask verl holds what its recursion, or the reward to come, happens to be; we hold 0.
    assert_pinned(found.advantages, of_verl("advantages", name, "advantages"), loss_mask())
    assert_pinned(found.returns, of_verl("advantages", name, "returns"), loss_mask())
    assert not found.advantages[~loss_mask()].any()
    assert not found.returns[~loss_mask()].any()


# ------------------------------------------------------------------------------------------------------------- losses

CLIP = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
POLICY_LOSSES: dict[str, Callable[..., PolicyLoss]] = {"vanilla": ppo_clip, "gspo": gspo, "cispo": cispo}


def policy_loss(name: str, logprobs: Tensor) -> PolicyLoss:
    old_logprobs, grpo = of_verl("inputs", "old_log_prob"), of_verl("advantages", "grpo", "advantages")
    return POLICY_LOSSES[name](compared(logprobs, old_logprobs, grpo, loss_mask()), **CLIP)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_policy_losses(name: str, mode: Mode) -> None:
    pinned = verl()["policy_loss"][f"{name}/{mode}"]
    logprobs = of_verl("inputs", "log_prob").requires_grad_()
    found = policy_loss(name, logprobs)
    loss = aggregate(found.losses, loss_mask(), mode, BATCH)
    assert_pinned(loss, pinned["loss"])
    if pinned["grad"] is not None:
        loss.backward()  # type: ignore[no-untyped-call]
        assert logprobs.grad is not None
        assert_pinned(logprobs.grad, pinned["grad"])
    assert_pinned(token_mean(found.clipped), pinned["metrics"]["actor/pg_clipfrac"])
    assert_pinned(token_mean(found.capped), pinned["metrics"]["actor/pg_clipfrac_lower"])
    away = kl.approx_kl(of_verl("inputs", "old_log_prob"), logprobs, loss_mask(), "k1")
    assert_pinned(token_mean(away), pinned["metrics"]["actor/ppo_kl"])


def test_every_gradient_is_compared() -> None:
    with_gradient = [name for name, pinned in verl()["policy_loss"].items() if pinned["grad"] is not None]
    assert {f"{name}/token-mean" for name in POLICY_LOSSES} <= set(with_gradient)


def test_gradient_of_dppo_tv() -> None:
    """verl's loss is -A r logprobs with a constant r: another value, the same gradient."""
    logprobs = of_verl("inputs", "log_prob").requires_grad_()
    grpo = of_verl("advantages", "grpo", "advantages")
    found = dppo_tv(
        compared(logprobs, of_verl("inputs", "old_log_prob"), grpo, loss_mask()),
        mask_high=0.28,
        proximal_coef=0.0,
        ratio_cap=3.0,
    )
    token_mean(found.losses).backward()  # type: ignore[no-untyped-call]
    pinned = verl()["policy_loss"]["dppo_tv/token-mean"]
    assert logprobs.grad is not None
    assert_pinned(logprobs.grad, pinned["grad"])
    assert_pinned(token_mean(found.clipped), pinned["metrics"]["actor/pg_clipfrac"])


@pytest.mark.parametrize("estimator", get_args(kl.Estimator))
def test_kl(estimator: kl.Estimator) -> None:
    logprobs = of_verl("inputs", "log_prob").requires_grad_()
    everywhere = torch.ones_like(loss_mask())
    found = kl.approx_kl(logprobs, of_verl("inputs", "ref_log_prob"), everywhere, estimator)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    gradient = "k2" if estimator.endswith("+") else estimator  # abs+ is not pinned: its parts are
    assert_pinned(found, of_verl("kl", estimator.removesuffix("+"), "value"))
    assert_pinned(logprobs.grad, of_verl("kl", gradient, "grad"))


def test_every_kl_is_compared() -> None:
    assert set(verl()["kl"]) <= set(get_args(kl.Estimator))
    for estimator in ("k1+", "k3+"):
        assert verl()["kl"][estimator]["grad"] == verl()["kl"]["k2"]["grad"]


def test_value_loss() -> None:
    values, returns = of_verl("inputs", "values"), of_verl("advantages", "gae", "returns")
    found = value_loss(values + 0.4, values, returns, loss_mask(), clip_eps=0.2)
    assert_pinned(token_mean(found.losses), verl()["value_loss"]["loss"])
    assert_pinned(token_mean(found.clipped), verl()["value_loss"]["clipfrac"])


# --------------------------------------------------------------------------------------------------------- correction


def log_ratio() -> Tensor:
    return correction.mismatch(of_verl("inputs", "old_log_prob"), of_verl("inputs", "rollout_log_prob"), loss_mask())


@pytest.mark.parametrize("name", verl()["rollout_is"])
def test_importance_weights(name: str) -> None:
    level, _, threshold = name.partition("/")
    weights = {"token": correction.token_weights, "sequence": correction.sequence_weights}[level](
        log_ratio(), loss_mask()
    )
    bounds = [float(bound) for bound in threshold.split("_")]
    found = correction.icepop(weights, *bounds) if len(bounds) == 2 else correction.truncate(weights, *bounds)
    assert_pinned(found, of_verl("rollout_is", name))


@pytest.mark.parametrize("name", [name for name in verl()["rollout_rs"] if name.startswith("seq_mean_k3/")])
def test_rejection(name: str) -> None:
    found = correction.accepted(log_ratio(), loss_mask(), max_mean_k3=float(name.partition("/")[2]))
    assert_pinned(found, of_verl("rollout_rs", name))


# ----------------------------------------------------------------------------------------------------- single samples


def single_loss(loss_of: Callable[[Tensor, Tensor, Tensor, Tensor], PolicyLoss], advantage: float) -> tuple[Any, ...]:
    """A loss of the single sample, its sum, and its gradient [8]."""
    logprobs = single("trainer_logprobs").requires_grad_()
    found = loss_of(logprobs, single("inference_logprobs"), torch.full_like(logprobs, advantage), single("loss_mask"))
    loss = aggregate(found.losses, single("loss_mask"), "token-sum", Denominators(1, 1))
    loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return found, loss.detach(), logprobs.grad[0]


@pytest.mark.parametrize(
    "pinned",
    single_samples()["masked_is"],
    ids=lambda pinned: pinned["name"],
)
def test_masked_importance_sampling(pinned: dict[str, Any]) -> None:
    config = pinned["config"]
    bounds = {
        ours: (config[f"{theirs}_mask_low"], config[f"{theirs}_mask_high"])
        for ours, theirs in {"token": "token", "geometric": "geo", "sequence": "sequence"}.items()
    }

    def loss_of(logprobs: Tensor, rollout_logprobs: Tensor, reward: Tensor, mask: Tensor) -> PolicyLoss:
        keep = masked_is_keep(compared(logprobs, rollout_logprobs, logprobs, mask), **bounds)
        assert keep[0].tolist() == pinned["keep"]
        distance = single("teacher_logprobs") - logprobs.detach()
        signal = config["adv_tau"] * reward + config["teacher_tau"] * distance
        return masked_is(
            compared(logprobs, rollout_logprobs, signal, mask),
            keep,
            proximal_coef=config["kl_tau"],
            sequence_cap=config["sequence_clip_high"] if config["ratio_type"] == "sequence" else None,
        )

    _, loss, gradient = single_loss(loss_of, pinned["advantage"])
    assert_pinned(loss, pinned["loss"])
    assert_pinned(gradient, pinned["grad"])


def test_schedules_of_noise_and_temperature() -> None:
    sigmas = [noise_sigma(step, start=5e-2, end=5e-4, num_stages=10, num_steps=40) for step in range(41)]
    assert_pinned(torch.tensor(sigmas), single_samples()["qerl_sigma_total40"])
    for shape, pinned in single_samples()["temperature"].items():
        found = [temperature(step, shape=shape, start=1.2, end=0.6, num_steps=7) for step in range(-1, 9)]
        assert_pinned(torch.tensor(found, dtype=torch.float64), pinned)


@pytest.mark.parametrize("pinned", single_samples()["dppo"], ids=lambda pinned: pinned["advantage"])
def test_dppo(pinned: dict[str, Any]) -> None:
    config = pinned["config"]
    _, loss, gradient = single_loss(
        lambda *tensors: dppo_tv(
            compared(*tensors),
            mask_low=config["dppo_mask_low"],
            mask_high=config["dppo_mask_high"],
            proximal_coef=config["kl_tau"],
        ),
        pinned["advantage"] * config["adv_tau"],
    )
    assert_pinned(loss, pinned["loss"])
    assert_pinned(gradient, pinned["grad"])


@pytest.mark.parametrize("pinned", single_samples()["ipo_prime"], ids=lambda pinned: pinned["advantage"])
def test_ipo(pinned: dict[str, Any]) -> None:
    config = pinned["config"]
    threshold = config["ipo_threshold"]
    _, loss, gradient = single_loss(
        lambda *tensors: ipo(
            compared(*tensors), mask_low=threshold, mask_high=threshold, proximal_coef=config["kl_tau"]
        ),
        pinned["advantage"] * config["adv_tau"],
    )
    assert_pinned(loss, pinned["loss"])
    assert_pinned(gradient, pinned["grad"])


@pytest.mark.parametrize("pinned", single_samples()["ipo_surogate"], ids=lambda pinned: pinned["advantage"])
def test_ipo_with_a_capped_ratio(pinned: dict[str, Any]) -> None:
    config = pinned["config"]
    _, loss, gradient = single_loss(
        lambda *tensors: ipo(
            compared(*tensors),
            mask_low=config["ipo_mask_low"],
            mask_high=config["ipo_mask_high"],
            proximal_coef=config["kl_tau"],
            ratio_cap=config["ratio_clip"],
        ),
        pinned["advantage"] * config["adv_tau"],
    )
    assert_pinned(-gradient, pinned["neg_grad_seed"])
    assert_pinned(loss / int(single("loss_mask").sum()), pinned["policy_loss_metric"])


def test_pull_towards_the_reference() -> None:
    def loss_of(logprobs: Tensor, rollout_logprobs: Tensor, reward: Tensor, mask: Tensor) -> PolicyLoss:
        signal = single("teacher_logprobs") - logprobs.detach()
        return ipo(
            compared(logprobs, rollout_logprobs, signal, mask), mask_low=0.2, mask_high=torch.inf, proximal_coef=1e-3
        )

    _, loss, gradient = single_loss(loss_of, 0.0)
    assert_pinned(loss, single_samples()["ref_kl"]["loss"])
    assert_pinned(gradient, single_samples()["ref_kl"]["grad"])
