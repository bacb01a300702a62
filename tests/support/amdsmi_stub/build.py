"""Lays out the pretended ROCm and writes what it shows.

rocm = build(directory)
machine = machine_of(StubAmdGpu(used_mib=12_000), StubAmdGpu())
machine.write(file)                             # again at any time: the package reads it at every call
subprocess.run(command, env={**environ, **stub_env(rocm, file)})
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import xxhash

_PACKAGE = Path(__file__).with_name("amdsmi.py")


def build(directory: Path) -> Path:
    """Put the package and a library into `directory` as ROCm lays them out; returns the directory.

    The library is any that loads: only the package would call it. Beside it is a file that no loader takes for NVML,
    which hides whatever NVIDIA driver this machine has.
    """
    package = directory / "share" / "amd_smi" / "amdsmi"
    package.mkdir(parents=True)
    (directory / "lib").mkdir()
    shutil.copy(_PACKAGE, package / "__init__.py")
    (loadable,) = Path(xxhash.__file__).parent.glob("_xxhash*.so")
    (directory / "lib" / "libamd_smi.so").symlink_to(loadable)
    (directory / "lib" / "libnvidia-ml.so.1").write_bytes(b"")
    return directory


def stub_env(rocm: Path, file: Path) -> dict[str, str]:
    """The variables by which a new process finds the package, and the package its file."""
    return {
        "ROCM_PATH": str(rocm),
        "ROCM_HOME": str(rocm),
        "LD_LIBRARY_PATH": str(rocm / "lib"),
        "AMDSMI_STUB_FILE": str(file),
    }


@dataclass
class StubProcess:
    """A process that AMD SMI lists on a GPU."""

    pid: int
    vram_bytes: int | str = 10**9


@dataclass
class StubAmdGpu:
    """A GPU, or a partition of one."""

    unique_id: int = 0
    node: int | str = 0
    """KFD node; "N/A" for a device that has none."""
    partition: int | str = 0
    bdf: str = "0000:00:00.0"
    model: str = "AMD Instinct Stub"
    compute_partition: str = "SPX"
    total_mib: int | str = 196_608
    used_mib: int | str = 283
    """"N/A" where AMD SMI does not know, as in the line above and for processes."""
    processes: list[StubProcess] = field(default_factory=list)
    xgmi: list[int] = field(default_factory=list)
    """Numbers of the GPUs that XGMI joins to it."""
    link_status: str = ""
    """A letter a link: U up, D down, X none."""
    uncorrected: int | str = 0
    violations: list[str] = field(default_factory=list)


@dataclass
class AmdMachine:
    """All that the package shows."""

    gpus: list[StubAmdGpu] = field(default_factory=list)
    failures: list[tuple[str, int, str]] = field(default_factory=list)
    """Function, GPU (-1 for all), and the status it then answers with; "HANGS" for no answer."""

    def write(self, file: Path) -> None:
        """Put the text in `file` at once, so that no reader sees half of it."""
        new = file.with_name(file.name + ".new")
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(new, file)


def machine_of(*gpus: StubAmdGpu, failures: Sequence[tuple[str, int, str]] = ()) -> AmdMachine:
    """A machine of `gpus`, which become GPU-…a0, GPU-…a1… at KFD nodes 2, 3… (0 and 1 are processors)."""
    for number, gpu in enumerate(gpus):
        gpu.unique_id, gpu.node, gpu.bdf = 0xA0 + number, number + 2, f"0000:{number + 3:02x}:00.0"
    return AmdMachine(list(gpus), list(failures))


def uuid_of(number: int) -> str:
    """UUID of the GPU that `machine_of` made of its argument `number`."""
    return f"GPU-{0xA0 + number:016x}"
