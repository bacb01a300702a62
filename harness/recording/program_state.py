"""The state of every random-number generator that this process has, read without drawing from any."""

import random
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from harness.bits.digests import digest
from harness.recording.tensors import tensor_bytes

State = tuple[str, bytes]
"""(algorithm, digest)."""


class RandomStates:
    """Finds the generators that were seeded or drawn from since the last check.

    It never reports an unused one: Python's and NumPy's begin with another state in every process.
    """

    def __init__(self) -> None:
        self._generators: list[weakref.ref[torch.Generator]] = []
        """Those that belong to the program's loaders, in the order in which they were met."""
        self._seen = self._read()

    def meet_new(self) -> None:
        """Add the generators that are new; their present state counts as unused."""
        self._seen = {**self._read(), **self._seen}

    def meet(self, generators: Iterable[torch.Generator]) -> Mapping[str, State]:
        """Add generators of loaders; returns the states of those that are new, which count as seen."""
        known = [each() for each in self._generators]
        for generator in generators:
            if generator.device.type == "cpu" and not any(each is generator for each in known):
                known.append(generator)
                self._generators.append(weakref.ref(generator))
        states = self._loader_states()
        new = {name: states[name] for name in states.keys() - self._seen.keys()}
        self._seen |= new
        return dict(sorted(new.items()))

    def changed(self) -> dict[str, State]:
        """(algorithm, digest) of each generator whose state is not what it was, by name."""
        states = self._read()
        found = {name: state for name, state in states.items() if self._seen.get(name) != state}
        self._seen = states
        return found

    def _read(self) -> dict[str, State]:
        return read_states() | self._loader_states()

    def _loader_states(self) -> dict[str, State]:
        return {
            f"random.loader{index}": digest(tensor_bytes(generator.get_state()))
            for index, each in enumerate(self._generators)
            if (generator := each()) is not None
        }


def read_states() -> dict[str, State]:
    """(algorithm, digest) of the state of each generator, by name: random.python, random.torch, random.cuda0, ..."""
    states = {"random.python": digest(_python_state()), "random.torch": digest(tensor_bytes(torch.get_rng_state()))}
    if (generator := sys.modules.get("numpy.random")) is not None:
        kind, keys, place, has_gauss, gauss = generator.get_state()
        tail = f"{kind} {place} {has_gauss} {float(gauss).hex()}".encode()
        states["random.numpy"] = digest(keys.tobytes() + tail)
    if is_used():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"random.cuda{index}"] = digest(tensor_bytes(state))
    return states


@contextmanager
def kept_generators() -> Iterator[None]:
    """Leave each default generator in its state, whatever is drawn meanwhile."""
    numpy = sys.modules.get("numpy.random")
    kept: list[tuple[Callable[[Any], None], Any]] = [
        (random.setstate, random.getstate()),
        (torch.set_rng_state, torch.get_rng_state()),
        *([(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())] if is_used() else []),
        *([(numpy.set_state, numpy.get_state())] if numpy is not None else []),
    ]
    try:
        yield
    finally:
        for restore, state in kept:
            restore(state)


def _python_state() -> bytes:
    version, words, gauss = random.getstate()
    return struct.pack(f"<{len(words) + 1}I", version, *words) + repr(gauss).encode()


# ----------------------------------------------------------------------------------------------------------------- CUDA
# What CUDA does in this process, asked without initialising it: of that, a fork or a late variable would suffer.
#
# `torch.cuda.is_available()` and its like count GPUs, and by that initialise the driver: a child that is forked later
# cannot use CUDA, and CUDA_VISIBLE_DEVICES has no effect any more. A recorded program must be able to do both.

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


# ---------------------------------------------------------------------------------------------------------------- modes
# The program's own modes, which intercept operations and functions of torch: the recorder works outside of them.
#
# A mode may add noise, count, or draw from a generator. What the recorder does within one would change the program.


@contextmanager
def outside_modes() -> Iterator[None]:
    """Work outside every dispatch mode and function mode that is active; they are active again afterwards."""
    num_functions = torch._C._len_torch_function_stack()
    if not num_functions and not torch._C._len_torch_dispatch_stack():
        yield
        return
    with _disable_current_modes():
        functions = [_pop_mode() for _ in range(num_functions)]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for mode in reversed(functions):
                _push_mode(mode)  # type: ignore[no-untyped-call]


# -------------------------------------------------------------------------------------------------------------- threads
# Which thread of a process trains: one at a time, since the order between threads differs from run to run.
#
# | a hook is called | then |
# |---|---|
# | by the thread that trains | it is recorded |
# | by the autograd engine, which has a thread for each GPU | it belongs to the thread that called backward |
# | by another, when the first has ended, or has ended its step | that one trains from then on |
# | by another, while the first one is in a step | both train at once |
# | by a former one, while its successor lives | both train at once |

AT_ONCE = (
    "two threads train at once in one process, and their order differs from run to run: start the second one after the"
    " first has ended (thread.join()), or give each a process of its own"
)


def is_in_backward() -> bool:
    """Return whether the autograd engine has called this, in any thread: a hook, or the backward of a function."""
    return torch._C._current_graph_task_id() != -1


class TrainingThreads:
    """Remembers the thread that trains, and those that did."""

    def __init__(self) -> None:
        self._ident: int | None = None
        self._thread: weakref.ref[threading.Thread] | None = None
        self._former: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    @property
    def is_another(self) -> bool:
        """Whether this thread is another than the one that trains; False before any has trained."""
        return self._ident not in (None, threading.get_ident()) and not is_in_backward()

    def admit(self, *, is_within_step: bool) -> bool:
        """Let this thread train; False where another one does. `is_within_step` says whether a step has begun."""
        ident = threading.get_ident()
        if ident == self._ident or is_in_backward():
            return True
        # Without an object for a thread that has none, which the program would see.
        thread = next((each for each in threading.enumerate() if each.ident == ident), None)
        if self._ident is not None and self._lives(self._ident):
            if is_within_step or thread in self._former:
                return False
            if self._thread is not None and (former := self._thread()) is not None:
                self._former.add(former)
        self._ident, self._thread = ident, None if thread is None else weakref.ref(thread)
        return True

    def _lives(self, ident: int) -> bool:
        if self._thread is None:  # started without the threading module
            return ident in sys._current_frames()
        thread = self._thread()
        return thread is not None and thread.is_alive()
