"""What each of these programs does beside its training: plant a cause when it is asked to, and save its weights.

The variable PLANT=1 plants; WEIGHTS names the file of the final weights. They are no arguments, so that the command
lines of all runs of a program are equal.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch

IS_PLANTED = os.environ.get("PLANT") == "1"


def is_time(step: int, planted: int) -> bool:
    """Whether the cause is planted now, before or in iteration `planted`."""
    return IS_PLANTED and step == planted


def nudge(tensor: torch.Tensor) -> None:
    """Add a hundredth to the first element, in place."""
    with torch.no_grad():
        tensor.view(-1)[0] += 0.01


def save(*tensors: Iterable[torch.Tensor], name: str = "") -> None:
    """Write the digest of the final weights; `name` tells processes of one program apart."""
    if not (path := os.environ.get("WEIGHTS")):
        return
    digest = hashlib.sha256()
    for tensor in (each for group in tensors for each in group):
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{name}{digest.hexdigest()}\n")
