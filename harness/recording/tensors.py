"""A torch tensor as a recorded value: dtype, shape, algorithm, digest. It is read in place."""

import ctypes
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from ctypes import Array, c_char
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from harness.bits.digests import DIGEST_BYTES, RAW, digest
from harness.bits.errors import TraceError
from harness.bits.shard_sums import Shard, algorithm_of, digests, kernel_problem, on_host, shard_of_all
from harness.bits.tensor_digests import host_bytes
from harness.recording.notices import say_once
from harness.trace.format import Scope

DTYPES = {
    getattr(torch, f"{kind}{bits}"): f"{kind[0]}{bits}"
    for kind, sizes in (("float", (64, 32, 16)), ("int", (64, 32, 16, 8)), ("uint", (64, 32, 16, 8)))
    for bits in sizes
} | {torch.bfloat16: "bf16", torch.bool: "bool"}


class Digested(NamedTuple):
    """Description of a recorded value."""

    dtype: str
    shape: tuple[int, ...]
    algorithm: str
    digest: bytes
    """Of a value on a GPU `Pending`, which stands in for it until someone asks."""

    @property
    def is_pending(self) -> bool:
        """Whether a GPU may still be computing the digest."""
        return type(self.digest) is not bytes

    def settled(self) -> "Digested":
        """The same with the 16 bytes; waits for them."""
        return self._replace(digest=bytes(self.digest)) if self.is_pending else self


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as traces spell it: "f32"; torch's own word for the ones that have no short name."""
    return DTYPES.get(dtype) or str(dtype).removeprefix("torch.")


FREED, UNMAPPED = MISSING = ("freed", "unmapped")
"""In place of the dtype of a value whose memory was given back, or is not there while an engine sleeps."""
NOT_OF_DTYPE = "not implemented for"
"""In what torch says of an operation that a dtype has not, as no other of its errors does."""
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types whose tensors are what they seem: a subclass may hold parts, or be a wrapper without memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a dense tensor on the host, whose elements lie in it in C order."""

    tensor: weakref.ref[torch.Tensor]
    address: int
    kind: tuple[torch.dtype, torch.Size] | None
    dtype: str
    shape: tuple[int, ...]
    data: Array[c_char]

    def digested(self) -> "Digested":
        """Read it: the description of the value."""
        algorithm, value = digest(self.data)
        return Digested(self.dtype, self.shape, algorithm, value)


_memories: dict[int, Memory] = {}
"""By id of the tensor. Asking a tensor for all of this takes longer than the digest of a small one."""
MAX_MEMORIES = 2**16


def memory_of(tensor: Any) -> Memory | None:
    """The memory of a dense tensor on the host whose elements lie in C order; None of any other.

    That of a tensor that is known has not changed if its address, dtype, shape and order are the same: a storage that
    is resized moves.
    """
    known: Any = _memories.get(id(tensor))
    if (
        known is not None
        and known.tensor() is tensor
        and tensor.data_ptr() == known.address
        and tensor.is_contiguous()
        and (tensor.dtype, tensor.shape) == known.kind
    ):
        return known  # type: ignore[no-any-return]
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not on_host(tensor):
        return None
    is_as_it_lies = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    if not is_as_it_lies or ends_at(tensor) > tensor.untyped_storage().nbytes():  # it was given back
        return None
    dtype, shape, address = tensor.dtype, tensor.shape, tensor.data_ptr()
    data = (c_char * tensor.nbytes).from_address(address)
    kind = None if dtype.is_complex else (dtype, shape)  # a complex one may be conjugated where it lies
    memory = Memory(weakref.ref(tensor), address, kind, dtype_name(dtype), tuple(shape), data)
    if len(_memories) >= MAX_MEMORIES:
        _memories.clear()
    _memories[id(tensor)] = memory
    return memory


def ends_at(tensor: torch.Tensor) -> int:
    """Up to which byte of its storage a dense tensor reaches."""
    if not tensor.numel():
        return 0
    if tensor.is_contiguous():
        return int(tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def missing(shape: tuple[int, ...], why: str) -> Digested:
    """The description of a value that was not read: in place of its dtype stands why, "freed" or "unmapped"."""
    return Digested(why, shape, RAW, bytes(DIGEST_BYTES))


def digest_tensor(tensor: torch.Tensor) -> Digested:
    """The digest of a whole tensor on the host, over its bytes in C order; `missing` if its memory was given back."""
    if (memory := memory_of(tensor)) is not None:
        return memory.digested()
    if not tensor.is_meta and ends_at(tensor) > tensor.untyped_storage().nbytes():
        return missing(tuple(tensor.shape), FREED)
    return Digested(dtype_name(tensor.dtype), tuple(tensor.shape), *digest(tensor_bytes(tensor)))


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in C order, on the host: its own memory where it lies so, else a copy.

    TraceError for a tensor without memory: one of the device meta, or one whose memory was given back.
    """
    if tensor.is_meta or ends_at(tensor) > tensor.untyped_storage().nbytes():
        raise TraceError(
            f"a tensor of {tuple(tensor.shape)} without memory", remedy="with FSDP's first version, use fully_shard"
        )
    return host_bytes(tensor).cast("B")


def strided_parts(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """(suffix of the name, part) of a tensor that may be sparse: its indices and its values, else itself.

    A sparse tensor's elements are taken as they lie, coalesced or not: their order is part of what later sums give.
    """
    if tensor.layout is torch.strided:
        return [("", tensor)]
    if tensor.layout is torch.sparse_coo:
        return [(" indices", tensor._indices()), (" values", tensor._values())]
    return [("", tensor.to_dense())]


# ------------------------------------------------------------------------------------------- whether memory can be read
# Whether the memory of a tensor can be read: a GPU ends the program's context where a kernel reads what is not there.
#
# | memory | whose | is known by |
# |---|---|---|
# | given back under a living tensor | FSDP's first version, which resizes storages | the size of the storage |
# | unmapped, at an address that stays | engines that sleep: vLLM's pool, SGLang's torch_memory_saver | the driver |
#
# The driver is asked for each value on an NVIDIA GPU, which takes about a microsecond. Where it cannot be asked, models
# of vLLM and SGLang are not read.

ENGINES = ("vllm", "sglang")
"""Packages whose models may lie in memory that sleeps."""
_IS_MAPPED = 13
"""CU_POINTER_ATTRIBUTE_MAPPED of cuda.h: whether an address is in a range that is mapped to a backing allocation."""
_INVALID_VALUE = 1
"""CUDA_ERROR_INVALID_VALUE: no address that this driver has given out."""


def obstacle(tensor: torch.Tensor) -> str:
    """Why the memory of a tensor cannot be read, FREED or UNMAPPED; empty where it can, or nothing is known."""
    if tensor.layout is not torch.strided:
        return ""
    if ends_at(tensor) > tensor.untyped_storage().nbytes():
        return FREED
    if not tensor.is_cuda or not tensor.numel():
        return ""
    first = tensor.data_ptr()
    last = tensor.untyped_storage().data_ptr() + ends_at(tensor) - 1
    return UNMAPPED if False in (is_mapped(first), is_mapped(last)) else ""


def is_engines(module: torch.nn.Module) -> bool:
    """Whether a model is one of a package whose memory may sleep."""
    return type(module).__module__.partition(".")[0] in ENGINES


def can_ask_driver() -> bool:
    """Whether the driver says which addresses of the current GPU are mapped."""
    return torch.cuda._initialized and _driver() is not None


def is_mapped(address: int) -> bool | None:
    """Whether there is memory at an address of a GPU; None where the driver cannot be asked."""
    driver = _driver()
    return None if driver is None else _ask(driver, address)


@cache
def _driver() -> Any:
    """libcuda, if what it says of memory that is there is right; asked once, when torch has initialized CUDA."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        known = torch.zeros(1, device="cuda")
    except (OSError, RuntimeError, AssertionError):  # AMD's, or no driver
        return None
    return driver if _ask(driver, known.data_ptr()) else None


def _ask(driver: Any, address: int) -> bool | None:
    found = ctypes.c_uint64(0)
    code = driver.cuPointerGetAttribute(ctypes.byref(found), _IS_MAPPED, ctypes.c_uint64(address))
    if code == _INVALID_VALUE:
        return False
    return None if code else bool(found.value)


# -------------------------------------------------------------------------------------------- tensors wherever they are
# Tensors wherever they are: on the host, on a GPU, in parts over ranks. Many are digested at once.
#
# on the host            xxh3_128 of its bytes, where they lie
# on a GPU               shardsum_128 or packsum_128, computed there; a batch's digests come to the host in one copy
# a part of a DTensor    the same of this rank's part: the parts' sums add up to the whole's


class PlacedShard(NamedTuple):
    """A value, and the scope that its placement leaves it."""

    value: torch.Tensor | Shard
    scope: Scope


def place(tensor: torch.Tensor, scope: Scope) -> PlacedShard:
    """A plain tensor as it is; of a DTensor what this rank holds of it.

    A part that another rank holds too, and a sum that is not finished, say nothing of the whole: they are physical.
    """
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or not isinstance(tensor, distributed.DTensor):
        return PlacedShard(tensor, scope)
    if all(placement.is_replicate() for placement in tensor.placements):
        return PlacedShard(tensor.to_local(), scope)
    try:
        shard = shard_of(tensor)
    except TraceError:
        return PlacedShard(tensor.to_local(), Scope.PHYSICAL)
    return PlacedShard(shard, Scope.SHARD if scope is Scope.LOGICAL and shard.is_counted else Scope.PHYSICAL)


def shard_of(tensor: torch.Tensor) -> Shard:
    """A plain tensor as a whole; of a DTensor (FSDP2, tensor parallelism) this rank's part.

    TraceError for a DTensor that is a pending sum, or whose part is not one block of the whole.
    """
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or not isinstance(tensor, distributed.DTensor):
        return shard_of_all(tensor)
    mesh, placements = tensor.device_mesh, tensor.placements
    if unknown := [placement for placement in placements if type(placement).__name__ not in ("Shard", "Replicate")]:
        raise TraceError(
            f"a DTensor that is placed {unknown[0]}", legal="Shard, Replicate", remedy="redistribute it before"
        )
    local = tensor.to_local()
    offset = [0] * local.dim()
    sizes = list(tensor.shape)
    coordinate = mesh.get_coordinate()
    for mesh_dim, placement in enumerate(placements):
        if placement.is_shard():
            size, place, num_parts = sizes[placement.dim], coordinate[mesh_dim], mesh.size(mesh_dim)
            part = -(-size // num_parts)  # as torch.chunk cuts: all parts alike but the last ones
            first = min(part * place, size)
            offset[placement.dim] += first
            sizes[placement.dim] = min(part, size - first)
    if list(local.shape) != sizes:
        raise TraceError(f"a part of {tuple(local.shape)} where {tuple(sizes)} was expected", remedy="report it")
    is_first = all(placement.is_shard() or not coordinate[dim] for dim, placement in enumerate(placements))
    return Shard(local, tuple(tensor.shape), tuple(offset), is_first)


def digest_placed(values: Sequence[torch.Tensor | Shard]) -> list[Digested]:
    """The digest of each, those on a GPU as `Pending`: nothing waits. What has no memory is `missing`."""
    found: dict[int, Digested] = {}
    elsewhere: dict[torch.device, list[tuple[int, Shard, str]]] = {}
    for index, value in enumerate(values):
        tensor = value.local if isinstance(value, Shard) else value
        if isinstance(value, torch.Tensor) and on_host(tensor):
            found[index] = digest_tensor(tensor)
        elif why := obstacle(tensor):
            found[index] = missing(tuple(value.shape), why)
        else:
            shard = value if isinstance(value, Shard) else shard_of_all(value)
            algorithm = algorithm_of(shard, is_whole=shard is not value)
            elsewhere.setdefault(tensor.device, []).append((index, shard, algorithm))
    for device, batch in elsewhere.items():
        if device.type == "cuda" and (problem := kernel_problem(device)):
            say_once(
                f"digests on {device} take about 0.5 s for 10^9 parameters, since the Triton kernel does not run:"
                f" {problem}; install triton and a C compiler"
            )
        sums = digests([(shard, algorithm) for _, shard, algorithm in batch], device)
        for (index, shard, algorithm), each in zip(batch, sums, strict=True):
            found[index] = Digested(dtype_name(shard.local.dtype), shard.shape, algorithm, each)
    return [found[index] for index in range(len(values))]


# ------------------------------------------------------------------------------------------------- values within values
# What a nested value holds that can be recorded, by dotted names.

MAX_DEPTH = 4
"""Of containers within containers."""


def named_values(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every tensor, array, number and text in a value, however it is nested."""
    if isinstance(value, str | bytes | int | float | torch.Tensor) or hasattr(value, "__array_interface__"):
        yield name, value
    elif isinstance(value, Mapping) and depth < MAX_DEPTH:
        for index, (key, each) in enumerate(value.items()):
            shown = key if isinstance(key, str | int) else index  # a text of any other may differ from run to run
            yield from named_values(each, f"{name}.{shown}", depth + 1)
    elif isinstance(value, list | tuple) and depth < MAX_DEPTH:
        for index, each in enumerate(value):
            yield from named_values(each, f"{name}.{index}", depth + 1)


class WatchedValues:
    """Values by name that no module and no optimizer holds, and that a program has asked to be recorded.

    A tensor is held weakly; a container is held, and read anew in each step."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def watch(self, name: str, value: Any) -> None:
        """Watch a value from now on, instead of an earlier one of this name."""
        self._values[name] = weakref.ref(value) if isinstance(value, torch.Tensor) else value

    def named(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of what the watched values hold now: "watch.ema.0"."""
        for name, value in self._values.items():
            held = value() if isinstance(value, weakref.ref) else value
            if held is not None:
                yield from named_values(held, f"watch.{name}")
