"""A weight target in another process: each question is a call over a channel, tensors travel by a transport.

    trainer                                        the target's process
    RemoteTarget ── method, arguments ──▶ channel ──▶ Answerer ──▶ WeightTarget
                 ◀── answer, or error ──         ◀──

The level of determinism belongs to a process: switch it on in the target's too.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from rlcore.weights.target import NamedTensors, TargetState, WeightTarget
from rlcore.weights.transports.packing import Transport
from rlcore.weights.transports.shared_memory import SharedMemory

Ask = Callable[..., Any]
"""A channel: delivers a method's name and its plain arguments to `Answerer`; returns its answer or raises its error."""


class RemoteTarget:
    """As `rlcore.weights.target.WeightTarget`, by questions over a channel."""

    def __init__(self, ask: Ask, transport: Transport | None = None) -> None:
        """Ask by this channel; tensors go through memory that both processes map, unless by another transport."""
        self._ask, self._transport = ask, transport or SharedMemory()

    def describe(self) -> TargetState:
        return cast(TargetState, self._ask("describe"))

    def begin(self, policy_version: int) -> None:
        self._ask("begin", policy_version)

    def write(self, weights: NamedTensors) -> None:
        self._transport.send(weights, partial(self._ask, "write"))

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        return cast(Mapping[str, str], self._ask("digests", tuple(names)))

    def canary(self, tokens: Tensor) -> Tensor:
        return torch.tensor(self._ask("canary", tokens.tolist()), dtype=torch.float32)

    def commit(self, weights_digest: str) -> None:
        self._ask("commit", weights_digest)


class Answerer:
    """Answers questions about a target in its own process."""

    def __init__(self, target: WeightTarget) -> None:
        """Answer for this target."""
        self._target = target
        self._opened: dict[str, Any] = {}

    def __call__(self, method: str, *given: Any) -> Any:
        """Return a plain value; raises WeightSyncError, and ValueError for a method that weight targets do not have."""
        match method, given:
            case "write", (parcel,):
                return self._target.write(parcel.open(self._opened).items())
            case "digests", (names,):
                return dict(self._target.digests(names))
            case "canary", (tokens,):
                return self._target.canary(torch.tensor(tokens)).tolist()
            case "describe" | "begin" | "commit", _:
                return getattr(self._target, method)(*given)
        raise ValueError(f"question {method!r} to a weight target")
