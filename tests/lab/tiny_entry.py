"""An entry for tests: checks its payload, then a few steps of a sum in parts, in which the parts must not matter.

With `leaks` they do. `ends` says how it ends: whole, refused (before its first step), failed (by an error that the user
can mend, after the second), broken (by a bug), nothing (without a step), left and exited (by os._exit and by sys.exit
with 0, before `left_at`), late (whole, and its process by os._exit before anything that Python does at its end).
"""

import atexit
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Never

import torch

KEYS = {"seed", "num_steps", "leaks", "ends", "left_at", "api_key", "runtime", "output"}
LEAVING: Mapping[str, Callable[[int], Never]] = {"left": os._exit, "exited": sys.exit}


class MendableError(ValueError):
    """As rlcore's own errors are."""

    def __init__(self, what: str, legal: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.legal, self.remedy = what, legal, remedy


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Called as every entry is."""
    if unknown := sorted(config.keys() - KEYS):
        raise MendableError(f"unknown key {unknown[0]}", "the keys of this entry", "leave it out")
    ends = config.get("ends", "whole")
    if ends == "refused":
        raise MendableError("it does not begin", "another end", "say so")
    if ends == "nothing":
        return
    if ends in LEAVING and not config["left_at"]:
        LEAVING[ends](0)
    if ends == "late":
        atexit.register(os._exit, 0)
    with (directory / "seen.json").open("w", encoding="utf-8") as file:
        json.dump({"config": config, "level": level, "hash": hash("a text")}, file)
    for step in range(config["num_steps"]):
        if step == 2 and ends == "failed":
            raise MendableError("step 2 is not finite", "finite numbers", "lower the learning rate")
        if step == 2 and ends == "broken":
            raise RuntimeError("a bug of the entry")
        if ends in LEAVING and step == config["left_at"]:
            LEAVING[ends](0)
        _step(step, config, recorder)


def _step(step: int, config: Mapping[str, Any], recorder: Any) -> None:
    recorder.begin_step(step)
    values = torch.randn(1000, generator=torch.Generator().manual_seed(config["seed"] * 1000 + step))
    recorder.record("rollout", "values", values)
    chunks = values.chunk(config["runtime"]["num_parts"])
    parts = [part.sum() if config["leaks"] else math.fsum(part.tolist()) for part in chunks]
    total = torch.as_tensor(sum(parts) if config["leaks"] else math.fsum(values.tolist()), dtype=torch.float32)
    recorder.record("loss", "loss", total)
    recorder.end_step(loss=total)
    print(json.dumps({"loss": 1.5}), flush=True)
