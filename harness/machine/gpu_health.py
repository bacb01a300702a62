"""The driver, and how each GPU does now: what `gpus` has no use for and `doctor` asks. Read through NVML."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.machine.nvml import NoDriverError, ask, link_states, nvml_opened, unreadable

_SLOWDOWNS = {  # nvml.h, nvmlClocksEventReasons: those that no load explains
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "too hot",
    "nvmlClocksEventReasonHwThermalSlowdown": "far too hot",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "slowed by the power supply",
}
"""Without the power cap, which a GPU under load reaches by design."""


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One whole GPU."""

    number: int
    """Number in NVML's order."""
    uuid: str
    model: str
    capability: tuple[int, int] = (0, 0)
    """(0, 0) when unknown."""
    problem: str = ""
    """Why it cannot be read; empty where it can."""
    slowdowns: tuple[str, ...] = ()
    """Reasons for its lowered clocks, without its load and its power cap."""
    num_links: int = 0
    """NVLinks it has."""
    num_active_links: int = 0


@dataclass(frozen=True, slots=True)
class MachineHealth:
    """The driver and the GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says."""

    driver: str = ""
    """Its version, "570.86.15"; empty where there is none, or it does not say."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA the driver serves; None where it does not say."""
    gpus: tuple[GpuHealth, ...] = ()
    problem: str = ""
    """Why NVML did not start; empty where it did."""
    has_driver: bool = True


def read_gpu_health() -> MachineHealth:
    """Asks the driver; blocks for as long as it does."""
    try:
        with nvml_opened() as nvml:
            return _read(nvml)
    except NoDriverError as error:
        return MachineHealth(problem=str(error), has_driver=False)


def _read(nvml: Any) -> MachineHealth:
    try:
        driver = str(ask(nvml, nvml.nvmlSystemGetDriverVersion) or "")
        version = ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        gpus = tuple(_gpu(nvml, number) for number in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        return MachineHealth(problem=f"the NVIDIA driver does not answer ({str(error).rstrip('.')})")
    return MachineHealth(driver, (version // 1000, version % 1000 // 10) if version else None, gpus)


def _gpu(nvml: Any, number: int) -> GpuHealth:
    uuid = model = ""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        links: Mapping[int, bool] = link_states(nvml, handle)
        return GpuHealth(
            number,
            uuid,
            model,
            capability=ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0),
            slowdowns=_slowdowns(nvml, handle),
            num_links=len(links),
            num_active_links=sum(links.values()),
        )
    except nvml.NVMLError as error:
        return GpuHealth(number, uuid, model, problem=unreadable(error))


def _slowdowns(nvml: Any, handle: Any) -> tuple[str, ...]:
    reasons = ask(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
    return tuple(words for name, words in _SLOWDOWNS.items() if reasons & getattr(nvml, name))
