"""Environment of a child process: that of its parent, except for these variables.

| variable | in the child |
|---|---|
| `CUDA_VISIBLE_DEVICES` | UUIDs of the leased GPUs, joined by commas. Empty for a unit of 0 GPUs. As in the parent if there is no lease (collection). |
| `CUDA_DEVICE_ORDER` | as in the parent; with `--device-ids number`, `PCI_BUS_ID`, and `CUDA_VISIBLE_DEVICES` holds NVML's numbers of whole GPUs |
| `RAY_ADDRESS` | removed, not emptied: a unit never joins a cluster of someone else |
| `RAY_TMPDIR` | removed: Ray prefers it to TMPDIR, and units that share it find each other's cluster |
| `TMPDIR` | directory of the attempt, short enough for Ray's socket paths, on a local file system, removed afterwards |
| `RLHARNESS_ATTEMPT` | unique marker of the attempt, by which its processes can be found |
| `RLHARNESS_LEASE` | that marker, a blank, and the leased GPUs: a run within the attempt may lease those. Absent for a unit of 0 GPUs, as in the parent if there is no lease |
| `MASTER_PORT` | first of the 64 ports that belong to the slot; a free port alone if other runs have all blocks, which the run notes |
| `PYTEST_XDIST_WORKER` | `gw` and the number of the slot or worker; no other unit has it at the same time |
| `PYTEST_XDIST_WORKER_COUNT` | number of GPUs and CPU slots |
| `PYTEST_XDIST_TESTRUNUID` | name of the run |
| `NCCL_SOCKET_IFNAME` | `lo`, if this host cannot reach its own address on the network that a library would pick, only one host takes part, and the user has not set it |
| `GLOO_SOCKET_IFNAME` | the same |
| `RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER` | `0` in the same case: Ray stays on loopback |
| `RLHARNESS_PREFLIGHT` | `done`, if this run has checked the network: a run within this one does not check again |
| everything else | as in the parent, `TMP` and `TEMP` too. If the parent has not set them: `TORCHINDUCTOR_CACHE_DIR` is the directory that torch would use in the parent, so that files share what torch.compile has made. `OMP_NUM_THREADS` is the share of a lease in the processor cores, which are divided among the machine's GPUs |
"""  # noqa: E501

import getpass
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
ATTEMPT_MARKER = "RLHARNESS_ATTEMPT"
LEASE = "RLHARNESS_LEASE"
PREFLIGHT = "RLHARNESS_PREFLIGHT"
XDIST = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")
"""Variables of a worker of pytest-xdist."""
REMOVED = ("RAY_ADDRESS", "RAY_TMPDIR")
OMP_NUM_THREADS = "OMP_NUM_THREADS"
INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
VARYING = frozenset(
    (
        *(
            CUDA_VISIBLE_DEVICES,
            "CUDA_DEVICE_ORDER",
            "TMPDIR",
            ATTEMPT_MARKER,
            LEASE,
            "MASTER_PORT",
            OMP_NUM_THREADS,
            PREFLIGHT,
        ),
        *XDIST,
        *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"),
    )
)
"""What may differ between the children of one run."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The lease within which this process runs; without one, no GPUs."""

    marker: str = ""
    """Name of the attempt that has the lease."""
    gpu_ids: tuple[str, ...] = ()


def surrounding_lease(environ: Mapping[str, str]) -> Surroundings:
    """Return the lease that a run around this process has given it."""
    marker, _, gpu_ids = environ.get(LEASE, "").partition(" ")
    return Surroundings(marker, tuple(gpu_ids.split(","))) if gpu_ids else Surroundings()


def lease_variable(marker: str, gpus: Sequence["Gpu"]) -> dict[str, str]:
    """Return the variable that `surrounding_lease` reads; nothing without GPUs."""
    return {LEASE: f"{marker} {','.join(gpu.gpu_id for gpu in gpus)}"} if gpus else {}


class Gpu(Protocol):
    """A GPU as CUDA_VISIBLE_DEVICES names it."""

    @property
    def gpu_id(self) -> str:
        """UUID of the GPU."""

    @property
    def number(self) -> int | None:
        """Number that NVML gives it; None for a MIG instance."""


def child_env(
    parent: Mapping[str, str],
    *,
    gpus: Sequence[Gpu] | None,
    tmpdir: str,
    marker: str,
    master_port: int,
    by_number: bool = False,
    pins: Mapping[str, str] | None = None,
    xdist: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The whole environment of one child: the table above, applied to `parent`, which stays as it is.

    `gpus` are the leased GPUs in the order the child shall number them, () for none, None where no lease is in play.
    `by_number` names them by NVML's numbers where each has one: vLLM up to at least 0.20 reads nothing else (its
    change 46132 ends that). `pins` are what the network preflight sets, None where there was none; `xdist` are the
    variables of `xdist_variables`.
    """
    env = {name: value for name, value in parent.items() if name not in REMOVED}
    env.setdefault(INDUCTOR_CACHE, _inductor_cache(parent))
    if gpus is not None:
        env[CUDA_VISIBLE_DEVICES] = ",".join(gpu.gpu_id for gpu in gpus)
        env.pop(LEASE, None)
        env |= lease_variable(marker, gpus)
    if gpus and by_number and all(gpu.number is not None for gpu in gpus):
        env[CUDA_VISIBLE_DEVICES] = ",".join(str(gpu.number) for gpu in gpus)
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    env |= xdist or {}
    if pins is not None:
        env |= pins
        env[PREFLIGHT] = "done"
    env["TMPDIR"] = tmpdir
    env[ATTEMPT_MARKER] = marker
    env["MASTER_PORT"] = str(master_port)
    return env


def _inductor_cache(parent: Mapping[str, str]) -> str:
    """Return torch's own choice in `parent` (torch._inductor.runtime.cache_dir_utils); Triton's cache is within it."""
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container may have no name for its user
        user = str(os.getuid())
    return os.path.join(parent.get("TMPDIR") or "/tmp", f"torchinductor_{user}")


def xdist_variables(number: int, count: int, run_id: str) -> dict[str, str]:
    """Return the variables of worker `number` of `count`, as pytest-xdist sets them."""
    return dict(zip(XDIST, (f"gw{number}", str(count), run_id), strict=True))
