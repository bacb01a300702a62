"""The machine's GPUs, read through NVIDIA's driver.

Inside the harness a GPU is its UUID. A GPU that answers with an error (fallen off the bus, reset required) is left out
with the driver's message and never ends the run.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from harness.bits.errors import BusyGpusError, InventoryError
from harness.machine.gpu_driver import GpuDriver, GpuReadError, GpuReading, ListedGpu, NoDriverError
from harness.machine.gpu_health import GpuFault, MachineHealth
from harness.machine.gpu_selection import Auto, Count, Named, Pretended, find_named, parse_selection
from harness.machine.inventory import Gpu, Inventory, LeftOut
from harness.machine.meter import GpuProcess, MemoryMeter, NoMeter
from harness.machine.nvidia import NvidiaDriver
from harness.machine.nvml import kept_open
from harness.machine.visible import ORDER_NOTE, Device, Visible, order_is_uncertain
from harness.process.child_env import Surroundings, surrounding_lease
from harness.process.claims import Claims, holder_of

_MAX_NAMED_PROCESSES = 3
MAX_MARKER_CHARS = 40
"""Of the name of an attempt, in a claim, which must not be long."""


def read_inventory(selection: str, environ: Mapping[str, str], claims: Claims | None = None) -> Inventory:
    """The GPUs a run may lease, as `selection` (the text of --gpus, see `selection`) asks for them.

    Within CUDA_VISIBLE_DEVICES of `environ`; busy, unreadable and prohibited GPUs are left out,
    each with its reason. A busy GPU is taken where `selection` insists, and within a lease that already has it. Each
    GPU taken is claimed in `claims` as "gpu-<uuid>", within a lease under the name of its attempt; pretended GPUs are
    not. Raises UsageError for a text of no legal form, InventoryError where fewer GPUs are free than were counted or a
    GPU asked for by name cannot be had; BusyGpusError if they may be had later.
    """
    asked = parse_selection(selection)
    if isinstance(asked, Pretended):
        return Inventory(gpus=asked.gpus, pretended=True)
    if asked == Count(0):
        return Inventory()
    try:
        with driver_opened() as driver:
            return _take(driver, asked, environ, claims)
    except NoDriverError as error:
        if isinstance(asked, Auto):
            return Inventory(note=f"{error}: 0 GPUs")
        raise InventoryError(
            f"--gpus {selection}: {error}",
            legal="auto (every free GPU, here 0), none, sim:N",
            remedy="rlharness run --gpus none runs what needs no GPU; --gpus sim:N pretends N",
        ) from error


def read_with_meter(selection: str, environ: Mapping[str, str], claims: Claims) -> tuple[Inventory, MemoryMeter]:
    """Return the inventory, as `read_inventory` does, and an open meter of its GPUs; the driver starts only once."""
    if isinstance(asked := parse_selection(selection), Pretended) or asked == Count(0):
        return read_inventory(selection, environ, claims), NoMeter()
    with kept_open():
        inventory = read_inventory(selection, environ, claims)
        return inventory, DriverMeter() if inventory.gpus else NoMeter()


def read_machine(environ: Mapping[str, str]) -> tuple[MachineHealth, Inventory]:
    """Return the health of the GPUs and which of them are free; the driver starts once for both."""
    with kept_open():
        health = read_gpu_health()
        return health, Inventory() if health.problem else read_inventory("auto", environ)


def read_gpu_health() -> MachineHealth:
    """Ask the driver that `read_inventory` would ask; blocks for as long as it does."""
    try:
        with driver_opened() as driver:
            return driver.health()
    except NoDriverError as error:
        return MachineHealth(problem=str(error), has_driver=not error.is_absent)


class DriverMeter:
    """Memory and processes of real GPUs; opens the driver at once and keeps it open until `close`.

    A driver that does not start raises InventoryError.
    """

    def __init__(self) -> None:
        try:
            self._driver: GpuDriver = NvidiaDriver()
        except NoDriverError as error:
            raise InventoryError(str(error), legal="a machine whose GPU driver runs") from error

    def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
        read = {gpu_id: self._driver.used_memory_bytes(gpu_id) for gpu_id in gpu_ids}
        return {gpu_id: used_bytes for gpu_id, used_bytes in read.items() if used_bytes is not None}

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        return self._driver.processes_on(gpu_id)

    def fault(self, gpu_id: str) -> GpuFault | None:
        return self._driver.fault(gpu_id)

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        return self._driver.new_xids(gpu_id)

    is_simulated = False

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        return self._driver.memory_by_pid(gpu_id)

    def accounted_peaks(self, gpu_id: str, pids: Collection[int]) -> Mapping[int, int]:
        return self._driver.accounted_peaks(gpu_id, pids)

    def close(self) -> None:
        self._driver.close()


# ---- the driver ----


@contextmanager
def driver_opened() -> Iterator[GpuDriver]:
    """The driver, for the length of a `with`. Raises NoDriverError where none answers."""
    driver = NvidiaDriver()
    try:
        yield driver
    finally:
        driver.close()


# ---- choosing ----


def _take(
    driver: GpuDriver, asked: Auto | Count | Named, environ: Mapping[str, str], claims: Claims | None
) -> Inventory:
    gpus = driver.list_gpus()
    devices = [gpu.device for gpu in gpus]
    visible = driver.visible(devices, environ)
    mine = [gpus[devices.index(device)] for device in visible.devices]
    wanted = find_named(asked, visible.devices) if isinstance(asked, Named) else range(len(mine))
    num_wanted = asked.num_gpus if isinstance(asked, Count) else len(mine)
    around = surrounding_lease(environ)
    insists = isinstance(asked, Named) and asked.is_as_is
    taken: list[Gpu] = []
    left_out: list[LeftOut] = []
    for index in wanted:
        if len(taken) == num_wanted:
            break
        is_as_is = insists or mine[index].device.uuid in around.gpu_ids
        found = _examine(driver, mine[index], index, is_as_is=is_as_is)
        if isinstance(found, Gpu):
            found = _claim(found, claims, around)
        if isinstance(found, Gpu):
            taken.append(found)
        else:
            left_out.append(found)
    if (isinstance(asked, Count) and len(taken) < num_wanted) or (isinstance(asked, Named) and left_out):
        if claims is not None:
            for gpu in taken:
                claims.release(_claim_name(gpu.gpu_id, around, claims))
        raise _too_few(asked, len(taken), len(mine), left_out)
    return Inventory(
        gpus=tuple(taken),
        left_out=tuple(left_out),
        num_links=driver.num_links(taken),
        note="; ".join(_notes(visible, asked, devices, environ)),
    )


def _notes(
    visible: Visible, asked: Auto | Count | Named, devices: Sequence[Device], environ: Mapping[str, str]
) -> list[str]:
    notes = list(visible.notes)
    by_position = isinstance(asked, Named) and asked.has_positions
    if by_position and visible.by_number and ORDER_NOTE not in notes and order_is_uncertain(devices, environ):
        notes.append(ORDER_NOTE)
    return notes


def _too_few(asked: Count | Named, num_taken: int, num_visible: int, left_out: Sequence[LeftOut]) -> InventoryError:
    reasons = "; ".join(f"GPU {gpu.index} ({gpu.model}): {gpu.reason}" for gpu in left_out)
    if isinstance(asked, Named):
        what = f"--gpus {asked}: {reasons}"
    else:
        what = f"--gpus {asked.num_gpus}: {num_taken} of the {num_visible} GPUs this process was given are free"
        what += f"; {reasons}" if reasons else ""
    num_busy = sum(gpu.is_busy for gpu in left_out)
    may_come = num_busy == len(left_out) if isinstance(asked, Named) else num_taken + num_busy >= asked.num_gpus
    kind = BusyGpusError if may_come else InventoryError
    return kind(
        what,
        legal="GPUs that are free",
        remedy="--gpus auto uses every free GPU; --gpus as-is:0 takes GPU 0 although it is in use;"
        " run --wait S waits for them; or end the processes that hold them",
    )


def _examine(driver: GpuDriver, gpu: ListedGpu, index: int, *, is_as_is: bool) -> Gpu | LeftOut:
    """The GPU as it may be leased, or why it cannot be now."""
    device = gpu.device
    if gpu.problem:
        return LeftOut(device.uuid, index, device.model, gpu.problem)
    try:
        reading = driver.read(gpu)
    except GpuReadError as error:
        return LeftOut(device.uuid, index, device.model, str(error))
    if reason := reading.ban or str(reading.fault or ""):
        return LeftOut(device.uuid, index, device.model, reason)
    if not is_as_is and (reason := _why_busy(reading)):
        return LeftOut(device.uuid, index, device.model, reason, is_busy=True)
    return Gpu(
        gpu_id=device.uuid,
        index=index,
        model=reading.model,
        memory_gb=reading.memory_gb,
        capability=reading.capability,
        is_mig=bool(device.old_mig_name),
        number=None if device.old_mig_name else device.ordinal,
        is_as_is=is_as_is,
        used_bytes=reading.memory[1] if reading.memory else 0,
        idle_bytes=reading.idle_bytes,
    )


def _why_busy(reading: GpuReading) -> str:
    """What keeps a readable GPU from being leased, or nothing."""
    used_bytes = reading.memory[1] if reading.memory else 0
    if reading.processes:
        named = ", ".join(str(process) for process in reading.processes[:_MAX_NAMED_PROCESSES])
        if len(reading.processes) > _MAX_NAMED_PROCESSES:
            named += f" and {len(reading.processes) - _MAX_NAMED_PROCESSES} more"
        return f"busy: {used_bytes / 1e9:.1f} GB held by {named}"
    if used_bytes - reading.display_bytes > reading.idle_bytes:
        return f"busy: {used_bytes / 1e9:.1f} GB in use, by no process that the driver lists (another container?)"
    return ""


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
