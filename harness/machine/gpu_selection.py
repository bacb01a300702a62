"""The text of `--gpus`: its grammar, the GPUs it simulates, and the devices it names. Pure.

| text | means |
|---|---|
| `auto` | every free GPU this process may use |
| `none`, `0` | no GPUs: only units of 0 GPUs run |
| `4` | four free GPUs |
| `0,2,GPU-8f2` | these GPUs: positions in the inherited list, UUIDs or their beginnings; one alone is `3,` |
| `as-is:0`, `as-is:0,GPU-8f2` | these GPUs, as such a list names them, even if they are in use |
| `sim:8`, `sim:4xA,4xB`, `sim:2xA:40` | simulated GPUs, the last with 40 GB each |

A simulated GPU has 80 GB by default and compute capability 9.0, whatever its model name. It serves scheduling only, so
there is no table of real models.

GPUs this process was given: CUDA_VISIBLE_DEVICES, parsed as CUDA parses it. Pure: no driver is asked.

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
from typing import Any

from harness.bits.errors import InventoryError, UsageError
from harness.machine.inventory import Gpu

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
    handle: Any = None
    """The driver's, of the GPU or of the part of one; None where there is none."""
    gpu_handle: Any = None
    """The driver's, of the whole GPU."""
    problem: str = ""
    """Why it cannot be used; empty where nothing is known against it."""


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


SIM_MEMORY_GB = 80.0
SIM_CAPABILITY = (9, 0)
MAX_SIM_GPUS = 1024

_LEGAL = "auto, none, a count (4), a list (0,2,GPU-8f2; one GPU alone: 3,), as-is:0,2, sim:8, sim:4xA,4xB, sim:2xA:40"
AS_IS = "as-is:"
_LIST_ENTRY = re.compile(r"[0-9]+|(?:GPU|MIG)-[0-9A-Za-z/-]+")
_SIM_ENTRY = re.compile(r"(?P<count>[0-9]{1,6})(?:x(?P<model>[^,:]+))?(?::(?P<memory_gb>[0-9]+(?:\.[0-9]+)?))?")


@dataclass(frozen=True, slots=True)
class Selection:
    """What --gpus asks for; every free GPU where nothing is given."""

    num_gpus: int | None = None
    """So many free GPUs."""
    names: tuple[str, ...] = ()
    """These GPUs, by position in the inherited list or by UUID, in this order."""
    is_as_is: bool = False
    """Whether they are taken even if they are in use; what is on them then is no leak of a test."""
    simulated: tuple[Gpu, ...] = ()

    def __str__(self) -> str:
        return f"{AS_IS if self.is_as_is else ''}{','.join(self.names)}"

    @property
    def has_positions(self) -> bool:
        return any(name.isdigit() for name in self.names)


def parse_selection(text: str) -> Selection:
    """Parse the text of `--gpus`; a text of no legal form raises UsageError."""
    text = text.strip()
    if text == "auto":
        return Selection()
    if text == "none":
        return Selection(0)
    if text.isascii() and text.isdigit():
        return Selection(int(text))
    if text.startswith("sim:"):
        return Selection(simulated=_simulated(text))
    is_as_is = text.startswith(AS_IS)
    names = tuple(entry.strip() for entry in text.removeprefix(AS_IS).removesuffix(",").split(","))
    for name in names:
        if not _LIST_ENTRY.fullmatch(name):
            raise _illegal(text, f"{name!r} is neither a position nor the beginning of a UUID")
    names = tuple(str(int(name)) if name.isdigit() else name for name in names)
    return Selection(names=names, is_as_is=is_as_is)


def find_named(named: Selection, visible: Sequence[Device]) -> tuple[int, ...]:
    """Positions in `visible` of the GPUs that `named` lists, in its order.

    A position or UUID outside `visible`, an ambiguous UUID, or one GPU named twice raises InventoryError.
    """
    positions: list[int] = []
    for name in named.names:
        found = _positions(name, visible)
        if any(position in positions for position in found):
            raise InventoryError(f"--gpus {named}: {name} names a GPU a second time", remedy="drop it")
        positions += found
    return tuple(positions)


def _positions(name: str, visible: Sequence[Device]) -> list[int]:
    listed = ", ".join(f"{position} ({device.uuid or 'unreadable'})" for position, device in enumerate(visible))
    legal = (
        f"one of the {len(visible)} this process was given: {listed}" if visible else "this process was given no GPU"
    )
    if name.isdigit():
        if int(name) >= len(visible):
            raise InventoryError(
                f"--gpus: there is no GPU {name} among those this process was given",
                legal=legal,
                remedy="name a position from 0 within CUDA_VISIBLE_DEVICES, or add it there",
            )
        return [int(name)]
    matches = matching(visible, name)
    if len(matches) != 1:
        problem = "matches several GPUs" if matches else "is not one of the GPUs this process was given"
        raise InventoryError(f"--gpus: {name} {problem}", legal=legal, remedy="give a position, or more of the UUID")
    return [visible.index(device) for device in matches[0]]


def _simulated(text: str) -> tuple[Gpu, ...]:
    kinds: list[tuple[str, float]] = []
    for entry in text.removeprefix("sim:").split(","):
        match = _SIM_ENTRY.fullmatch(entry.strip())
        if match is None or int(match["count"]) == 0:
            raise _illegal(text, f"{entry!r} does not say how many GPUs to simulate")
        if len(kinds) + int(match["count"]) > MAX_SIM_GPUS:
            raise _illegal(text, f"it simulates more than {MAX_SIM_GPUS} GPUs")
        kind = ((match["model"] or "sim").strip(), float(match["memory_gb"] or SIM_MEMORY_GB))
        kinds += [kind] * int(match["count"])
    return tuple(
        Gpu(f"SIM-{index}", index, model, memory_gb, SIM_CAPABILITY) for index, (model, memory_gb) in enumerate(kinds)
    )


def _illegal(text: str, why: str) -> UsageError:
    return UsageError(f"--gpus {text!r}: {why}", legal=_LEGAL, remedy="--gpus auto uses every free GPU")
