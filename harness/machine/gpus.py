"""The machine's GPUs: those that a run may lease, as --gpus asks, and their health."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from harness.bits.errors import BusyGpusError, InventoryError
from harness.machine.gpu_health import MachineHealth, Meter
from harness.machine.gpu_selection import (
    ORDER_NOTE,
    Selection,
    find_named,
    order_is_uncertain,
    parse_selection,
    visible_devices,
)
from harness.machine.inventory import Gpu, Inventory, LeftOut
from harness.process.child_env import Surroundings, surrounding_lease
from harness.process.claims import Claims, holder_of

if TYPE_CHECKING:
    from harness.machine.nvml import NvidiaDriver

MAX_MARKER_CHARS = 40
"""Of the name of an attempt, in a claim, which must not be long."""


def read_inventory(selection: str, environ: Mapping[str, str], claims: Claims | None = None) -> Inventory:
    """The GPUs a run may lease, as `selection` (the text of --gpus, see `gpu_selection`) asks for them.

    Within CUDA_VISIBLE_DEVICES of `environ`; busy, unreadable and prohibited GPUs are left out,
    each with its reason. A busy GPU is taken where `selection` insists, and within a lease that already has it. Each
    GPU taken is claimed in `claims` as "gpu-<uuid>", within a lease under the name of its attempt; pretended GPUs are
    not. Raises UsageError for a text of no legal form, InventoryError where fewer GPUs are free than were counted or a
    GPU asked for by name cannot be had; BusyGpusError if they may be had later.
    """
    inventory, meter = read_with_meter(selection, environ, claims)
    meter.close()
    return inventory


def read_with_meter(
    selection: str, environ: Mapping[str, str], claims: Claims | None = None
) -> tuple[Inventory, Meter]:
    """Return the inventory, as `read_inventory` does, and an open meter of its GPUs.

    The driver is opened once for both: GPUs without persistence mode take seconds to wake each time.
    """
    asked = parse_selection(selection)
    if asked.simulated:
        return Inventory(gpus=asked.simulated, pretended=True), Meter()
    if asked.num_gpus == 0:
        return Inventory(), Meter()
    from harness.machine.nvml import NoDriverError, NvidiaDriver  # late: it takes 20 ms

    with ExitStack() as stack:
        try:
            driver = stack.enter_context(NvidiaDriver())
            inventory = _take(driver, asked, environ, claims)
        except NoDriverError as error:
            if asked == Selection():
                return Inventory(note=f"{error}: 0 GPUs"), Meter()
            raise InventoryError(
                f"--gpus {selection}: {error}",
                legal="auto (every free GPU, here 0), none, sim:N",
                remedy="rlharness run --gpus none runs what needs no GPU; --gpus sim:N pretends N",
            ) from error
        if not inventory.gpus:
            return inventory, Meter()
        stack.pop_all()
        return inventory, driver


def read_machine(environ: Mapping[str, str]) -> tuple[MachineHealth, Inventory]:
    """Return the health of the GPUs and which of them are free; the driver is opened once for both."""
    from harness.machine.nvml import NoDriverError, NvidiaDriver

    try:
        with NvidiaDriver() as driver:
            health = driver.health()
            return health, Inventory() if health.problem else _take(driver, Selection(), environ, None)
    except NoDriverError as error:
        return MachineHealth(problem=str(error)), Inventory()


def _take(driver: "NvidiaDriver", asked: Selection, environ: Mapping[str, str], claims: Claims | None) -> Inventory:
    devices = driver.list_gpus()
    visible = visible_devices(devices, environ)
    mine = visible.devices
    wanted = find_named(asked, mine) if asked.names else range(len(mine))
    num_wanted = len(mine) if asked.num_gpus is None else asked.num_gpus
    around = surrounding_lease(environ)
    taken: list[Gpu] = []
    left_out: list[LeftOut] = []
    for index in wanted:
        if len(taken) == num_wanted:
            break
        is_as_is = asked.is_as_is or mine[index].uuid in around.gpu_ids
        found = driver.examine(mine[index], index, is_as_is=is_as_is)
        if isinstance(found, Gpu):
            found = _claim(found, claims, around)
        if isinstance(found, Gpu):
            taken.append(found)
        else:
            left_out.append(found)
    if (asked.num_gpus is not None and len(taken) < num_wanted) or (asked.names and left_out):
        if claims is not None:
            for gpu in taken:
                claims.release(_claim_name(gpu.gpu_id, around, claims))
        raise _too_few(asked, len(taken), len(mine), left_out)
    notes = list(visible.notes)
    if asked.has_positions and visible.by_number and ORDER_NOTE not in notes and order_is_uncertain(devices, environ):
        notes.append(ORDER_NOTE)
    return Inventory(tuple(taken), tuple(left_out), note="; ".join(notes))


def _too_few(asked: Selection, num_taken: int, num_visible: int, left_out: Sequence[LeftOut]) -> InventoryError:
    reasons = "; ".join(f"GPU {gpu.index} ({gpu.model}): {gpu.reason}" for gpu in left_out)
    if asked.names:
        what = f"--gpus {asked}: {reasons}"
    else:
        what = f"--gpus {asked.num_gpus}: {num_taken} of the {num_visible} GPUs this process was given are free"
        what += f"; {reasons}" if reasons else ""
    num_busy = sum(gpu.is_busy for gpu in left_out)
    may_come = num_busy == len(left_out) if asked.num_gpus is None else num_taken + num_busy >= asked.num_gpus
    kind = BusyGpusError if may_come else InventoryError
    return kind(
        what,
        legal="GPUs that are free",
        remedy="--gpus auto uses every free GPU; --gpus as-is:0 takes GPU 0 although it is in use;"
        " run --wait S waits for them; or end the processes that hold them",
    )


def _claim(gpu: Gpu, claims: Claims | None, around: Surroundings) -> Gpu | LeftOut:
    """Takes the GPU for this run; why that was refused, where it was."""
    if claims is None:
        return gpu
    name = _claim_name(gpu.gpu_id, around, claims)
    if claims.try_claim(name) or (gpu.is_as_is and claims.try_claim_past(name)):
        return gpu
    holder = holder_of(name)
    reason = "leased by another rlharness run" + (f" ({holder})" if holder else "")
    return LeftOut(gpu.gpu_id, gpu.index, gpu.model, reason, is_busy=True)


def _claim_name(gpu_id: str, around: Surroundings, claims: Claims) -> str:
    """Return the name of a claim: within a lease, runs of its attempt share its GPUs out among themselves alone."""
    whole = f"gpu-{gpu_id}"
    if gpu_id not in around.gpu_ids or claims.try_claim(whole):  # a variable that outlived its run means nothing
        return whole
    return f"{whole}-under-{around.marker[-MAX_MARKER_CHARS:]}"
