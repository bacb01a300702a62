"""Needs that the configuration or the command line gives to files without one."""

from dataclasses import replace

from harness.bits.errors import UsageError
from harness.machine.inventory import Inventory
from harness.runner.collection.collect import Collected
from harness.runner.need import Need
from harness.runner.options import RunOptions
from harness.runner.units import NeedSource


def give_needs(collected: Collected, options: RunOptions, inventory: Inventory) -> Collected:
    """Return the collection with the default need on each file that has none, which the needs table did not decide.

    Raises UsageError for GPUs of unknown memory.
    """
    units = list(collected.units)
    if (default := _default_need(options, inventory)) is not None:
        units = [
            replace(unit, need=default, source=NeedSource.TABLE)
            if unit.need == Need() and unit.source is not NeedSource.TABLE
            else unit
            for unit in units
        ]
    return replace(collected, units=tuple(units))


def _smallest_gb(inventory: Inventory) -> float:
    """Memory of the smallest GPU, 0 without GPUs; UsageError where a GPU's is unknown."""
    memory_gb = min((gpu.memory_gb for gpu in inventory.gpus), default=0.0)
    if not memory_gb and inventory.gpus:
        raise UsageError(
            "--workers-per-gpu: the driver does not report the memory of a GPU",
            legal="GPUs of known memory",
            remedy="set memory-gb-per-worker, or leave the option out",
        )
    return memory_gb


def _default_need(options: RunOptions, inventory: Inventory) -> Need | None:
    if options.workers_per_gpu == 1:
        return Need(gpus=1)
    if options.workers_per_gpu:
        memory_gb = _smallest_gb(inventory)
        # Rounded down to a megabyte, so that N budgets never exceed the GPU.
        share_gb = int(memory_gb * 1000 / options.workers_per_gpu) / 1000
        return Need(gpus=1, memory_gb=share_gb, shared=share_gb > 0)
    if options.memory_gb_per_worker:
        return Need(gpus=1, memory_gb=options.memory_gb_per_worker, shared=True)
    return Need(gpus=options.gpus_per_worker) if options.gpus_per_worker else None
