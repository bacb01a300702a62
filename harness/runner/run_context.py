"""Context of one run or plan: the machine as it was read, and the resources to return in the end."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bits.errors import BusyGpusError, InventoryError, UsageError
from harness.machine.gpu_health import Meter
from harness.machine.gpu_watch import GpuWatch
from harness.machine.gpus import read_with_meter
from harness.machine.inventory import Inventory
from harness.process.claims import Claims
from harness.process.clock import Clock, SystemClock
from harness.process.daemon_thread import in_daemon_thread
from harness.process.ports import PortBlocks, read_ephemeral_range
from harness.process.run_directory import new_run_id
from harness.process.scratch import let_go, make_scratch_root, remove_abandoned, remove_tree
from harness.process.supervisor_client import ContainmentBackends, Supervisors, find_py_spy, probe_backends
from harness.runner.options import RunOptions
from harness.runner.records.history import History
from harness.runner.sessions.suite import Suite

if TYPE_CHECKING:
    from harness.runner.ray.cluster import RayCluster

SCRATCH_S = 30.0
"""For making a directory, and removing what killed runs have left beside it."""
WAIT_EVERY_S = 2.0
"""Between two looks at GPUs that are waited for."""
INVENTORY_S = 60.0
"""Eight GPUs without persistence mode take up to half of that to wake."""


@dataclass(frozen=True, slots=True)
class RunGpus:
    """The GPUs of a run, and what reads them."""

    inventory: Inventory
    meter: Meter
    """Never closed: a driver that hangs would hang in that too."""
    cluster: "RayCluster | None" = None
    """Cluster whose GPUs they are; None for this machine."""

    def watch(self, clock: Clock) -> GpuWatch:
        """Return what asks the meter about the GPUs of a lease."""
        return GpuWatch(self.meter, clock, self.inventory.gpus)


@dataclass(frozen=True, slots=True)
class RunContext:
    """Everything a run or plan needs of this machine."""

    options: RunOptions
    clock: Clock
    run_id: str
    scratch: Path
    """Short and local; for TMPDIRs and what need not be kept."""
    backends: ContainmentBackends
    gpus: RunGpus
    supervisors: "Supervisors | RayCluster"
    ports: PortBlocks
    history: History
    suite: Suite
    """The session that collects the suite, started and not yet waited for."""
    notes: tuple[str, ...]
    """Notes for the user on how the machine was read."""


async def read_run_gpus(options: RunOptions, claims: Claims) -> RunGpus:
    """The GPUs that `options` ask for, each claimed; InventoryError where they cannot be had or read.

    Waits for busy ones as long as `options` allow: for all that are counted or named, and for one with auto.
    """
    if options.ray is not None:
        from harness.runner.ray.cluster import join

        inventory, cluster = await join(options.ray, options.containment, options.gpus)
        return RunGpus(inventory, cluster, cluster)
    clock, shown = SystemClock(), ""
    deadline_s = clock.monotonic_s() + options.wait_s
    while True:
        left_s = deadline_s - clock.monotonic_s()
        try:
            found = await _read_run_gpus(options, claims)
            left_out = found.inventory.left_out
            if left_s <= 0 or found.inventory.gpus or not any(gpu.is_busy for gpu in left_out):
                return found
            reason = "; ".join(f"GPU {gpu.index} ({gpu.model}): {gpu.reason}" for gpu in left_out)
        except BusyGpusError as error:
            if left_s <= 0:
                raise
            reason = error.what
        if (without_sizes := re.sub(r"[\d.]+ GB", "", reason)) != shown:  # a program's memory changes all the time
            options.invocation.note(f"waiting for GPUs, {left_s:.0f} s at most: {reason}")
            shown = without_sizes
        await asyncio.sleep(min(WAIT_EVERY_S, left_s))


async def _read_run_gpus(options: RunOptions, claims: Claims) -> RunGpus:
    def read() -> RunGpus:
        return RunGpus(*read_with_meter(options.gpus, options.invocation.environ, claims))

    try:
        return await in_daemon_thread(read, limit_s=INVENTORY_S)
    except TimeoutError:
        raise InventoryError(
            f"--gpus {options.gpus}: the GPU driver did not answer within {INVENTORY_S:g} s",
            legal="GPUs with a driver that answers",
            remedy="check the messages of the driver in dmesg, or run the files that need no GPU with --gpus none",
        ) from None


@asynccontextmanager
async def open_run_context(
    options: RunOptions,
    clock: Clock,
    gpus: RunGpus,
    claims: Claims,
    *,
    is_run: bool,
) -> AsyncIterator[RunContext]:
    """Find the GPUs, and make the directories; return and remove all of them in the end. A plan keeps no file."""
    with ExitStack() as stack:
        environ = options.invocation.environ
        scratch, held, scratch_notes = await _make_scratch(environ)
        stack.callback(os.close, held)
        stack.callback(_clear_scratch, Path(scratch), options.invocation.note, keep_tmp=options.keep_tmp)
        run_id = new_run_id(clock.wall())
        ports = PortBlocks(claims, read_ephemeral_range())
        has_gpus = bool(gpus.inventory.gpus)
        # First of all, since it takes longest; what follows happens meanwhile.
        suite = Suite(options, run_id, Path(scratch), master_port=ports.master_port(0), has_gpus=has_gpus)
        stack.enter_context(closing(suite))
        backends = probe_backends(options.containment)
        history = History() if options.history_free else History.of_root(options.root, environ, is_run=is_run)
        stack.enter_context(history)
        supervisors = stack.enter_context(closing(gpus.cluster or Supervisors(backends.chosen, run_id, find_py_spy())))
        if isinstance(supervisors, Supervisors):
            supervisors.parent = suite
        yield RunContext(
            options=options,
            clock=clock,
            run_id=run_id,
            scratch=Path(scratch),
            backends=backends,
            gpus=gpus,
            supervisors=supervisors,
            ports=ports,
            history=history,
            suite=suite,
            notes=tuple(note for note in (gpus.inventory.note, *scratch_notes, *history.notes) if note),
        )


async def _make_scratch(environ: Mapping[str, str]) -> tuple[str, int, tuple[str, ...]]:
    """The scratch root, what holds it, and notes; UsageError where its file system does not answer."""

    def make() -> tuple[str, int, tuple[str, ...]]:
        scratch, held, note = make_scratch_root(environ)
        return scratch, held, (note, *remove_abandoned(os.path.dirname(scratch)))

    try:
        return await in_daemon_thread(make, limit_s=SCRATCH_S)
    except TimeoutError:
        raise UsageError(
            f"cannot create a directory in TMPDIR or /tmp within {SCRATCH_S:g} s",
            legal="a TMPDIR on a local file system that answers",
            remedy="find the file system that does not answer with rlharness doctor, and set TMPDIR to another one",
        ) from None


def _clear_scratch(scratch: Path, note: Callable[[str], None], *, keep_tmp: bool) -> None:
    """Remove the scratch root; with `keep_tmp` only what no failed unit left in it."""
    kept = (
        sorted(path for path in scratch.iterdir() if path.name.replace("-", "").isdigit())
        if keep_tmp and scratch.is_dir()
        else []
    )
    if not kept:
        complaint = remove_tree(str(scratch))
        if complaint:
            note(complaint)
        return
    let_go(str(scratch))
    for path in scratch.iterdir():
        if path not in kept:
            remove_tree(str(path))
