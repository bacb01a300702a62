"""A state in shards is read as far as its files bear it out."""

import json
import struct
from pathlib import Path

import pytest
import torch

from rlcore.checkpoints.state_shards import read_state, write_state
from rlcore.errors import CheckpointError
from rlcore.trainers.base import TrainerState

STATE = TrainerState({"a": torch.arange(6.0).view(2, 3)}, {"a.step": torch.ones(())})


def written(directory: Path, offset: int) -> Path:
    """Write a state; its shard is said to begin so many rows into the whole. Return the shard's file."""
    write_state(directory, STATE, None)
    (path,) = directory.glob("*.safetensors")
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    key = "DCP_SHARDING_INFO"
    described = json.loads(header["__metadata__"][key])
    described["weights.a"]["saved_offsets"] = [offset, 0]
    header["__metadata__"][key] = json.dumps(described)
    changed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(changed)) + changed + content[8 + length :])
    return path


def test_no_memory_is_taken_for_more_than_the_files_have(tmp_path: Path) -> None:
    parameters = {"a": torch.nn.Parameter(torch.zeros(2, 3))}
    path = written(tmp_path, 0)
    assert torch.equal(read_state(tmp_path, parameters, None).weights["a"], STATE.weights["a"])
    path.unlink()
    for offset in (10**6, 2**40):
        path = written(tmp_path, offset)
        with pytest.raises(CheckpointError, match=r"describes .* bytes of tensors, and has"):
            read_state(tmp_path, parameters, None)
        path.unlink()
