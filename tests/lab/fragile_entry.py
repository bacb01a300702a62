"""An entry for tests that has checkpoints, and gets an Inf, then a NaN, in the step `nan_at`.

With `notices` it ends itself there, as an engine does; `output.noise` moves its bits though nothing may.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

FRAGILE = """\
about: Weights that break
entry: tests.lab.fragile_entry:run
determinism: deterministic
sizes:
  smoke: {}
  full: {}
runtime_sections: [output]
resume: {run: output.resume, step: output.resume_step}
config:
  seed: 1
  num_steps: 5
  nan_at: -1
  notices: true
  output: {noise: 0, checkpoint_every: 2}
"""


class NonFiniteError(ValueError):
    """As rlcore's own."""

    what, legal, remedy = "the gradient is nan", "", "a lower scale"


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Called as every entry is."""
    output = config["output"]
    first, weights = 0, torch.linspace(0.1, 1.0, 32)
    if output.get("resume"):
        first = output["resume_step"]
        state = Path(output["resume"], "checkpoints", f"step-{first:06}", "weights.json").read_text("utf-8")
        weights = torch.tensor(json.loads(state))
    for step in range(first, config["num_steps"]):
        recorder.begin_step(step)
        weights = _step(step, weights, config, recorder)
        if (step + 1) % output["checkpoint_every"] == 0:
            place = directory / "checkpoints" / f"step-{step + 1:06}"
            place.mkdir(parents=True)
            (place / "weights.json").write_text(json.dumps(weights.tolist()), "utf-8")


def _step(step: int, weights: torch.Tensor, config: Mapping[str, Any], recorder: Any) -> torch.Tensor:
    batch = torch.randn(32, generator=torch.Generator().manual_seed(config["seed"] * 1000 + step))
    recorder.record("rollout", "batch", batch)
    scale = 1e30 if step == config["nan_at"] else 1.0
    large = (weights.abs() + 1) * scale
    larger = large * scale  # where the Inf is made
    gradient = batch + (larger - larger) + config["output"]["noise"]  # where the NaN is made
    recorder.record("backward", "weights", gradient)
    if config["notices"] and gradient.isnan().any():
        raise NonFiniteError(NonFiniteError.what)
    weights = weights - 0.1 * gradient
    recorder.record("optimizer", "weights", weights)
    recorder.end_step(loss=weights.square().sum(), grad_norm=gradient.norm())
    return weights


def write_fragile(directory: Path) -> Path:
    """The scenario `fragile` of a project in this directory."""
    path = directory / "scenarios" / "fragile.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(FRAGILE, encoding="utf-8")
    return path
