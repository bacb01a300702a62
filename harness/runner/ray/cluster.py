"""The run's side of a Ray cluster: its GPUs, and attempts on its nodes in place of supervisors on this machine."""

import asyncio
import base64
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from harness.bits.errors import HarnessError, InventoryError, UsageError
from harness.bits.files import open_for_writing
from harness.machine.gpu_health import FaultKind, GpuFault, Meter
from harness.machine.gpu_selection import Selection, parse_selection
from harness.machine.inventory import Gpu, Inventory
from harness.process.child_env import ATTEMPT_MARKER, CUDA_VISIBLE_DEVICES, XDIST
from harness.process.daemon_thread import in_daemon_thread
from harness.process.supervisor_client import LostError, ProcessEnd, ProcessSpec
from harness.runner.ray import node, task

MIN_RAY = "2.56"
CONNECT_S, ANSWER_S = 30.0, 10.0
LOOK_S = 2.0
"""Between looks at which nodes live: the stream of one that hangs never ends."""
PASSED = (ATTEMPT_MARKER, "COVERAGE_FILE", *XDIST)
"""Variables of the run in an attempt's environment; the others are the node's."""
BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from harness.runner.ray.node import main; main()"
NODE_ID = "ray.io/node-id"


@dataclass(slots=True, eq=False)
class _Attempt:
    """A task of Ray, and what is known of it."""

    items: Any
    node: str = ""
    """Node that runs it; empty while it waits."""
    ordered: str = ""
    """"cancelled" or "killed", if its end was asked for."""
    following: asyncio.Task[ProcessEnd] | None = None


class RayCluster(Meter):
    """A cluster that this process has joined, in place of `Supervisors`; as a meter, it measures nothing."""

    def __init__(self, containment: str) -> None:
        import ray

        self._ray: Any = ray
        self._containment = containment
        self._ray.cloudpickle.register_pickle_by_value(task)
        # For tasks with GPUs, Ray would start a worker each (0.5 s), and repeat the task of a lost node.
        self._task = ray.remote(num_returns="streaming", max_retries=0, max_calls=0)(task.carry_out)
        self._demand = ray.remote(max_retries=0, max_calls=0)(task.nothing)
        self._demanded: Any = None
        self.next_width: Callable[[], int] = lambda: 0
        """Returns the GPUs of the unit that is next in the queue; 0 for none."""
        self._live: dict[str, _Attempt] = {}
        self._left: set[str] = set()
        """Nodes that lost an attempt: Ray takes one that was killed for alive for 15 s."""
        self._looking: asyncio.Task[None] | None = None
        self.gpus: dict[str, Gpu] = {}
        self._new: list[Gpu] = []
        self._alive: frozenset[str] = frozenset()
        self._take_nodes(self._ray.nodes())
        self._new = []

    def _take_nodes(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Take note of which nodes live, and of the GPUs of those that are new."""
        self._alive = frozenset(each["NodeID"] for each in nodes if each["Alive"])
        for each in nodes:
            resources = each["Resources"]
            kinds = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
            for number in range(int(resources.get("GPU", 0)) if each["Alive"] else 0):
                gpu_id = f"{each['NodeManagerHostname']}:{each['NodeID'][:6]}:{number}"
                if gpu_id not in self.gpus:
                    model, node_id = " ".join(kinds) or "GPU", each["NodeID"]
                    self.gpus[gpu_id] = Gpu(gpu_id, len(self.gpus), model, 0.0, node=node_id)
                    self._new.append(self.gpus[gpu_id])

    def fault(self, gpu_id: str) -> GpuFault | None:
        """Return the fault of a GPU whose node is gone."""
        place = self.gpus[gpu_id].node
        return None if place in self._alive - self._left else GpuFault(FaultKind.NODE_LOST, gpu_id)

    # ---- in place of Supervisors

    def close(self) -> None:
        """Leave the cluster, which ends whatever still runs there."""
        if self._looking is not None:
            self._looking.cancel()
        self._ray.shutdown()

    async def run(self, spec: ProcessSpec, on_terminating: Callable[[str], None] = lambda reason: None) -> ProcessEnd:
        """Carry out one attempt on a node, on that of its lease if that has room; LostError where the node is lost.

        The files in the directory of `spec` grow as they do on the node. Cancelling the task kills the tree.
        """
        self._looking = self._looking or asyncio.create_task(self._look())
        leased = [self.gpus[each] for each in spec.env[CUDA_VISIBLE_DEVICES].split(",") if each]
        asked: dict[str, Any] = {"num_gpus": len(leased), "num_cpus": 1, "name": f"rlharness {spec.marker}"}
        for gpu in leased[:1]:  # a wish: where others hold its GPUs, Ray takes another node
            asked |= {"label_selector": {NODE_ID: gpu.node}, "fallback_strategy": [{"label_selector": {}}]}
        argv = [spec.argv[0], "-I", "-c", BOOT, str(Path(__file__).parents[3])]
        attempt = _Attempt(self._task.options(**asked).remote(argv, self._order(spec)))
        attempt.following = asyncio.create_task(self._follow(attempt, Path(spec.directory), on_terminating))
        self._live[spec.marker] = attempt
        try:
            await asyncio.wait((attempt.following,))
            if attempt.following.cancelled():
                raise LostError("its node has left the cluster")
            return attempt.following.result()
        except BaseException:  # whatever it is, nothing of the attempt may go on there
            attempt.following.cancel()
            self._end(attempt, "killed")
            raise
        finally:
            del self._live[spec.marker]

    def cancel(self, marker: str) -> None:
        """End the attempt in order."""
        if attempt := self._live.get(marker):
            self._end(attempt, "cancelled")

    def kill(self, marker: str) -> None:
        """End the attempt at once."""
        if attempt := self._live.get(marker):
            self._end(attempt, "killed")

    def pid_of(self, marker: str) -> int:
        """Return 0: no process of this machine carries out the attempt."""
        return 0

    # ---- an attempt

    def _order(self, spec: ProcessSpec) -> dict[str, Any]:
        """Return what the node is given: the command, the digests of its files, and no fork of a session."""
        paths = {os.path.join(spec.cwd, word.partition("::")[0]) for word in spec.argv[1:] if word[:1] != "-"}
        given = asdict(spec) | {"session": None, "env": {name: spec.env[name] for name in PASSED if name in spec.env}}
        return {
            "spec": given,
            "tmpdir": spec.env["TMPDIR"],
            "sources": {path: node.digest_of(path) for path in sorted(paths) if os.path.isfile(path)},
            "containment": self._containment,
        }

    def _end(self, attempt: _Attempt, how: str) -> None:
        attempt.ordered = how
        with suppress(self._ray.exceptions.RayError):
            self._ray.cancel(attempt.items, force=how == "killed")

    async def _follow(self, attempt: _Attempt, directory: Path, on_terminating: Callable[[str], None]) -> ProcessEnd:
        """Take the items of an attempt as they come, until its end."""
        error: Exception | None = None
        try:
            async for reference in attempt.items:
                item: dict[str, Any] = json.loads(await reference)
                kind = item.pop("k")
                if kind == "on":
                    attempt.node = item["node"]
                elif kind == "grown":
                    with open_for_writing(directory / os.path.basename(item["file"]), appends=True) as file:
                        file.write(base64.b64decode(item["data"]))
                elif kind == "terminating":
                    on_terminating(item["reason"])
                elif kind == "refused":
                    raise HarnessError(f"node {attempt.node[:6]}: {item['why']}")
                else:
                    item |= {name: tuple(item[name]) for name in ("left_behind", "unkillable")}
                    return ProcessEnd(**item)
        except self._ray.exceptions.RayError as raised:
            error = raised
        if attempt.ordered:
            return ProcessEnd(None, None, attempt.ordered, (), (), 0.0)
        if isinstance(error, self._ray.exceptions.RayTaskError):
            raise HarnessError(f"node {attempt.node[:6]}: {' '.join(str(error.cause).split())}")
        if not isinstance(error, (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.OutOfMemoryError)):
            self._left.add(attempt.node)
        raise LostError(f"node {attempt.node[:6]} lost it ({type(error).__name__ if error else 'its stream ended'})")

    # ---- the nodes

    async def _look(self) -> None:
        """Look every two seconds which nodes live, and give up the attempts of the others."""
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(TimeoutError, self._ray.exceptions.RayError):
                self._take_nodes(await in_daemon_thread(self._ray.nodes, limit_s=ANSWER_S))
            for attempt in self._live.values():
                if attempt.node and attempt.node not in self._alive and attempt.following:
                    self._left.add(attempt.node)
                    attempt.following.cancel()
            self._show_demand()

    def _show_demand(self) -> None:
        """Have a task wait for the GPUs of the next unit, so that a cluster that can grow does."""
        if self._demanded is not None and self._ray.wait([self._demanded], timeout=0)[0]:
            self._demanded = None
        width = self.next_width()
        if width and self._demanded is None:
            self._demanded = self._demand.options(num_gpus=width, num_cpus=1, name="rlharness: next").remote()
        elif not width and self._demanded is not None:
            self._ray.cancel(self._demanded)

    def new_gpus(self) -> list[Gpu]:
        """Return the GPUs of nodes that have come since the last time."""
        new, self._new = self._new, []
        return new


async def join(address: str, containment: str, gpus: str) -> tuple[Inventory, RayCluster]:
    """Join the cluster at `address`; its GPUs, and what runs attempts there.

    Raises UsageError for an address without a cluster that this process can join, InventoryError without a node.
    """
    if (selection := parse_selection(gpus)) not in (Selection(), Selection(0)):
        raise UsageError(f"--ray with --gpus {gpus}", legal="auto, none", remedy="leave --gpus out")
    try:
        cluster = await in_daemon_thread(lambda: _joined(address, containment), limit_s=CONNECT_S)
    except TimeoutError:
        raise _refused(address, f"no answer within {CONNECT_S:g} s") from None
    if callable(handler := signal.getsignal(signal.SIGTERM)):  # Ray has put one before it that prints its own stack
        signal.signal(signal.SIGTERM, handler)
        signal.siginterrupt(signal.SIGTERM, False)
    if not cluster._alive:
        raise InventoryError(f"--ray {address}: the cluster has no node that lives", remedy="start one with ray start")
    return Inventory(gpus=tuple(cluster.gpus.values()) if selection == Selection() else ()), cluster


def _joined(address: str, containment: str) -> RayCluster:
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"--ray: Ray cannot be imported ({error})", remedy="pip install 'rlharness[ray]'") from None
    if Version(ray.__version__) < Version(MIN_RAY):
        raise UsageError(f"--ray: Ray {ray.__version__}", legal=f"Ray {MIN_RAY} or later", remedy="pip install -U ray")
    if "://" in address:
        raise _refused(address, "a client of Ray cannot carry a run")
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
        except (OSError, ValueError) as error:
            raise _refused(address, str(error)) from None
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    ray._private.worker.print_to_stdstream = lambda *_, **__: None  # logs of lost raylets, on our standard output
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _refused(address, " ".join(str(error).split())) from None
    return RayCluster(containment)


def _refused(address: str, why: str) -> UsageError:
    return UsageError(
        f"--ray {address}: {why}",
        legal="HOST:PORT of a running cluster, or auto, on one of its nodes and with its versions of Ray and Python",
        remedy=f"start a node here with ray start --address={address}; ray status shows the cluster",
    )
