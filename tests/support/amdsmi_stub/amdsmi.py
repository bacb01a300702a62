"""The part of AMD's package amdsmi that rlharness uses, without a driver behind it.

`build.build` puts it where ROCm keeps the package. Names, arguments and answers are those of the package of ROCm 7.0
(amdsmi_interface.py). What it shows is in the JSON file named by $AMDSMI_STUB_FILE, read anew at every call; `build`
writes it. A failure is [function, number of the GPU or -1 for all, status]; the status "HANGS" never returns.
"""

import json
import os
import time
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

amdsmi_wrapper = SimpleNamespace(
    AMDSMI_STATUS_INVAL=1,
    AMDSMI_STATUS_NOT_SUPPORTED=2,
    AMDSMI_STATUS_NOT_YET_IMPLEMENTED=3,
    AMDSMI_STATUS_API_FAILED=7,
    AMDSMI_STATUS_NO_PERM=10,
    AMDSMI_STATUS_BUSY=30,
    AMDSMI_STATUS_NOT_FOUND=31,
    AMDSMI_STATUS_DRIVER_NOT_LOADED=34,
    AMDSMI_STATUS_NO_DATA=40,
    AMDSMI_STATUS_NO_DRV=51,
    AMDSMI_STATUS_FILE_NOT_FOUND=52,
    AMDSMI_STATUS_UNKNOWN_ERROR=4294967295,
)


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code

    def __str__(self) -> str:
        name = next(name for name, code in vars(amdsmi_wrapper).items() if code == self.err_code)
        return f"Error code:\n\t{self.err_code} | {name} - stub"


class AmdSmiLinkType(IntEnum):
    AMDSMI_LINK_TYPE_INTERNAL = 0
    AMDSMI_LINK_TYPE_PCIE = 1
    AMDSMI_LINK_TYPE_XGMI = 2


def _load(function: str, number: int = -2) -> dict[str, Any]:
    with open(os.environ["AMDSMI_STUB_FILE"], encoding="utf-8") as file:
        machine: dict[str, Any] = json.load(file)
    for name, where, status in machine["failures"]:
        if name == function and where in (number, -1):
            while status == "HANGS":
                time.sleep(60)
            raise AmdSmiLibraryException(getattr(amdsmi_wrapper, f"AMDSMI_STATUS_{status}"))
    return machine


def _gpu(function: str, handle: int) -> dict[str, Any]:
    gpu: dict[str, Any] = _load(function, handle)["gpus"][handle]
    return gpu


def amdsmi_init() -> None:
    _load("amdsmi_init")


def amdsmi_shut_down() -> None:
    _load("amdsmi_shut_down")


def amdsmi_get_processor_handles() -> list[int]:
    return list(range(len(_load("amdsmi_get_processor_handles")["gpus"])))


def amdsmi_get_gpu_kfd_info(handle: int) -> dict[str, Any]:
    gpu = _gpu("amdsmi_get_gpu_kfd_info", handle)
    return {"kfd_id": 1000 + handle, "node_id": gpu["node"], "current_partition_id": gpu["partition"]}


def amdsmi_get_gpu_enumeration_info(handle: int) -> dict[str, Any]:
    gpu = _gpu("amdsmi_get_gpu_enumeration_info", handle)
    nodes = [other["node"] for other in _load("")["gpus"] if other["node"] != "N/A"]
    hip_id = gpu["node"] if gpu["node"] == "N/A" else gpu["node"] - min(nodes)
    return {
        "drm_render": 128 + handle,
        "drm_card": handle,
        "hsa_id": gpu["node"],
        "hip_id": hip_id,
        "hip_uuid": f"GPU-{gpu['unique_id']:016x}",
    }


def amdsmi_get_gpu_asic_info(handle: int) -> dict[str, Any]:
    gpu = _gpu("amdsmi_get_gpu_asic_info", handle)
    return {
        "market_name": gpu["model"],
        "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
        "asic_serial": f"0x{gpu['unique_id']:016X}",
        "num_compute_units": 304,
        "target_graphics_version": "gfx942",
    }


def amdsmi_get_gpu_device_bdf(handle: int) -> str:
    return str(_gpu("amdsmi_get_gpu_device_bdf", handle)["bdf"])


def amdsmi_get_gpu_compute_partition(handle: int) -> str:
    return str(_gpu("amdsmi_get_gpu_compute_partition", handle)["compute_partition"])


def amdsmi_get_gpu_vram_usage(handle: int) -> dict[str, Any]:
    gpu = _gpu("amdsmi_get_gpu_vram_usage", handle)
    return {"vram_total": gpu["total_mib"], "vram_used": gpu["used_mib"]}


def amdsmi_get_gpu_total_ecc_count(handle: int) -> dict[str, Any]:
    gpu = _gpu("amdsmi_get_gpu_total_ecc_count", handle)
    return {"correctable_count": 7, "uncorrectable_count": gpu["uncorrected"], "deferred_count": 0}


def amdsmi_get_gpu_process_list(handle: int) -> list[dict[str, Any]]:
    return [
        {
            "name": process.get("name", "N/A"),
            "pid": process["pid"],
            "mem": 0,
            "engine_usage": {"gfx": 0, "enc": 0},
            "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": process["vram_bytes"]},
            "cu_occupancy": "N/A",
        }
        for process in _gpu("amdsmi_get_gpu_process_list", handle)["processes"]
    ]


def amdsmi_topo_get_link_type(handle: int, other: int) -> dict[str, int]:
    gpu = _gpu("amdsmi_topo_get_link_type", handle)
    kind = AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI if other in gpu["xgmi"] else AmdSmiLinkType.AMDSMI_LINK_TYPE_PCIE
    return {"hops": 1 if other in gpu["xgmi"] else 2, "type": int(kind)}


def amdsmi_get_gpu_xgmi_link_status(handle: int) -> dict[str, Any]:
    status = list(_gpu("amdsmi_get_gpu_xgmi_link_status", handle)["link_status"])
    return {"status": status, "total_links": len(status)}


def amdsmi_get_violation_status(handle: int) -> dict[str, Any]:
    gpu = _gpu("amdsmi_get_violation_status", handle)
    names = ("prochot_thrm", "ppt_pwr", "socket_thrm", "vr_thrm", "hbm_thrm")
    return {f"active_{name}": name in gpu["violations"] for name in names}


def amdsmi_get_gpu_driver_info(handle: int) -> dict[str, str]:
    _gpu("amdsmi_get_gpu_driver_info", handle)
    return {"driver_name": "amdgpu", "driver_version": "6.14.14", "driver_date": "N/A"}
