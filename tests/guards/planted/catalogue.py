"""Every fault, by collection, in the order of a step."""

import difflib
from collections.abc import Mapping

from tests.guards.planted.fault import Fault
from tests.guards.planted.faults import (
    advantages,
    between_steps,
    critics,
    decoding,
    losses,
    minibatches,
    numerics,
    optimizer,
    resume,
    review_learning,
    review_rollouts,
    review_state,
    rewards,
    sampling,
    second_deployments,
    second_learning,
    second_rollouts,
    second_state,
    weights,
)

TRAINERS: tuple[Fault, ...] = (
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
COLLECTIONS: Mapping[str, tuple[Fault, ...]] = {
    "trainers": TRAINERS,
    "second": (*second_deployments.FAULTS, *second_rollouts.FAULTS, *second_learning.FAULTS, *second_state.FAULTS),
    "review": (*review_rollouts.FAULTS, *review_learning.FAULTS, *review_state.FAULTS),
}
"""Faults by who thought of them: those that other trainers had, and those of people who had not written the checks."""
FAULTS: tuple[Fault, ...] = tuple(fault for faults in COLLECTIONS.values() for fault in faults)


def named(name: str) -> Fault:
    """The fault of a name; KeyError, with the nearest names, where there is none."""
    found = {each.name: each for each in FAULTS}
    if name not in found:
        near = ", ".join(difflib.get_close_matches(name, found, n=3, cutoff=0.4))
        raise KeyError(f"no fault {name!r}" + (f"; did you mean {near}?" if near else ""))
    return found[name]
