"""A cluster of Ray: the session of a run, its nodes, and the bundles that a plan reserves.

    with ray_session(address, num_cpus=4), reserve(plan, timeout_s=60) as reservation:
        with start_group(PolicyWorker, role="policy", size=4, reservation=reservation) as policy:
            ...

However the block ends, the placement group is removed, and Ray ends the actors in it.
"""

import contextlib
import itertools
import os
import platform
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import placement_group_table

from rlcore.distributed.placement import Node, Plan, amount
from rlcore.errors import InvalidValueError, PlacementError

NICENESS = "RAY_worker_niceness"
"""Variable of Ray for how far its workers stand back for other processes: by default so far that they starve."""
CONNECT_S = 10.0
"""For an address to answer."""
POLL_S = 0.5
REPORT_S = 10.0
"""Seconds of waiting after which it is said what the reservation waits for; then after twice as many, and so on."""
RELEASE_S = 30.0
_NUMBERS = itertools.count(1)
"""Names of placement groups are unique in a cluster."""
_LEGAL = "the address of a cluster of Ray that runs (host:6379), auto, or empty for a local one"


@contextmanager
def ray_session(address: str, *, num_cpus: int) -> Iterator[None]:
    """Hold a session: the one that this process has joined, or that of `address`, or a local one if it is empty.

    A local session counts at least `num_cpus` CPUs, so that as many actors run on any machine. What was started or
    joined here ends with the context. Raises InvalidValueError if there is no cluster at the address.
    """
    if ray.is_initialized():
        yield
        return
    host, separator, port = address.rpartition(":")
    try:
        if separator and "://" not in address:  # Ray itself would wait for minutes where nothing listens
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        if address:
            ray.init(address=address, log_to_driver=False)
        else:
            cpus = max(num_cpus, os.cpu_count() or 1)
            os.environ.setdefault(NICENESS, "0")
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    except (OSError, ValueError, OverflowError) as error:
        raise InvalidValueError(
            f"deployment.address {address!r}: {error}",
            legal=_LEGAL,
            remedy="ray status --address ADDRESS shows whether it runs",
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def ray_nodes() -> tuple[Node, ...]:
    """Return the nodes that are alive, by name; equal names are followed by the first digits of the id."""
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    counts = Counter(node["NodeName"] for node in alive)
    nodes = []
    for node in alive:
        name, node_id, resources = node["NodeName"], node["NodeID"], node["Resources"]
        name = name if counts[name] == 1 else f"{name}/{node_id[:8]}"
        nodes.append(Node(name, int(resources.get("GPU", 0)), float(resources.get("CPU", 0)), node_id))
    return tuple(sorted(nodes, key=lambda node: node.name))


@dataclass(frozen=True, slots=True)
class Reservation:
    """A plan whose resources are held: a bundle for each node, in the order of ranks."""

    plan: Plan
    group: Any


@contextmanager
def reserve(plan: Plan, *, timeout_s: float, say: Callable[[str], None] = lambda _: None) -> Iterator[Reservation]:
    """Hold the resources of a plan while the block runs, in the cluster that this process has joined.

    While it waits, it says what for. Raises PlacementError, with what it waited for, after `timeout_s` seconds.
    """
    needs = {"GPU": float(plan.section.gpus_per_rank * plan.share), "CPU": plan.section.cpus_per_rank * plan.share}
    group = placement_group(
        [{kind: number for kind, number in needs.items() if number}] * plan.num_nodes,
        strategy="STRICT_PACK" if plan.num_nodes == 1 else "STRICT_SPREAD",
        name=f"ranks of pid {os.getpid()} on {platform.node()} (reservation {next(_NUMBERS)})",
    )
    try:
        began_s, report_s = time.monotonic(), REPORT_S
        while not group.wait(POLL_S):
            waited_s = time.monotonic() - began_s
            if waited_s >= timeout_s:
                raise PlacementError(
                    f"not reserved within {timeout_s:g} s: {waiting_text(plan)}",
                    remedy="end what holds the resources, or wait longer (timeout_s), or use fewer ranks",
                )
            if waited_s >= report_s:
                say(f"waiting for {waiting_text(plan)}")
                report_s *= 2
        yield Reservation(plan, group)
    finally:
        _release(group)


def waiting_text(plan: Plan) -> str:
    """Return what a plan waits for: its need of a node, what each node has free, and who holds placement groups."""
    from ray._private import state  # what it answers is public only through a dashboard, which a cluster may not have

    books: Any = state
    free = books.available_resources_per_node()
    have = "; ".join(
        f"{node.name} has {free.get(node.node_id, {}).get('GPU', 0):g} of {amount(node.num_gpus, 'GPU')}"
        f" and {free.get(node.node_id, {}).get('CPU', 0):g} of {amount(node.num_cpus, 'CPU')} free"
        for node in ray_nodes()
    )
    gpus = amount(plan.section.gpus_per_rank * plan.share, "GPU")
    cpus = amount(plan.section.cpus_per_rank * plan.share, "CPU")
    groups = [each["name"] for each in placement_group_table().values() if each["state"] == "CREATED"]
    held = f"; held by {', '.join(groups)}" if groups else ""
    return f"{gpus} and {cpus} on {amount(plan.num_nodes, 'node')}: {have}{held}"


def _release(group: Any) -> None:
    """Remove a placement group, and return when Ray has given back what it held."""
    if not ray.is_initialized():
        return  # the cluster has removed it with this driver
    with contextlib.suppress(ray.exceptions.RayError):  # the cluster has ended, and its placement groups with it
        remove_placement_group(group)
        deadline_s = time.monotonic() + RELEASE_S
        while time.monotonic() < deadline_s and placement_group_table(group)["state"] != "REMOVED":
            time.sleep(POLL_S / 10)
