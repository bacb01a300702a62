"""The tiny scenarios that faults are tried in: five steps of a model of some thousand parameters on sums of digits."""

from collections.abc import Mapping
from typing import Any

from harness.lab.experiment.flat_config import overridden

LEVEL = "invariant"
NUM_STEPS = 5
CRASH_AFTER = 3
"""The step at whose end a run is lost, for those that go on from a checkpoint."""
CHECKPOINT_EVERY = 2
BASE: Mapping[str, Any] = {
    "seed": 7,
    "model": {"width": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_width": 16, "ffn_width": 64},
    "task": {
        "name": "arithmetic",
        "num_prompts": 8,
        "num_heldout": 2,
        "min_length": 1,
        "max_length": 1,
        "rewards": ["rlcore.rewards.text:common"],
    },
    "warm_start": {"num_steps": 12, "batch_size": 8, "learning_rate": 1e-2},
    "sampling": {"max_tokens": 6},
    "algorithm": {"name": "grpo"},
    "optimizer": {"learning_rate": 1e-3},
    "training": {"num_steps": NUM_STEPS, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4},
    "runtime": {"token_budget": 4096},
    "output": {"tensorboard": False, "shows_progress": False, "num_shown": 0},
}
_REWARDS = "tests.guards.planted.rewards"
DIFFERENCES: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "roomy": {},
    "updates": {
        "algorithm.kl_coef": 0.1,
        "optimizer.learning_rate": 2e-2,
        "training.num_epochs": 2,
        "training.num_minibatches": 2,
    },
    "ppo": {"algorithm": {"name": "ppo", "kl_coef": 0.05, "kl_target": 0.1, "kl_horizon": 64, "gamma": 0.9}},
    "filtered": {"sampling.temperature": 0.7, "sampling.top_p": 0.8},
    "untied": {"model.is_tied": False},
    "ragged": {"task.rewards": [f"{_REWARDS}:ragged"], "task.num_heldout": 16},
    "flat": {"task.rewards": [f"{_REWARDS}:flat"], "training.prompts_per_step": 2, "training.group_size": 8},
    "critic_epochs": {
        "algorithm": {"name": "ppo"},
        "optimizer.learning_rate": 1e-2,
        "training.num_epochs": 2,
    },
    "stopped": {"sampling.stop_strings": ["0"]},
    "awaited": {"task.rewards": [f"{_REWARDS}:slowly", f"{_REWARDS}:at_once"], "task.reward_weights": [1.0, 0.5]},
    "decayed": {"optimizer.weight_decay": 0.1},
    "hurried": {
        "optimizer.schedule": "cosine",
        "optimizer.final_ratio": 0.1,
        "training.num_epochs": 2,
        "training.num_minibatches": 2,
    },
    "scheduled": {"optimizer.schedule": "cosine", "optimizer.num_warmup_steps": 2},
    "odd": {"model.ffn_width": 37},
    "wide": {
        "model.width": 96,
        "model.ffn_width": 192,
        "optimizer.max_gradient_norm": 0.05,
        "training.group_size": 16,
        "training.microbatch_size": 64,
    },
    "seven": {"training.num_steps": 7},
    "long": {"training.num_steps": 60},
    "half_rounded": {
        "model.dtype": "bfloat16",
        "sampling.top_p": 0.5,
        "sampling.max_tokens": 16,
        "warm_start.num_steps": 1,
    },
    "uneven": {"algorithm": {"name": "ppo", "kl_coef": 0.05, "kl_target": 0.1, "kl_horizon": 70}},
    "lengthy": {"task.min_length": 8, "task.max_length": 8},
    "changing": {"task.rewards": [f"{_REWARDS}:shortening", f"{_REWARDS}:by_ids"], "task.reward_weights": [0.1, 1.0]},
    "remax": {"algorithm.advantage": "remax"},
    "entropic": {"algorithm.entropy_coef": 0.01},
    "clipped": {"optimizer.max_gradient_norm": 0.05},
    "cold": {"sampling.temperature": 0.7, "algorithm.kl_coef": 0.1},
    "thirds": {"training.prompts_per_step": 3},
    "replicated": {"sampler.replicas": 2},
    "stopped_by_two": {"sampling.stop_strings": ["00", "01", "10", "11"]},
    "min_p": {"sampling.temperature": 0.7, "sampling.min_p": 0.2},
    "top_k": {"sampling.top_k": 4, "sampling.top_p": 0.6},
    "branched": {
        "sampling.stop_strings": ["0", "1", "2"],
        "sampling.two_stage": {"num_beams": 3, "max_item_tokens": 3, "forced_text": "+"},
    },
    "modelled": {"task.reward_model": {}},
    "loo": {"algorithm.advantage": "rloo"},
    "normed": {"algorithm.aggregation": "seq-mean-token-sum-norm"},
    "gspo": {"algorithm.loss": "gspo", "training.num_epochs": 2, "optimizer.learning_rate": 1e-2},
    "corrected": {"correction.weights": "token"},
    "dual": {"algorithm.dual_clip": 1.5, "training.num_epochs": 3, "optimizer.learning_rate": 2e-2},
    "valued": {
        "algorithm": {"name": "ppo", "value_clip_eps": 0.01, "critic_learning_rate": 1e-2},
        "training.num_epochs": 2,
    },
    "warming": {"algorithm": {"name": "ppo", "num_critic_warmup_steps": 2}},
}
"""By name, what is other than in BASE, by dotted key."""
LEAST_BUDGETS: Mapping[str, int] = {"wide": 1024, "branched": 96, "roomy": 256}
"""By name, tokens of a setting's fixed microbatch, where it is larger than the smallest budget that is tried."""
BUDGET = "runtime.token_budget"


def payload(setting: str, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the configuration of a setting, with these values at their dotted keys."""
    given = dict(values or {})
    if BUDGET in given:
        given[BUDGET] = max(given[BUDGET], LEAST_BUDGETS.get(setting, 0))
    return overridden(overridden(BASE, DIFFERENCES[setting], setting), given, "values")
