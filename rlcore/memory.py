"""Memory that a pass has freed stays with the process for the next one, in large pages, as far as glibc listens.

Another allocator has no such functions, and is left as it is.
"""

import ctypes
import os
from pathlib import Path

KEPT_BYTES = 512 << 20
"""Of what is free at the end of the heap."""
LARGEST_BLOCK = 32 << 20
"""Bytes: larger blocks are the kernel's, glibc takes no others into its heap."""
LARGE_PAGE = 2 << 20
"""Bytes."""
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""Where the kernel says who gets them."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""As malloc.h numbers what mallopt(3) sets."""
_DEFAULT_TOP_PAD = 128 << 10
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25


def keep_freed_memory() -> None:
    """Have glibc give back no less than 512 MiB, before anything is computed.

    As it comes it gives back all but twice the largest block that it has seen freed. With that of a small model, every
    pass gives back what it has freed and asks for it again, page by page, each filled with zeros: a tenth of a step of
    `grpo_reverse_text` (2026-11-22), and 4 % of one of 13M parameters where 64 MiB are kept (2026-11-23).
    """
    libc = ctypes.CDLL(None)
    if mallopt := getattr(libc, "mallopt", None):
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, LARGEST_BLOCK)
        _take_large_pages(libc)


def _take_large_pages(libc: ctypes.CDLL) -> None:
    """Have the heap, and the next 496 MiB of it, which are addresses and no memory yet, in pages of 2 MiB: madvise(2).

    Where the heap cannot grow by as much, or large pages are switched off, nothing is changed; before Linux 6.1 what is
    there already stays as it is.
    """
    begins = _heap_begins()
    if not begins or not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text():
        return
    libc.malloc.restype, libc.sbrk.restype = ctypes.c_void_p, ctypes.c_void_p
    libc.mallopt(_TOP_PAD, KEPT_BYTES - LARGEST_BLOCK)
    block = libc.malloc(ctypes.c_size_t(LARGEST_BLOCK // 2))  # for which the heap grows, and by the pad besides
    libc.mallopt(_TOP_PAD, int(os.environ.get("MALLOC_TOP_PAD_", _DEFAULT_TOP_PAD)))
    end = libc.sbrk(0)
    if block and begins < block < end:
        first, free = (at + -at % LARGE_PAGE for at in (begins, block))
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_HUGEPAGE)
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(max(0, free - first)), _MADV_COLLAPSE)  # what is there
    libc.free(ctypes.c_void_p(block))


def _heap_begins() -> int:
    """Its first address; 0 where there is none."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return next((int(line.split("-")[0], 16) for line in lines if line.endswith("[heap]")), 0)
