"""GPUs of AMD, read through AMD SMI.

The order is that of the kernel's compute driver (KFD), which is HIP's; AMD SMI's own order may differ. HIP cannot use a
device without a KFD node, so it is passed over. Inside the harness a GPU is the UUID that ROCm gives it ("GPU-" and 16
digits), a partition of one "GPU-…/3"; a GPU without a unique id is named after its PCI address.

Partitions of a GPU may share its memory, and AMD SMI reports the memory in use of the whole: for a partition it says
nothing, and only processes show whether one is in use. The memory of an MI300A is the machine's, and AMD SMI may report
none for its processes: such a GPU then looks idle.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from harness.machine.amd_smi import (
    are_linked,
    ask,
    compute_processes,
    link_states,
    memory_by_pid,
    memory_errors,
    memory_of,
    no_answer,
    open_amd_smi,
    reading,
    shut_down,
)
from harness.machine.gpu_driver import GpuReadError, GpuReading, ListedGpu, NoDriverError
from harness.machine.gpu_health import GpuFault, GpuHealth, MachineHealth, Vendor
from harness.machine.inventory import Gpu
from harness.machine.meter import GpuProcess
from harness.machine.visible import Device, Visible
from harness.machine.visible_amd import visible_to_hip

_IDLE_BYTES = 512 * 10**6
"""An idle MI300X shows some 300 MB in use; AMD SMI does not report the driver's reserve by itself."""
_UUID = re.compile(r"GPU-[0-9a-f]{16}")
_NO_UUID = "GPU-" + 16 * "0"
_WHOLE = "SPX"
"""Compute partition of a GPU that is one device."""
_SLOWDOWNS = {
    "active_prochot_thrm": "slowed by the processor's heat signal",
    "active_socket_thrm": "too hot",
    "active_vr_thrm": "its voltage regulators are too hot",
    "active_hbm_thrm": "its memory is too hot",
}
"""Without the power cap, which a GPU under load reaches by design."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A device that AMD SMI shows."""

    handle: Any
    node: int
    """Number of its KFD node; its number in AMD SMI's order where that does not report nodes."""
    partition: int
    uuid: str
    model: str
    problem: str = ""
    """Why it cannot be read."""


class AmdDriver:
    """AMD SMI, open from the first moment to `close`; raises NoDriverError where it does not start."""

    vendor = Vendor.AMD

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._amdsmi = open_amd_smi(environ)
        self._gpus: dict[str, ListedGpu] = {}
        self._num_partitions: Counter[str] = Counter()

    def list_gpus(self) -> list[ListedGpu]:
        """Return every GPU in KFD's order, a GPU that is split as its partitions."""
        found = sorted(self._find(), key=lambda gpu: gpu.node)
        self._num_partitions = Counter(gpu.uuid for gpu in found if gpu.uuid)
        gpus = []
        for ordinal, gpu in enumerate(found):
            is_split = self._num_partitions[gpu.uuid] > 1
            device = Device(ordinal, gpu.uuid, f"{gpu.uuid}/{gpu.partition}" if is_split else gpu.uuid, gpu.model)
            gpus.append(ListedGpu(device, gpu.handle, gpu.handle, gpu.problem))
        self._gpus = {gpu.device.uuid: gpu for gpu in gpus}
        return gpus

    def visible(self, devices: Sequence[Device], environ: Mapping[str, str]) -> Visible:
        return visible_to_hip(devices, environ)

    def read(self, gpu: ListedGpu) -> GpuReading:
        num_partitions = self._num_partitions[gpu.device.gpu_uuid]
        with reading(self._amdsmi):
            memory = memory_of(self._amdsmi, gpu.handle)
            return GpuReading(
                model=gpu.device.model,
                memory=memory if num_partitions == 1 else None,
                processes=compute_processes(self._amdsmi, gpu.handle),
                fault=self._fault_of(gpu),
                memory_gb=memory[0] / num_partitions / 1e9 if memory else 0.0,
                idle_bytes=_IDLE_BYTES,
            )

    def num_links(self, gpus: Sequence[Gpu]) -> dict[frozenset[str], int]:
        """Return 1 for each two GPUs that XGMI joins: AMD SMI reports the kind of a connection, not its links."""
        pairs = {}
        for one, other in combinations([gpu.gpu_id for gpu in gpus], 2):
            try:
                with reading(self._amdsmi):
                    if are_linked(self._amdsmi, self._gpus[one].handle, self._gpus[other].handle):
                        pairs[frozenset((one, other))] = 1
            except GpuReadError:
                continue  # an unknown connection is none
        return pairs

    def used_memory_bytes(self, gpu_id: str) -> int | None:
        try:
            with reading(self._amdsmi):
                gpu = self._listed(gpu_id)
                memory = memory_of(self._amdsmi, gpu.handle)
        except (GpuReadError, NoDriverError, KeyError):
            return None
        return memory[1] if memory and self._num_partitions[gpu.device.gpu_uuid] == 1 else None

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        try:
            with reading(self._amdsmi):
                return compute_processes(self._amdsmi, self._listed(gpu_id).handle)
        except (GpuReadError, NoDriverError, KeyError):
            return ()

    def fault(self, gpu_id: str) -> GpuFault | None:
        try:
            with reading(self._amdsmi):
                return self._fault_of(self._listed(gpu_id))
        except (GpuReadError, NoDriverError, KeyError):
            return None

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        """Return nothing: Xids are NVIDIA's."""
        return ()

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        try:
            with reading(self._amdsmi):
                return memory_by_pid(self._amdsmi, self._listed(gpu_id).handle)
        except (GpuReadError, NoDriverError, KeyError):
            return {}

    def accounted_peaks(self, gpu_id: str, pids: Collection[int]) -> Mapping[int, int]:
        """Return nothing: AMD SMI keeps no account of processes."""
        return {}

    def health(self) -> MachineHealth:
        try:
            gpus = self.list_gpus()
            with reading(self._amdsmi):
                info = ask(self._amdsmi, "amdsmi_get_gpu_driver_info", gpus[0].handle) if gpus else None
        except NoDriverError as error:
            return MachineHealth(problem=str(error), vendor=Vendor.AMD)
        except GpuReadError:
            info = None
        version = str(info["driver_version"]) if info else ""
        return MachineHealth(
            driver="" if version == "N/A" else version,
            gpus=tuple(self._health_of(gpu) for gpu in gpus),
            vendor=Vendor.AMD,
        )

    def close(self) -> None:
        shut_down(self._amdsmi)

    def _find(self) -> list[_Found]:
        """Every device that HIP can be given; NoDriverError where their numbers cannot be known."""
        amdsmi = self._amdsmi
        try:
            handles = amdsmi.amdsmi_get_processor_handles()
            nodes = [ask(amdsmi, "amdsmi_get_gpu_kfd_info", handle) for handle in handles]
        except amdsmi.AmdSmiException as error:  # without a GPU's node, the numbers of all others are in doubt
            raise NoDriverError(no_answer(error)) from error
        if not any(nodes):  # an older release
            nodes = [{"node_id": number} for number in range(len(handles))]
        found = []
        for handle, kfd in zip(handles, nodes, strict=True):
            node, partition = (kfd or {}).get("node_id"), (kfd or {}).get("current_partition_id")
            if isinstance(node, int):
                name = self._name(handle)
                found.append(_Found(handle, node, partition if isinstance(partition, int) else 0, *name))
        return found

    def _name(self, handle: Any) -> tuple[str, str, str]:
        """UUID and model of a GPU, and why they cannot be read."""
        amdsmi = self._amdsmi
        try:
            with reading(amdsmi):
                asic = ask(amdsmi, "amdsmi_get_gpu_asic_info", handle) or {}
                names = ask(amdsmi, "amdsmi_get_gpu_enumeration_info", handle) or {}
                partition = ask(amdsmi, "amdsmi_get_gpu_compute_partition", handle) or _WHOLE
                uuid = str(names.get("hip_uuid") or "").lower().replace("gpu-", "GPU-")
                if not _UUID.fullmatch(uuid):
                    serial = str(asic.get("asic_serial") or "").removeprefix("0x").lower()
                    uuid = f"GPU-{serial.zfill(16)}"
                if uuid == _NO_UUID or not _UUID.fullmatch(uuid):
                    address = str(ask(amdsmi, "amdsmi_get_gpu_device_bdf", handle))
                    uuid = "GPU-pci-" + re.sub("[^0-9A-Za-z]", "-", address)
        except GpuReadError as error:
            return "", "", str(error)
        model = str(asic.get("market_name") or "AMD GPU")
        return uuid, model if partition in (_WHOLE, "N/A") else f"{model} {partition}", ""

    def _listed(self, gpu_id: str) -> ListedGpu:
        if not self._gpus:
            self.list_gpus()
        return self._gpus[gpu_id]

    def _fault_of(self, gpu: ListedGpu) -> GpuFault | None:
        errors = memory_errors(self._amdsmi, gpu.handle)
        if errors.fault is None:
            return None
        return GpuFault(errors.fault, str(gpu.device.ordinal), errors.num_uncorrected, Vendor.AMD)

    def _health_of(self, gpu: ListedGpu) -> GpuHealth:
        device = gpu.device
        try:
            with reading(self._amdsmi):
                links = link_states(self._amdsmi, gpu.handle)
                fault = None if gpu.problem else self._fault_of(gpu)
                violations = ask(self._amdsmi, "amdsmi_get_violation_status", gpu.handle) or {}
        except GpuReadError as error:
            return GpuHealth(device.ordinal, device.uuid, device.model, problem=str(error))
        return GpuHealth(
            device.ordinal,
            device.uuid,
            device.model,
            problem=gpu.problem,
            fault=fault,
            slowdowns=tuple(words for name, words in _SLOWDOWNS.items() if violations.get(name) is True),
            num_links=len(links),
            num_active_links=sum(links),
        )
