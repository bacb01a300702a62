"""Values of a program's variables, by name: what its frames reach, down to five levels, without modules and optimizers.

No code of the program is called: attributes are read where objects keep them, containers by their types' own methods.
"""

import random
import sys
from collections import deque
from collections.abc import Iterator
from math import isnan
from types import FrameType, ModuleType
from typing import Any

import torch
from xxhash import xxh3_64_hexdigest

from harness.bits.tensor_digests import host_bytes

Values = dict[str, Any]
"""Numbers and texts as they are; "#..." the digest of an array, "generator#..." that of a generator's state."""
MAX_VALUES = 4000
MAX_DEPTH = 5
MAX_ITEMS = {dict: 200, list: 50, object: 100}
MAX_BYTES = 2**24
"""Of a tensor that a variable holds; larger ones are left out."""
STATE_SIZES = (5056, 16)
"""Bytes of the state of a torch generator, on the CPU and on a GPU."""
_OURS = ("torch", "harness", "runpy", "threading", "functools", "contextlib", "importlib")


def variables(frame: FrameType | None) -> Values:
    """Return the values that a frame and those above it reach; of frames of installed packages `self` alone."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    found: Values = {}
    seen: set[int] = set()
    for each in reversed(frames):
        if str(each.f_globals.get("__name__", "")).partition(".")[0] in _OURS:
            continue
        scope, function = each.f_locals, each.f_code.co_name
        is_installed = "site-packages" in each.f_code.co_filename
        for name in [name for name in scope if not name.startswith("__") and (not is_installed or name == "self")]:
            _visit(name if function == "<module>" else f"{function}: {name}", scope[name], found, seen, MAX_BYTES)
    return found


def values_in(value: Any) -> Values:
    """Return the values that an object holds, such as a checkpoint, whatever their size."""
    found: Values = {}
    _visit("", value, found, set(), sys.maxsize)
    return found


def _visit(name: str, value: Any, found: Values, seen: set[int], max_bytes: int, *, depth: int = 0) -> None:
    kind = type(value)  # isinstance asks proxies what they stand for, and that may do anything
    if len(found) > MAX_VALUES or depth > MAX_DEPTH:
        return
    if value is None or kind in (bool, int, float, str):
        is_nan = kind is float and isnan(value)  # which equals nothing
        found[name] = value[:60] if kind is str else "nan" if is_nan else value
        return
    is_bar = any(each.__module__.partition(".")[0] == "tqdm" for each in kind.__mro__)  # a progress bar trains nothing
    if is_bar or id(value) in seen or issubclass(kind, (type, ModuleType, torch.nn.Module, torch.optim.Optimizer)):
        return
    seen.add(id(value))
    numpy = sys.modules.get("numpy")
    inner: Iterator[tuple[Any, Any]]
    if (generator := _generator(value)) is not None:
        found[name] = f"generator#{xxh3_64_hexdigest(generator)}"
        return
    if issubclass(kind, torch.Tensor):
        if value.layout is torch.strided and not value.is_meta and value.nbytes <= max_bytes:
            found[name] = value.item() if value.numel() == 1 else f"#{_digest(value)}"
        return
    if numpy is not None and issubclass(kind, numpy.ndarray | numpy.generic):
        if value.dtype != object and value.nbytes <= max_bytes:
            found[name] = value.item() if value.size == 1 else f"#{xxh3_64_hexdigest(value.tobytes())}"
        return
    if issubclass(kind, dict):
        found[f"{name} (length)"] = dict.__len__(value)
        pairs = list(dict.items(value))[: MAX_ITEMS[dict]]
        inner = ((f"{name}.{key if type(key) in (str, int) else at}", each) for at, (key, each) in enumerate(pairs))
    elif base := next((each for each in (list, tuple, deque, set) if issubclass(kind, each)), None):
        found[f"{name} (length)"] = base.__len__(value)
        items = list(base.__iter__(value))[: MAX_ITEMS[list]] if base is not set else []
        inner = ((f"{name}[{at}]", each) for at, each in enumerate(items))
    else:
        try:
            held = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        pairs = list(dict.items(held))[: MAX_ITEMS[object]] if isinstance(held, dict) else []
        inner = ((f"{name}.{key}", each) for key, each in pairs if not str(key).startswith("__"))
    for inner_name, each in inner:
        _visit(inner_name, each, found, seen, max_bytes, depth=depth + 1)


def _generator(value: Any) -> bytes | None:
    """The state of a generator, or a state that a program keeps; None for anything else."""
    kind, numpy = type(value), sys.modules.get("numpy")
    if issubclass(kind, torch.Generator):
        return bytes(host_bytes(value.get_state()))
    if issubclass(kind, torch.Tensor):
        is_state = value.dtype == torch.uint8 and value.numel() in STATE_SIZES
        return bytes(host_bytes(value)) if is_state else None
    if kind is random.Random:
        return repr(value.getstate()).encode()
    if kind is tuple and len(value) == 3 and type(value[1]) is tuple and len(value[1]) == 625:
        return repr(value).encode()
    if numpy is not None and kind is numpy.random.Generator:
        return repr(value.bit_generator.state).encode()
    if numpy is not None and kind is numpy.ndarray and value.shape == (624,):
        return bytes(value.tobytes())
    return None


def _digest(tensor: torch.Tensor) -> str:
    return xxh3_64_hexdigest(bytes(f"{tensor.dtype}{[*tensor.shape]}", "ascii") + bytes(host_bytes(tensor)))
