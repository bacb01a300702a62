"""The state of every random-number generator that this process has, read without drawing from any."""

import random
import struct
import sys

import torch

from harness.recording.cuda_state import is_used
from harness.recording.tensors import tensor_bytes
from harness.trace.digests import digest


class RandomStates:
    """Finds the generators that were seeded or drawn from since the last check.

    It never reports an unused one: Python's and NumPy's begin with another state in every process.
    """

    def __init__(self) -> None:
        self._seen = read_states()

    def meet_new(self) -> None:
        """Add the generators that are new; their present state counts as unused."""
        self._seen = {**read_states(), **self._seen}

    def changed(self) -> dict[str, tuple[str, bytes]]:
        """(algorithm, digest) of each generator whose state is not what it was, by name."""
        states = read_states()
        found = {name: state for name, state in states.items() if self._seen.get(name) != state}
        self._seen = states
        return found


def read_states() -> dict[str, tuple[str, bytes]]:
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


def _python_state() -> bytes:
    version, words, gauss = random.getstate()
    return struct.pack(f"<{len(words) + 1}I", version, *words) + repr(gauss).encode()
