"""A program that names its steps and values itself: three steps of reinforcement learning in miniature, untrained.

The variable CAUSE names the value that differs in step 1.
"""

import os

import torch

from harness.recording import open_recorder

CAUSE = os.environ.get("CAUSE", "")
BITS = {"zero": 0, "minus-zero": -(2**31), "nan": 0x7FC00000, "other-nan": 0x7FC00001}
"""Loss of step 1, as bits."""


def main() -> None:
    """Record a value of each phase."""
    recorder = open_recorder()
    for step in range(3):
        cause = CAUSE if step == 1 else ""
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(50, (4, 6), generator=generator)
        tokens[2, 3] += cause == "token"
        rewards = torch.rand(4, generator=generator)
        rewards[1] *= -1 if cause == "reward" else 1
        weights = torch.rand(8, 8, generator=generator)
        values = {
            ("rollout", "tokens"): tokens,
            ("rollout", "texts"): "four completions",
            ("reward", "rewards"): rewards,
            ("reference", "logprobs"): torch.rand(4, 6, generator=generator) + (cause == "reference"),
            ("advantage", "advantages"): (rewards - rewards.mean()) * (-1 if cause == "advantage" else 1),
            ("forward", "logprobs"): torch.rand(4, 6, dtype=torch.float64 if cause == "dtype" else None),
            ("loss", "loss"): rewards.mean(),
            ("backward", "weight"): weights[:7] if cause == "shape" else weights,
            ("optimizer", "weight"): weights * 2,
            ("sync", "version"): step + (7 if cause == "version" else 0),
        }
        if cause == "absent":
            del values["backward", "weight"]
        if cause == "more":
            values["backward", "bias"] = weights[0]
        if cause in BITS:
            values["loss", "loss"] = torch.tensor(BITS[cause], dtype=torch.int32).view(torch.float32)
        recorder.begin_step(step)
        for (phase, name), value in values.items():
            recorder.record(phase, name, value)
        recorder.end_step(loss=rewards.mean(), reward_mean=rewards.mean())


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
