"""The plan as lines of text: a row for each pool on each node."""

from collections.abc import Sequence

from rlcore.distributed.placement.inventory import amount
from rlcore.distributed.placement.plan import Plan, Pool, Process, Slot

HEAD = ("node", "GPUs", "CPUs", "pool", "ranks", "processes in each slot")


def render(plan: Plan) -> list[str]:
    """Return the plan as a table; GPUs and CPUs are those in use of those that the node has."""
    rows = [HEAD, *(row for node in plan.nodes for row in _rows(plan, node.name))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rows(plan: Plan, name: str) -> list[tuple[str, ...]]:
    (node,) = (each for each in plan.nodes if each.name == name)
    here = [(pool, [slot for slot in plan.slots_of(pool.name) if slot.node == name]) for pool in plan.pools]
    used = [(pool, slots) for pool, slots in here if slots]
    gpus = sum(pool.gpus_per_slot * len(slots) for pool, slots in used)
    cpus = sum(pool.cpus_per_slot * len(slots) for pool, slots in used)
    books = (name, f"{gpus:g} of {node.num_gpus:g}", f"{cpus:g} of {node.num_cpus:g}")
    rows = [(pool.name, ranks_text(slots), _processes(plan, pool)) for pool, slots in used] or [("-", "-", "-")]
    return [(*(books if index == 0 else ("", "", "")), *row) for index, row in enumerate(rows)]


def ranks_text(slots: Sequence[Slot]) -> str:
    """Return the ranks of slots, which are consecutive on a node: "0", "4-7"."""
    first, last = slots[0].rank, slots[-1].rank
    return f"{first}" if first == last else f"{first}-{last}"


def _processes(plan: Plan, pool: Pool) -> str:
    return "; ".join(_process(process) for process in plan.processes if process.pool == pool.name)


def _process(process: Process) -> str:
    roles = "" if process.roles == (process.name,) else f" ({', '.join(process.roles)})"
    gpus = f", {amount(process.gpus, 'GPU')}" if process.gpus else ""
    return f"{process.name}{roles}{gpus}, {amount(process.cpus, 'CPU')}"
