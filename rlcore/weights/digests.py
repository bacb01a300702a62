"""Digests of tensors by their bits: equal digests are equal bits, of one type and one shape.

A digest is 32 hexadecimal digits of xxh3_128. It finds accidents, not forgers. -0.0 and the payload of a NaN count;
where a tensor lies, its strides and its device do not. Bytes are those of a little-endian machine.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from xxhash import xxh3_128, xxh3_128_digest, xxh3_128_hexdigest

from rlcore.errors import InvalidValueError


def tensor_digest(tensor: Tensor) -> str:
    """Of type, shape and elements in C order; a contiguous tensor on the CPU is read where it is.

    Raises InvalidValueError for a tensor that has no memory, or not one address for each element.
    """
    if tensor.is_meta or tensor.layout != torch.strided:
        raise InvalidValueError(
            f"a digest of a tensor on {tensor.device}, layout {tensor.layout}", legal="a dense tensor with memory"
        )
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    content = xxh3_128_digest(plain.reshape(-1).view(torch.uint8).numpy().data)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return xxh3_128_hexdigest(f"{dtype} {list(tensor.shape)} ".encode() + content)


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The digest of each, in the order of `tensors`; raises InvalidValueError with the name of one that has none."""
    digests = {}
    for name, tensor in tensors.items():
        try:
            digests[name] = tensor_digest(tensor)
        except InvalidValueError as error:
            raise InvalidValueError(f"{name}: {error.what}", legal=error.legal) from None
    return digests


def combined_digest(digests: Mapping[str, str]) -> str:
    """One digest for named ones, whatever their order."""
    parts = (f"{len(name)}:{name}{digests[name]}" for name in sorted(digests))
    return xxh3_128_hexdigest("".join(parts).encode("utf-8", "surrogatepass"))


def flat_digest(tensors: Iterable[Tensor]) -> str:
    """Return the digest of fp32 tensors as one flat tensor, which is not made: that of `tensor_digest`."""
    content, num_elements = xxh3_128(), 0
    for tensor in tensors:
        num_elements += tensor.numel()
        content.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return xxh3_128_hexdigest(f"float32 [{num_elements}] ".encode() + content.digest())


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """One digest for named tensors, whatever their order: what a completion carries of the weights that drew it."""
    return combined_digest(tensor_digests(tensors))
