"""The protocol of a recorder: three calls, and one more for recorders that take many values at once.

    recorder.begin_step(7)
    recorder.record("backward", "layers.0.qkv", gradient)
    recorder.end_step(loss=loss, reward_mean=reward)

rlcore knows this protocol and no recorder: the harness brings one, tests bring their own. Values are recorded in
canonical order (samples by prompt and number, microbatches by number, parameters as the model names them), on any
thread and at any time: what is recorded twice under one phase and name counts as its first and second occurrence.

Phases: rollout, reward, reference, advantage, forward, loss, backward, optimizer, sync.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable


class Recorder(Protocol):
    """Takes the steps of one process."""

    def begin_step(self, step: int) -> None:
        """Begin a step."""

    def record(self, phase: str, name: str, value: Any) -> None:
        """A tensor, a number, text, bytes, or a list of numbers or texts; looked at now, left as it is."""

    def end_step(self, **values: Any) -> None:
        """End the step; `values` are those of the curve."""


@runtime_checkable
class BatchRecorder(Recorder, Protocol):
    """Takes many values at once: of values on a GPU, their digests come to the host together."""

    def record_all(self, phase: str, values: Iterable[tuple[str, Any]]) -> None:
        """Record named values as `record` does each; goes through all of them, in order."""


def record_all(recorder: Recorder, phase: str, values: Iterable[tuple[str, Any]]) -> None:
    """Record named values, all at once if the recorder can."""
    if isinstance(recorder, BatchRecorder):
        recorder.record_all(phase, values)
        return
    for name, value in values:
        recorder.record(phase, name, value)


class PartRecorder(Recorder, Protocol):
    """Takes the steps of one of several processes that record together."""

    def close(self) -> None:
        """End the record in order; without it, the record of this process counts as cut off."""


@runtime_checkable
class SharedRecorder(Recorder, Protocol):
    """Takes the steps of several processes: one whose models train in other processes needs it."""

    def share(self, num_others: int) -> Sequence[Callable[[], PartRecorder]]:
        """Record together with that many other processes; return what each of them calls to open its recorder.

        The functions can be pickled. It is called before the first step.
        """


class NullRecorder:
    """A recorder that discards every value."""

    def begin_step(self, step: int) -> None:
        """Nothing."""

    def record(self, phase: str, name: str, value: Any) -> None:
        """Nothing."""

    def end_step(self, **values: Any) -> None:
        """Nothing."""

    def share(self, num_others: int) -> Sequence[Callable[[], PartRecorder]]:
        """Let no other process record either."""
        return [NullRecorder] * num_others

    def close(self) -> None:
        """Nothing."""
