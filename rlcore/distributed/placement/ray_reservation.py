"""The reservation of a plan on Ray: a placement group for each pool, each bundle on the node that the plan has for it.

    with reserve(plan, timeout_s=60) as reservation:
        backend = reservation.backend("trainer")
        with start_group(PolicyWorker, role="policy", size=4, backend=backend) as policy:
            ...

However the block ends, the placement groups are removed, and Ray ends the actors in them.
"""

import contextlib
import itertools
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.bits.text import nearest
from rlcore.distributed.backends.ray_actors import RayActors
from rlcore.distributed.placement.plan import Plan
from rlcore.distributed.placement.ray_cluster import usages
from rlcore.distributed.placement.waiting import departed, waiting_text
from rlcore.errors import InvalidValueError, PlacementError

POLL_S = 0.5
REPORT_S = 10.0
"""Seconds of waiting after which it is said what the reservation waits for; then after twice as many, and so on."""
RELEASE_S = 30.0
NODE_LABEL = "ray.io/node-id"
_NUMBERS = itertools.count(1)
"""Names of placement groups are unique in a cluster."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A plan whose slots are held."""

    plan: Plan
    groups: Mapping[str, Any]
    """Placement groups by pool; the index of a bundle is the rank."""

    def backend(self, process: str, *, start_timeout_s: float = 600.0) -> RayActors:
        """Return the backend of a worker group that runs a process of the plan, a rank in each slot of its pool.

        Raises InvalidValueError for a process that the plan does not have.
        """
        names = [each.name for each in self.plan.processes]
        if process not in names:
            raise InvalidValueError(f"no process {process!r}", legal=", ".join(names), remedy=nearest(process, names))
        found = self.plan.processes[names.index(process)]
        return RayActors(
            num_cpus=found.cpus,
            num_gpus=found.gpus,
            placement_group=self.groups[found.pool],
            start_timeout_s=start_timeout_s,
        )


@contextmanager
def reserve(plan: Plan, *, timeout_s: float, say: Callable[[str], None] = lambda _: None) -> Iterator[Reservation]:
    """Hold the slots of a plan while the block runs; `plan` is of nodes of the cluster that this process has joined.

    While it waits, it says what for. Raises PlacementError, with what it waited for, after `timeout_s` seconds,
    and at once if a node of the plan leaves the cluster.
    """
    groups: dict[str, Any] = {}
    try:
        for pool in plan.pools:
            groups[pool.name] = _request(plan, pool.name)
        deadline_s = time.monotonic() + timeout_s
        for name, group in groups.items():
            _wait(plan, name, group, deadline_s, timeout_s=timeout_s, say=say)
        yield Reservation(plan, groups)
    finally:
        _release(groups)


def _request(plan: Plan, name: str) -> Any:
    """Ask for the bundles of a pool."""
    from ray.util import placement_group

    (pool,) = (each for each in plan.pools if each.name == name)
    needs = {"GPU": float(pool.gpus_per_slot), "CPU": pool.cpus_per_slot}
    bundle = {kind: number for kind, number in needs.items() if number}
    ids = {node.name: node.node_id for node in plan.nodes}
    slots = plan.slots_of(name)
    return placement_group(
        [bundle] * len(slots),
        strategy="PACK",
        name=f"pool {name} of pid {os.getpid()} on {platform.node()} (reservation {next(_NUMBERS)})",
        bundle_label_selector=[{NODE_LABEL: ids[slot.node]} for slot in slots],
    )


def _wait(
    plan: Plan, name: str, group: Any, deadline_s: float, *, timeout_s: float, say: Callable[[str], None]
) -> None:
    """Return when the bundles of a pool are held."""
    began_s, report_s = time.monotonic(), REPORT_S
    while not group.wait(POLL_S):
        now_s = time.monotonic()
        found = usages()
        if gone := departed(plan, found):
            raise PlacementError(
                f"pool {name}: node {', '.join(gone)} has left the cluster", remedy="make a new plan of the nodes left"
            )
        if now_s >= deadline_s:
            raise PlacementError(
                f"not reserved within {timeout_s:g} s: {waiting_text(plan, name, found)}",
                remedy="end what holds the resources, or wait longer (timeout_s), or use fewer slots",
            )
        if now_s - began_s >= report_s:
            say(f"waiting for {waiting_text(plan, name, found)}")
            report_s *= 2


def _release(groups: Mapping[str, Any]) -> None:
    """Remove placement groups, and return when Ray has given back what they held."""
    import ray
    from ray.util import remove_placement_group
    from ray.util.placement_group import placement_group_table

    if not ray.is_initialized():
        return  # the cluster has removed them with this driver
    for group in groups.values():
        with contextlib.suppress(ray.exceptions.RayError):  # the cluster has ended, and its placement groups with it
            remove_placement_group(group)
    deadline_s = time.monotonic() + RELEASE_S
    with contextlib.suppress(ray.exceptions.RayError):
        while time.monotonic() < deadline_s and any(
            placement_group_table(group)["state"] != "REMOVED" for group in groups.values()
        ):
            time.sleep(POLL_S / 10)
