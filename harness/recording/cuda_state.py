"""What CUDA does in this process, asked without initialising it: of that, a fork or a late variable would suffer.

`torch.cuda.is_available()` and its like count GPUs, and by that initialise the driver: a child that is forked later
cannot use CUDA, and CUDA_VISIBLE_DEVICES has no effect any more. A recorded program must be able to do both.
"""

import torch

GIB = 2**30


def is_used() -> bool:
    """Return whether this process has initialised CUDA; False in the forked child of one that has."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def is_capturing() -> bool:
    """Return whether the current stream is captured into a CUDA graph: nothing may be read or waited for then."""
    return is_used() and torch.cuda.is_current_stream_capturing()


def gpus_in_use() -> tuple[str, ...]:
    """Return the models of the GPUs that hold memory of this process, and of its current one; each model once, sorted.

    Empty until the program has initialised CUDA. A model as torch names it, which for a part of a GPU includes its MIG
    profile: "NVIDIA H100 80GB HBM3, capability 9.0, 132 SMs, 79 GiB".
    """
    if not is_used():
        return ()
    indices = range(torch.cuda.device_count())
    current, reserved = torch.cuda.current_device(), torch.cuda.memory_reserved
    return tuple(sorted({_model(index) for index in indices if index == current or reserved(index) > 0}))


def _model(index: int) -> str:
    gpu = torch.cuda.get_device_properties(index)
    capability = f"capability {gpu.major}.{gpu.minor}"
    # The driver keeps an amount of memory that differs from machine to machine: whole GiB are those of the model.
    return f"{gpu.name}, {capability}, {gpu.multi_processor_count} SMs, {round(gpu.total_memory / GIB)} GiB"
