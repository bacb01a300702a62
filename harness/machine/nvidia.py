"""GPUs of NVIDIA, read through NVML.

NVML's order is the PCI bus order; inside the harness a GPU is its UUID. What NVML does not report (NOT_SUPPORTED and
the like) is unknown; a GPU that answers with an error is left out with NVML's message and never ends the run.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from harness.machine.gpu_driver import GpuReadError, GpuReading, ListedGpu, NoDriverError
from harness.machine.gpu_health import FaultKind, GpuFault, GpuHealth, MachineHealth, Vendor
from harness.machine.inventory import Gpu
from harness.machine.meter import IDLE_MEMORY_BYTES, GpuProcess
from harness.machine.nvml import (
    accounted_peaks,
    ask,
    compute_processes,
    display_bytes,
    link_states,
    linked_bus_ids,
    memory_by_pid,
    memory_errors,
    memory_of,
    no_answer,
    open_nvml,
    shut_down,
)
from harness.machine.visible import Device, Visible, visible_devices

_SLOWDOWNS = {  # nvml.h, nvmlClocksEventReasons: those that no load explains
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "too hot",
    "nvmlClocksEventReasonHwThermalSlowdown": "far too hot",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "slowed by the power supply",
}
"""Without the power cap, which a GPU under load reaches by design."""


class NvidiaDriver:
    """NVML, open from the first moment to `close`; raises NoDriverError where it does not start."""

    vendor = Vendor.NVIDIA
    idle_bytes = IDLE_MEMORY_BYTES

    def __init__(self) -> None:
        self._nvml = open_nvml()

    def list_gpus(self) -> list[ListedGpu]:
        """Return every GPU in NVML's order, a GPU in MIG mode as its instances."""
        nvml = self._nvml
        gpus: list[ListedGpu] = []
        try:
            num_gpus = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise NoDriverError(no_answer(error)) from error
        for ordinal in range(num_gpus):
            device = Device(ordinal, "", "", "")
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(ordinal)
                uuid = nvml.nvmlDeviceGetUUID(handle)
                device = Device(ordinal, uuid, uuid, nvml.nvmlDeviceGetName(handle))
                gpus += self._instances(device, handle) or [ListedGpu(device, handle, handle)]
            except nvml.NVMLError as error:
                gpus.append(ListedGpu(device, None, None, str(GpuReadError(error))))
        return gpus

    def visible(self, devices: Sequence[Device], environ: Mapping[str, str]) -> Visible:
        return visible_devices(devices, environ)

    def read(self, gpu: ListedGpu) -> GpuReading:
        nvml = self._nvml
        with self._reading():
            is_banned = ask(nvml, nvml.nvmlDeviceGetComputeMode, gpu.gpu_handle) == nvml.NVML_COMPUTEMODE_PROHIBITED
            memory = memory_of(nvml, gpu.handle)
            return GpuReading(
                model=nvml.nvmlDeviceGetName(gpu.handle),
                memory=memory,
                processes=compute_processes(nvml, gpu.handle),
                memory_gb=memory[0] / 1e9 if memory else 0.0,
                display_bytes=display_bytes(nvml, gpu.handle),
                capability=ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, gpu.gpu_handle) or (0, 0),
                fault=self._fault_of(gpu.gpu_handle),
                ban="its compute mode is Prohibited (nvidia-smi -c 0 resets it)" if is_banned else "",
            )

    def num_links(self, gpus: Sequence[Gpu]) -> dict[frozenset[str], int]:
        """Return the active NVLinks between whole GPUs; links that end in an NVSwitch count for no pair.

        With NVSwitches every pair is equally near, so none is preferred.
        """
        nvml = self._nvml
        handles: dict[str, Any] = {}
        gpu_ids: dict[bytes, str] = {}
        for gpu in gpus:
            with suppress(nvml.NVMLError):
                if not gpu.is_mig:
                    handles[gpu.gpu_id] = nvml.nvmlDeviceGetHandleByUUID(gpu.gpu_id)
                    gpu_ids[nvml.nvmlDeviceGetPciInfo(handles[gpu.gpu_id]).busId.lower()] = gpu.gpu_id
        num_links: dict[frozenset[str], int] = {}
        for gpu_id, handle in handles.items():
            peers = Counter(gpu_ids.get(bus_id) for bus_id in linked_bus_ids(nvml, handle))
            for other, count in peers.items():
                if other is not None and other != gpu_id:
                    pair = frozenset((gpu_id, other))
                    num_links[pair] = max(count, num_links.get(pair, 0))  # both ends report each link
        return num_links

    def used_memory_bytes(self, gpu_id: str) -> int | None:
        try:
            memory = memory_of(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(gpu_id))
        except self._nvml.NVMLError:
            return None
        return None if memory is None else memory[1]

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        try:
            return compute_processes(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(gpu_id))
        except self._nvml.NVMLError:
            return ()

    def fault(self, gpu_id: str) -> GpuFault | None:
        nvml = self._nvml
        try:
            return self._fault_of(self._whole(gpu_id))
        except nvml.NVMLError_GpuIsLost:
            return GpuFault(FaultKind.LOST, gpu_id)
        except nvml.NVMLError_ResetRequired:
            return GpuFault(FaultKind.RESET_REQUIRED, gpu_id)
        except nvml.NVMLError:
            return None

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        try:
            return memory_by_pid(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(gpu_id))
        except self._nvml.NVMLError:
            return {}

    def accounted_peaks(self, gpu_id: str, pids: Collection[int]) -> Mapping[int, int]:
        try:
            return accounted_peaks(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(gpu_id), pids)
        except self._nvml.NVMLError:
            return {}

    def health(self) -> MachineHealth:
        nvml = self._nvml
        try:
            driver = str(ask(nvml, nvml.nvmlSystemGetDriverVersion) or "")
            version = ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
            gpus = tuple(self._health_of(number) for number in range(nvml.nvmlDeviceGetCount()))
        except nvml.NVMLError as error:
            return MachineHealth(problem=no_answer(error))
        return MachineHealth(driver, (version // 1000, version % 1000 // 10) if version else None, gpus)

    def close(self) -> None:
        shut_down(self._nvml)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            raise GpuReadError(error) from error

    def _instances(self, gpu: Device, handle: Any) -> list[ListedGpu]:
        """The MIG instances of `gpu`; empty where it is not in MIG mode."""
        nvml = self._nvml
        mode = ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
        if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        instances = []
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(nvml.NVMLError_NotFound):
                instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                gi, ci = nvml.nvmlDeviceGetGpuInstanceId(instance), nvml.nvmlDeviceGetComputeInstanceId(instance)
                uuid = nvml.nvmlDeviceGetUUID(instance)
                device = Device(gpu.ordinal, gpu.gpu_uuid, uuid, gpu.model, f"MIG-{gpu.gpu_uuid}/{gi}/{ci}")
                instances.append(ListedGpu(device, instance, handle))
        return instances or [ListedGpu(gpu, handle, handle, "its MIG mode is on and it has no instance")]

    def _whole(self, gpu_id: str) -> Any:
        """Return the handle of a GPU, or of that of a MIG instance; raises NVMLError."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu_id)
        except nvml.NVMLError_GpuIsLost:  # NVML may answer so although another GPU is the lost one
            for number in range(nvml.nvmlDeviceGetCount()):
                with suppress(nvml.NVMLError):
                    handle = nvml.nvmlDeviceGetHandleByIndex(number)
                    if nvml.nvmlDeviceGetUUID(handle) == gpu_id:
                        return handle
            raise
        is_instance = gpu_id.startswith("MIG-")
        return (is_instance and ask(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)) or handle

    def _fault_of(self, handle: Any) -> GpuFault | None:
        errors = memory_errors(self._nvml, handle)
        if errors.fault is None:
            return None
        return GpuFault(errors.fault, self._nvml.nvmlDeviceGetUUID(handle), errors.num_uncorrected)

    def _health_of(self, number: int) -> GpuHealth:
        nvml = self._nvml
        uuid = model = ""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            links = link_states(nvml, handle)
            reasons = ask(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
            return GpuHealth(
                number,
                uuid,
                model,
                capability=ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0),
                fault=self._fault_of(handle),
                slowdowns=tuple(words for name, words in _SLOWDOWNS.items() if reasons & getattr(nvml, name)),
                num_links=len(links),
                num_active_links=sum(links.values()),
            )
        except nvml.NVMLError as error:
            return GpuHealth(number, uuid, model, problem=str(GpuReadError(error)))
