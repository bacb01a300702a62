"""Rank variables of torchrun or a scheduler: consistent numbers, a port, an address.

Variables and rules are those of torch.distributed's env:// (torch/distributed/rendezvous.py) and of torchrun, which
read them with int(). The remedy for invalid values is to unset them: no other value is a better guess.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.bits.errors import UsageError
from harness.doctor.host import Host
from harness.machine.findings import Finding, Severity
from harness.machine.network.interfaces import is_numeric, read_network

NAME_S = 2.0
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR")
LEAST = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": -1, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": 0}
"""The smallest number that each may be; LOCAL_RANK=-1 is how some programs say that there are no ranks."""
BELOW = (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("LOCAL_RANK", "WORLD_SIZE"))
"""Ranks are numbered from 0, so each is below the number of them."""
MAX_PORT = 65535
LAUNCHERS = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))
"""Rank, number of ranks, and rank on its host, as torchrun and Ray's trainers set them, and as srun does."""
SLURM_NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
DEFAULT_PORT = "29500"
"""Port of torch's own launchers."""


@dataclass(frozen=True, slots=True)
class Job:
    """Rank of this process in a job of a launcher."""

    rank: int
    num_ranks: int
    gpu: int
    """Number of its GPU on its host."""
    address: str
    """HOST:PORT of the store, on rank 0's host."""


def find_job(environ: Mapping[str, str]) -> Job:
    """Return the rank that a launcher has given this process; UsageError if none has, or if it cannot be."""
    for finding in (*check_numbers(environ), *classify_port(environ)):
        raise UsageError(f"--distributed: {finding.measured}", legal="what torchrun sets", remedy=finding.remedy)
    nodes = next((environ[name] for name in SLURM_NODES if name in environ), "")
    host = environ.get("MASTER_ADDR") or _first_node(nodes)
    for names in LAUNCHERS:
        rank, num_ranks, gpu = (_int(environ.get(name, "")) for name in names)
        if rank is not None and num_ranks is not None and host:
            return Job(rank, num_ranks, max(0, gpu or 0), f"{host}:{environ.get('MASTER_PORT') or DEFAULT_PORT}")
    raise UsageError(
        "--distributed without a number, and no launcher has given this process a rank and an address of rank 0",
        legal="--distributed N; or, in each rank of torchrun, srun or Ray, RANK, WORLD_SIZE and MASTER_ADDR or Slurm's",
        remedy="torchrun --nproc-per-node 2 -m harness doctor --distributed",
    )


def _first_node(nodes: str) -> str:
    """Return the first of Slurm's nodes, on which rank 0 is: "gpu[03-07,9],cpu1" begins with gpu03."""
    match = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


async def inspect_ranks(host: Host) -> Sequence[Finding]:
    """Whether this process takes itself for one rank of many, and whether that could be."""
    name = host.environ.get("MASTER_ADDR", "")
    resolved: Mapping[str, Sequence[str]] = {}
    if name and not is_numeric(name):
        resolved = (await read_network((name,), limit_s=NAME_S)).resolved
    return [
        *check_numbers(host.environ),
        *classify_port(host.environ),
        *classify_address(host.environ, resolved),
        check_ranks(host.environ),
    ]


def check_ranks(environ: Mapping[str, str]) -> Finding:
    """Ranks as torchrun or a scheduler sets them: init_process_group waits for all the others."""
    found = [f"{name}={environ[name]}" for name in RANKS if name in environ]
    if (_number(environ, "WORLD_SIZE") or 0) <= 1 or "RANK" not in environ:
        return Finding(
            "ranks", Severity.FINE, f"set: {' '.join(found)}" if found else "no variable gives this process a rank"
        )
    return Finding(
        "ranks",
        Severity.WARNING,
        " ".join(found),
        breaks="a test that calls init_process_group waits for all of these ranks",
        remedy="rlharness doctor --distributed, in each rank of the job, names those that do not come",
    )


def check_numbers(environ: Mapping[str, str]) -> list[Finding]:
    """Ranks and their counts that are no numbers, or do not fit each other; a finding a variable at most."""
    odd = [name for name in LEAST if name in environ and _number(environ, name) is None]
    broken = {name: _no_number(name, environ[name]) for name in odd}
    for finding in _misfits(environ):
        broken.setdefault(finding.check, finding)
    return list(broken.values())


def classify_port(environ: Mapping[str, str]) -> list[Finding]:
    """Check that MASTER_PORT is a port; torch treats an empty value as not set."""
    value = environ.get("MASTER_PORT", "")
    port = _int(value)
    if not value or (port is not None and 0 < port <= MAX_PORT):
        return []
    measured = f"MASTER_PORT={value}, which is not a port from 1 to {MAX_PORT}"
    return [_impossible("MASTER_PORT", measured, ("MASTER_PORT",))]


def classify_address(environ: Mapping[str, str], resolved: Mapping[str, Sequence[str]]) -> list[Finding]:
    """MASTER_ADDR that has no address; `resolved` lacks a name for which the resolver did not answer in time."""
    name = environ.get("MASTER_ADDR", "")
    if not name or is_numeric(name) or resolved.get(name):
        return []
    remedy = f"getent hosts {name} asks again; export MASTER_ADDR=ADDRESS, one of rank 0's host"
    if name in resolved:
        measured, breaks = f"MASTER_ADDR={name}, which has no address", "init_process_group cannot find rank 0"
        return [Finding("MASTER_ADDR", Severity.BROKEN, measured, breaks, remedy)]
    measured = f"MASTER_ADDR={name}: the resolver did not answer within {NAME_S:g} s"
    return [Finding("MASTER_ADDR", Severity.WARNING, measured, "init_process_group, which waits for it", remedy)]


def _misfits(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name, of in BELOW:
        rank, size = _number(environ, name), _number(environ, of)
        if rank is not None and size is not None and rank >= size:
            measured = f"{name}={rank} and {of}={size}: the last rank is {size - 1}"
            yield _impossible(name, measured, (name, of))
    local, world = _number(environ, "LOCAL_WORLD_SIZE"), _number(environ, "WORLD_SIZE")
    if local is not None and world is not None and local > world:
        measured = f"LOCAL_WORLD_SIZE={local} and WORLD_SIZE={world}: more ranks on this host than on all"
        yield _impossible("LOCAL_WORLD_SIZE", measured, ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))


def _no_number(name: str, value: str) -> Finding:
    shown = f"{name}={value}" if value else f"{name} is empty"
    return _impossible(name, f"{shown}, which is not a number of at least {max(0, LEAST[name])}", (name,))


def _impossible(check: str, measured: str, unsets: tuple[str, ...]) -> Finding:
    return Finding(
        check,
        Severity.BROKEN,
        measured,
        breaks="init_process_group, which rejects it or waits forever",
        remedy=f"unset {' '.join(unsets)}   # torchrun sets all of them, so that they fit",
        unsets=unsets,
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    """The variable as a number that it may be; None where it is none, or is not set."""
    number = _int(environ.get(name, ""))
    return number if number is not None and number >= LEAST[name] else None


def _int(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
