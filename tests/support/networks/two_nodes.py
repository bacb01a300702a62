"""A task on each of the two nodes of a Ray cluster that runs at the address given; prints the nodes' addresses."""

import socket
import sys

import ray


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def where() -> str:
    """The name of the host this runs on; the other's turn comes while this one takes its time."""
    return socket.gethostname()


if __name__ == "__main__":
    ray.init(address=sys.argv[1])
    names: set[str] = set()
    while len(names) < 2:
        names |= set(ray.get([where.remote() for _ in range(4)]))
    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own
    print(*sorted(node["NodeManagerAddress"] for node in nodes), *sorted(names), flush=True)
    ray.shutdown()
