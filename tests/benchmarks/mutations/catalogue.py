"""Every fault, in the order of a step."""

import difflib

from tests.benchmarks.mutations.fault import Fault
from tests.benchmarks.mutations.faults import (
    advantages,
    between_steps,
    critics,
    decoding,
    losses,
    minibatches,
    numerics,
    optimizer,
    resume,
    rewards,
    sampling,
    weights,
)

FAULTS: tuple[Fault, ...] = (
    *sampling.FAULTS,
    *decoding.FAULTS,
    *rewards.FAULTS,
    *advantages.FAULTS,
    *critics.FAULTS,
    *losses.FAULTS,
    *minibatches.FAULTS,
    *numerics.FAULTS,
    *optimizer.FAULTS,
    *weights.FAULTS,
    *resume.FAULTS,
    *between_steps.FAULTS,
)


def named(name: str) -> Fault:
    """The fault of a name; KeyError, with the nearest names, where there is none."""
    found = {each.name: each for each in FAULTS}
    if name not in found:
        near = ", ".join(difflib.get_close_matches(name, found, n=3, cutoff=0.4))
        raise KeyError(f"no fault {name!r}" + (f"; did you mean {near}?" if near else ""))
    return found[name]
