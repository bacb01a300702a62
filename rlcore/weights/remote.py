"""A weight target in another process: each question is a small message over a channel, tensors travel by a transport.

    trainer                                           the target's process
    RemoteTarget ── Question ──▶ channel ──▶ Answerer ──▶ WeightTarget
                 ◀── answer ────         ◀──

A channel is a function: it delivers one question, waits, and returns the answer of `Answerer`. The level of determinism
belongs to a process: switch it on in the target's too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.weights.target import Difference, TargetState, WeightTarget
from rlcore.weights.transports.parcels import Attachments, Inline, Parcel


@dataclass(frozen=True, slots=True)
class Question:
    """A call of a weight target's method. It can be pickled, and holds no tensor."""

    method: str
    """Name of a method of `WeightTarget`."""
    given: tuple[Any, ...] = ()
    """Numbers, texts and parcels."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer in place of a value: the WeightSyncError that the target raised."""

    what: str
    check: str
    parameter: str
    legal: str
    remedy: str

    @classmethod
    def of(cls, error: WeightSyncError) -> "Failure":
        """Return what an error consists of."""
        what = error.what.removeprefix(f"{error.check}: ").removeprefix(f"{error.parameter} ")
        return cls(what, error.check, error.parameter, error.legal, error.remedy)

    def error(self) -> WeightSyncError:
        """Return the error again."""
        return WeightSyncError(
            self.what, check=self.check, parameter=self.parameter, legal=self.legal, remedy=self.remedy
        )


Ask = Callable[[Question], Any]
"""A channel: returns what `Answerer` answered in the target's process, or raises what the channel itself suffers."""


class RemoteTarget:
    """As `rlcore.weights.target.WeightTarget`, by questions over a channel."""

    def __init__(self, ask: Ask) -> None:
        """Ask by this channel; every call is one question, and none is repeated."""
        self._channel = ask

    def describe(self) -> TargetState:
        """As `WeightTarget.describe`; regions name the address space of the target's process."""
        return cast(TargetState, self._ask("describe"))

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`."""
        self._ask("begin", policy_version)

    def poison(self, names: Sequence[str]) -> None:
        """As `WeightTarget.poison`."""
        self._ask("poison", tuple(names))

    def write(self, chunk: Mapping[str, Tensor]) -> Sequence[str]:
        """As `WeightTarget.write`: the tensors travel within the message."""
        return self.receive(Inline.of(chunk))

    def receive(self, parcel: Parcel) -> list[str]:
        """Let the target write the tensors of a parcel; return the names that were written."""
        return list(cast(Sequence[str], self._ask("write", parcel)))

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        """As `WeightTarget.digests`."""
        return cast(Mapping[str, str], self._ask("digests", tuple(names)))

    def compare(self, chunk: Mapping[str, Tensor]) -> Mapping[str, Difference]:
        """As `WeightTarget.compare`: the tensors travel within the message."""
        return cast(Mapping[str, Difference], self._ask("compare", Inline.of(chunk)))

    def canary(self, tokens: Tensor) -> Tensor:
        """As `WeightTarget.canary`."""
        answer = cast(Inline, self._ask("canary", tuple(tokens.tolist())))
        return answer.open(Attachments())["canary"]

    def commit(self, weights_digest: str) -> None:
        """As `WeightTarget.commit`."""
        self._ask("commit", weights_digest)

    def _ask(self, method: str, *given: Any) -> Any:
        """Return the answer; raises the target's WeightSyncError."""
        answer = self._channel(Question(method, given))
        if isinstance(answer, Failure):
            raise answer.error()
        return answer


class Answerer:
    """Answers questions about a target in its own process; `close` releases what parcels have opened."""

    def __init__(self, target: WeightTarget) -> None:
        """Answer for this target."""
        self._target = target
        self._attachments = Attachments()

    def __call__(self, question: Question) -> Any:
        """Return a plain value, or a Failure where the target raises WeightSyncError.

        Raises InvalidValueError for a method that weight targets do not have.
        """
        try:
            return self._answer(question)
        except WeightSyncError as error:
            return Failure.of(error)

    def close(self) -> None:
        """Release what parcels have opened: blocks of shared memory, process groups."""
        self._attachments.close()

    def _answer(self, question: Question) -> Any:
        match question.method, question.given:
            case "write", (parcel,):
                return tuple(self._target.write(parcel.open(self._attachments)))
            case "compare", (parcel,):
                return dict(self._target.compare(parcel.open(self._attachments)))
            case "canary", (tokens,):
                return Inline.of({"canary": self._target.canary(torch.tensor(tokens, dtype=torch.int64))})
            case "digests", (names,):
                return dict(self._target.digests(names))
            case ("describe" | "begin" | "poison" | "commit") as method, given:
                return getattr(self._target, method)(*given)
        raise InvalidValueError(
            f"question {question.method!r} to a weight target",
            legal="describe, begin, poison, write, digests, compare, canary, commit",
        )
