"""The plan of a run: which process of which role runs in which slot of which pool, on which node. Pure.

    role ──▶ process ──▶ pool ──▶ slots ──▶ node
    actor ─┐
    ref ───┴ trainer ──▶ train ─▶ ranks 0-3 ▶ node-a
    rollout  sampler ──▶ serve ─▶ ranks 0-1 ▶ node-b

Roles that name one process share it, rank by rank. A pool is a set of slots that are alike, and each process of a pool
has one rank in every slot. A GPU belongs to one slot; processes of a slot share its GPUs as their roles declare.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.bits.text import nearest
from rlcore.distributed.placement.inventory import Node, amount, inventory_text
from rlcore.distributed.placement.packing import Free, Request, pack, room
from rlcore.errors import InvalidValueError, PlacementError

UNITS = 10_000
"""Units of a GPU or a CPU: Ray's precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A named set of slots that are alike, each of which is one rank."""

    name: str
    num_slots: int
    num_nodes: int | None = None
    """Number of nodes that share the slots equally; None: as few nodes as have room."""
    gpus_per_slot: int = 1
    cpus_per_slot: float = 1.0

    def __post_init__(self) -> None:
        if self.num_slots < 1:
            raise InvalidValueError(f"pool {self.name}: num_slots {self.num_slots}", legal="1 or more")
        if self.num_nodes is not None and (self.num_nodes < 1 or self.num_slots % self.num_nodes):
            legal = ", ".join(str(n) for n in range(1, self.num_slots + 1) if self.num_slots % n == 0)
            raise InvalidValueError(
                f"pool {self.name}: {self.num_slots} slots on {self.num_nodes} nodes",
                legal=f"num_nodes {legal}",
                remedy="leave num_nodes out: any nodes with room",
            )
        if self.gpus_per_slot < 0 or self.gpus_per_slot != int(self.gpus_per_slot):
            raise InvalidValueError(
                f"pool {self.name}: gpus_per_slot {self.gpus_per_slot:g}",
                legal="a whole number: a GPU belongs to one slot",
                remedy="declare fractions where roles share a slot: Role(gpus=0.5)",
            )
        if self.cpus_per_slot < 0 or not (self.gpus_per_slot or _units(self.cpus_per_slot)):
            raise InvalidValueError(
                f"pool {self.name}: {self.gpus_per_slot} GPUs and {self.cpus_per_slot:g} CPUs a slot",
                legal="cpus_per_slot 0.0001 or more, or 0 with a GPU",
            )

    @property
    def request(self) -> Request:
        """The pool in units."""
        slot = Free(int(self.gpus_per_slot) * UNITS, _units(self.cpus_per_slot))
        return Request(self.num_slots, self.num_nodes, slot)

    def __str__(self) -> str:
        where = f" on {amount(self.num_nodes, 'node')}" if self.num_nodes else ""
        each = f"{amount(self.gpus_per_slot, 'GPU')} and {amount(self.cpus_per_slot, 'CPU')}"
        return f"pool {self.name}: {amount(self.num_slots, 'slot')} of {each}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A part of the algorithm, as actor, reference, critic, rollout."""

    name: str
    pool: str
    process: str = ""
    """Name of the process that it shares with other roles of the pool; empty: a process of its own."""
    gpus: float | None = None
    """GPUs of its process in each slot; None: the whole slot's. Below 1, a declared share of one GPU."""
    cpus: float | None = None
    """CPUs of its process in each slot; None: the slot's, in equal shares for the processes that declare none."""


@dataclass(frozen=True, slots=True)
class Process:
    """Roles that run in one process; a worker of it runs in each slot of its pool."""

    name: str
    pool: str
    roles: tuple[str, ...]
    gpus: float
    cpus: float


@dataclass(frozen=True, slots=True)
class Slot:
    """Resources of one rank of a pool."""

    pool: str
    rank: int
    node: str
    local_rank: int
    """Number among the slots of its pool on its node."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything runs."""

    nodes: tuple[Node, ...]
    pools: tuple[Pool, ...]
    processes: tuple[Process, ...]
    slots: tuple[Slot, ...]
    """By pool, then by rank."""

    def slots_of(self, pool: str) -> tuple[Slot, ...]:
        """Return a pool's slots by rank. Raises InvalidValueError for a pool that the plan does not have."""
        _known("pool", pool, [each.name for each in self.pools])
        return tuple(slot for slot in self.slots if slot.pool == pool)


def make_plan(pools: Sequence[Pool], roles: Sequence[Role], nodes: Sequence[Node]) -> Plan:
    """Return a plan that no node is too small for, by what the nodes have in total.

    Raises InvalidValueError for roles and pools that contradict each other, and PlacementError, which quotes the
    inventory, if a pool finds no room.
    """
    for kind, names in (("pool", pools), ("role", roles), ("node", nodes)):
        _check_names(kind, [each.name for each in names])
    processes = _processes(pools, roles)
    ordered = tuple(sorted(nodes, key=lambda node: node.name))
    frees = [Free(node.num_gpus * UNITS, _units(node.num_cpus)) for node in ordered]
    for pool in pools:
        _check_alone(pool, ordered, frees)
    counts = pack([pool.request for pool in pools], frees)
    if counts is None:
        raise PlacementError(
            f"the pools fit one by one but not together: {_texts(pools)}",
            legal=f"pools that fit side by side on {inventory_text(ordered)}",
            remedy="let roles share a pool, in one process by name (Role(process=...)); or fewer slots",
        )
    slots = [
        slot
        for pool, by_node in zip(pools, counts, strict=True)
        for slot in _slots(pool, {node.name: count for node, count in zip(ordered, by_node, strict=True)})
    ]
    return Plan(ordered, tuple(pools), processes, tuple(slots))


def _slots(pool: Pool, counts: Mapping[str, int]) -> list[Slot]:
    """Return the slots of a pool: ranks are consecutive on a node."""
    at = [(node, local_rank) for node, count in counts.items() for local_rank in range(count)]
    return [Slot(pool.name, rank, node, local_rank) for rank, (node, local_rank) in enumerate(at)]


def _check_alone(pool: Pool, nodes: Sequence[Node], frees: Sequence[Free]) -> None:
    """Raise PlacementError for a pool that does not fit on these nodes even without the others."""
    request = pool.request
    rooms = [room(request.slot, free) for free in frees]
    if request.num_nodes:
        share = request.num_slots // request.num_nodes
        if sum(has >= share for has in rooms) >= request.num_nodes:
            return
        needs = f"{amount(request.num_nodes, 'node')} with room for {amount(share, 'slot')} each"
    else:
        if sum(rooms) >= request.num_slots:
            return
        needs = f"room for {amount(request.num_slots, 'slot')}"
    have = ", ".join(f"{node.name} {count}" for node, count in zip(nodes, rooms, strict=True)) or "no node"
    raise PlacementError(
        f"{pool} needs {needs}; slots that fit by node: {have}",
        legal=f"at most what a node has: {inventory_text(nodes)}",
        remedy=_remedy(request, rooms),
    )


def _remedy(request: Request, rooms: Sequence[int]) -> str:
    """Return the change of a pool that fits."""
    if request.num_nodes:
        for num_nodes in range(1, request.num_slots + 1):
            share, rest = divmod(request.num_slots, num_nodes)
            if not rest and sum(has >= share for has in rooms) >= num_nodes:
                return f"num_nodes={num_nodes} fits, with {amount(share, 'slot')} on each"
    if total := sum(rooms):
        return f"at most {amount(total, 'slot')} on these nodes; or more nodes"
    return "nodes that have what one slot needs; or smaller slots"


def _processes(pools: Sequence[Pool], roles: Sequence[Role]) -> tuple[Process, ...]:
    """Return the processes with what each gets of a slot."""
    by_name: dict[str, list[Role]] = {}
    for role in roles:
        _known("pool", role.pool, [pool.name for pool in pools], f"role {role.name}: ")
        by_name.setdefault(role.process or role.name, []).append(role)
    for name, shared in by_name.items():
        if len({role.pool for role in shared}) > 1:
            raise InvalidValueError(
                f"process {name} is in several pools: " + ", ".join(f"{role.name} in {role.pool}" for role in shared),
                legal="one pool for the roles of a process",
            )
    found = []
    for pool in pools:
        own = {name: shared for name, shared in by_name.items() if shared[0].pool == pool.name}
        if not own:
            raise InvalidValueError(
                f"pool {pool.name} has no role", legal="at least one role a pool", remedy="leave the pool out"
            )
        gpus = _gpu_shares(pool, {name: _declared("gpus", name, shared) for name, shared in own.items()})
        cpus = _cpu_shares(pool, {name: _declared("cpus", name, shared) for name, shared in own.items()})
        found += [
            Process(name, pool.name, tuple(role.name for role in shared), gpus[name], cpus[name])
            for name, shared in own.items()
        ]
    return tuple(found)


def _declared(key: str, process: str, roles: Iterable[Role]) -> float | None:
    """Return what the roles of a process declare, which is one value."""
    values = {role.name: value for role in roles if (value := getattr(role, key)) is not None}
    for name, value in values.items():
        if value < 0 or (key == "gpus" and value > 1 and value != int(value)):
            raise InvalidValueError(f"role {name}: {key} {value:g}", legal="a share of 1 GPU, or a whole number")
    if len({*values.values()}) > 1:
        said = ", ".join(f"{name} {value:g}" for name, value in values.items())
        raise InvalidValueError(f"process {process}: its roles declare different {key}: {said}", legal="one value")
    return next(iter(values.values()), None)


def _gpu_shares(pool: Pool, declared: dict[str, float | None]) -> dict[str, float]:
    """Return GPUs by process; several processes share a slot's GPUs only if each declares its share."""
    if len(declared) == 1 or not pool.gpus_per_slot:
        shares = {name: pool.gpus_per_slot if value is None else value for name, value in declared.items()}
    elif missing := [name for name, value in declared.items() if value is None]:
        raise InvalidValueError(
            f"pool {pool.name}: processes {', '.join(declared)} share the GPUs of a slot, and gpus of"
            f" {', '.join(missing)} is not declared",
            legal=f"gpus of each process, {amount(pool.gpus_per_slot, 'GPU')} a slot in all",
            remedy="one process for the roles (Role(process=...)); or a pool of its own; or gpus=0.5 each",
        )
    else:
        shares = {name: value for name, value in declared.items() if value is not None}
    fractions = [value for value in shares.values() if value != int(value)]
    complete = sum(value for value in shares.values() if value == int(value))
    if sum(map(_units, fractions)) > UNITS or complete + bool(fractions) > pool.gpus_per_slot:
        said = ", ".join(f"{name} {value:g}" for name, value in shares.items())
        raise InvalidValueError(
            f"pool {pool.name}: gpus in a slot: {said}",
            legal=f"{amount(pool.gpus_per_slot, 'GPU')} in all; shares below 1 lie on one GPU",
            remedy="one process for the roles (Role(process=...)); or a pool of its own",
        )
    return shares


def _cpu_shares(pool: Pool, declared: dict[str, float | None]) -> dict[str, float]:
    """Return CPUs by process; those that declare none share the rest equally."""
    undeclared = [name for name, value in declared.items() if value is None]
    rest = _units(pool.cpus_per_slot) - sum(_units(value) for value in declared.values() if value is not None)
    if rest < 0:
        said = ", ".join(f"{name} {value:g}" for name, value in declared.items() if value is not None)
        raise InvalidValueError(
            f"pool {pool.name}: cpus in a slot: {said}", legal=f"{amount(pool.cpus_per_slot, 'CPU')} in all"
        )
    share = rest // len(undeclared) / UNITS if undeclared else 0.0
    return {name: share if value is None else value for name, value in declared.items()}


def _check_names(kind: str, names: Sequence[str]) -> None:
    if not names:
        raise InvalidValueError(f"no {kind}", legal=f"at least one {kind}")
    for name, count in Counter(names).items():
        if count > 1 or not name:
            raise InvalidValueError(f"{kind} {name!r} is there {count} times", legal="names that are unique")


def _known(kind: str, name: str, names: Iterable[str], where: str = "") -> str:
    """Return a name that exists. Raises InvalidValueError, with the nearest one."""
    known = list(names)
    if name not in known:
        raise InvalidValueError(f"{where}no {kind} {name!r}", legal=", ".join(known), remedy=nearest(name, known))
    return name


def _texts(pools: Iterable[Pool]) -> str:
    return "; ".join(str(pool).removeprefix("pool ") for pool in pools)


def _units(number: float) -> int:
    return round(number * UNITS)
