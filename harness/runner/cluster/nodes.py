"""The run's side of a cluster: nodes join, attempts run on them, and nodes are lost.

    agent ──dials──▶ Cluster: greet, Welcome, Hello ─▶ a node of the inventory
    lease ─▶ Cluster.host ─▶ attempts on its node ──Start──▶ agent
                                  one future each ◀──Ended─── (after all files)
    the connection breaks, or nothing is heard for 60 s ─▶ the node is lost: `report_losses`, then each of its futures

All of it happens on the event loop of the run. `AttemptBook` decides what counts; what does not is dropped.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import Any

from harness.core.errors import NetworkError
from harness.core.regular_file import read_text
from harness.core.text import one_line
from harness.process.supervisor_client import ProcessEnd, ProcessSpec
from harness.runner.attempts.host import NODE_LOST, Host
from harness.runner.cluster import messages
from harness.runner.cluster.attempt_book import AttemptBook, Standing
from harness.runner.cluster.channel import BEAT_S, Channel, Door
from harness.runner.cluster.mirror import FilesIn
from harness.runner.cluster_address import Boot
from harness.runner.options import RunOptions
from harness.runner.schedule.leases import Lease
from harness.runner.sessions.part_file import PART_FILE

READY_S = 300.0
"""For an agent to read its GPUs and unpack sources."""
CLOSE_S = 5.0
ANYWHERE = "0.0.0.0"  # both families would have two ports where any free one is asked for
ANSWER_S = 30.0
LOST_END = ProcessEnd(None, None, NODE_LOST, (), (), 0.0)
Terminating = Callable[[str], None]


@dataclass(slots=True, eq=False)
class Node:
    """A node that has joined."""

    name: str
    channel: Channel
    hello: messages.Hello
    listening: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class _Attempt:
    """An attempt on a node."""

    ended: "asyncio.Future[ProcessEnd]"
    files: FilesIn
    on_terminating: Terminating
    broken: OSError | None = None
    """Why its files could not be written here."""


class Cluster:
    """The nodes of one run, from the first that joins to the close."""

    def __init__(self, options: RunOptions, key: str, archive: Sequence[bytes] = ()) -> None:
        """`archive` are the pieces of the sources to ship; none where they are shared."""
        self.nodes: dict[str, Node] = {}
        """By name, lost ones too."""
        self._on_lost: Callable[[str, str], None] | None = None
        self._lost: list[tuple[str, str]] = []
        """Nodes lost before anybody heard of it."""
        self.boot_pids: frozenset[int] = frozenset()
        """Processes of this machine that were started for the agents."""
        self.kept_in = Path()
        """Directory of the run on this machine, once there is one."""
        self.needs_network = False
        """Whether some unit probably communicates through sockets, so that nodes look at their network first."""
        self.refusals: list[str] = []
        self.joined = asyncio.Event()
        """Set when a node has joined or was refused."""
        address = options.cluster
        self._gpus = f"sim:{address.gpus_per_node}" if address and address.boot is Boot.LOCAL else options.gpus
        self._options = options
        self._door = Door(key)
        self._archive = archive
        self._limit = 0
        self._num_named = 0
        self._book = AttemptBook()
        self._attempts: dict[str, _Attempt] = {}
        self._answers: dict[int, tuple[str, asyncio.Future[messages.Answer]]] = {}
        self._num_asked = 0
        self._server: asyncio.Server | None = None
        self._beating: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closing = False

    # ------------------------------------------------------------------------------------------------------- joining

    async def listen(self, host: str, port: int) -> int:
        """Listen for agents; the port. NetworkError where it cannot be had."""
        try:
            limit = messages.MAX_MESSAGE_BYTES
            self._server = await asyncio.start_server(self._welcome, host or ANYWHERE, port, limit=limit)
        except OSError as error:
            raise NetworkError(
                f"cannot listen for agents at {host or '*'}:{port}: {error.strerror}",
                legal="an address of this machine and a free port",
            ) from None
        self._beating = self._keep(self._beat())
        return int(self._server.sockets[0].getsockname()[1])

    async def wait_for(self, num_nodes: int, wait_s: float, has_ended: Callable[[], str] = lambda: "") -> None:
        """Wait until so many nodes have joined; NetworkError where they do not, or `has_ended` gives a reason."""
        self._limit = num_nodes
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while len(self.nodes) < num_nodes and not self.refusals and not has_ended():
                    self.joined.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.joined.wait(), BEAT_S)
        if self.refusals:
            raise NetworkError(self.refusals[0])
        if len(self.nodes) < num_nodes:
            why = has_ended()
            raise NetworkError(
                f"{len(self.nodes)} of {num_nodes} nodes have joined"
                + (f": {why}" if why else f" within {wait_s:g} s"),
                legal="an agent on each node that can connect to this machine",
                remedy="read what rlharness agent printed on the nodes",
            )

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take in one agent; whoever has another key is turned away."""
        try:
            channel = await self._door.enter(reader, writer)
            if channel is None:
                return
            if self._num_named >= self._limit:
                await channel.send(messages.Refused("this run has all its nodes"))
                writer.close()
                return
            name = f"node{self._num_named}"
            self._num_named += 1
            hello = await self._introduce(channel, name)
        except (NetworkError, OSError) as error:
            self._options.invocation.note(f"turned an agent away: {one_line(str(error))}")
            writer.close()
            return
        self._book.join(name)
        node = self.nodes[name] = Node(name, channel, hello)
        node.listening = self._keep(self._hear(node))
        self.joined.set()

    async def _introduce(self, channel: Channel, name: str) -> messages.Hello:
        await channel.send(self._welcome_of(name))
        for piece in self._archive:
            await channel.send(messages.Source(messages.to_data(piece)))
        if self._archive:
            await channel.send(messages.Source(""))
        while isinstance(said := await channel.receive(READY_S), messages.Beat):
            pass
        if isinstance(said, messages.Refused):
            self.refusals.append(f"{name}: {said.reason}")
            self.joined.set()
            raise NetworkError(said.reason)
        if not isinstance(said, messages.Hello) or said.version != messages.VERSION:
            raise NetworkError("it runs another version of rlharness")
        return said

    def _welcome_of(self, name: str) -> messages.Welcome:
        options = self._options
        return messages.Welcome(
            version=messages.VERSION,
            node=name,
            gpus=self._gpus,
            cwd=str(options.invocation.cwd),
            root=str(options.root),
            ships=bool(self._archive),
            isolate=options.isolate,
            preload=options.preload,
            paths=options.paths,
            trailing=options.invocation.trailing,
            has_files=options.has_files,
            safe_path=options.safe_path,
            colour=options.colour,
            by_number=options.by_number,
            containment=options.containment,
            collect_timeout_s=options.collect_timeout_s,
        )

    def report_losses(self, on_lost: Callable[[str, str], None]) -> None:
        """Have `on_lost` hear of every lost node with the reason, those lost before too."""
        self._on_lost = on_lost
        for node, reason in self._lost:
            on_lost(node, reason)

    # ------------------------------------------------------------------------------------------------------- attempts

    def host(self, lease: Lease) -> Host:
        """Return the host of a lease: the first of its nodes."""
        node = self.nodes[lease.nodes[0]]
        hello = node.hello
        directory, scratch, cwd = Path(hello.directory), Path(hello.scratch), Path(hello.cwd)
        return Host(_OnNode(self, node, lease), directory, scratch, cwd, python=hello.python, environ={})

    async def carry_out(self, node: Node, lease: Lease, spec: ProcessSpec, on_terminating: Terminating) -> ProcessEnd:
        """Carry out one attempt on a node, its files kept in the directory of the run on this machine.

        With the reason NODE_LOST where the node is lost before the attempt has ended. OSError where it cannot be
        started there, or its files cannot be written here.
        """
        marker = spec.marker
        if not self._book.begin(marker, lease.nodes):
            return LOST_END
        kept_in = self.kept_in / Path(spec.directory).relative_to(node.hello.directory)
        ended: asyncio.Future[ProcessEnd] = asyncio.get_running_loop().create_future()
        attempt = self._attempts[marker] = _Attempt(ended, FilesIn(kept_in), on_terminating)
        try:
            with suppress(OSError):  # the connection broke: the node is lost, and its reader says so
                await node.channel.send(self._order(lease, spec, kept_in))
            end = await ended
        except asyncio.CancelledError:
            node.channel.post(messages.Kill(marker))
            raise
        finally:
            del self._attempts[marker]
        if attempt.broken is not None:
            raise attempt.broken
        return end

    def _order(self, lease: Lease, spec: ProcessSpec, kept_in: Path) -> messages.Start:
        part = kept_in / PART_FILE
        return messages.Start(
            marker=spec.marker,
            argv=spec.argv,
            cwd=spec.cwd,
            env=spec.env,
            directory=spec.directory,
            tmpdir=spec.env["TMPDIR"],
            files={PART_FILE: read_text(part)} if part.exists() else {},
            gpu_ids=_gpu_ids(lease, lease.nodes[0]),
            slot=lease.slot,
            needs_network=self.needs_network,
            timeout_s=spec.timeout_s,
            startup_timeout_s=None if isinf(spec.startup_timeout_s) else spec.startup_timeout_s,
            grace_s=spec.grace_s,
            session=messages.session_text(spec.session),
            hosts=tuple(
                messages.HostGpus(self.nodes[name].hello.address, _gpu_ids(lease, name)) for name in lease.nodes
            ),
        )

    def order(self, node: Node, message: messages.Cancel | messages.Kill) -> None:
        """Have an attempt end."""
        if self._book.counts(message.marker, node.name):
            node.channel.post(message)

    def preload(self, modules: tuple[str, ...]) -> None:
        """Have the sessions of all nodes import modules."""
        for node in self._living():
            node.channel.post(messages.Preload(modules))

    async def read_gpu(self, gpu_id: str, node: str, *, finds_faults: bool) -> messages.Answer | None:
        """Return the reading of a GPU on its node; None where the node does not answer."""
        if not self._book.is_alive(node):
            return None
        self._num_asked += 1
        number = self._num_asked
        future: asyncio.Future[messages.Answer] = asyncio.get_running_loop().create_future()
        self._answers[number] = (node, future)
        self.nodes[node].channel.post(messages.Ask(number, gpu_id, finds_faults))
        try:
            return await asyncio.wait_for(future, ANSWER_S)
        except TimeoutError:
            return None
        finally:
            del self._answers[number]

    # ------------------------------------------------------------------------------------------------------- hearing

    async def _hear(self, node: Node) -> None:
        """Take what a node says until it is lost."""
        try:
            while True:
                self._take(node, await node.channel.receive())
        except (NetworkError, OSError) as error:
            self._lose(node, one_line(str(error)))

    def _take(self, node: Node, message: messages.Message) -> None:
        match message:
            case messages.Terminating() if self._book.counts(message.marker, node.name):
                self._attempts[message.marker].on_terminating(message.reason)
            case messages.FilePart() if self._book.counts(message.marker, node.name):
                self._write(node, message)
            case messages.Ended():
                self._end(message, self._book.end(message.marker, node.name))
            case messages.Answer() if message.number in self._answers:
                asked, future = self._answers[message.number]
                if asked == node.name and not future.done():
                    future.set_result(message)
            case messages.Refused():
                raise NetworkError(message.reason)
            case _:  # a beat, or late: of an attempt that has ended
                pass

    def _write(self, node: Node, part: messages.FilePart) -> None:
        attempt = self._attempts.get(part.marker)
        if attempt is None or attempt.broken is not None:
            return
        try:
            attempt.files.write(part)
        except OSError as error:  # this machine's disk: the attempt fails for it, not the node
            attempt.broken = error
            node.channel.post(messages.Kill(part.marker))

    def _end(self, message: messages.Ended, standing: Standing) -> None:
        attempt = self._attempts.get(message.marker)
        if standing is Standing.LATE or attempt is None or attempt.ended.done():  # nobody waits for it any more
            return
        if standing is Standing.ENDED and message.end is None:
            attempt.broken = attempt.broken or OSError(message.error)
        attempt.ended.set_result((message.end if standing is Standing.ENDED else None) or LOST_END)

    def _lose(self, node: Node, reason: str) -> None:
        """Lose a node, and with it its attempts; those of other nodes that had GPUs there are killed."""
        if self.is_closing or not self._book.is_alive(node.name):
            return
        losses = self._book.lose(node.name)
        node.channel.close()
        if self._on_lost is not None:
            self._on_lost(node.name, reason)
        else:
            self._lost.append((node.name, reason))
        for marker in losses.broken:
            for other in self._living():
                self.order(other, messages.Kill(marker))
        for marker in losses.lost:
            if (attempt := self._attempts.get(marker)) and not attempt.ended.done():
                attempt.ended.set_result(LOST_END)
        for asked, future in self._answers.values():
            if asked == node.name and not future.done():
                future.set_exception(TimeoutError())

    async def _beat(self) -> None:
        while True:
            for node in self._living():
                node.channel.post(messages.Beat())
            await asyncio.sleep(BEAT_S)

    def _living(self) -> list[Node]:
        return [node for name, node in self.nodes.items() if self._book.is_alive(name)]

    def _keep(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End every agent with what it runs, and hear no more."""
        self.is_closing = True
        for node in (living := self._living()):
            node.channel.post(messages.Bye())
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(n.listening for n in living if n.listening is not None), return_exceptions=True)
        for node in living:
            node.channel.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()


def _gpu_ids(lease: Lease, node: str) -> tuple[str, ...]:
    return tuple(gpu.gpu_id for gpu in lease.gpus if gpu.node == node)


@dataclass(slots=True)
class _OnNode:
    """Attempts on the node of one lease: `Attempts` for the runner of units."""

    cluster: Cluster
    node: Node
    lease: Lease

    async def run(self, spec: ProcessSpec, on_terminating: Terminating = lambda reason: None) -> ProcessEnd:
        return await self.cluster.carry_out(self.node, self.lease, spec, on_terminating)

    def cancel(self, marker: str) -> None:
        self.cluster.order(self.node, messages.Cancel(marker))

    def kill(self, marker: str) -> None:
        self.cluster.order(self.node, messages.Kill(marker))

    def pid_of(self, marker: str) -> int:
        """Return 0: its processes are on another machine."""
        return 0
