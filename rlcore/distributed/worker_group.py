"""Worker groups: a controller calls one object, and its methods run on the ranks of a role, as actors of Ray.

    with start_group(PolicyWorker, config, size=4, role="policy") as policy:
        logprobs = policy.handle.score(batch)

    handle.score(batch) ─▶ bind arguments ─▶ scatter (entry, mesh) ─▶ actors run ─▶ collect ─▶ result

The handle has the type of the worker class, so that editors complete its methods. Actors are not detached: they end
with the driver, however that ends.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from time import monotonic
from types import MappingProxyType, SimpleNamespace, TracebackType
from typing import Any, Generic, TypeVar, cast

import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from rlcore.distributed.dispatch import Entry, Mesh, data_parallel, public_methods
from rlcore.distributed.ray_cluster import Reservation, ray_nodes
from rlcore.distributed.rendezvous import listening_store
from rlcore.distributed.scatter import collect, scatter
from rlcore.distributed.worker import AGENT_STORE, RESERVED, Worker, WorkerContext, construct
from rlcore.errors import InvalidValueError, WorkerDiedError, WorkerError

CLOSE_TIMEOUT_S = 60.0
"""Time for the workers' `close`, before the processes are killed."""
DEATH_S = 5.0
"""Longest wait for the other ranks after one has raised: if a peer died, its communication failed first."""
MEET_S = 300.0
"""Time for the ranks to find each other."""
W = TypeVar("W", bound=Worker)


class Actor:
    """One rank: an actor that constructs the worker and answers calls in their order."""

    def __init__(self) -> None:
        ray.util.register_serializer(Tensor, serializer=_packed, deserializer=_unpacked)

    def process_id(self) -> int:
        """Return the process id."""
        return os.getpid()

    def construct(self, *given: Any) -> None:
        """Construct the worker."""
        self._worker = construct(*given)

    def answer(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Run a method and return its result."""
        return getattr(self._worker, method)(**arguments)


class WorkerGroup(Generic[W]):
    """The workers of one role. A group is closed by `close`, at the end of a `with` block, and when this process ends.

    A block that ends by an exception, Ctrl-C included, ends the workers at once, whatever they do.
    """

    def __init__(self, worker: type[W], role: str, mesh: Mesh, host: str) -> None:
        """Call the workers of one role; `start_group` builds groups."""
        self.role, self.mesh = role, mesh
        self.process_ids: tuple[int, ...] = (0,) * len(mesh.data_ranks)
        """Process ids by rank, on the host of each."""
        self._store: Any = listening_store(host, timedelta(seconds=MEET_S))
        self.address = (host, self._store.port)
        """Where the ranks meet."""
        self.actors: list[Any] = []
        self._sending = threading.Lock()  # calls reach all ranks in one order
        self._death: tuple[int, str, str] | None = None
        signatures = public_methods(worker, Worker)
        methods = {
            name: self._function(getattr(worker, name), signatures[name], entry)
            for name, entry in worker.dispatch_table.items()
        }
        self.handle = cast(W, SimpleNamespace(**methods))
        """The methods of the workers."""

    def construct(self, given: tuple[Any, ...], timeout_s: float) -> None:
        """Construct the workers, all from the same.

        Raises what a constructor raised, WorkerDiedError if a process ended, and WorkerError after the timeout.
        """
        try:
            pids = [actor.process_id.remote() for actor in self.actors]
            self.process_ids = tuple(self._results("__init__", pids, timeout_s))
            contexts = [WorkerContext(self.role, rank, len(pids)) for rank in range(len(pids))]
            built = [actor.construct.remote(*given, own) for actor, own in zip(self.actors, contexts, strict=True)]
            self._results("__init__", built, timeout_s)
        except TimeoutError as error:
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            raise WorkerError(
                f"group {self.role} was not constructed within {timeout_s} s: {error}",
                role=self.role,
                remedy=f"resources for {len(self.actors)} actors ({free} are free), or a larger start_timeout_s",
            ) from None

    def close(self) -> None:
        """End the workers: each one's `close` runs, then its process ends."""
        self._end(in_order=True)

    def __enter__(self) -> "WorkerGroup[W]":
        """Return the group."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers; at once if the block failed."""
        self._end(in_order=kind is None)

    def _end(self, *, in_order: bool) -> None:
        if not self.actors:
            return
        try:
            if in_order:
                self._results("close", self._sent("close", [{}] * len(self.actors)), CLOSE_TIMEOUT_S)
        except TimeoutError as error:
            raise WorkerError(
                f"{error}, {CLOSE_TIMEOUT_S:.0f} s after group {self.role} was closed: its processes were killed",
                role=self.role,
            ) from None
        finally:
            self._kill()
            self.actors, self._store = [], None

    def _function(self, method: Callable[..., Any], signature: Any, entry: Entry) -> Callable[..., Any]:
        """Return the controller's function for one method."""
        name = method.__name__

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            scattered = scatter(entry, dict(signature.bind(*args, **kwargs).arguments), self.mesh)
            results = self._results(name, self._sent(name, scattered.arguments), None)
            return collect(entry, self.mesh, scattered.parts, results)

        return call

    def _sent(self, method: str, arguments: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Send a call to all ranks. Raises WorkerDiedError if one has ended, WorkerError if the group was closed."""
        if self._death is not None:
            raise self._died(*self._death)
        if not self.actors:
            raise WorkerError(f"method {method} of role {self.role}: its group is closed", role=self.role)
        with self._sending:
            return [actor.answer.remote(method, own) for actor, own in zip(self.actors, arguments, strict=True)]

    def _results(self, method: str, references: Sequence[Any], timeout_s: float | None) -> list[Any]:
        """Return the result of each rank.

        Raises the error of the first rank that failed, without the ranks that still run, and TimeoutError.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        running = {reference: rank for rank, reference in enumerate(references)}
        found: dict[int, Any] = {}
        while running:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            done, _ = ray.wait(list(running), num_returns=1, timeout=left)
            if not done:
                raise TimeoutError(f"ranks {sorted(running.values())} still run")
            rank = running.pop(done[0])
            found[rank] = self._get(rank, method, done[0])
            if isinstance(found[rank], RayTaskError):
                if running:  # a peer that died has made this one fail: its death is the cause
                    for each in ray.wait(list(running), num_returns=len(running), timeout=DEATH_S)[0]:
                        self._get(running[each], method, each)
                cause: Exception = found[rank].cause
                cause.add_note(self._place(rank, method))
                raise cause from found[rank]  # which has the traceback of the worker
        return [found[rank] for rank in range(len(references))]

    def _get(self, rank: int, method: str, reference: Any) -> Any:
        """Return what an actor answered; of one that has raised, its RayTaskError.

        Raises WorkerDiedError if it died; the others are killed then.
        """
        try:
            return ray.get(reference)
        except RayActorError as error:
            if self._death is None:
                self._death = (rank, method, str(error).strip().splitlines()[-1].strip())
                self._kill()
            raise self._died(*self._death) from error
        except RayTaskError as error:
            return error
        except RayError as error:
            raise WorkerError(f"{type(error).__name__}: {error}", role=self.role, rank=rank) from error

    def _kill(self) -> None:
        for actor in self.actors if ray.is_initialized() else ():
            ray.kill(actor, no_restart=True)

    def _place(self, rank: int, method: str) -> str:
        pids = self.process_ids
        return f"in worker {self.role}, rank {rank} of {len(pids)} (pid {pids[rank]}), method {method}"

    def _died(self, rank: int, method: str, reason: str) -> WorkerDiedError:
        return WorkerDiedError(
            f"an actor has ended: {self._place(rank, method)}: {reason}",
            role=self.role,
            rank=rank,
            pid=self.process_ids[rank],
            remedy="resume from the last checkpoint; Ray's logs and the kernel's say why it ended",
        )


def start_group(
    worker: type[W],
    *args: object,
    role: str,
    size: int = 1,
    reservation: Reservation | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    mesh: Mesh | None = None,
    num_cpus: float = 1.0,
    start_timeout_s: float = 600.0,
    **kwargs: object,
) -> WorkerGroup[W]:
    """Start a group of workers in the session of Ray, each constructed from the same arguments.

    Each process has the variables of `environment` before it imports anything. Without a reservation each actor asks
    for `num_cpus`, and the cluster has one node. Raises InvalidValueError, and as `construct`; nothing is left running
    then.
    """
    if not ray.is_initialized():
        raise InvalidValueError(
            f"group {role} runs on Ray, and this process has joined no session",
            legal="a session of Ray",
            remedy="ray.init() for one of its own, or ray.init(address=...)",
        )
    share = size if reservation is None else reservation.plan.share
    if share * (1 if reservation is None else reservation.plan.num_nodes) != size:
        raise InvalidValueError(f"group {role} of {size} ranks", legal="as many as the reservation is of")
    if reservation is None and size > 1 and len(ray_nodes()) > 1:
        raise InvalidValueError(
            f"group {role} of {size} ranks on several nodes without a reservation",
            legal="a reservation, which says on which node each rank runs",
        )
    ray.util.register_serializer(Tensor, serializer=_packed, deserializer=_unpacked)
    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    group = WorkerGroup(worker, role, mesh or data_parallel(size), host)
    try:
        for rank in range(size):
            variables = rank, size, rank % share, share, *group.address
            own = {**environment, **dict(zip(RESERVED, map(str, variables), strict=True)), AGENT_STORE: "True"}
            options: dict[str, Any] = {"num_cpus": num_cpus, "runtime_env": {"env_vars": own}}
            if reservation is not None:
                strategy = PlacementGroupSchedulingStrategy(reservation.group, rank // share)
                section = reservation.plan.section
                options |= {"num_cpus": section.cpus_per_rank, "num_gpus": section.gpus_per_rank}
                options |= {"scheduling_strategy": strategy}
            group.actors.append(ray.remote(Actor).options(**options).remote())
        group.construct((worker, args, kwargs), start_timeout_s)
    except BaseException:
        group._end(in_order=False)
        raise
    return group


def _packed(tensor: Tensor) -> tuple[Any, ...]:
    """Return a tensor for Ray's store: its elements alone as an array, which Ray moves without copies."""
    plain = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return plain.numpy(), tensor.dtype, tensor.shape, tensor.device, tensor.requires_grad


def _unpacked(found: tuple[Any, ...]) -> Tensor:
    """Return the tensor again, in memory of its own."""
    array, dtype, shape, device, requires_grad = found
    flat = torch.from_numpy(array.copy()).as_strided(array.shape, (1,))  # numpy gives an empty array the stride 0
    return flat.view(dtype).view(shape).to(device).requires_grad_(requires_grad)
