"""GPUs this process was given on a machine of AMD's: read as the ROCm runtime and HIP read them. Pure.

Two lists, one after the other:
- ROCR_VISIBLE_DEVICES (ROCR-Runtime, amd_filter_device.cpp): absent, every GPU; empty, none. Numbers in KFD's order,
  also octal and hexadecimal ones, or beginnings of UUIDs that mean one GPU only. The first entry that is unknown or
  names a GPU a second time ends the list.
- HIP_VISIBLE_DEVICES, or where that is empty or absent CUDA_VISIBLE_DEVICES (clr, rocdevice.cpp): numbers that count
  within the first list, written as HIP would write them, or parts of UUIDs, of which the first match counts. The first
  unknown entry ends the list; a repeated one is passed over.

HIP takes an empty list for an absent one, and torch takes it for no GPU. Here it hides all GPUs, since nothing else can
be meant by it.
"""

from collections.abc import Mapping, Sequence

from harness.machine.visible import Device, Visible

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
_UUID_PREFIX = "GPU-"
_UUID_CHARS = 20
"""Of "GPU-" and 16 hexadecimal digits: ROCm knows no longer name."""


def visible_to_hip(devices: Sequence[Device], environ: Mapping[str, str]) -> Visible:
    """The part of `devices` (all of the machine, in KFD's order) that `environ` leaves visible to HIP."""
    exposed, notes = _exposed(devices, environ.get(ROCR))
    name = HIP if environ.get(HIP) or CUDA not in environ else CUDA
    if environ.get(HIP) == "" and not environ.get(CUDA):
        name = HIP
    value = environ.get(name)
    if value is None:
        return Visible(exposed, notes, by_number=False, hip_numbers=tuple(range(len(exposed))))
    if value == "":
        return Visible((), (*notes, f"{name}='': no GPU is visible"), by_number=False)
    if name == HIP and CUDA in environ and environ[CUDA] != value:
        notes = (*notes, f"{HIP}={value!r} counts, not {CUDA}={environ[CUDA]!r}")
    numbers: list[int] = []
    for entry in value.split(","):
        number = _hip_number(entry, exposed)
        if number is None:
            notes = (*notes, f"{name}={value!r}: HIP stops at {entry!r}, which is not a GPU here")
            break
        if number not in numbers:
            numbers.append(number)
    return Visible(tuple(exposed[number] for number in numbers), notes, by_number=False, hip_numbers=tuple(numbers))


def _exposed(devices: Sequence[Device], value: str | None) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """What the ROCm runtime shows to HIP, and notes."""
    if value is None:
        return tuple(devices), ()
    if value == "":
        return (), (f"{ROCR}='': no GPU is visible",)
    exposed: list[Device] = []
    for entry in value.split(",")[: len(devices)]:
        device = _rocr_device(entry.strip(), devices)
        if device is None or device in exposed:
            return tuple(exposed), (f"{ROCR}={value!r}: ROCm stops at {entry!r}, which is not another GPU here",)
        exposed.append(device)
    return tuple(exposed), ()


def _rocr_device(entry: str, devices: Sequence[Device]) -> Device | None:
    if entry[:1] in ("g", "G"):
        if not 5 <= len(entry) <= _UUID_CHARS:
            return None
        matches = [device for device in devices if device.gpu_uuid.upper().startswith(entry.upper())]
        return matches[0] if len(matches) == 1 else None
    number = _strtol(entry)
    return devices[number] if number is not None and 0 <= number < len(devices) else None


def _strtol(entry: str) -> int | None:
    """Parse as C's strtol of base 0 does; None where characters are left over."""
    digits = entry.lstrip("+-")
    is_octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
    try:
        return int(entry, 8) if is_octal else int(entry, 0)
    except ValueError:
        return None


def _hip_number(entry: str, exposed: Sequence[Device]) -> int | None:
    if _UUID_PREFIX in entry:
        return next((number for number, device in enumerate(exposed) if entry in device.gpu_uuid), None)
    is_number = entry.isascii() and entry.isdigit() and str(int(entry)) == entry
    return int(entry) if is_number and int(entry) < len(exposed) else None
