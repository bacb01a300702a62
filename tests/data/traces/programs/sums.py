"""The entry of sums.yaml: a sum in parts, which should not matter, and matter with `leaks`."""

from collections.abc import Mapping
from typing import Any

import torch


def run(config: Mapping[str, Any], *, level: str, directory: str, recorder: Any) -> None:
    """Record a few steps; called as every entry is."""
    for step in range(config["num_steps"]):
        recorder.begin_step(step)
        values = torch.randn(1000, generator=torch.Generator().manual_seed(config["seed"] * 1000 + step))
        recorder.record("rollout", "values", values)
        parts = [part.sum() for part in values.chunk(config["runtime"]["num_parts"])]
        total = torch.stack(parts).sum() if config["leaks"] else values.double().sum().round(decimals=6)
        recorder.record("loss", "loss", total)
        recorder.end_step(loss=total)
