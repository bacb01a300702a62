"""Worker groups: a controller calls one object, and its methods run on the ranks of a role.

    with start_group(PolicyWorker, config, backend="ray", size=4, role="policy") as policy:
        logprobs = policy.handle.score(batch)

    handle.score(batch) ─▶ bind arguments ─▶ scatter (entry, mesh) ─▶ backend: ranks run ─▶ collect ─▶ result

The handle has the type of the worker class, so that editors complete its methods. `view` gives it the type of a
protocol, for methods whose caller receives something else than a worker returns: a list of it, or a Future.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from types import MappingProxyType, TracebackType
from typing import Any, Generic, TypeVar, cast

from harness.bits.text import nearest
from rlcore.distributed.backends.base import Backend, Launch, Started
from rlcore.distributed.backends.in_process import InProcess
from rlcore.distributed.calls import Failure, place
from rlcore.distributed.dispatch import DATA, Entry, public_methods
from rlcore.distributed.futures import Future, Pending
from rlcore.distributed.mesh import Mesh, data_parallel
from rlcore.distributed.scatter import Scattered, collect, scatter
from rlcore.distributed.worker import Worker, WorkerSpec
from rlcore.errors import InvalidValueError, WorkerError

CLOSE_TIMEOUT_S = 60.0
"""Time for calls that still run, and for the workers' `close`, before the processes are killed."""
W = TypeVar("W", bound=Worker)


class Handle:
    """The methods of a role's dispatch table, as functions of the controller."""

    def __init__(self, role: str, methods: Mapping[str, Callable[..., Any]]) -> None:
        """Offer these methods; groups build handles."""
        self.__dict__.update(methods)
        self.__dict__["_names"] = (role, tuple(methods))

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, and name the nearest method."""
        role, methods = self.__dict__["_names"]
        hint = nearest(name, methods) or f"it has {', '.join(methods)}"
        raise AttributeError(f"the handle of role {role!r} has no method {name!r}: {hint}")

    def __dir__(self) -> list[str]:
        """Return the names of the methods."""
        return list(self.__dict__["_names"][1])


class Processes:
    """Workers that a backend has started, shared by the groups of the roles that live in them."""

    def __init__(self, name: str, started: Started, sizes: Mapping[str, int]) -> None:
        """Take over what was started; `sizes` has the number of ranks of each role."""
        self.name, self.started, self._sizes = name, started, sizes
        self._is_open = True

    def submit(self, role: str, method: str, call: Scattered) -> Pending:
        """As `Started.submit`. Raises WorkerError if the group was closed."""
        if not self._is_open:
            raise WorkerError(f"method {method} of role {role}: its group is closed", role=role)
        return self.started.submit(role, method, call)

    def close(self, *, in_order: bool) -> None:
        """End the processes; in order, each worker's `close` runs first, and what it raises is raised."""
        if not self._is_open:
            return
        try:
            if in_order:
                for role, size in reversed(list(self._sizes.items())):
                    everyone = Scattered(tuple(range(size)), ())
                    results = self.submit(role, "close", everyone).results(CLOSE_TIMEOUT_S)
                    raise_failures(self, role, "close", results)
        except TimeoutError as error:
            raise WorkerError(
                f"{error}, {CLOSE_TIMEOUT_S:.0f} s after group {self.name} was closed: its processes were killed",
                role=self.name,
                remedy="take the results of all calls before the group is closed",
            ) from None
        finally:
            self._is_open = False
            self.started.end()


class WorkerGroup(Generic[W]):
    """The workers of one role. A group is closed by `close`, at the end of a `with` block, and when this process ends.

    A block that ends by an exception, Ctrl-C included, ends the workers at once, whatever they do.
    """

    def __init__(self, worker: type[W], role: str, processes: Processes, meshes: Mapping[str, Mesh]) -> None:
        """Call the workers of one role; `start_group` builds groups."""
        self.role, self.meshes = role, MappingProxyType(dict(meshes))
        self._processes = processes
        self._signatures = public_methods(worker, Worker)
        methods = {name: self._function(worker, name, entry) for name, entry in worker.dispatch_table.items()}
        self.handle = cast(W, Handle(role, methods))
        """The methods of the workers."""

    @property
    def size(self) -> int:
        """Number of workers."""
        return next(iter(self.meshes.values())).size

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids by rank, on the host of each."""
        return self._processes.started.process_ids

    def view(self, protocol: type) -> Any:
        """Return the handle for a variable of a protocol's type: `policy: PolicyView = group.view(PolicyView)`.

        Raises InvalidValueError if the protocol has a method or an argument that the worker has not.
        """
        for name, method in vars(protocol).items():
            if name.startswith("_") or not inspect.isfunction(method):
                continue
            own = self._signatures.get(name)
            if own is None:
                raise InvalidValueError(
                    f"{protocol.__qualname__}.{name} is no method of role {self.role!r}",
                    legal=", ".join(self._signatures),
                    remedy=nearest(name, self._signatures),
                )
            names = list(inspect.signature(method).parameters)[1:]
            if names != list(own.parameters):
                raise InvalidValueError(
                    f"{protocol.__qualname__}.{name} has arguments {names}", legal=f"{list(own.parameters)}"
                )
        return self.handle

    def check(self) -> None:
        """Raise WorkerDiedError if a worker's process has ended."""
        self._processes.started.check()

    def close(self) -> None:
        """End the workers: each one's `close` runs, then its process ends. Colocated roles end with it."""
        self._processes.close(in_order=True)

    def __enter__(self) -> "WorkerGroup[W]":
        """Return the group."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers; at once if the block failed."""
        self._processes.close(in_order=kind is None)

    def _function(self, worker: type[W], name: str, entry: Entry) -> Callable[..., Any]:
        """Return the controller's function for one method."""
        if entry.mesh not in self.meshes:
            raise InvalidValueError(
                f"{worker.__qualname__}.{name} divides by mesh {entry.mesh!r}, which group {self.role} does not have",
                legal=", ".join(self.meshes),
                remedy=nearest(entry.mesh, self.meshes) or "start_group(..., meshes={...})",
            )
        mesh, signature = self.meshes[entry.mesh], self._signatures[name]

        @wraps(getattr(worker, name))
        def call(*args: Any, **kwargs: Any) -> Any:
            with _named(f"in the controller, calling {name} of role {self.role}"):
                arguments = dict(signature.bind(*args, **kwargs).arguments)
                _refuse_futures(arguments)
                scattered = scatter(entry, arguments, mesh)
            pending = self._processes.submit(self.role, name, scattered)
            finish = partial(self._collect, name, entry, mesh, scattered)
            return finish(pending.results(None)) if entry.is_blocking else Future(pending, finish)

        call.__signature__ = signature  # type: ignore[attr-defined]  # without self
        return call

    def _collect(self, name: str, entry: Entry, mesh: Mesh, call: Scattered, results: dict[int, Any]) -> Any:
        raise_failures(self._processes, self.role, name, results)
        with _named(f"in the controller, collecting {name} of role {self.role}"):
            return collect(entry, mesh, call, results)


def raise_failures(processes: Processes, role: str, method: str, results: Mapping[int, Any]) -> None:
    """Raise the error of the lowest rank that failed, if any did."""
    failed = {rank: result for rank, result in sorted(results.items()) if isinstance(result, Failure)}
    for rank, failure in failed.items():
        pids = processes.started.process_ids
        raise failure.rebuilt(role, rank, place(role, rank, len(pids), pids[rank], method))


def start_group(
    worker: type[W],
    *args: object,
    role: str,
    size: int = 1,
    backend: str | Backend = "in_process",
    environment: Mapping[str, str] = MappingProxyType({}),
    meshes: Mapping[str, Mesh] = MappingProxyType({}),
    **kwargs: object,
) -> WorkerGroup[W]:
    """Start a group of workers, each constructed from the same arguments.

    `meshes` has the meshes that the dispatch table names; "data" is plain data parallelism if it is not among them.
    Raises InvalidValueError, and as `Backend.start`.
    """
    groups = start_colocated([WorkerSpec(role, worker, args, kwargs)], size, backend, environment, {role: meshes})
    return cast(WorkerGroup[W], groups[role])


def start_colocated(
    specs: Sequence[WorkerSpec],
    size: int = 1,
    backend: str | Backend = "in_process",
    environment: Mapping[str, str] = MappingProxyType({}),
    meshes: Mapping[str, Mapping[str, Mesh]] = MappingProxyType({}),
) -> dict[str, WorkerGroup[Any]]:
    """Start several roles in the same processes: one worker of each role on every rank. Closing one closes all.

    Raises as `start_group`.
    """
    roles = [spec.role for spec in specs]
    if len(set(roles)) < len(roles) or not roles:
        raise InvalidValueError(f"roles {roles} of one start", legal="one or more, all of different names")
    by_role = {role: _with_default(meshes.get(role, {}), size, role) for role in roles}
    launch = Launch("+".join(roles), tuple(specs), size, dict(environment))
    started = find_backend(backend).start(launch)
    processes = Processes(launch.name, started, dict.fromkeys(roles, size))
    try:
        return {spec.role: WorkerGroup(spec.worker, spec.role, processes, by_role[spec.role]) for spec in specs}
    except BaseException:
        processes.close(in_order=False)
        raise


def find_backend(backend: str | Backend) -> Backend:
    """Return a backend, or the default options of the one of this name. Raises InvalidValueError."""
    if not isinstance(backend, str):
        return backend
    if backend == "in_process":
        return InProcess()
    if backend == "ray":
        from rlcore.distributed.backends.ray_actors import RayActors

        return RayActors()
    names = ("in_process", "ray")
    raise InvalidValueError(f"backend {backend!r}", legal=", ".join(names), remedy=nearest(backend, names))


def _with_default(meshes: Mapping[str, Mesh], size: int, role: str) -> dict[str, Mesh]:
    found = {**meshes} if DATA in meshes else {DATA: data_parallel(size), **meshes}
    for name, mesh in found.items():
        if mesh.size != size:
            raise InvalidValueError(f"mesh {name!r} of role {role} has {mesh.size} ranks", legal=f"{size}, its size")
    return found


def _refuse_futures(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        inside = value if isinstance(value, list | tuple) else value.values() if isinstance(value, Mapping) else [value]
        if any(isinstance(each, Future) for each in inside):
            raise InvalidValueError(
                f"argument {name} is a Future",
                legal="values",
                remedy=f"give {name}.result(): the controller waits there",
            )


@contextmanager
def _named(note: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise
