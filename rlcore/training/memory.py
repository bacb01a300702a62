"""Memory that a pass has freed stays with the process for the next one, as far as glibc does so when it is asked."""

LARGEST_LEARNED = 32 << 20
"""Bytes: of no larger block does glibc learn."""
SLACK = 64 << 10
"""What a block takes beside its contents, and much more."""


def keep_freed_memory() -> None:
    """Free one large block, before anything is computed; it is never touched, so it takes no memory.

    glibc asks the kernel for each block above a threshold, and gives what is free at the end of its heap back beyond
    twice that. It raises the threshold to the largest block that it has seen freed. With that of a small model, every
    pass gives back what it has freed and asks for it again, page by page, each filled with zeros: a tenth of a step
    of `grpo_reverse_text` (2026-11-22). Up to 64 MiB are kept now. Another allocator learns nothing from it.
    """
    bytearray(LARGEST_LEARNED - SLACK)
