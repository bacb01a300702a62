"""The agent of one node: it dials a run, and carries out the attempts that the run orders, as a local run does.

    dial ─▶ Welcome ─▶ (sources) ─▶ the context of a run: GPUs, scratch, containment, warm session, supervisors ─▶ Hello
    Start ─▶ one task: files, environment ─▶ supervisor ─▶ (tree proven gone) ─▶ files, Ended
    the connection ends, nothing is heard for 60 s, a signal, Bye ─▶ every tree is killed, everything is removed

Killed itself, it takes everything with it: supervisors and the warm session end when their pipes close.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from harness.core.clock import SystemClock
from harness.core.errors import HarnessError, NetworkError
from harness.core.exhaustion import reason_of
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation
from harness.core.replaced_file import write_replacing
from harness.core.report_file import ReportTail
from harness.core.text import one_line
from harness.machine.gpu_watch import GpuWatch
from harness.machine.network.preflight import preflight
from harness.process.child_env import PREFLIGHT, child_env
from harness.process.claims import Claims
from harness.process.interruption import Interruption
from harness.process.new_directory import make_new_directory
from harness.process.scratch import remove_tree
from harness.process.supervisor_client import ProcessEnd, ProcessSpec
from harness.runner.attempts.attempt_report import read_attempt_report
from harness.runner.attempts.ray_logs import keep_ray_logs
from harness.runner.cluster import messages
from harness.runner.cluster.channel import BEAT_S, Channel, dial
from harness.runner.cluster.mirror import FilesOut
from harness.runner.cluster.shipping import Places, unpack_sources
from harness.runner.options import RunOptions
from harness.runner.run_context import RunContext, RunGpus, open_run_context, read_run_gpus

FOLLOW_S = 0.2
HOSTFILE = "hostfile"
"""Name of the file in the directory of the attempt, in the format of MPI and DeepSpeed."""
DIAL_S = 120.0
"""For the run to begin to listen."""


async def serve_run(invocation: Invocation, address: tuple[str, int], key: str) -> ExitCode:
    """Serve the run that listens at `address` to its end. NetworkError where it cannot be joined."""
    # A worker of Ray ignores SIGCHLD, and whatever it starts does: nobody's status could be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with Interruption() as interruption, Claims() as claims:
        work = _Agent(invocation, claims).serve(await dial(address, key, DIAL_S))
        found = await interruption.unless_interrupted(work)
    return ExitCode.INTERRUPTED if found is None else found


@dataclass(slots=True)
class _Attempt:
    """An attempt that runs here."""

    task: "asyncio.Task[None]"
    is_cancelled: bool = False


class _Agent:
    """One agent."""

    def __init__(self, invocation: Invocation, claims: Claims) -> None:
        self._invocation = invocation
        self._claims = claims
        self._attempts: dict[str, _Attempt] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._pins: Mapping[str, str] | None = None
        self._network = asyncio.Lock()

    async def serve(self, channel: Channel) -> ExitCode:
        """Serve one run; the code with which the agent exits."""
        try:
            channel.post(messages.Beat())
            welcome = await channel.receive()
            if isinstance(welcome, messages.Refused):
                raise NetworkError(f"the run turned this agent away: {welcome.reason}")
            if not isinstance(welcome, messages.Welcome) or welcome.version != messages.VERSION:
                raise NetworkError("the run is one of another version of rlharness")
            await self._join(channel, welcome)
        finally:
            channel.close()
        return ExitCode.OK

    async def _join(self, channel: Channel, welcome: messages.Welcome) -> None:
        """Open the context of a run, and serve until the run is over."""
        beating = asyncio.create_task(self._beat(channel))
        try:
            async with unpack_sources(channel, welcome, self._invocation.environ) as places:
                options = self._options(welcome, places)
                gpus = await read_run_gpus(options, self._claims)
                gpus = _named(gpus, welcome.node)
                async with open_run_context(options, SystemClock(), gpus, self._claims, is_run=False) as context:
                    session = asyncio.create_task(_warm_up(context))
                    try:
                        await channel.send(self._hello(channel, context))
                        await self._take_orders(channel, context)
                    finally:
                        session.cancel()
                        await self._end_all(session)
        except HarnessError as error:
            if not isinstance(error, NetworkError):
                with suppress(OSError):
                    await channel.send(messages.Refused(one_line(str(error))))
            raise
        finally:
            beating.cancel()

    def _options(self, welcome: messages.Welcome, places: Places) -> RunOptions:
        environ = {**self._invocation.environ, **places.environ}
        invocation = replace(self._invocation, cwd=places.cwd, environ=environ, trailing=welcome.trailing)
        return RunOptions(
            invocation=invocation,
            root=places.root,
            paths=welcome.paths,
            has_files=welcome.has_files,
            gpus=welcome.gpus,
            isolate=welcome.isolate,
            preload=welcome.preload,
            collect_timeout_s=welcome.collect_timeout_s,
            by_number=welcome.by_number,
            history_free=True,
            containment=welcome.containment,
            colour=welcome.colour,
            safe_path=welcome.safe_path,
        )

    def _hello(self, channel: Channel, context: RunContext) -> messages.Hello:
        inventory = context.gpus.inventory
        return messages.Hello(
            version=messages.VERSION,
            host=socket.gethostname(),
            address=str(channel.writer.get_extra_info("sockname")[0]),
            pid=os.getpid(),
            python=sys.executable,
            directory=str(context.scratch / "run"),
            scratch=str(context.scratch),
            cwd=str(context.options.invocation.cwd),
            gpus=inventory.gpus,
            links=tuple(
                messages.Links(min(pair), max(pair), count) for pair, count in inventory.num_links.items() if count
            ),
            left_out=inventory.left_out,
            is_simulated=inventory.pretended,
            containment=context.backends.chosen,
            notes=context.notes,
        )

    # -------------------------------------------------------------------------------------------------------- orders

    async def _take_orders(self, channel: Channel, context: RunContext) -> None:
        watch = context.gpus.watch(context.clock)
        while True:
            match message := await channel.receive():
                case messages.Bye():
                    return
                case messages.Start():
                    task = asyncio.create_task(self._carry_out(channel, context, message))
                    self._attempts[message.marker] = _Attempt(task)
                case messages.Cancel() | messages.Kill():
                    self._end(context, message)
                case messages.Ask():
                    self._aside(_answer(channel, watch, message))
                case messages.Preload() if context.warm is not None:
                    self._aside(context.warm.preload(message.modules))
                case _:
                    pass

    def _end(self, context: RunContext, message: messages.Cancel | messages.Kill) -> None:
        if attempt := self._attempts.get(message.marker):
            attempt.is_cancelled = True
            order = context.supervisors.kill if isinstance(message, messages.Kill) else context.supervisors.cancel
            order(message.marker)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _beat(self, channel: Channel) -> None:
        while True:
            channel.post(messages.Beat())
            await asyncio.sleep(BEAT_S)

    async def _end_all(self, session: "asyncio.Task[None]") -> None:
        """Kill every tree and wait until none lives."""
        tasks = [session, *(attempt.task for attempt in self._attempts.values()), *self._others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------------- attempts

    async def _carry_out(self, channel: Channel, context: RunContext, order: messages.Start) -> None:
        """Carry out one attempt; its last message is its Ended."""
        marker, end, error = order.marker, None, ""
        directory = Path(order.directory)
        files = FilesOut(directory, marker, channel.send, frozenset(order.files))
        try:
            end = await self._attempt(channel, context, order, files)
            await self._keep(context, order, files, end)
        except (OSError, HarnessError) as problem:  # a full disk, no port left: this attempt's failure
            error = one_line(reason_of(problem))
        finally:
            files.close()
            await asyncio.to_thread(_remove, directory, Path(order.tmpdir))
        del self._attempts[marker]
        with suppress(OSError):  # the run is gone: the next message that is awaited says so
            await channel.send(messages.Ended(marker, end if not error else None, error))

    async def _attempt(
        self, channel: Channel, context: RunContext, order: messages.Start, files: FilesOut
    ) -> ProcessEnd:
        directory = Path(order.directory)
        make_new_directory(directory)
        for name, text in order.files.items():
            write_replacing(directory / name, text)
        files.begin()
        make_new_directory(Path(order.tmpdir), mode=0o700)
        spec = await self._spec(context, order)
        if self._attempts[order.marker].is_cancelled:
            return ProcessEnd(None, None, "cancelled", (), (), 0.0)
        following = asyncio.create_task(_follow(files))
        try:
            return await context.supervisors.run(
                spec, lambda reason: channel.post(messages.Terminating(order.marker, reason))
            )
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _spec(self, context: RunContext, order: messages.Start) -> ProcessSpec:
        gpus = {gpu.gpu_id: gpu for gpu in context.gpus.inventory.gpus}
        options = context.options
        env = child_env(
            {**options.invocation.environ, **order.env},
            gpus=tuple(gpus[gpu_id] for gpu_id in order.gpu_ids),
            tmpdir=order.tmpdir,
            marker=order.marker,
            master_port=context.ports.master_port(order.slot),
            by_number=options.by_number,
            pins=await self._network_pins(context) if order.needs_network and len(order.hosts) < 2 else None,
        )
        if len(order.hosts) > 1:
            env |= _several_nodes(order)
        return ProcessSpec(
            argv=order.argv,
            cwd=order.cwd,
            env=env,
            directory=order.directory,
            marker=order.marker,
            timeout_s=order.timeout_s,
            startup_timeout_s=inf if order.startup_timeout_s is None else order.startup_timeout_s,
            grace_s=order.grace_s,
            session=json.loads(order.session) if order.session else None,
        )

    async def _network_pins(self, context: RunContext) -> Mapping[str, str] | None:
        """What the network asks of processes on this node, found out once; None where a run around this has looked."""
        environ = self._invocation.environ
        if PREFLIGHT in environ:
            return None
        async with self._network:
            if self._pins is None:
                self._pins = (await preflight(environ, context.clock)).pins
        return self._pins

    async def _keep(self, context: RunContext, order: messages.Start, files: FilesOut, end: ProcessEnd) -> None:
        """Send everything that the attempt has left, after Ray's logs where something went wrong."""
        directory = Path(order.directory)
        if end.exit_code != 0:
            with suppress(OSError):  # some of them are better than none
                await asyncio.to_thread(keep_ray_logs, Path(order.tmpdir, "ray"), directory / "ray_logs")
        await files.send_rest()
        if context.warm is not None:
            tail = ReportTail(directory / "report.jsonl")
            try:
                imported = (await asyncio.to_thread(read_attempt_report, tail)).imported
            finally:
                tail.close()
            await context.warm.learn(imported)


def _several_nodes(order: messages.Start) -> dict[str, str]:
    """Write the hostfile of an attempt on several nodes; the variables with which its processes find each other."""
    hostfile = Path(order.directory, HOSTFILE)
    write_replacing(hostfile, "".join(f"{host.address} slots={len(host.gpu_ids)}\n" for host in order.hosts))
    return {
        "MASTER_ADDR": order.hosts[0].address,
        "NNODES": str(len(order.hosts)),
        "RLHARNESS_HOSTFILE": str(hostfile),
        "RLHARNESS_HOSTS": json.dumps([asdict(host) for host in order.hosts]),
    }


async def _warm_up(context: RunContext) -> None:
    """Have files forked from the warm session once it is ready."""
    if context.warm is not None and await context.warm.wait_ready(context.options.collect_timeout_s):
        context.supervisors.parent = context.warm
        await context.warm.preload(context.options.preload)


async def _follow(files: FilesOut) -> None:
    """Send what the report and the output have got, until cancelled."""
    with suppress(OSError):  # what stands in their place is not sent; the connection's end is noticed elsewhere
        while True:
            await files.send_new()
            await asyncio.sleep(FOLLOW_S)


async def _answer(channel: Channel, watch: GpuWatch, asked: messages.Ask) -> None:
    reading = await watch.reading(asked.gpu_id, finds_faults=asked.finds_faults)
    if reading is None:
        return  # the run gives up on it as on a driver of its own
    answer = messages.Answer(asked.number, reading.used_bytes, reading.processes, reading.fault)
    with suppress(OSError):
        await channel.send(answer)


def _named(gpus: RunGpus, node: str) -> RunGpus:
    """Return the GPUs of a node; simulated ones get ids that no other node has."""
    if not gpus.inventory.pretended:
        return gpus
    named = tuple(replace(gpu, gpu_id=f"{node}-{gpu.gpu_id}") for gpu in gpus.inventory.gpus)
    return replace(gpus, inventory=replace(gpus.inventory, gpus=named))


def _remove(*directories: Path) -> None:
    for directory in directories:
        remove_tree(str(directory))
