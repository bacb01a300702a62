"""Small checkpoints, written and read: what the tests of checkpoints are made of."""

from pathlib import Path

import torch
from torch import Tensor

from rlcore.checkpoints.checkpoint import load_newest, save
from rlcore.models import checkpoints
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder

CONFIG = DecoderConfig("qwen3", 12, 8, 1, 2, 1, 4, 12, max_length=16)


def small(content: int) -> dict[str, dict[str, Tensor]]:
    return {"critic": {"a": torch.full((3,), float(content))}, "optimizer": {"b": torch.tensor(content)}}


def saved(directory: Path, step: int, *, keep: int = 9) -> Path:
    decoder = Decoder(CONFIG).initialise(step)
    writers = {"policy": lambda path: checkpoints.save(decoder, path)}
    return save(directory, step, small(step), {"content": step}, keep=keep, writers=writers)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def step_read(directory: Path) -> int:
    found = load_newest(directory)
    assert found is not None
    assert found.values["content"] == found.step == int(found.tensors["optimizer"]["b"])
    return found.step
