"""A process that joins a Ray cluster and holds an agent on each of its nodes. Ray does nothing else for a run.

    run ──stdin: address, port, key──▶ this process ──one actor per node, by node affinity──▶ rlharness agent
        ◀──stdout: number of nodes, or why not──          the agents dial the run
    stdin ends ─▶ ray.shutdown: the actors end, and the agents whose run is over

It is a process of its own, so that a run keeps none of Ray's threads, and its children are its own.
"""

import json
import os
import subprocess
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

UNCHANGED_GPUS = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1"}
"""With these, Ray shows an actor the GPUs of its node, although the actor asks for none."""


class AgentHolder:
    """Holds the agent of one node."""

    def serve(self, address: str, key: str) -> int:
        """Run an agent for the run at `address` to its end; its exit code.

        Its environment is that of the node, without Ray's variables: tests start clusters of their own.
        """
        environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        command = [sys.executable, "-P", "-m", "harness", "agent", address, "--key-file", "-"]
        agent = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE)
        agent.communicate(f"{key}\n".encode())
        return agent.returncode


def start_agents(ray_address: str, port: int, key: str) -> tuple[int, list[Any]]:
    """Join the Ray cluster and start an agent on each living node; their number, and what holds them."""
    api: Any = ray  # most of it has no types
    api.init(address=ray_address, namespace="rlharness", log_to_driver=True)
    nodes = [node["NodeID"] for node in api.nodes() if node["Alive"]]
    address = f"{api.util.get_node_ip_address()}:{port}"
    holders = []
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        remote = api.remote(num_cpus=0, max_restarts=0, runtime_env={"env_vars": UNCHANGED_GPUS})(AgentHolder)
        holder = remote.options(scheduling_strategy=strategy).remote()
        holders.append((holder, holder.serve.remote(address, key)))
    return len(nodes), holders


def main() -> None:
    """Serve one run, whose order is the first line of standard input, until that ends."""
    order = json.loads(sys.stdin.readline())
    try:
        num_nodes, holders = start_agents(order["ray_address"], order["port"], order["key"])
        said: dict[str, Any] = {"nodes": num_nodes}
    except Exception as error:  # whatever Ray raises is the run's to report
        said, holders = {"error": " ".join(f"{type(error).__name__}: {error}".split())}, []
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    if holders:
        ray.wait([ended for _, ended in holders], num_returns=len(holders), timeout=order["end_s"])
    ray.shutdown()
