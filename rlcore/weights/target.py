"""The weights of a sampler, as a sync sees them: questions and answers, never a tensor of the sampler.

    describe ─▶ begin ─▶ write ─▶ digests ─▶ canary ─▶ commit

A target may be in this process or in another one: its answers are plain values, and `rlcore.weights.remote` carries
the questions.
"""

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

NamedTensors = Iterable[tuple[str, Tensor]]
"""Names and tensors, one after the other: nothing needs all of a model at once."""
_INTERPRETER = uuid.uuid4().hex


def address_space() -> str:
    """Return the name of this process's memory: no two processes have the same, forked ones included."""
    return f"{_INTERPRETER}-{os.getpid()}"


class Region(NamedTuple):
    """The memory of a parameter from its first byte to its last; what lies between belongs to it too."""

    space: tuple[str, str]
    """Address space: the process, forked ones apart, and the device."""
    begin: int
    """Address of the first byte."""
    end: int
    """Address after the last byte."""


class ParameterSpec(NamedTuple):
    """Type, shape and memory of a parameter."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    region: Region | None
    """None if no other process or tensor can have the same memory."""

    @classmethod
    def of(cls, tensor: Tensor) -> "ParameterSpec":
        """Describe a tensor of this process."""
        region = None
        if tensor.numel() and not tensor.is_meta:
            pairs = zip(tensor.shape, tensor.stride(), strict=True)
            reach = 1 + sum((size - 1) * stride for size, stride in pairs)
            begin = tensor.data_ptr()
            region = Region((address_space(), str(tensor.device)), begin, begin + reach * tensor.element_size())
        return cls(tensor.dtype, tuple(tensor.shape), region)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class TargetState:
    """Description of a target's weights."""

    policy_version: int
    """Version of the last commit."""
    weights_digest: str
    """Digest of the last commit."""
    parameters: Mapping[str, ParameterSpec]
    """Each parameter, by the policy's names; tied parameters may have one name or all."""


class WeightTarget(Protocol):
    """The weights of a sampler, written by a sync and checked by its questions.

    From `begin` to `commit` the sampler draws nothing. A sync that fails in between leaves it so: the next one begins
    anew. Raises WeightSyncError where a call does not fit the protocol.
    """

    def describe(self) -> TargetState:
        """Return version and digest of the last commit, and the parameters; legal at any time."""

    def begin(self, policy_version: int) -> None:
        """Stop sampling and open the weights for writing; drop everything computed from older weights.

        Raises WeightSyncError (fence) while completions are drawn.
        """

    def write(self, weights: NamedTensors) -> None:
        """Write these tensors over the parameters of their names."""

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the digest of each parameter as it is now (`harness.bits.tensor_digests.tensor_digest`)."""

    def canary(self, tokens: Tensor) -> Tensor:
        """Return the log-probability of each token but the first, by the way it samples: [length] -> fp32 [length - 1].

        It computes with what was written, before and after `commit`.
        """

    def commit(self, weights_digest: str) -> None:
        """Take the weights that were written as those of the version begun, with this digest, and sample again."""
