"""Builds the pretended driver and writes what it shows.

    library = build(directory)                      # needs a C compiler
    machine = Machine([Card(used_mb=12_000)])
    machine.write(file)                             # again at any time: the library reads it at every call
    subprocess.run(command, env={**environ, **stub_env(library, file)})

The variables work for a process started with them: the loader reads LD_LIBRARY_PATH once, at its start.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SOURCE = Path(__file__).with_name("stub.c")
_LIBRARY = "libnvidia-ml.so.1"


def compiler() -> str | None:
    """Path of a C compiler on this machine; None without one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(directory: Path) -> Path:
    """Compiles the library into `directory`, and returns its path.

    Raises FileNotFoundError without a C compiler, subprocess.CalledProcessError where it does not compile.
    """
    command = compiler()
    if command is None:
        raise FileNotFoundError("no C compiler (cc, gcc or clang) on PATH")
    library = directory / _LIBRARY
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{_LIBRARY}"]
    subprocess.run([command, *flags, "-o", str(library), str(_SOURCE)], check=True, stdin=subprocess.DEVNULL)
    return library


def stub_env(library: Path, file: Path, parent: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables by which a new process finds the library and the library its file, `parent`'s path kept behind."""
    behind = (parent or {}).get("LD_LIBRARY_PATH", "")
    path = f"{library.parent}:{behind}" if behind else str(library.parent)
    return {"LD_LIBRARY_PATH": path, "NVML_STUB_FILE": str(file)}


@dataclass
class Process:
    """A process that NVML lists on a GPU."""

    pid: int
    used_mb: int = 0
    """-1 where NVML does not report it."""
    kind: str = "compute"
    """Or "graphics", or "mps" for a client of MPS."""


@dataclass
class Instance:
    """A MIG instance."""

    uuid: str
    gpu_instance: int = 1
    compute_instance: int = 0
    total_mb: int = 10_000
    used_mb: int = 0
    model: str = "NVIDIA Stub MIG 1g.10gb"
    processes: list[Process] = field(default_factory=list)


@dataclass
class StubGpu:
    """A GPU; MB are 10**6 bytes."""

    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    bus_id: str = "00000000:01:00.0"
    total_mb: int = 80_000
    used_mb: int = 0
    capability: tuple[int, int] = (9, 0)
    compute_mode: int = 0
    mig_mode: int = -1
    """1 on, 0 off, -1 for a GPU that has none."""
    model: str = "NVIDIA Stub"
    instances: list[Instance] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    """Bus id of the far end of each active NVLink."""
    idle_links: int = 0
    """NVLinks that it has beside those, and that are not active."""
    numa_node: int | None = None
    slow: int = 0
    """Why its clocks are lowered: NVML's bits."""
    uncorrected: int = 0
    """Uncorrected errors of its memory."""
    remap_pending: bool = False
    remap_failed: bool = False
    retirement_pending: bool = False
    display: bool = False
    """Whether a screen is on it."""
    fabric: tuple[int, int] | None = None
    """State and status in the fabric of NVSwitches; None without one."""
    part_codes: dict[int, int] = field(default_factory=dict)
    """Error with which asking for a MIG instance is answered, by its index, be it there or not."""


@dataclass
class Machine:
    """All that the library shows."""

    gpus: list[StubGpu] = field(default_factory=list)
    xids: list[tuple[int, int]] = field(default_factory=list)
    """GPU and number of each error that the driver has reported; only ever longer."""
    failures: list[tuple[str, int, int]] = field(default_factory=list)
    """NVML function, GPU (-1 for all), and the error code it then answers with."""
    driver: tuple[str, int] = ("570.86.15", 12080)
    """The driver's version, and the newest CUDA it can serve as NVML writes it: 12080 for 12.8."""

    def text(self) -> str:
        """The file's text, as stub.c describes it."""
        lines = [f"driver {self.driver[0]} {self.driver[1]}"]
        for number, gpu in enumerate(self.gpus):
            major, minor = gpu.capability
            numbers = f"{gpu.total_mb} {gpu.used_mb} {major} {minor} {gpu.compute_mode} {gpu.mig_mode}"
            lines.append(f"gpu {gpu.uuid} {gpu.bus_id} {numbers} {gpu.model}")
            lines += [f"process {number} -1 {p.pid} {p.used_mb} {p.kind}" for p in gpu.processes]
            lines += [f"link {number} {link} 1 {peer}" for link, peer in enumerate(gpu.links)]
            idle = range(len(gpu.links), len(gpu.links) + gpu.idle_links)
            lines += [f"link {number} {link} 0 -" for link in idle]
            errors = (gpu.uncorrected, gpu.remap_pending, gpu.remap_failed, gpu.retirement_pending)
            lines += [f"memory {number} {' '.join(str(int(each)) for each in errors)}"] if any(errors) else []
            lines += [f"slow {number} {gpu.slow}"] if gpu.slow else []
            lines += [f"display {number} 1"] if gpu.display else []
            lines += [f"fabric {number} {gpu.fabric[0]} {gpu.fabric[1]}"] if gpu.fabric else []
            lines += [f"part {number} {index} {code}" for index, code in gpu.part_codes.items()]
            lines += [f"numa {number} {gpu.numa_node}"] if gpu.numa_node is not None else []
            for place, part in enumerate(gpu.instances):
                ids = f"{part.gpu_instance} {part.compute_instance}"
                lines.append(f"mig {number} {part.uuid} {ids} {part.total_mb} {part.used_mb} {part.model}")
                lines += [f"process {number} {place} {p.pid} {p.used_mb} {p.kind}" for p in part.processes]
        lines += [f"xid {gpu_number} {xid}" for gpu_number, xid in self.xids]
        lines += [f"fail {function} {gpu_number} {code}" for function, gpu_number, code in self.failures]
        return "\n".join(lines) + "\n"

    def write(self, file: Path) -> None:
        """Puts the text in `file` at once, so that no reader sees half of it."""
        new = file.with_name(file.name + ".new")
        new.write_text(self.text())
        os.replace(new, file)


def machine_of(*gpus: StubGpu, failures: Sequence[tuple[str, int, int]] = ()) -> Machine:
    """A machine of `gpus`, which become GPU-a, GPU-b… at bus ids 00000000:01:00.0, 00000000:02:00.0…"""
    for number, gpu in enumerate(gpus):
        gpu.uuid = f"GPU-{chr(ord('a') + number)}"
        gpu.bus_id = f"00000000:{number + 1:02X}:00.0"
    return Machine(list(gpus), failures=list(failures))
