"""The GPUs a run may use, as plain data: read by `gpus`, pretended by `sim:N`, packed by `runner.packing`."""

from collections import Counter
from dataclasses import dataclass

IDLE_MEMORY_BYTES = 64 * 10**6
"""Memory a GPU may show and still count as idle, and by which it may miss its baseline when a lease ends.
Drivers keep up to some 20 MB on an idle GPU (their reserved part is not counted); the smallest CUDA context takes
over 100 MB."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance of a GPU."""

    gpu_id: str
    """The UUID ("GPU-8f2…", "MIG-…"), or "SIM-3" for a pretended GPU: unique, and what
    CUDA_VISIBLE_DEVICES is given, since CUDA's order is not NVML's."""
    index: int
    """Position among the GPUs this process inherited: what a person types in --gpus 0,2."""
    model: str
    """The name its driver gives ("NVIDIA H200")."""
    memory_gb: float
    """Total memory in GB (10**9 bytes); 0 when unknown, which satisfies no memory need."""
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability; (0, 0) when unknown, which satisfies no capability need."""
    is_mig: bool = False
    """A MIG instance: a process can use one only, so it never joins a lease of several."""
    node: str = ""
    """Node of a cluster that has it, within which a lease lies; empty for this machine."""
    number: int | None = None
    """NVML's number, CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID; None for a MIG instance or a pretended GPU."""
    is_as_is: bool = False
    """Taken as it is: what is on it when a lease begins belongs to it, and is no leak of a test."""
    used_bytes: int = 0
    """Memory in use when the inventory was read."""
    idle_bytes: int = IDLE_MEMORY_BYTES
    """Memory that it may show while idle, and by which it may miss its baseline when a lease ends."""

    def __str__(self) -> str:
        return f"{self.index} {self.model} {self.memory_gb:.0f} GB {self.gpu_id}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A GPU this run does not use, and why ("busy: 12.3 GB held by pid 4711 (python train.py)")."""

    gpu_id: str
    index: int
    model: str
    reason: str
    is_busy: bool = False
    """Whether others use it, so that it may be had later."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of a run."""

    gpus: tuple[Gpu, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    pretended: bool = False
    """Whether it is simulated (`sim:`), without a real GPU to poll."""
    note: str = ""
    """Note on how this was read ("no NVIDIA driver here: 0 GPUs"); empty where nothing is odd."""

    def describe(self) -> str:
        """The inventory in a few words, for messages: "4 x NVIDIA H200 143 GB, 4 x NVIDIA A100 80 GB"."""
        if not self.gpus:
            return "no GPUs"
        kinds = Counter(f"{gpu.model} {gpu.memory_gb:.0f} GB" if gpu.memory_gb else gpu.model for gpu in self.gpus)
        return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
