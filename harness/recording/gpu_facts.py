"""What a trace says of the GPUs that its program uses, as torch reports them once the program has initialised CUDA.

Nothing here initialises CUDA, makes a context or waits for a GPU: a program that has not done so itself may still
fork, or choose its GPUs.
"""

import torch

from harness.recording.cuda_state import is_used

GIB = 2**30


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
