"""GPUs of NVIDIA, read through NVML.

NVML's order is the PCI bus order; inside the harness a GPU is its UUID. What NVML does not report (NOT_SUPPORTED and
the like) is unknown; a GPU that answers with an error is left out with NVML's message and never ends the run.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from harness.machine.gpu_driver import GpuReadError, GpuReading, ListedGpu, NoDriverError
from harness.machine.gpu_health import FaultKind, GpuFault, GpuHealth, MachineHealth
from harness.machine.inventory import IDLE_MEMORY_BYTES, Gpu
from harness.machine.meter import GpuProcess
from harness.machine.nvml import (
    accounted_peaks,
    ask,
    compute_processes,
    display_bytes,
    fabric_problem,
    is_numa_node,
    link_states,
    linked_bus_ids,
    memory_by_pid,
    memory_errors,
    memory_of,
    no_answer,
    open_nvml,
    shut_down,
)
from harness.machine.visible import UNOPENED, Device, Visible, visible_devices
from harness.machine.xids import XidWatch

_SLOWDOWNS = {  # nvml.h, nvmlClocksEventReasons: those that no load explains
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "too hot",
    "nvmlClocksEventReasonHwThermalSlowdown": "far too hot",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "slowed by the power supply",
}
"""Without the power cap, which a GPU under load reaches by design."""
DESKTOP_IDLE_BYTES = 2 * 10**9
"""Memory that an idle GPU may show with a display or under WSL: images on the screen, and Windows with its programs,
belong to no process that the driver lists."""
WSL_DEVICE = "/dev/dxg"
"""Windows' driver, for the Linux beside it."""


class NvidiaDriver:
    """NVML, open from the first moment to `close`; raises NoDriverError where it does not start."""

    def __init__(self) -> None:
        self._nvml = open_nvml()
        self._xids: XidWatch | None = None

    def list_gpus(self) -> list[ListedGpu]:
        """Return every GPU in NVML's order, a GPU in MIG mode as its instances.

        Only GPUs that can be opened are numbered: CUDA does not count one that is lost or that a cgroup forbids.
        """
        nvml = self._nvml
        gpus: list[ListedGpu] = []
        num_opened = 0
        try:
            num_gpus = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise NoDriverError(no_answer(error)) from error
        for number in range(num_gpus):
            device = Device(UNOPENED, "", "", "")
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                uuid = nvml.nvmlDeviceGetUUID(handle)
                device = Device(UNOPENED, uuid, uuid, nvml.nvmlDeviceGetName(handle))
                opened = Device(num_opened, uuid, uuid, device.model)
                gpus += self._instances(opened, handle) or [ListedGpu(opened, handle, handle)]
                num_opened += 1
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
                memory=None if is_numa_node(nvml, gpu.gpu_handle) else memory,
                processes=compute_processes(nvml, gpu.handle),
                memory_gb=memory[0] / 1e9 if memory else 0.0,
                display_bytes=display_bytes(nvml, gpu.handle),
                idle_bytes=self._idle_bytes(gpu.gpu_handle),
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
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu_id)
            memory = None if is_numa_node(nvml, self._whole_of(gpu_id, handle)) else memory_of(nvml, handle)
        except nvml.NVMLError:
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

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        if self._xids is None:
            self._xids = XidWatch(self._nvml)
        try:
            whole = self._nvml.nvmlDeviceGetUUID(self._whole(gpu_id))
        except self._nvml.NVMLError:  # lost, and so are its instances
            whole = gpu_id
        return self._xids.new(gpu_id, whole)

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

    def _idle_bytes(self, handle: Any) -> int:
        is_displayed = ask(self._nvml, self._nvml.nvmlDeviceGetDisplayActive, handle) == self._nvml.NVML_FEATURE_ENABLED
        return DESKTOP_IDLE_BYTES if is_displayed or os.path.exists(WSL_DEVICE) else IDLE_MEMORY_BYTES

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
            # For a number without an instance, drivers answer one of the first two; the third is somebody else's.
            with suppress(nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NoPermission):
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
        return self._whole_of(gpu_id, handle)

    def _whole_of(self, gpu_id: str, handle: Any) -> Any:
        """Return the handle of the whole GPU; that of the instance where the driver does not say."""
        nvml = self._nvml
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
                fabric_problem=fabric_problem(nvml, handle),
            )
        except nvml.NVMLError as error:
            return GpuHealth(number, uuid, model, problem=str(GpuReadError(error)))
