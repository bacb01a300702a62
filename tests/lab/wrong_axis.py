"""An entry for pictures: GRPO as rlcore has it, but from one step on advantages are normalised over the wrong axis.

`runtime.wrong_from` is that step: from there on a completion is judged against the whole batch, not against those
of its own prompt. Everything before is the honest run, to the bit.
"""

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch

from rlcore.algorithms.named import ADVANTAGES
from rlcore.config import RunConfig
from rlcore.data.batch import Batch
from rlcore.entrypoint import run as honest_run

SCENARIO = """
about: GRPO whose advantages are normalised over the wrong axis from one step on
entry: tests.lab.wrong_axis:run
determinism: "off"
sizes: {full: {}}
runtime_sections: [runtime, output]
config:
  seed: 0
  model: {family: qwen3, width: 64, num_layers: 2, num_heads: 4, num_kv_heads: 2, head_width: 16, ffn_width: 192}
  task: {name: reverse_text, num_prompts: 2048, num_heldout: 64, min_length: 3, max_length: 5}
  warm_start: {num_steps: 150, batch_size: 32, learning_rate: 3e-3}
  sampling: {max_tokens: 8, temperature: 1.0}
  algorithm: {name: grpo, advantage: grpo, loss: ppo_clip, clip_eps_low: 0.2, clip_eps_high: 0.2}
  optimizer: {learning_rate: 1e-3, max_gradient_norm: 1.0}
  training: {num_steps: 40, prompts_per_step: 8, group_size: 8, num_epochs: 1, num_minibatches: 1, microbatch_size: 16}
  runtime: {wrong_from: 1000}
  output: {evaluate_every: 40, checkpoint_every: 40}
"""


def run(config: Mapping[str, Any], **given: Any) -> None:
    """Called as every entry is."""
    perturbation = dict(config["runtime"])
    first_wrong = perturbation.pop("wrong_from")
    step = iter(range(config["training"]["num_steps"]))

    def estimate(batch: Batch, config: RunConfig) -> torch.Tensor:
        wrong = batch.extended(groups=torch.zeros_like(batch["groups"]))
        return ADVANTAGES["grpo"](wrong if next(step) >= first_wrong else batch, config)

    with patch("rlcore.train.ADVANTAGES", {"grpo": estimate}):
        honest_run({**config, "runtime": perturbation}, **given)
