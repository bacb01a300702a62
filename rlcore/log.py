"""What a run records, and the recorders that take it.

    record = Record(recorder)
    record.begin_step(7)
    record("loss", "policy", loss)
    record.all("backward", gradients)
    record.end_step(loss=loss, reward_mean=reward)

rlcore knows the protocol of a recorder and no recorder: the harness brings one, tests bring their own. Values are
recorded in canonical order (samples by prompt and number, microbatches by number, parameters as the model names them):
what is recorded twice under one phase and name counts as its first and second occurrence.

Phases: rollout, reward, reference, advantage, forward, loss, backward, optimizer, sync.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

Named = Iterable[tuple[str, Any]]


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

    def record_all(self, phase: str, values: Named) -> None:
        """Record named values as `record` does each; goes through all of them, in order."""


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


class Record:
    """The record of one process: it takes values while a step lasts, and drops those of the time between steps."""

    def __init__(self, recorder: Recorder, *, own: Callable[[Named], Named] = iter) -> None:
        """Record into `recorder`; of tensors that several ranks hold, `own` yields those that this one records."""
        self._recorder, self._own = recorder, own
        self.is_paused = True
        """Whether values are dropped: during a warm start, and between steps."""

    def begin_step(self, step: int) -> None:
        """Begin a step."""
        self.is_paused = False
        self._recorder.begin_step(step)

    def end_step(self, **curve: float) -> None:
        """End the step with its values of the curve."""
        self._recorder.end_step(**curve)
        self.is_paused = True

    def __call__(self, phase: str, name: str, value: Any) -> None:
        """Record a value."""
        if not self.is_paused:
            self._recorder.record(phase, name, value)

    def all(self, phase: str, named: Named) -> None:
        """Record several values of a phase, with one wait for a GPU; every rank goes through all of them."""
        if self.is_paused:
            return
        if isinstance(self._recorder, BatchRecorder):
            self._recorder.record_all(phase, self._own(named))
        else:
            for name, value in self._own(named):
                self._recorder.record(phase, name, value)
