"""Every fault, by collection, in the order of a step."""

from tests.guards.planted.fault import FAULTS as ROWS
from tests.guards.planted.fault import Fault
from tests.guards.planted.fault import named as row_named
from tests.guards.planted.faults import (
    review_learning,
    review_rollouts,
    review_state,
    second_deployments,
    second_learning,
    second_rollouts,
    second_state,
)

MODULES = (
    second_deployments,
    second_rollouts,
    second_learning,
    second_state,
    review_rollouts,
    review_learning,
    review_state,
)
FAULTS: tuple[Fault, ...] = (*ROWS, *(fault for module in MODULES for fault in module.FAULTS))


def named(name: str) -> Fault:
    """The fault of a name; KeyError, with the nearest names, where there is none."""
    found = {each.name: each for each in FAULTS}
    return found[name] if name in found else row_named(name)
