"""What an operation read and wrote, as the record of operations has it: a line of text for each tensor.

    "f32 64,128 xxh3_128 <32 hexadecimal digits>"           in memory as its shape says
    "f32 128,64 xxh3_128 <32 hexadecimal digits> strides=1,128"
    "f32 64,128 xxh3_128 <32 hexadecimal digits> nan inf"   some elements are not finite: NaN, Inf or both
    "f32 64,128 none unwritten"                             no value: why not

The bytes that are digested are those in the order of the memory, so that a transposed weight is not copied. On the
host a digest is used again while torch knows of no write: the storage lives, the range and the tensor's version are the
same, and no operation seen here has written to it. A sample of the bytes is compared as well, against those who write
without torch knowing: NumPy, compiled kernels. Below 64 KiB, and on GPUs, nothing is used again.
"""

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from xxhash import xxh3_128_hexdigest

from harness.bits.digests import DIGEST_BYTES, RAW, XXH3_128
from harness.bits.shard_sums import on_host
from harness.recording.sharded_digest import digest_placed
from harness.recording.tensors import MISSING, dtype_name, ends_at

MIN_CACHED_BYTES = 2**16
NUM_SAMPLED_BYTES = 64
MAX_MEMORIES = 2**14
"""So many storages are remembered before the dead ones are dropped."""
ALIGNMENT = 64
NONE = "none"
"""In place of an algorithm: the tensor was not read."""
WORKING_MEMORY = "working_memory"
UNWRITTEN = "unwritten"
UNFINISHED = "unfinished"
OUTSIDE = -1
"""The maker of what no recorded operation has written."""
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
"""Floats that torch does not add."""
_ZERO = b"\0"
_NOTHING = f"{RAW} {bytes(16).hex()}"


@dataclass(slots=True)
class _Known:
    """A digest, and what must still be so for it to hold."""

    version: int
    num_writes: int
    sample: bytes
    text: str


@dataclass(slots=True)
class _Memory:
    """What is known of one storage; the weak reference keeps its address from being given to another."""

    reference: StorageWeakRef
    maker: int = OUTSIDE
    num_writes: int = 0
    content: str = ""
    """What it holds where that is no value: one of WORKING_MEMORY, UNWRITTEN, UNFINISHED."""
    known: dict[tuple[int, int], _Known] | None = None
    """By address and size in bytes; most memory never needs any."""


class OpValues:
    """Describes tensors, and follows which operation has written which memory. One thread at a time."""

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}
        self._max_memories = MAX_MEMORIES
        self._heads: dict[tuple[torch.dtype, torch.Size], str] = {}
        self._arrays: dict[int, type[ctypes.Array[ctypes.c_char]]] = {}
        """By length: ctypes forgets a type that nobody holds, and making one takes longer than a digest."""
        self._fetched: dict[int, str] = {}
        """By id: algorithms and digests of tensors on GPUs that are read next."""

    def read(self, tensor: torch.Tensor) -> tuple[str, int]:
        """(description, which operation wrote it last or OUTSIDE) of what an operation reads, or has written."""
        if obstacle := _obstacle(tensor):
            return self._not_read(tensor, obstacle), OUTSIDE
        storage = tensor.untyped_storage()
        memory = self._memory(storage)
        if memory.content in (WORKING_MEMORY, UNFINISHED):  # unwritten memory may have been written to unseen
            return self._not_read(tensor, memory.content), memory.maker
        if ends_at(tensor) > storage.nbytes():  # FSDP gives memory back under living tensors
            return self._not_read(tensor, "freed"), memory.maker
        return f"{self._head(tensor)} {self._describe(tensor, memory)}", memory.maker

    def fetch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Digest those of an operation's tensors that lie on GPUs, with two waits for all; `read` then has them."""
        on_gpus = [each for each in tensors if not on_host(each) and not _obstacle(each) and each.numel()]
        on_gpus = [each for each in on_gpus if ends_at(each) <= each.untyped_storage().nbytes()]
        self._fetched = dict(zip(map(id, on_gpus), _described(on_gpus), strict=True)) if on_gpus else {}

    def look(self, tensor: torch.Tensor, why: str) -> tuple[str, int]:
        """The same where its value is not to be read: `why`."""
        maker = OUTSIDE if _obstacle(tensor) else self._memory(tensor.untyped_storage()).maker
        return self._not_read(tensor, why), maker

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Whether nothing was written to this memory since an operation gave it out as it was."""
        return not _obstacle(tensor) and self._memory(tensor.untyped_storage()).content == UNWRITTEN

    def wrote(self, tensor: torch.Tensor, index: int, content: str = "") -> None:
        """Note that the operation `index` has written to a tensor; `content` says why that is no value."""
        if not _obstacle(tensor):
            memory = self._memory(tensor.untyped_storage())
            memory.maker = index
            memory.num_writes += 1
            memory.content = content
            memory.known = None

    def _memory(self, storage: torch.UntypedStorage) -> _Memory:
        key = storage._cdata
        if (memory := self._memories.get(key)) is None:
            if len(self._memories) >= self._max_memories:
                self._memories = {k: m for k, m in self._memories.items() if not m.reference.expired()}  # type: ignore[no-untyped-call]
                self._max_memories = max(MAX_MEMORIES, 2 * len(self._memories))
            memory = self._memories[key] = _Memory(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return memory

    def _head(self, tensor: torch.Tensor) -> str:
        """Dtype and shape."""
        if tensor.is_nested:  # torch raises for the shape
            return f"{dtype_name(tensor.dtype)} ?"
        key = (tensor.dtype, tensor.shape)
        if (head := self._heads.get(key)) is None:
            head = self._heads[key] = f"{dtype_name(tensor.dtype)} {','.join(map(str, tensor.shape))}"
        return head

    def _not_read(self, tensor: torch.Tensor, why: str) -> str:
        return f"{self._head(tensor)} {NONE} {why}"

    def _describe(self, tensor: torch.Tensor, memory: _Memory) -> str:
        """Algorithm, digest and layout."""
        if not tensor.numel():
            return _NOTHING
        dense, layout = _in_memory_order(tensor)
        if offset := tensor.storage_offset():
            layout += f" offset={offset}"
        if tensor.is_conj() or tensor.is_neg():
            layout += (" conj" if tensor.is_conj() else "") + (" neg" if tensor.is_neg() else "")
        if not on_host(tensor):
            return (self._fetched.pop(id(tensor), "") or _described([tensor])[0]) + layout
        address, num_bytes = dense.data_ptr(), dense.numel() * dense.element_size()
        if address % ALIGNMENT:
            layout += f" align={address % ALIGNMENT}"
        if num_bytes <= DIGEST_BYTES:  # the record has the value itself
            return _digest_text(ctypes.string_at(address, num_bytes)) + layout
        if num_bytes < MIN_CACHED_BYTES:
            return _digest_text(ctypes.string_at(address, num_bytes)) + _not_finite(dense) + layout
        if (kind := self._arrays.get(num_bytes)) is None:
            kind = self._arrays[num_bytes] = ctypes.c_char * num_bytes
        array = kind.from_address(address)
        is_copy = dense is not tensor and dense.untyped_storage()._cdata != memory.reference.cdata
        if is_copy or tensor.is_inference():
            return _digest_text(array) + _not_finite(dense) + layout

        def describe() -> str:
            return _digest_text(array) + _not_finite(dense)

        return _remembered(memory, array, (address, tensor._version), describe) + layout


def _remembered(
    memory: _Memory, array: "ctypes.Array[ctypes.c_char]", at: tuple[int, int], describe: Callable[[], str]
) -> str:
    """What `describe` says of a range of a storage, `at` an address in a version; asked where it may have changed."""
    address, version = at
    num_bytes = len(array)
    sample = memoryview(array)[:: num_bytes // NUM_SAMPLED_BYTES | 1].tobytes()
    known = memory.known.get((address, num_bytes)) if memory.known else None
    if known and (known.version, known.num_writes, known.sample) == (version, memory.num_writes, sample):
        return known.text
    text = describe()
    found = _Known(version, memory.num_writes, sample, text)
    memory.known = {**(memory.known or {}), (address, num_bytes): found}
    return text


def _described(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Algorithm, digest and words for what is not finite of each of these, which lie on GPUs."""
    dense = [_in_memory_order(tensor)[0] for tensor in tensors]
    found = digest_placed(dense)
    are_large = [each.algorithm != RAW for each in found]
    words = iter(_not_finite_of_all([each for each, is_large in zip(dense, are_large, strict=True) if is_large]))
    return [
        f"{NONE} {each.dtype}"
        if each.dtype in MISSING
        else f"{each.algorithm} {bytes(each.digest).hex()}{next(words) if is_large else ''}"
        for each, is_large in zip(found, are_large, strict=True)
    ]


def _not_finite_of_all(tensors: Sequence[torch.Tensor]) -> list[str]:
    """The same as `_not_finite` of each; waits once for each GPU, and again only for those that are not finite."""
    sums: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        if (total := _sum(tensor)) is not None:
            sums.setdefault(total.device, []).append((index, total.isfinite()))
    are_finite = {
        index: is_finite
        for totals in sums.values()
        for (index, _), is_finite in zip(totals, torch.stack([each for _, each in totals]).tolist(), strict=True)
    }
    return ["" if are_finite.get(index, True) else _not_finite(each) for index, each in enumerate(tensors)]


def _digest_text(data: "bytes | ctypes.Array[ctypes.c_char]") -> str:
    if len(data) <= DIGEST_BYTES:
        return f"{RAW} {bytes(data).ljust(DIGEST_BYTES, _ZERO).hex()}"
    return f"{XXH3_128} {xxh3_128_hexdigest(data)}"


def _not_finite(tensor: torch.Tensor) -> str:
    """The words for what it holds beside finite numbers, each after a blank: " nan", " inf"; of no float nothing.

    A sum that is finite has only finite parts, and takes one pass; only where it is not, each element is looked at.
    """
    total = _sum(tensor)
    if total is None or math.isfinite(total.item()):
        return ""
    if tensor.dtype in NARROW:
        tensor = tensor.float()
    return (" nan" if tensor.isnan().any() else "") + (" inf" if tensor.isinf().any() else "")


def _sum(tensor: torch.Tensor) -> torch.Tensor | None:
    """The sum of all elements, complex ones as two; None of integers."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).sum()
    if tensor.dtype in NARROW:
        return tensor.float().sum()
    return tensor.sum() if tensor.dtype in FLOATS else None


def _in_memory_order(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """(the same elements in the order in which they lie, without repetitions; its strides, if it is not contiguous)."""
    if tensor.is_contiguous():
        return tensor, ""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    dense = tensor.detach().permute(order)
    for dim in reversed([place for place, dim in enumerate(order) if not strides[dim]]):
        dense = dense.select(dim, 0)
    return dense.contiguous(), f" strides={','.join(map(str, strides))}"


def _obstacle(tensor: torch.Tensor) -> str:
    """Why a tensor has no memory that could be read; empty where it has."""
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return type(tensor).__name__
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return "meta" if tensor.is_meta else "nested" if tensor.is_nested else ""
