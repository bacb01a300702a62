"""Whether an environment belongs to work over several nodes, where no process may be sent to loopback."""

from collections.abc import Mapping

from harness.machine.network.interfaces import HostNetwork, is_loopback, is_numeric

NODE_COUNTS = ("NNODES", "PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES")
"""Variables in which torchrun and Slurm give the number of nodes; torchrun's may be a range, "1:4"."""
SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))
"""Number of processes in all, and of those on this node."""
MASTER = "MASTER_ADDR"


def names_to_resolve(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that `why_several_nodes` needs resolved."""
    master = environ.get(MASTER, "")
    return (master,) if master and not is_numeric(master) else ()


def why_several_nodes(environ: Mapping[str, str], network: HostNetwork) -> str:
    """The variable, with its value, that says that several nodes take part; empty where none does.

    A name that does not resolve counts as another node: a missing pin is reported, a wrong one is not.
    """
    for name in NODE_COUNTS:
        if _number(environ.get(name, "").rpartition(":")[2]) > 1:
            return f"{name}={environ[name]}"
    for whole, local in SIZES:
        if local in environ and _number(environ.get(whole, "")) > _number(environ[local]):
            return f"{whole}={environ[whole]} over {local}={environ[local]}"
    master = environ.get(MASTER, "")
    if master and not _is_this_host(master, network):
        return f"{MASTER}={master}, which is not this host"
    return ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _is_this_host(name: str, network: HostNetwork) -> bool:
    if name in ("localhost", network.host_name):
        return True
    addresses = (name,) if is_numeric(name) else network.resolved.get(name, ())
    return any(is_loopback(address) or network.interface_of(address) for address in addresses)
