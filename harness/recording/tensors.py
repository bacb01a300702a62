"""A torch tensor as a recorded value: dtype, shape, algorithm, digest. It is read in place."""

from ctypes import c_char
from typing import Any, NamedTuple, TypeGuard

import torch

from harness.bits.digests import DIGEST_BYTES, RAW, digest
from harness.bits.errors import TraceError
from harness.bits.shard_sums import on_host
from harness.bits.tensor_digests import host_bytes

DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "u64",
    torch.uint32: "u32",
    torch.uint16: "u16",
    torch.uint8: "u8",
    torch.bool: "bool",
}


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


def is_plain(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a dense tensor on the host, of which nothing else has to be asked: most of them are."""
    return type(value) in PLAIN and on_host(value) and value.layout is torch.strided


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
    if tensor.is_meta or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        if not tensor.is_meta and ends_at(tensor) > tensor.untyped_storage().nbytes():
            return missing(tuple(tensor.shape), FREED)
        algorithm, value = digest(tensor_bytes(tensor))
    else:  # most of them: without what the general way asks for, which takes longer than a small digest
        num_bytes = tensor.nbytes
        if num_bytes + tensor.storage_offset() * tensor.itemsize > tensor.untyped_storage().nbytes() and num_bytes:
            return missing(tuple(tensor.shape), FREED)
        algorithm, value = digest((c_char * num_bytes).from_address(tensor.data_ptr()))
    return Digested(DTYPES.get(tensor.dtype) or dtype_name(tensor.dtype), tuple(tensor.shape), algorithm, value)


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
