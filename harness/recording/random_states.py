"""The state of every random-number generator that this process has, read without drawing from any."""

import random
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from harness.bits.digests import digest
from harness.recording.cuda_state import is_used
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
