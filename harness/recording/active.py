"""The recording of this process: there is one, or none."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.recording.automatic import AutomaticRecorder
from harness.recording.callbacks import make_callbacks
from harness.recording.determinism_flags import set_flags
from harness.recording.metrics import PrintedMetrics
from harness.recording.op_mode import OpMode
from harness.recording.process import Place, ProcessLog
from harness.recording.recorder import NullRecorder, Recorder
from harness.recording.run_spec import RunSpec
from harness.trace.values import Float


@dataclass(slots=True)
class _Active:
    log: ProcessLog | None = None
    foreign: AutomaticRecorder | None = None


_active = _Active()


def start_recording(orders: RunSpec) -> None:
    """Record this process from here on, by hooks in torch; called once, right after torch has been imported."""
    log = ProcessLog(orders)
    if without_effect := set_flags(orders.level):
        log.give_up(f"the level {orders.level} had no effect on {', '.join(without_effect)}")
    _active.log, _active.foreign = log, AutomaticRecorder(log)
    _active.foreign.install()
    if orders.sentinel:
        from harness.recording.sentinel.sentinel import SentinelConfig, start_sentinel

        config = SentinelConfig(orders.sentinel, Path(orders.directory))
        start_sentinel(config, _active.foreign.pause)
    metrics = PrintedMetrics(orders.metrics, log.log_values, log.note_metrics)
    metrics.watch_streams(has_json=not orders.has_entry)


def open_recorder(place: Place | None = None) -> Recorder | NullRecorder:
    """The recorder of this process, for a program that names its steps and phases itself.

    The hooks in torch record nothing from then on. `place` is that of this process among those that record together.
    """
    log, foreign = _active.log, _active.foreign
    if log is None:
        return NullRecorder()
    begun = None
    if foreign is not None:
        begun = foreign.hand_over()
        _active.foreign = None
    orders = log.orders

    if place is not None:
        log.place = place
    log.callbacks = callbacks = make_callbacks(orders.callbacks, is_first=place is None)

    def operations(step: int) -> OpMode | None:
        return (begun or log.operations(step)) if step == orders.op_step else None

    keeps = frozenset(orders.keep).__contains__
    last_step = orders.last_step if place is None else None  # the first process ends the run
    log.recorder = Recorder(
        log, keeps=keeps, operations=operations, last_step=last_step, callbacks=callbacks, share=_share, close=log.close
    )
    log.recorder.describe = partial(setattr, log, "content")
    return log.recorder


def _share(num_others: int) -> list[partial[Recorder | NullRecorder]]:
    """Make this process the first of those that record together; again, if the others have died and start again."""
    log, num_ranks = _active.log, num_others + 1
    assert log is not None, "its recorder is open"
    continues = log.place is not None
    log.place = Place(0, num_ranks)
    if continues:
        log.repeat()
    return [partial(open_recorder, Place(rank, num_ranks, continues)) for rank in range(1, num_ranks)]


def log_values(values: Mapping[str, Float]) -> None:
    """Log values of the curve, where this process records."""
    if _active.log is not None:
        _active.log.log_values(values)


def see_rollout(phase: str, name: str, value: Any) -> None:
    """Record what a known trainer has sampled, rewarded or weighed, if the hooks in torch are at work."""
    if _active.foreign is not None:
        _active.foreign.guarded(_active.foreign.see_rollout, phase, name, value)


def watch(name: str, value: Any) -> None:
    """Watch a value of the program, if the hooks in torch are at work."""
    if _active.foreign is not None:
        _active.foreign.watched.watch(name, value)


def meet_generators() -> None:
    """A module that brings a random-number generator has just been imported."""
    if _active.foreign is not None:
        _active.foreign.guarded(_active.foreign.meet_generators)


@contextmanager
def paused_hooks() -> Iterator[None]:
    """Let the hooks in torch rest."""
    pause = _active.foreign.pause if _active.foreign is not None else lambda is_paused: None
    pause(True)
    try:
        yield
    finally:
        pause(False)


def active_log() -> ProcessLog | None:
    """Where values of the curve go; None where nothing is recorded."""
    return _active.log
