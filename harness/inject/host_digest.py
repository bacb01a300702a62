"""Digests of many tensors on the host: large ones by as many threads as torch computes with.

    tensors ─┬─ large: largest first, each thread takes the next ─┬─▶ digests, in the order of the tensors
             └─ small: by the caller's thread, which then helps   ┘

A digest reads memory and nothing else, and holds no lock of Python's while it does. The threads end before the digests
are there: a program that forks later has no thread that it did not start.
"""

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import torch

from harness.inject.tensors import Digested, digest_tensor

LARGE_BYTES = 2**18
"""From here on, reading a tensor takes longer than handing it to a thread."""
MIN_SHARED_BYTES = 2**23
"""Of all large ones together: with less, it takes less time to read them than to start a thread."""


def digest_on_host(tensors: Sequence[torch.Tensor]) -> list[Digested]:
    """The digest of each; TraceError for one without memory."""
    sizes = [tensor.nbytes for tensor in tensors]
    large = sorted((i for i, size in enumerate(sizes) if size >= LARGE_BYTES), key=lambda i: -sizes[i])
    num_threads = min(torch.get_num_threads(), len(large))
    if num_threads < 2 or sum(sizes[i] for i in large) < MIN_SHARED_BYTES:
        return [digest_tensor(tensor) for tensor in tensors]
    found: dict[int, Digested] = {}
    left, errors = deque(large), deque[BaseException]()

    def take() -> None:
        while True:
            try:
                index = left.popleft()
            except IndexError:  # all of them are taken
                return
            try:
                found[index] = digest_tensor(tensors[index])
            except BaseException as error:  # raised by the caller's thread, once the others have ended
                errors.append(error)
                left.clear()

    helpers = [threading.Thread(target=take, name="rlharness digests") for _ in range(num_threads - 1)]
    with suppress(RuntimeError):  # no thread can be started while the interpreter ends: the caller's does it all
        for helper in helpers:
            helper.start()
    for index, tensor in enumerate(tensors):
        if sizes[index] < LARGE_BYTES:
            found[index] = digest_tensor(tensor)
    take()
    for helper in helpers:
        if helper.ident is not None:
            helper.join()
    if errors:
        raise errors[0]
    return [found[index] for index in range(len(tensors))]
