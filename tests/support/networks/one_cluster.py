"""A Ray cluster of one node, and one task on it; prints the node's address and what the task has returned."""

import ray


@ray.remote
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


if __name__ == "__main__":
    print("starting Ray", flush=True)
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20)
    (node,) = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own
    print(f"node {node['NodeManagerAddress']}: {ray.get(double.remote(21))}", flush=True)
    ray.shutdown()
