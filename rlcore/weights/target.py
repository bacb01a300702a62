"""The weights of a sampler, as a sync sees them: questions and answers, never a tensor of the sampler.

    describe ─▶ begin ─▶ poison ─▶ write, write, ... ─▶ digests ─▶ canary ─▶ commit

A target may be in this process or in another one. Its answers are plain values, and the tensors that it is handed are
the trainer's, so each question can travel over a pipe or a network: `rlcore.weights.remote` lets it.
"""

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_INTERPRETER = uuid.uuid4().hex


def address_space() -> str:
    """Return the name of this process's memory: no two processes have the same, forked ones included."""
    return f"{_INTERPRETER}-{os.getpid()}"


class Region(NamedTuple):
    """The memory of a parameter from its first byte to its last; what lies between belongs to it too."""

    process: str
    """Address space, as `address_space` names it."""
    device: str
    begin: int
    """Address of the first byte."""
    end: int
    """Address after the last byte."""


class ParameterSpec(NamedTuple):
    """Type, shape and device of a parameter."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    region: Region | None
    """Memory of the elements; None if there are none, or if they have no memory (device meta)."""
    is_meta: bool

    @classmethod
    def of(cls, tensor: Tensor) -> "ParameterSpec":
        """Describe a tensor of this process."""
        shape, is_meta = tuple(tensor.shape), tensor.is_meta
        if is_meta or 0 in shape:
            return cls(tensor.dtype, shape, None, is_meta)
        itemsize = tensor.element_size()
        reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, tensor.stride(), strict=True))
        begin = tensor.data_ptr()
        region = Region(address_space(), str(tensor.device), begin, begin + reach * itemsize)
        return cls(tensor.dtype, shape, region, is_meta)

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size of the elements in bytes."""
        return self.num_elements * self.dtype.itemsize

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


class Difference(NamedTuple):
    """Comparison of a parameter with a tensor."""

    num_differing: int
    """Elements whose bits differ; all of them if type or shape differ."""
    num_nan: int
    """Elements of the parameter that are NaN."""


class WeightTarget(Protocol):
    """The weights of a sampler, written by a sync and checked by its questions.

    From `begin` to `commit` the sampler draws nothing. A sync that fails in between leaves it so: the next one begins
    anew. Raises WeightSyncError where a call does not fit the protocol.
    """

    def describe(self) -> TargetState:
        """Return version and digest of the last commit, and the parameters; legal at any time."""

    def begin(self, policy_version: int) -> None:
        """Stop sampling and open the weights for writing; drop everything computed from older weights.

        Legal again before `commit`: a second load then begins as the first did. Raises WeightSyncError (fence) while
        completions are drawn.
        """

    def poison(self, names: Sequence[str]) -> None:
        """Fill these parameters with NaN, as torch's `fill_` writes it."""

    def write(self, chunk: Mapping[str, Tensor]) -> Sequence[str]:
        """Write these tensors over the parameters of their names; return the names that were written."""

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the digest of each parameter as it is now (`harness.bits.tensor_digests.tensor_digest`)."""

    def compare(self, chunk: Mapping[str, Tensor]) -> Mapping[str, Difference]:
        """Compare parameters with these tensors; asked only to explain digests that differ."""

    def canary(self, tokens: Tensor) -> Tensor:
        """Return the log-probability of each token but the first, by the way it samples: [length] -> fp32 [length - 1].

        It computes with what was written, before and after `commit`.
        """

    def commit(self, weights_digest: str) -> None:
        """Take the weights that were written as those of the version begun, with this digest, and sample again."""
