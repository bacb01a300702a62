"""Memory that a pass has freed stays with the process for the next one, as far as glibc does so when it is asked."""

import ctypes

KEPT_BYTES = 512 << 20
"""Of what is free at the end of the heap."""
LARGEST_BLOCK = 32 << 20
"""Bytes: larger blocks are the kernel's, glibc takes no others into its heap."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""As malloc.h numbers what mallopt(3) sets."""


def keep_freed_memory() -> None:
    """Tell glibc to give back no less than 512 MiB, before anything is computed.

    As it comes it gives back all but twice the largest block that it has seen freed. With that of a small model, every
    pass gives back what it has freed and asks for it again, page by page, each filled with zeros: a tenth of a step of
    `grpo_reverse_text` (2026-11-22), and 4 % of one of 13M parameters where 64 MiB are kept (2026-11-23). Another
    allocator has no such function, or does not listen.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, LARGEST_BLOCK)
