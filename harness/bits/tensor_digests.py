"""Digests of tensors by their bits: equal digests are equal bits, of one type and one shape.

A digest is 32 hexadecimal digits of xxh3_128. It finds accidents, not forgers. -0.0 and the payload of a NaN count;
where a tensor lies, its strides and its device do not. Bytes are those of a little-endian machine. Tensors on a GPU are
read there, many at once (`harness.bits.gpu_digests`).
"""

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

import torch
from torch import Tensor
from xxhash import xxh3_128, xxh3_128_digest, xxh3_128_hexdigest

from harness.bits import gpu_digests

GPU_BYTES_AT_ONCE = 1 << 30
"""Of tensors on a GPU before the host waits for their digests; what was read of them takes a sixteenth meanwhile."""


def tensor_digest(tensor: Tensor) -> str:
    """Of type, shape and elements in C order; a contiguous tensor on the CPU is read where it is.

    Raises ValueError for a tensor that has no memory, or not one address for each element.
    """
    (digest,) = digests_of([("", tensor)]).values()
    return digest


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The digest of each, in the order of `tensors`; raises ValueError with the name of one that has none."""
    return digests_of(tensors.items())


def digests_of(named: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """The same for tensors that come one by one; each is read before the next comes, and not held."""
    digests: dict[str, str] = {}
    waiting = _Waiting()
    for name, tensor in named:
        if tensor.is_meta or tensor.layout != torch.strided:
            where = f"{name}: " if name else ""
            raise ValueError(f"{where}only a dense tensor with memory has a digest: {tensor.device}, {tensor.layout}")
        digests[name] = ""  # its place in the order
        if is_read_there(tensor):
            digests |= waiting.add(name, tensor)
        else:
            digests[name] = _named(_prefix(tensor), xxh3_128_digest(host_bytes(tensor)))
    return digests | waiting.take()


def is_read_there(tensor: Tensor) -> bool:
    """Whether a tensor's bytes stay on its device."""
    return tensor.is_cuda and not gpu_digests.problem(tensor.device)


class _Waiting:
    """Tensors of one GPU that were read, and whose digests the host does not have yet."""

    def __init__(self) -> None:
        self._device: torch.device | None = None
        self._named: list[tuple[str, str]] = []  # (name, type and shape)
        self._contents = gpu_digests.Contents()

    def add(self, name: str, tensor: Tensor) -> dict[str, str]:
        """Read a tensor; return the digests of those before it if it is on another GPU, or if they are many."""
        is_full = self._device != tensor.device or self._contents.num_bytes >= GPU_BYTES_AT_ONCE
        before = self.take() if is_full else {}
        self._device = tensor.device
        self._named.append((name, _prefix(tensor)))
        self._contents.add(_bytes(tensor))
        return before

    def take(self) -> dict[str, str]:
        """Return the digests of all that were read since the last call."""
        named, self._named = self._named, []
        found = zip(named, self._contents.take(), strict=True)
        return {name: _named(prefix, content) for (name, prefix), content in found}


def host_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor that has memory, in C order: its own where they lie so on the host, else a copy."""
    whole = tensor
    if not (tensor.is_cpu and tensor.is_contiguous()) or tensor.is_conj() or tensor.is_neg():
        whole = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if not whole.nbytes:
        return memoryview(b"")
    memory = (ctypes.c_char * whole.nbytes).from_address(whole.data_ptr())
    memory.owner = whole  # type: ignore[attr-defined]  # the memory lives as long as what shows it
    return memoryview(memory)


def _bytes(tensor: Tensor) -> Tensor:
    """The elements in C order: uint8 [bytes], on the tensor's device."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _prefix(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {list(tensor.shape)} "


def _named(prefix: str, content: bytes) -> str:
    return xxh3_128_hexdigest(prefix.encode() + content)


def combined_digest(digests: Mapping[str, str]) -> str:
    """One digest for named ones, whatever their order."""
    parts = (f"{len(name)}:{name}{digests[name]}" for name in sorted(digests))
    return xxh3_128_hexdigest("".join(parts).encode("utf-8", "surrogatepass"))


def flat_digest(tensors: Iterable[Tensor]) -> str:
    """Return the digest of fp32 tensors as one flat tensor, which is not made: that of `tensor_digest`."""
    rest, num_elements = iter(tensors), 0

    def parts() -> Iterator[Tensor]:
        nonlocal num_elements
        for tensor in chain(first, rest):
            num_elements += tensor.numel()
            yield _bytes(tensor)

    first = list(islice(rest, 1))
    if first and is_read_there(first[0]):
        contents = gpu_digests.Contents()
        contents.add_parts(parts())
        (content,) = contents.take()
    else:
        on_host = xxh3_128()
        for part in parts():
            on_host.update(host_bytes(part))
        content = on_host.digest()
    return xxh3_128_hexdigest(f"float32 [{num_elements}] ".encode() + content)


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """One digest for named tensors, whatever their order: what a completion carries of the weights that drew it."""
    return combined_digest(tensor_digests(tensors))
