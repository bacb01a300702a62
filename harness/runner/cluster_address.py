"""The text of `--cluster`: simulated nodes here, agents that dial in, or the nodes of a Ray cluster."""

import re
from dataclasses import dataclass
from enum import StrEnum

from harness.core.errors import UsageError

LEGAL = "local:2x4 (2 simulated nodes of 4 GPUs), listen:N[@[HOST:]PORT] (N agents dial in), auto or HOST:PORT (Ray)"
MAX_LOCAL_NODES = 64
_LOCAL = re.compile(r"local:(\d{1,2})x(\d{1,2})")
_LISTEN = re.compile(r"listen:(\d{1,4})(?:@(?:(?P<host>[^@\s]+):)?(?P<port>\d{1,5}))?")
_RAY = re.compile(r"auto|[^\s:@/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


class Boot(StrEnum):
    """Who starts the agents."""

    LOCAL = "local"
    """The run itself, on this machine, with simulated GPUs."""
    LISTEN = "listen"
    """The user: with srun, with ssh, by hand."""
    RAY = "ray"
    """A Ray cluster, one on each of its nodes."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A parsed `--cluster`."""

    boot: Boot
    num_nodes: int = 0
    """0 for Ray, which knows."""
    gpus_per_node: int = 0
    """Simulated GPUs of each node of this machine."""
    host: str = ""
    """Address to listen at; empty for every IPv4 address of this machine."""
    port: int = 0
    """0 for any free port."""
    ray_address: str = ""


def parse_cluster(text: str) -> ClusterAddress:
    """Return the address that `--cluster` names. Raises UsageError."""
    if match := _LOCAL.fullmatch(text):
        num_nodes, num_gpus = int(match[1]), int(match[2])
        if 1 <= num_nodes <= MAX_LOCAL_NODES and num_gpus >= 1:
            return ClusterAddress(Boot.LOCAL, num_nodes, num_gpus, host="127.0.0.1")
    elif match := _LISTEN.fullmatch(text):
        num_nodes, port = int(match[1]), int(match["port"] or 0)
        if num_nodes >= 1 and port < 1 << 16:
            return ClusterAddress(Boot.LISTEN, num_nodes, host=(match["host"] or "").strip("[]"), port=port)
    elif _RAY.fullmatch(text) and not text.startswith(("local:", "listen:")):
        return ClusterAddress(Boot.RAY, ray_address=text)
    raise UsageError(f"--cluster {text}", legal=LEGAL, remedy="--cluster local:2x4 tries it on this machine")


def parse_dialled(text: str) -> tuple[str, int]:
    """Return host and port of the run that an agent dials. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"rlharness agent {text}", legal="HOST:PORT, the address that the run prints")
    return host.strip("[]"), int(port)
