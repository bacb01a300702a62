"""The state of a trainer in files: what is of another model is refused, and nothing of it is loaded."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from harness.bits.tensor_digests import weights_digest
from rlcore.checkpoint import read_state, write_state
from rlcore.config import OptimizerSection, RuntimeSection
from rlcore.errors import CheckpointError
from rlcore.trainers.trainer import Trainer

FILE = "state.safetensors"


def fresh(seed: int, dtype: torch.dtype = torch.float32) -> Trainer:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).to(dtype)
    return Trainer("policy", model, 0.1, section=OptimizerSection(learning_rate=0.1), runtime=RuntimeSection())


def stepped(seed: int, dtype: torch.dtype = torch.float32) -> Trainer:
    """A trainer after a step."""
    learn(trainer := fresh(seed, dtype))
    return trainer


def learn(trainer: Trainer) -> None:
    trainer.gradients = [torch.ones(parameter.shape) for parameter in trainer.model.parameters()]
    trainer.optimizer_step(learning_rate=0.1, max_norm=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_is_read_to_the_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    one, *others = trainers = stepped(0, dtype), fresh(1, dtype), stepped(1, dtype)
    one.write_state(tmp_path)
    for other in others:
        other.read_state(tmp_path)
        assert weights_digest(other.state()) == weights_digest(one.state())
    for trainer in trainers:
        learn(trainer)
    assert len({weights_digest(trainer.state()) for trainer in trainers}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"2.weight": torch.zeros(1)}), r"2.weight of .* is \[1\]\n  legal:  absent"),
        (lambda t: t.update({"2.weight.exp_avg": torch.zeros(1)}), r"2.weight.exp_avg of .* is \[1\]"),
        (lambda t: t.update({"0.weight.exp_avg": torch.zeros(2)}), r"0.weight.exp_avg of .* is \[2\]\n.* \[5, 6\]"),
        (lambda t: t.pop("0.weight"), r"0.weight of .* is absent"),
        (lambda t: t.pop("0.bias.exp_avg_sq"), r"0.bias.exp_avg_sq of .* is absent"),
        (lambda t: t.pop("0.weight.step"), r"0.weight.step of .* is absent"),
        (lambda t: t.clear(), "0.bias of .* is absent"),
    ],
)
def test_state_of_another_model_changes_nothing(
    change: Callable[[dict[str, Tensor]], object], message: str, tmp_path: Path
) -> None:
    trainer = stepped(0)
    trainer.write_state(tmp_path)
    before, tensors = weights_digest(trainer.state()), load_file(tmp_path / FILE)
    change(tensors)
    save_file(tensors, tmp_path / FILE)
    with pytest.raises(CheckpointError, match=message):
        trainer.read_state(tmp_path)
    assert weights_digest(trainer.state()) == before


def test_no_memory_is_taken_for_more_than_the_model_has(tmp_path: Path) -> None:
    """A shard is said to begin so many rows into the whole."""
    parameters = {"a": nn.Parameter(torch.zeros(2, 3))}
    write_state(tmp_path, {"a": torch.arange(6.0).view(2, 3)}, None)
    assert torch.equal(read_state(tmp_path, parameters, None)["a"], torch.arange(6.0).view(2, 3))
    content = (tmp_path / FILE).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    for offset in (1, 10**6, 2**40):
        header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps({"a": {"saved_offsets": [offset, 0]}})}
        changed = json.dumps(header).encode()
        (tmp_path / FILE).write_bytes(struct.pack("<Q", len(changed)) + changed + content[8 + length :])
        with pytest.raises(CheckpointError, match=r"a of .* is \[\d+, 3\]\n  legal:  \[2, 3\]"):
            read_state(tmp_path, parameters, None)
