"""Whether the memory of a tensor can be read: a GPU ends the program's context where a kernel reads what is not there.

| memory | whose | is known by |
|---|---|---|
| given back under a living tensor | FSDP's first version, which resizes storages | the size of the storage |
| unmapped, at an address that stays | engines that sleep: vLLM's pool, SGLang's torch_memory_saver | the driver |

The driver is asked for each value on an NVIDIA GPU, which takes about a microsecond. Where it cannot be asked, models
of vLLM and SGLang are not read.
"""

import ctypes
from functools import cache
from typing import Any

import torch

from harness.recording.tensors import FREED, UNMAPPED, ends_at

ENGINES = ("vllm", "sglang")
"""Packages whose models may lie in memory that sleeps."""
_IS_MAPPED = 13
"""CU_POINTER_ATTRIBUTE_MAPPED of cuda.h: whether an address is in a range that is mapped to a backing allocation."""
_INVALID_VALUE = 1
"""CUDA_ERROR_INVALID_VALUE: no address that this driver has given out."""


def obstacle(tensor: torch.Tensor) -> str:
    """Why the memory of a tensor cannot be read, FREED or UNMAPPED; empty where it can, or nothing is known."""
    if tensor.layout is not torch.strided:
        return ""
    if ends_at(tensor) > tensor.untyped_storage().nbytes():
        return FREED
    if not tensor.is_cuda or not tensor.numel():
        return ""
    first = tensor.data_ptr()
    last = tensor.untyped_storage().data_ptr() + ends_at(tensor) - 1
    return UNMAPPED if False in (is_mapped(first), is_mapped(last)) else ""


def is_engines(module: torch.nn.Module) -> bool:
    """Whether a model is one of a package whose memory may sleep."""
    return type(module).__module__.partition(".")[0] in ENGINES


def can_ask_driver() -> bool:
    """Whether the driver says which addresses of the current GPU are mapped."""
    return torch.cuda._initialized and _driver() is not None


def is_mapped(address: int) -> bool | None:
    """Whether there is memory at an address of a GPU; None where the driver cannot be asked."""
    driver = _driver()
    return None if driver is None else _ask(driver, address)


@cache
def _driver() -> Any:
    """libcuda, if what it says of memory that is there is right; asked once, when torch has initialized CUDA."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        known = torch.zeros(1, device="cuda")
    except (OSError, RuntimeError, AssertionError):  # AMD's, or no driver
        return None
    return driver if _ask(driver, known.data_ptr()) else None


def _ask(driver: Any, address: int) -> bool | None:
    found = ctypes.c_uint64(0)
    code = driver.cuPointerGetAttribute(ctypes.byref(found), _IS_MAPPED, ctypes.c_uint64(address))
    if code == _INVALID_VALUE:
        return False
    return None if code else bool(found.value)
