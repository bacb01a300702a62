"""A worker's process: it constructs the workers of its rank, and answers calls in their order.

    main thread: receive ─▶ perform ─▶ answer        watching thread: the controller's process has ended ─▶ SIGKILL

It ends with the controller, however that ends. It ignores SIGINT, which a terminal sends to all of them: the
controller ends it.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from multiprocessing.reduction import ForkingPickler
from typing import Any

from rlcore.distributed.backends.blocks import Message, encode
from rlcore.distributed.calls import UNREADABLE, Failure, perform
from rlcore.distributed.worker import Worker, WorkerContext, WorkerSpec, construct, effective
from rlcore.errors import WorkerError

CHECK_EVERY_S = 0.5
"""How often a process looks whether its parent is still the controller; the end of a pipe shows it sooner."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a process."""

    specs: Message
    """tuple[WorkerSpec, ...]"""
    context: WorkerContext
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """A method to run."""

    number: int
    role: str
    method: str
    payloads: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a call; the first one, of number 0, is that of the construction."""

    number: int
    outcome: Message


def serve(connection: Connection, parent: int) -> None:
    """Run a worker's process until the controller ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it was blocked while the process started
    threading.Thread(target=_end_with, args=(parent,), name="rlcore-parent", daemon=True).start()
    try:
        start: Start = connection.recv()
        workers, outcome = _constructed(start)
        send(connection, Answer(0, outcome))
        while True:
            call: Call = connection.recv()
            outcome = _outcome(workers, call)
            sys.stdout.flush()  # the process is killed in the end
            sys.stderr.flush()
            send(connection, Answer(call.number, outcome))
    except (EOFError, OSError):  # the controller has closed its end
        os._exit(0)


def send(connection: Connection, message: object) -> None:
    """Send a message; a block in it is sent by its descriptor."""
    connection.send_bytes(ForkingPickler.dumps(message))


def _constructed(start: Start) -> tuple[dict[str, Worker], Message]:
    try:
        found = effective(start.environment)
        if found != start.environment:
            raise WorkerError(f"environment {found}", rank=start.context.rank, legal=f"{dict(start.environment)}")
        specs: tuple[WorkerSpec, ...] = start.specs.decode()
        return construct(specs, start.context), encode(None)
    except Exception as error:  # it is raised again in the controller
        return {}, encode(Failure.of(error))


def _outcome(workers: dict[str, Worker], call: Call) -> Message:
    """Run a call and return its result, or a Failure, also of a message that cannot be read or pickled."""
    try:
        arguments: dict[str, Any] = {}
        for payload in call.payloads:
            arguments |= payload.decode()
        return encode(perform(workers[call.role], call.method, arguments))
    except Exception as error:  # pickle raises what the classes of a value raise
        text = traceback.format_exception_only(error)[-1].strip()
        return encode(Failure.of(WorkerError(f"{UNREADABLE}: {text}", role=call.role)))


def _end_with(parent: int) -> None:
    """Kill this process once the controller has ended, whatever the main thread does."""
    controller = parent_process()
    assert controller is not None
    while os.getppid() == parent and not wait([controller.sentinel], CHECK_EVERY_S):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
