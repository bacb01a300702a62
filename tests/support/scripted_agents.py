"""Agents without processes: they speak the real protocol over real sockets, follow a plan, and die when it says so."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.core.errors import NetworkError
from harness.machine.inventory import Gpu
from harness.process.supervisor_client import ProcessEnd
from harness.runner.cluster import messages
from harness.runner.cluster.channel import Channel, dial
from tests.support.scripted_attempts import FAILING, PASSING

PASSES = ProcessEnd(0, None, "", (), (), 0.5)
FAILS = ProcessEnd(1, None, "", (), (), 0.5)


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """Behaviour of one agent."""

    dies_after: int | None = None
    """Number of messages that it sends before its connection breaks; None to live."""
    num_turns: int = 1
    """Turns of the event loop that an attempt takes."""
    repeats: bool = False
    """Whether it reports each end twice, with another outcome the second time."""
    forges: bool = False
    """Whether it reports ends of attempts that run on other nodes."""
    num_gpus: int = 2


@dataclass
class ScriptedAgent:
    """One agent; `fails` says of a unit's number whether its tests fail."""

    plan: AgentPlan
    fails: Callable[[int], bool]
    everywhere: list[str]
    """Markers that any agent was given."""
    node: str = ""
    num_sent: int = 0
    given: list[str] = field(default_factory=list)
    """Markers that it was given."""
    orders: list[messages.Message] = field(default_factory=list)
    is_dead: bool = False
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _ending: set[str] = field(default_factory=set)

    async def serve(self, port: int, key: str) -> None:
        """Serve the run to its end, or to its own."""
        channel = await dial(("127.0.0.1", port), key, 60)
        try:
            channel.post(messages.Beat())
            welcome = await channel.receive()
            assert isinstance(welcome, messages.Welcome)
            self.node = welcome.node
            await channel.send(self._hello())
            while not isinstance(message := await channel.receive(), messages.Bye):
                self._take(channel, message)
        except (NetworkError, OSError):
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            channel.close()

    def _hello(self) -> messages.Hello:
        gpus = tuple(Gpu(f"{self.node}-{index}", index, "A", 80.0) for index in range(self.plan.num_gpus))
        return messages.Hello(
            version=messages.VERSION,
            host="h",
            address="127.0.0.1",
            pid=1,
            python="python",
            directory=f"/{self.node}/run",
            scratch=f"/{self.node}",
            cwd="/",
            gpus=gpus,
            links=(),
            left_out=(),
            is_simulated=True,
            containment="none",
        )

    def _take(self, channel: Channel, message: messages.Message) -> None:
        if not isinstance(message, messages.Beat):
            self.orders.append(message)
        if isinstance(message, messages.Start):
            self.given.append(message.marker)
            self.everywhere.append(message.marker)
            task = asyncio.create_task(self._carry_out(channel, message.marker))
            self._tasks.add(task)
        elif isinstance(message, messages.Cancel | messages.Kill):
            self._ending.add(message.marker)

    async def _carry_out(self, channel: Channel, marker: str) -> None:
        number = int(marker.partition("-")[2].partition("+")[0].partition("-")[0])
        fails = self.fails(number)
        for _ in range(self.plan.num_turns):
            if marker not in self._ending:
                await asyncio.sleep(0)
        is_ended = marker in self._ending
        lines: Any = (FAILING if fails else PASSING)[: 1 if is_ended else 4]
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        self._say(channel, messages.FilePart(marker, "report.jsonl", 0, messages.to_data(text)))
        end = ProcessEnd(None, 9, "cancelled", (), (), 0.1) if is_ended else FAILS if fails else PASSES
        self._say(channel, messages.Ended(marker, end))
        if self.plan.repeats:
            self._say(channel, messages.Ended(marker, PASSES if fails else FAILS))
            self._say(channel, messages.FilePart(marker, "report.jsonl", 0, messages.to_data(b"late\n")))
        if self.plan.forges:
            for other in self.everywhere:
                if other not in self.given:
                    self._say(channel, messages.Ended(other, PASSES if fails else FAILS))

    def _say(self, channel: Channel, message: messages.Message) -> None:
        if self.plan.dies_after is not None and self.num_sent >= self.plan.dies_after:
            self.is_dead = True
            channel.writer.transport.abort()
            return
        self.num_sent += 1
        channel.post(message)
