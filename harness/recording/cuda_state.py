"""What CUDA does in this process, asked without initialising it: of that, a fork or a late variable would suffer.

`torch.cuda.is_available()` and its like count GPUs, and by that initialise the driver: a child that is forked later
cannot use CUDA, and CUDA_VISIBLE_DEVICES has no effect any more. A recorded program must be able to do both.
"""

import torch


def is_used() -> bool:
    """Return whether this process has initialised CUDA; False in the forked child of one that has."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def is_capturing() -> bool:
    """Return whether the current stream is captured into a CUDA graph: nothing may be read or waited for then."""
    return is_used() and torch.cuda.is_current_stream_capturing()
