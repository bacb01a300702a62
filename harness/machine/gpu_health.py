"""The driver, and how each GPU does now: what `gpus` has no use for and `doctor` asks."""

from dataclasses import dataclass
from enum import StrEnum


class Vendor(StrEnum):
    """Maker of a GPU."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One whole GPU, or a partition of one."""

    number: int
    """Number in the driver's order."""
    uuid: str
    model: str
    capability: tuple[int, int] = (0, 0)
    """(0, 0) when unknown."""
    problem: str = ""
    """Why it cannot be read; empty where it can."""
    slowdowns: tuple[str, ...] = ()
    """Reasons for its lowered clocks, without its load and its power cap."""
    num_links: int = 0
    """NVLinks or XGMI links it has."""
    num_active_links: int = 0


@dataclass(frozen=True, slots=True)
class MachineHealth:
    """The driver and the GPUs of this machine, whatever the environment leaves visible."""

    driver: str = ""
    """Its version, "570.86.15"; empty where there is none, or it does not say."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA the driver serves; None where it does not say."""
    gpus: tuple[GpuHealth, ...] = ()
    problem: str = ""
    """Why the driver's library did not start; empty where it did."""
    has_driver: bool = True
    vendor: Vendor = Vendor.NVIDIA
