"""GPUs this process was given: CUDA_VISIBLE_DEVICES, parsed as CUDA parses it. Pure: no driver is asked.

CUDA's rules (CUDA C++ Programming Guide, "Environment Variables"; torch.cuda follows the same ones):
- absent: every GPU. Empty: none.
- The first entry decides what the list is made of: numbers, `GPU-` UUIDs or `MIG-` UUIDs; an entry of another kind
  is invalid. A UUID may be cut short while it still means one GPU only.
- The first invalid entry ends the list: what stands before it is visible, the rest is not.
- A GPU named twice makes CUDA show none at all, even if its second entry follows one that does not exist.
- Numbers count in CUDA's order: fastest first, unless CUDA_DEVICE_ORDER=PCI_BUS_ID. NVML counts by bus id, so the two
  agree for certain only with that setting or where all GPUs are of one model.

Where CUDA would show one MIG instance of a GPU only, all that were named are listed here: the list says what may be
leased, and a process is then given one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

_NUMBER = re.compile(r"\s*([+-]?[0-9]+)")  # like strtoul: what follows the digits does not count
_UUID_PREFIXES = ("GPU-", "MIG-")
_NO_DEVICES = ("", "NoDevFiles")
UNOPENED = -1
"""Number of a GPU that is lost, or that this process may not open: no number names it."""


@dataclass(frozen=True, slots=True)
class Device:
    """One thing CUDA can be given: a GPU, or one MIG instance of a GPU in MIG mode."""

    ordinal: int
    """The GPU's index in the driver's order, which all its MIG instances share; UNOPENED where CUDA counts it not."""
    gpu_uuid: str
    """The GPU's UUID ("GPU-8f2…"); empty if the driver does not report it."""
    uuid: str
    """Name of this device: the GPU's UUID, or the instance's ("MIG-…")."""
    model: str
    """The GPU's model, of which an instance has a part; empty if the driver does not report it."""
    old_mig_name: str = ""
    """The instance's name before driver 470, still understood: "MIG-GPU-8f2…/1/0"."""


@dataclass(frozen=True, slots=True)
class Visible:
    """The devices this process may use, in the order it was given them."""

    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()
    by_number: bool = True
    """Whether their order rests on NVML's numbers: no list was given, or one of numbers."""


def visible_devices(devices: Sequence[Device], environ: Mapping[str, str]) -> Visible:
    """The part of `devices` (all of the machine, in NVML's order) that `environ` leaves visible to CUDA."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return Visible(tuple(devices))
    if value in _NO_DEVICES:
        return Visible((), (f"CUDA_VISIBLE_DEVICES={value!r}: no GPU is visible",))
    named = value.startswith(_UUID_PREFIXES)
    entries = _uuids(value) if named else _numbers(value)
    if len(set(entries)) < len(entries):
        return Visible((), (_twice(value),), not named)
    seen: list[Device] = []
    num_read = 0
    for entry in entries:
        found = _by_uuid(devices, str(entry)) if named else tuple(d for d in devices if d.ordinal == entry)
        if not found:
            break
        if any(device in seen for device in found):
            return Visible((), (_twice(value),), not named)
        seen += found
        num_read += 1
    notes = []
    if num_read < len(value.split(",")):
        bad = value.split(",")[num_read]
        notes.append(f"CUDA_VISIBLE_DEVICES={value!r}: CUDA stops at {bad!r}, which is not a GPU here")
    if not named and order_is_uncertain(devices, environ):
        notes.append(ORDER_NOTE)
    if not named and any(device.ordinal == UNOPENED for device in devices):
        notes.append(UNOPENED_NOTE)
    return Visible(tuple(seen), tuple(notes), not named)


UNOPENED_NOTE = (
    "GPUs are given by number, and some GPUs of this machine cannot be opened: they are not counted, as CUDA does not"
    " count them; UUIDs leave no doubt"
)


ORDER_NOTE = (
    "GPUs are given by number and differ in model: CUDA's numbers may differ from NVML's, which rlharness uses;"
    " set CUDA_DEVICE_ORDER=PCI_BUS_ID or give UUIDs"
)


def order_is_uncertain(devices: Sequence[Device], environ: Mapping[str, str]) -> bool:
    """Whether a GPU's number may mean another GPU to CUDA than to NVML."""
    return (
        len({device.model for device in devices if device.model}) > 1
        and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    )


def matching(devices: Sequence[Device], name: str) -> list[tuple[Device, ...]]:
    """Return the matches of `name`, a UUID or its beginning: GPUs (all parts of one that is split) or instances.

    One match is an answer; none means unknown, several ambiguous. A name given in full is never ambiguous.
    """
    exact = [device for device in devices if name in (device.uuid, device.old_mig_name)]
    if exact:
        return [(exact[0],)]
    if name.startswith("MIG-"):
        return [(device,) for device in devices if device.uuid.startswith(name)]
    gpus: dict[str, list[Device]] = {}
    for device in devices:
        if device.gpu_uuid.startswith(name):
            gpus.setdefault(device.gpu_uuid, []).append(device)
    return [tuple(instances) for instances in gpus.values()]


def _uuids(value: str) -> list[str]:
    """The entries up to the first that is not of the first one's kind."""
    return list(takewhile(lambda entry: entry.startswith(value[:4]), value.split(",")))


def _numbers(value: str) -> list[int]:
    """The numbers up to the first entry that begins with none, or with a negative one."""
    numbers = []
    for entry in value.split(","):
        number = _NUMBER.match(entry)
        if number is None or int(number[1]) < 0:
            break
        numbers.append(int(number[1]))
    return numbers


def _by_uuid(devices: Sequence[Device], entry: str) -> tuple[Device, ...]:
    matches = matching(devices, entry)
    return matches[0] if len(matches) == 1 else ()


def _twice(value: str) -> str:
    return f"CUDA_VISIBLE_DEVICES={value!r} names a GPU twice: CUDA shows none"
