"""A sampler in another process, over two pipes: one for completions, one for its weights.

    host = RemoteHost()
    sampler = host.sampler(decoder, tokenizer, concurrency=4)     # rlcore.samplers.base.Sampler
    target = host.target(LocalTarget, decoder)                    # rlcore.weights.target.WeightTarget
    host.close()

The process keeps decoders of its own; what goes through the pipes are requests, completions, tensors that are written,
and plain answers. Calls are computed under the strategy that the caller follows.
"""

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from rlcore.data.trajectory import Trajectory
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import Strategy, active, following
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import SampleRequest, Tokenizer
from rlcore.weights.remote import Answerer, RemoteTarget
from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.packing import Transport
from rlcore.weights.transports.shared_memory import SharedMemory

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Call:
    """A method to be called in the other process."""

    number: int
    """Which object it is a method of; a new one if `method` is empty."""
    method: str
    given: tuple[Any, ...]
    strategy: Strategy | None
    """What the caller follows: it belongs to a thread, and not to a process."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """What a call has returned, or raised."""

    value: Any
    is_error: bool = False


def _send(connection: Connection, message: object) -> None:
    """Send a copy: torch's own way through multiprocessing would share the memory of tensors."""
    connection.send_bytes(pickle.dumps(message))


def _receive(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())


class RemoteHost:
    """A process that keeps samplers and weight targets."""

    def __init__(self) -> None:
        self.transport: Callable[[], Transport] = SharedMemory
        """Builds the transport of each target."""
        context = multiprocessing.get_context("spawn")
        (self._work, work), (self._control, control) = context.Pipe(), context.Pipe()
        self._process = context.Process(target=_serve, args=(work, control), daemon=True)
        self._process.start()
        work.close()
        control.close()
        self._numbers = count(1)

    def sampler(self, decoder: Decoder, tokenizer: Tokenizer, **options: Any) -> "RemoteSampler":
        """Make a TorchSampler there, with a copy of the decoder."""
        number = next(self._numbers)
        self._answer(self._control, _Call(number, "", (TorchSampler, (decoder, tokenizer), options), None))
        return RemoteSampler(self, number)

    def target(self, kind: Callable[[Decoder], WeightTarget], decoder: Decoder) -> "HostedTarget":
        """Make a weight target there, with a copy of the decoder."""
        number = next(self._numbers)
        self._answer(self._control, _Call(number, "", (kind, (decoder,), {}), None))
        return HostedTarget(self, number)

    def sharing_target(self, kind: Callable[[Decoder], WeightTarget], decoder: Decoder) -> "HostedTarget":
        """Make a weight target there whose decoder is in memory that both processes share."""
        number = next(self._numbers)
        shared = bytes(ForkingPickler.dumps(decoder.share_memory()))
        self._answer(self._control, _Call(number, "", (kind, (shared,), {}), None))
        return HostedTarget(self, number)

    def control(self, number: int, method: str, *given: Any) -> Any:
        """Call a method of an object there, while completions may be drawn."""
        return self._answer(self._control, _Call(number, method, given, active()))

    def work(self, number: int, method: str, *given: Any) -> Any:
        """Call a method of an object there that takes its time."""
        return self._answer(self._work, _Call(number, method, given, active()))

    def close(self) -> None:
        """End the process."""
        for connection in (self._control, self._work):
            _send(connection, None)
            connection.close()
        self._process.join(TIMEOUT_S)
        self._process.kill()
        self._process.join()
        self._process.close()

    def _answer(self, connection: Connection, call: _Call) -> Any:
        _send(connection, call)
        if not connection.poll(TIMEOUT_S):
            raise TimeoutError(f"no answer to {call.method} in {TIMEOUT_S} s")
        answer = _receive(connection)
        if answer.is_error:
            raise answer.value
        return answer.value


class HostedTarget(RemoteTarget):
    """A target of the other process, and the methods that faulty ones have besides."""

    def __init__(self, host: RemoteHost, number: int) -> None:
        super().__init__(partial(host.control, number, "answer"), host.transport())
        self._host, self._number = host, number

    def ask(self, method: str, *given: Any) -> None:
        """Call any method there."""
        self._host.control(self._number, method, *given)


class RemoteSampler:
    """As `rlcore.samplers.base.Sampler`, by calls to another process."""

    def __init__(self, host: RemoteHost, number: int) -> None:
        self._host, self._number = host, number
        self.weight_target = HostedTarget(host, -number)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        return self._host.work(self._number, "sample", list(requests))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------- the other process


def _serve(work: Connection, control: Connection) -> None:
    """Answer both pipes, each in a thread of its own, until both are at an end."""
    torch.set_num_threads(1)
    objects: dict[Any, Any] = {}
    answering = threading.Thread(target=_answer_all, args=(control, objects), daemon=True)
    answering.start()
    _answer_all(work, objects)
    answering.join()


def _answer_all(connection: Connection, objects: dict[Any, Any]) -> None:
    while (call := _receive(connection)) is not None:
        try:
            with following(call.strategy):
                reply = _Reply(_done(call, objects))
        except Exception as error:  # the caller raises it
            reply = _Reply(error, is_error=True)
        _send(connection, reply)


def _done(call: _Call, objects: dict[Any, Any]) -> Any:
    if not call.method:
        kind, given, options = call.given
        made = kind(*(pickle.loads(each) if isinstance(each, bytes) else each for each in given), **options)
        objects[call.number] = made
        if isinstance(made, TorchSampler):
            objects[-call.number] = made.weight_target
        return None
    if call.method == "answer":
        answerer = objects.setdefault(("answerer", call.number), Answerer(objects[call.number]))
        return answerer(*call.given)
    return getattr(objects[call.number], call.method)(*call.given)
