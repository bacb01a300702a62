"""The policy's loss of a microbatch, whole: surrogate, weights, penalties and aggregation by plain sums in float64."""

from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from rlcore.algorithms.aggregation import Denominators
from rlcore.config import RunConfig
from rlcore.data.microbatches import Microbatch
from rlcore.train import policy_loss
from tests.rlcore.training.recorded import config


@pytest.mark.parametrize(
    ("loss", "rejects"), [("ppo_clip", False), ("ppo_clip", True), ("cispo", False), ("masked_is", True)]
)
@pytest.mark.parametrize("weighs_kl", [None, True, False])
def test_weights_for_the_sampler_are_those_of_the_policys_gradient_alone(
    loss: str, rejects: bool, weighs_kl: bool | None
) -> None:
    """Loss and gradient of one microbatch by plain sums in float64: the KL and the entropy have no such weights."""
    correction = {"weights": "token", "high": 1.2, **({"max_mean_k3": 0.01} if rejects else {})}
    algorithm = {"name": "grpo", "loss": loss, "kl_coef": 0.3, "entropy_coef": 0.05, "weighs_kl": weighs_kl}
    of = config(algorithm=algorithm, correction=correction)
    draw = torch.Generator().manual_seed(3)
    policy, old, sampled, reference, advantages = torch.randn(5, 4, 6, generator=draw, dtype=torch.float64) * 0.2 - 1
    mask, entropy = torch.rand(4, 6, generator=draw) < 0.8, torch.rand(4, 6, generator=draw, dtype=torch.float64)
    mask[:, 0] = True
    leaf = policy.clone().requires_grad_()
    share = share_of(of, leaf, entropy, {
        "old_logprobs": old, "rollout_logprobs": sampled, "ref_logprobs": reference, "advantages": advantages,
        "loss_mask": mask,
    })  # fmt: skip
    (gradient,) = torch.autograd.grad(share, leaf)

    plain, expected = policy.clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
    for row, learned in enumerate(mask):
        x, o, s, r, a, h = (t[row][learned] for t in (plain, old, sampled, reference, advantages, entropy))
        weight = (o - s).exp().clamp(max=1.2)
        if rejects and ((o - s).exp() - 1 - (o - s)).mean() > 0.01:
            weight = torch.zeros_like(weight)
        ratio = (x - o).exp()
        surrogate = {
            "ppo_clip": torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2)),
            "cispo": -ratio.detach().clamp(max=5.0) * a * x,
            "masked_is": -(x - s).exp().detach() * a * x,
        }[loss]
        kl = (r - x).exp() - 1 - (r - x)
        expected = expected + (weight * surrogate + 0.3 * kl * (1 if weighs_kl is False else ratio) - 0.05 * h).sum()
    expected = expected / int(mask.sum())
    torch.testing.assert_close(share, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, plain)[0])


def share_of(of: RunConfig, logprobs: Tensor, entropy: Tensor, columns: dict[str, Tensor]) -> Tensor:
    """The policy's loss of one microbatch whose log-probabilities are given."""
    mask = columns["loss_mask"]
    microbatch = Microbatch(0, tuple(range(len(mask))), torch.zeros(mask.shape, dtype=torch.int64), 0, columns)
    with patch("rlcore.train.read_tokens", lambda *_: (logprobs, entropy)):
        return policy_loss(of, Denominators(int(mask.sum()), len(mask)), nn.Module(), microbatch).loss
