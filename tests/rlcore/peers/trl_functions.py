"""Served by an interpreter that has TRL 1.16: the loss of its GRPOTrainer, unchanged, on numbers that are given.

`GRPOTrainer._compute_loss` runs with a stand-in for the trainer that holds what it reads; the model's part, which makes
log-probabilities of tokens, hands over those that were given.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

ARGS: dict[str, Any] = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1}
SETTINGS: dict[str, Any] = {
    "aux_loss_enabled": False,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "importance_sampling_level": "token",
    "beta": 0.0,
    "loss_type": "grpo",
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "current_gradient_accumulation_steps": 1,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "max_completion_length": 1,
    "_entropy_bonus_enabled": False,
}


def loss(
    tensors: dict[str, Tensor],
    loss_mask: Tensor,
    settings: dict[str, Any],
    args: dict[str, Any],
    num_items_in_batch: int | None = None,
) -> dict[str, Any]:
    """The loss of one microbatch, its gradient and metrics.

    `settings` are attributes of the trainer, `args` of its configuration. `advantages` among the tensors is [samples]
    or [samples, positions]; `weights`, the importance weights of the sampler's mismatch, are read with use_vllm.
    """
    leaf = tensors["logprobs"].clone().requires_grad_()
    mask = loss_mask.to(leaf.dtype)
    trainer = SimpleNamespace(
        **(SETTINGS | settings),
        args=SimpleNamespace(**(ARGS | args)),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1, reduce=lambda tensor, reduction: tensor, gather=lambda tensor: tensor
        ),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (leaf, torch.zeros_like(mask), None),
    )
    num_items = int(loss_mask.sum()) if num_items_in_batch is None else num_items_in_batch
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1),
        "completion_ids": torch.zeros_like(mask, dtype=torch.long),
        "completion_mask": mask,
        "advantages": tensors["advantages"],
        "old_per_token_logps": tensors["old_logprobs"],
        "ref_per_token_logps": tensors.get("ref_logprobs"),
        "importance_sampling_ratio": tensors.get("weights"),
        "num_items_in_batch": torch.tensor(num_items),
    }
    found = GRPOTrainer._compute_loss(trainer, None, inputs)
    found.backward()
    return {"loss": found, "gradient": leaf.grad, "metrics": {k: v[-1] for k, v in trainer._metrics["train"].items()}}


FUNCTIONS = {"loss": loss}
