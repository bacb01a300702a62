"""Workers as actors of Ray, one for each rank. The only module of worker groups that imports Ray.

    submit: payloads ─ ray.put, once each ─▶ store ─▶ actor.answer ─▶ performs call after call
    results: ray.wait ◀── outcome of each rank; an actor that died fails the call, and the others are killed

Actors are not detached: they end with the driver, however that ends. A death shows in the next call, or in `check`.
"""

import os
import socket
import threading
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlcore.distributed.backends.base import DEATH_S, Launch
from rlcore.distributed.backends.packed_values import pack, unpack
from rlcore.distributed.backends.rendezvous import Rendezvous
from rlcore.distributed.calls import UNREADABLE, Failure, perform, place
from rlcore.distributed.scatter import Scattered
from rlcore.distributed.worker import Worker, WorkerContext, WorkerSpec, construct, effective, rank_environment
from rlcore.errors import InvalidValueError, WorkerDiedError, WorkerError
from rlcore.weights.transports.packing import Entry, fill, layout_of, num_bytes_of, views


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in Ray's store or in a call; its large tensors are one array, which readers of one node share."""

    content: bytes
    layout: tuple[Entry, ...]
    array: Any
    """uint8 [bytes] as numpy's; None if no tensor is large."""

    def value(self) -> Any:
        """Return the value, with tensors of its own."""
        if self.array is None:
            return unpack(self.content, {})
        return unpack(self.content, views(self.layout, torch.tensor(self.array)))


def stored(value: object) -> Stored:
    """Pack a value for Ray. Raises what pickle raises."""
    packed = pack(value)
    if not packed.tensors:
        return Stored(packed.content, (), None)
    layout = layout_of(packed.tensors)
    buffer = torch.empty(num_bytes_of(layout), dtype=torch.uint8)
    fill(layout, packed.tensors, buffer)
    return Stored(packed.content, layout, buffer.numpy())


@dataclass(frozen=True, slots=True)
class Ready:
    """Where an actor runs."""

    pid: int
    host: str
    failure: Failure | None


class Actor:
    """One rank: an actor that constructs the workers and answers calls in their order."""

    def __init__(self, specs: tuple[WorkerSpec, ...], context: WorkerContext, environment: Mapping[str, str]) -> None:
        """Construct the workers; `ready` has what that raised."""
        self._workers: dict[str, Worker] = {}
        self._failure: Failure | None = None
        try:
            if (found := effective(environment)) != environment:
                raise WorkerError(f"environment {found}", rank=context.rank, legal=f"{dict(environment)}")
            self._workers = construct(specs, context)
        except Exception as error:  # it is raised again in the controller
            self._failure = Failure.of(error)

    def ready(self) -> Ready:
        """Return where this actor runs, once it is constructed."""
        return Ready(os.getpid(), socket.gethostname(), self._failure)

    def answer(self, role: str, method: str, *payloads: "Stored") -> "Stored":
        """Run a method and return its result, or a Failure, also of a message that cannot be read or pickled."""
        try:
            arguments: dict[str, Any] = {}
            for payload in payloads:
                arguments |= payload.value()
            return stored(perform(self._workers[role], method, arguments))
        except Exception as error:  # pickle raises what the classes of a value raise
            text = traceback.format_exception_only(error)[-1].strip()
            return stored(Failure.of(WorkerError(f"{UNREADABLE}: {text}", role=role)))


@dataclass(frozen=True, slots=True)
class Answers:
    """A call that actors run."""

    workers: "ActorWorkers"
    method: str
    references: Mapping[int, Any]

    def is_done(self) -> bool:
        """As `Pending.is_done`."""
        waiting = list(self.references.values())
        return len(ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]) == len(waiting)

    def results(self, timeout_s: float | None) -> dict[int, Any]:
        """As `Pending.results`."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        running = {reference: rank for rank, reference in self.references.items()}
        found: dict[int, Any] = {}
        while running:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            done, _ = ray.wait(list(running), num_returns=1, timeout=left)
            if not done:
                raise TimeoutError(f"ranks {sorted(running.values())} still run")
            for reference in done:
                rank = running.pop(reference)
                found[rank] = self.workers.get(rank, self.method, reference)
                if isinstance(found[rank], Failure):
                    self._raise_deaths(running)
                    return {rank: found[rank]}
        return found

    def _raise_deaths(self, running: Mapping[Any, int]) -> None:
        """Wait for the other ranks, shortly. Raises WorkerDiedError if one of them has died."""
        if running:
            for reference in ray.wait(list(running), num_returns=len(running), timeout=DEATH_S)[0]:
                self.workers.get(running[reference], self.method, reference)


class ActorWorkers:
    """As `Started`, for actors."""

    def __init__(self, launch: Launch, rendezvous: Rendezvous) -> None:
        """Call actors of a launch; `RayActors.start` starts them."""
        self._launch, self._rendezvous = launch, rendezvous
        self.actors: list[Any] = []
        self.ready: list[Ready] = []
        self._sending = threading.Lock()  # calls reach all ranks in one order
        self._death: tuple[int, str, str] | None = None

    @property
    def process_ids(self) -> tuple[int, ...]:
        """As `Started.process_ids`."""
        return tuple(ready.pid for ready in self.ready)

    def submit(self, role: str, method: str, call: Scattered) -> Answers:
        """As `Started.submit`; large tensors for several ranks are put into Ray's store once."""
        if self._death is not None:
            raise self._died(*self._death)
        values = [(payload.ranks, stored(payload.arguments)) for payload in call.payloads]
        sent = [(ranks, value if len(ranks) == 1 or value.array is None else ray.put(value)) for ranks, value in values]
        with self._sending:
            references = {
                rank: self.actors[rank].answer.remote(role, method, *(value for ranks, value in sent if rank in ranks))
                for rank in call.ranks
            }
        return Answers(self, method, references)

    def get(self, rank: int, method: str, reference: Any) -> Any:
        """Return what an actor answered. Raises WorkerDiedError if it died; the others are killed then."""
        try:
            found = ray.get(reference)
            return found.value() if isinstance(found, Stored) else found
        except RayActorError as error:
            if self._death is None:
                self._death = (rank, method, str(error).strip().splitlines()[-1].strip())
                self._kill()
            raise self._died(*self._death) from error
        except RayError as error:
            raise WorkerError(f"{type(error).__name__}: {error}", role=self._launch.name, rank=rank) from error

    def check(self) -> None:
        """As `Started.check`: ask each actor that does not run a call, which Ray does without the actor's thread."""
        if self._death is not None:
            raise self._died(*self._death)
        pings = {actor.__ray_ready__.remote(): rank for rank, actor in enumerate(self.actors)}
        for reference in ray.wait(list(pings), num_returns=len(pings), timeout=1.0)[0]:
            self.get(pings[reference], "none: it waited", reference)

    def end(self) -> None:
        """As `Started.end`."""
        self._kill()
        self.actors = []
        self._rendezvous.close()

    def _kill(self) -> None:
        if ray.is_initialized():
            for actor in self.actors:
                ray.kill(actor, no_restart=True)

    def _died(self, rank: int, method: str, reason: str) -> WorkerDiedError:
        pid = self.ready[rank].pid if self.ready else 0
        where = place(self._launch.name, rank, self._launch.size, pid, method)
        return WorkerDiedError(
            f"an actor has ended: {where}: {reason}",
            role=self._launch.name,
            rank=rank,
            pid=pid,
            remedy="resume from the last checkpoint; Ray's logs and the kernel's say why it ended",
        )


@dataclass(frozen=True)
class RayActors:
    """Workers as actors of the Ray session that this process has joined."""

    num_cpus: float = 1.0
    """Of each actor."""
    num_gpus: float = 0.0
    placement_group: PlacementGroup | None = None
    """Reserved bundles, one for each rank; needed on several nodes, where they give each rank its LOCAL_RANK."""
    start_timeout_s: float = 600.0
    """Time for all actors to be scheduled and constructed."""

    def start(self, launch: Launch) -> ActorWorkers:
        """As `Backend.start`; raises InvalidValueError without a session, or if ranks have no bundle."""
        if not ray.is_initialized():
            raise InvalidValueError(
                f"group {launch.name} runs on Ray, and this process has joined no session",
                legal="a session of Ray",
                remedy="ray.init() for one of its own, or ray.init(address=...)",
            )
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        rendezvous = Rendezvous(host)
        workers = ActorWorkers(launch, rendezvous)
        try:
            nodes = self._nodes(launch)
            for rank in range(launch.size):
                workers.actors.append(self._actor(launch, rank, nodes, rendezvous.address))
            self._wait(launch, workers)
        except BaseException:
            workers.end()
            raise
        return workers

    def _nodes(self, launch: Launch) -> list[str]:
        """Return the node of each rank."""
        if self.placement_group is not None:
            nodes = placement_group_table(self.placement_group)["bundles_to_node_id"]
            if len(nodes) != launch.size:
                raise InvalidValueError(
                    f"{len(nodes)} reserved bundles for group {launch.name}",
                    legal=f"{launch.size}, one for each rank",
                )
            return [nodes[rank] for rank in range(launch.size)]
        nodes_known = ray.nodes()  # type: ignore[no-untyped-call]
        alive = [node["NodeID"] for node in nodes_known if node["Alive"]]
        if len(alive) > 1 and launch.size > 1:
            raise InvalidValueError(
                f"group {launch.name} of {launch.size} ranks on {len(alive)} nodes without a placement group",
                legal="a placement group, which says on which node each rank runs",
                remedy="RayActors(placement_group=...)",
            )
        return alive[:1] * launch.size

    def _actor(self, launch: Launch, rank: int, nodes: list[str], address: tuple[str, int]) -> Any:
        local_rank, local_size = nodes[:rank].count(nodes[rank]), Counter(nodes)[nodes[rank]]
        variables = rank_environment(rank, launch.size, local_rank, local_size, address)
        options: dict[str, Any] = {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "runtime_env": {"env_vars": {**launch.environment, **variables}},
        }
        if self.placement_group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self.placement_group, rank)
        context = WorkerContext("", rank, launch.size, local_rank)
        return ray.remote(Actor).options(**options).remote(launch.specs, context, dict(launch.environment))

    def _wait(self, launch: Launch, workers: ActorWorkers) -> None:
        """Wait until all actors are constructed."""
        references = {rank: actor.ready.remote() for rank, actor in enumerate(workers.actors)}
        try:
            found = Answers(workers, "__init__", references).results(self.start_timeout_s)
        except (TimeoutError, GetTimeoutError) as error:
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            raise WorkerError(
                f"group {launch.name} was not constructed within {self.start_timeout_s} s: {error}",
                role=launch.name,
                remedy=f"resources for {launch.size} actors ({free} are free), or a larger start_timeout_s",
            ) from None
        workers.ready = [found[rank] for rank in range(launch.size)]
        for rank, ready in enumerate(workers.ready):
            if ready.failure is not None:
                raise ready.failure.rebuilt(
                    launch.name, rank, place(launch.name, rank, launch.size, ready.pid, "__init__")
                )
