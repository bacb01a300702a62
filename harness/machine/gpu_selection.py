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
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.bits.errors import InventoryError, UsageError
from harness.machine.inventory import Gpu
from harness.machine.visible import Device, matching

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
