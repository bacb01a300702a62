"""A training of a vector, for the features of recorded runs: the entry and the program, as texts of files."""

from typing import Any

ENTRY = '''\
"""A vector that learns; every option of a feature moves something that can be seen."""

import json
import os
import time
from pathlib import Path

import torch


class NonFiniteError(ValueError):
    what, legal, remedy = "the gradient is nan", "finite numbers", "a lower scale"


def waits(number):
    return number


def run(config, *, level, directory, recorder):
    output, parts = config.get("output", {}), config.get("runtime", {}).get("parts", 1)
    variables = {name: os.environ.get(name) for name in ("CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED")}
    seen = {"config": config, "level": level, "variables": variables, "when": time.time()}
    (directory / "seen.json").write_text(json.dumps(seen))
    first, weight = 0, torch.linspace(0.1, 1.0, config.get("width", 8))
    if output.get("resume"):
        names = [path.name for path in Path(output["resume"], "checkpoints").iterdir()]
        steps = [int(name.removeprefix("step-")) for name in names]
        first = max(step for step in steps if step <= output.get("resume_step", step))
        weight = torch.tensor(json.loads(Path(output["resume"], "checkpoints", f"step-{first}", "w.json").read_text()))
    time.sleep(output.get("sleep_s", 0))
    for step in range(first, config["num_steps"]):
        recorder.begin_step(step)
        batch = torch.randn(len(weight), generator=torch.Generator().manual_seed(config.get("seed", 0) * 1000 + step))
        recorder.record("rollout", "batch", batch)
        noise = output.get("noise", 0.0) if step >= output.get("noise_from", 0) else 0.0
        gradient = batch * weight + waits(noise)
        if parts > 2:
            gradient = gradient / 3 * 3 + 1e-6
        if step == config.get("nan_at", -1):
            gradient = gradient / 0 * 0
        recorder.record("backward", "weight", gradient)
        weight = weight - 0.1 * gradient
        recorder.record("optimizer", "weight", weight)
        recorder.end_step(loss=weight.square().sum(), step_of_run=float(step))
        print(f"score {step + 0.5}", flush=True)
        if output.get("checkpoint_every"):
            place = directory / "checkpoints" / f"step-{step + 1}"
            place.mkdir(parents=True)
            (place / "w.json").write_text(json.dumps(weight.tolist()))
'''
PROGRAM = '''\
"""A program with an optimizer, which knows nothing of rlharness."""

import os
import sys

import torch

torch.manual_seed(1)
weight = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weight], lr=0.1)
print("variable", os.environ.get("CUBLAS_WORKSPACE_CONFIG"), "threads", os.environ.get("OMP_NUM_THREADS"), flush=True)
for step in range(4):
    factor = float("nan") if "--nan" in sys.argv and step == 2 else 1.0
    loss = ((weight * torch.randn(8)) ** 2).mean() * factor
    optimizer.zero_grad()
    loss.backward()
    print(f"score {step + 0.5}", flush=True)
    optimizer.step()
'''
RESUMED = '''\
"""A program that resumes without the momentum of its optimizer."""

import sys

import torch

torch.manual_seed(1)
weight = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
first = 0
if "--resume" in sys.argv:
    saved = torch.load(sys.argv[1])
    first, weight.data = saved["step"], saved["weight"]
for step in range(first, 5):
    optimizer.zero_grad()
    (weight * torch.arange(8.0) * step).sum().backward()
    optimizer.step()
    if step % 2:
        torch.save({"step": step + 1, "weight": weight.data}, sys.argv[1])
'''
SCENARIO: dict[str, Any] = {
    "about": "A vector that learns",
    "entry": "loop:run",
    "determinism": "off",
    "gpus": 0,
    "sizes": {"small": {"width": 16}, "smoke": {}, "full": {}},
    "runtime_sections": ["runtime", "output"],
    "resume": {"run": "output.resume", "step": "output.resume_step"},
    "config": {"seed": 1, "num_steps": 5, "width": 8, "runtime": {"parts": 1}, "output": {"checkpoint_every": 1}},
}
FILES = {"loop.py": ENTRY, "program.py": PROGRAM}
