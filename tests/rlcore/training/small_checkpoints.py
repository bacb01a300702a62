"""Small checkpoints, written and read: what the tests of checkpoints are made of."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from rlcore.checkpoint import load_newest, save, write_state
from rlcore.models import checkpoints
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder

CONFIG = DecoderConfig("qwen3", 12, 8, 1, 2, 1, 4, 12, max_length=16)


def saved(directory: Path, step: int, *, keep: int = 9, content: int | None = None) -> Path:
    """Write a checkpoint whose files follow from `content`, which is the step if it is not given."""
    number = step if content is None else content
    decoder, state = Decoder(CONFIG).initialise(number), {"b": torch.tensor(number)}
    writers = {
        "policy": lambda path: checkpoints.save(decoder, path),
        "policy_state": lambda path: write_state(path, state, None),
    }
    return save(directory, step, {"content": number}, writers, keep=keep)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def step_read(directory: Path) -> int:
    found = load_newest(directory)
    assert found is not None
    (state,) = load_file(found.path / "policy_state" / "state.safetensors").values()
    assert found.values["content"] == found.step == int(state)
    return found.step
