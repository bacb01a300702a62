"""Small whole runs, and every value they record: what the tests of training are made of."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rlcore.config import RunConfig, read_config
from rlcore.entrypoint import train
from rlcore.train import TrainState

STAGES = {"num_beams": 3, "max_item_tokens": 3, "forced_text": ":"}
RecordedValue = tuple[int, str, str, int]
"""(step, phase, name, occurrence)"""


@dataclass
class Digests:
    """A recorder that keeps a digest of everything."""

    leaves: dict[RecordedValue, str] = field(default_factory=dict)
    curve: dict[int, dict[str, float]] = field(default_factory=dict)
    step: int = -1
    stop_after: int | None = None
    """The step at whose end the process is lost."""

    def begin_step(self, step: int) -> None:
        self.step = step

    def record(self, phase: str, name: str, value: Any) -> None:
        occurrence = 0
        while (leaf := (self.step, phase, name, occurrence)) in self.leaves:
            occurrence += 1
        self.leaves[leaf] = digest(value)

    def end_step(self, **values: Any) -> None:
        self.curve[self.step] = values
        if self.step == self.stop_after:
            raise Lost


class Lost(Exception):
    """The process is gone."""


def digest(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        return f"{tensor.dtype} {list(tensor.shape)} {hashlib.blake2b(data, digest_size=12).hexdigest()}"
    return repr(value)


def config(name: str = "grpo", **sections: Mapping[str, Any]) -> RunConfig:
    """Twenty steps of a model of 10,000 parameters on reversing words, half a second; sections are merged into it."""
    payload: dict[str, Any] = {
        "seed": 7,
        "model": {"width": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_width": 16, "ffn_width": 64},
        "task": {"name": "reverse_text", "num_prompts": 24, "num_heldout": 4, "min_length": 2, "max_length": 5},
        "warm_start": {"num_steps": 6, "batch_size": 8},
        "sampling": {"max_tokens": 8},
        "algorithm": {"name": name},
        "training": {"num_steps": 20, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4},
        "output": {"tensorboard": False, "shows_progress": False, "num_shown": 0},
    }
    for key, section in sections.items():
        payload[key] = {**payload.get(key, {}), **section}
    return read_config(payload)


def two_stages(**sections: Any) -> RunConfig:
    """Five steps on a tiny catalogue; about half of the reasonings end with their stop string."""
    given_sections: dict[str, Any] = {
        "task": {"name": "recommendation", "min_length": 1, "max_length": 3},
        "warm_start": {"num_steps": 25, "batch_size": 8, "learning_rate": 1e-2},
        "sampling": {"max_tokens": 5, "stop_strings": [";"], "two_stage": STAGES},
        "training": {"num_steps": 5, "prompts_per_step": 3, "group_size": 3, "microbatch_size": 4},
    }
    for name, section in sections.items():
        given_sections[name] = {**given_sections.get(name, {}), **section}
    return config("grpo", **given_sections)


def recorded(of: RunConfig, directory: Path, *, level: str = "invariant", stop_after: int | None = None) -> Digests:
    """Everything a run records."""
    digests = Digests(stop_after=stop_after)
    train(of, level=level, directory=directory, recorder=digests)
    return digests


def trained(of: RunConfig, directory: Path, *, level: str = "invariant") -> TrainState:
    """What is left of a run."""
    return train(of, level=level, directory=directory, recorder=Digests())


def first_difference(one: Digests, other: Digests) -> RecordedValue | None:
    """The first leaf that is not the same in both, of the steps that both have."""
    steps = {leaf[0] for leaf in one.leaves} & {leaf[0] for leaf in other.leaves}
    for mine, theirs in ((one, other), (other, one)):
        for leaf, value in mine.leaves.items():
            if leaf[0] in steps and theirs.leaves.get(leaf) != value:
                return leaf
    return None
