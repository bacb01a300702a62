"""xxh3_128 of tensors on a GPU, computed there: the value that their bytes have on the host, which never gets them.

    bytes ──add──▶ 8 words of each block of 1,024 bytes ──take──▶ 8 words of each tensor, with its last bytes ──▶ host
                   sums, all blocks at once                       a chain of blocks

Within a block xxh3 adds products, in any order. Only eight words are folded from block to block, so one program per
tensor is enough for the chain. What leaves the GPU is 64 bytes of each tensor, and the at most 1,024 bytes of its last
block, all of them in one copy.
"""

import warnings
from functools import cache

import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_128_digest

from rlcore.weights.xxh3 import finished, num_blocks, tail_length


class Contents:
    """Bytes on one GPU that are read as they are added, and whose digests come together."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """Of the contents added since the last `take`."""
        self._lengths: list[int] = []
        self._sums: list[Tensor] = []
        self._tails: list[Tensor] = []

    def add(self, content: Tensor) -> None:
        """Read bytes, uint8 [n]; they may be overwritten afterwards. Raises ImportError without Triton."""
        from rlcore.weights.gpu_kernel import block_sums

        length = len(content)
        self._sums.append(block_sums(content, num_blocks(length)))
        self._tails.append(content[length - tail_length(length) :].clone())
        self._lengths.append(length)
        self.num_bytes += length

    def take(self) -> list[bytes]:
        """Return xxh3_128 of each content added since the last call, in their order; waits for the GPU once."""
        lengths, sums, tails = self._lengths, self._sums, self._tails
        self._lengths, self._sums, self._tails, self.num_bytes = [], [], [], 0
        if not lengths:
            return []
        from rlcore.weights.gpu_kernel import chained  # with Triton, which only a GPU needs

        words = chained(torch.cat(sums), [num_blocks(length) for length in lengths])
        packed = torch.cat([words.view(torch.uint8).flatten(), *tails]).cpu().numpy()
        on_host = np.split(packed, np.cumsum([words.nbytes, *map(len, tails[:-1])]))
        return finished(on_host[0].view("<u8").reshape(-1, 8), lengths, on_host[1:])


@cache
def problem(device: torch.device) -> str:
    """Say why tensors of a GPU are copied to the host for their digests; empty if they are not.

    Tried once on each GPU: some bytes must have the digest that the host computes. Said once, as a warning.
    """
    content = (torch.arange(70_001, device=device) * 167 % 251).to(torch.uint8)
    host, parts, contents = content.cpu().numpy(), [slice(0, 70_001), slice(0, 2048), slice(1, 5)], Contents()
    try:
        for part in parts:
            contents.add(content[part])
        found = contents.take()
    except torch.OutOfMemoryError:  # may not be there at the next try
        raise
    except Exception as error:  # no Triton, no compiler for it, a GPU that it does not know
        why = f"{type(error).__name__}: {error}"
    else:
        expected = [xxh3_128_digest(host[part].tobytes()) for part in parts]
        why = "" if found == expected else "its kernel gives other digests than the host"
    if why:
        warnings.warn(
            f"weights on {device} are copied to the host for their digests: {why}", RuntimeWarning, stacklevel=2
        )
    return why
