"""The engine with a fault in it: an entry as a scenario names one.

    rlharness replay faulty.yaml --set fault.name=sync_noop --set fault.has_receipts=false

Without receipts a sync checks nothing, so that the fault reaches the training.
What the fault did goes into fault.json beside the trace.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rlcore.entrypoint import run as run_engine
from rlcore.log import PartRecorder, Recorder, SharedRecorder
from tests.guards.planted.fault import Deeds, Fault, named, planted

DEEDS = "fault.json"
_for_life = ExitStack()
"""Holds the fault of a process that trains with others; nobody closes it."""


@dataclass(frozen=True, slots=True)
class StepWatch:
    """Passes on what the engine tells, and lets the fault know which step it is."""

    recorder: Recorder
    deeds: Deeds
    fault: Fault | None

    def begin_step(self, step: int) -> None:
        """As a recorder's."""
        self.deeds.step = step
        self.recorder.begin_step(step)

    def record(self, phase: str, name: str, value: Any) -> None:
        """As a recorder's."""
        self.recorder.record(phase, name, value)

    def end_step(self, **values: Any) -> None:
        """As a recorder's."""
        self.recorder.end_step(**values)
        assert self.deeds.step is not None
        self.deeds.step += 1

    def share(self, num_others: int) -> Sequence[Callable[[], PartRecorder]]:
        """As a recorder's."""
        assert isinstance(self.recorder, SharedRecorder)
        return [partial(open_in_rank, opener, self.fault) for opener in self.recorder.share(num_others)]


def open_in_rank(opener: Callable[[], PartRecorder], fault: Fault | None) -> PartRecorder:
    """Put a fault into a process that trains with others, for as long as it lives, and open its recorder."""
    if fault is not None:
        _for_life.enter_context(planted(fault, Deeds()))
    return opener()


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Recorder) -> None:
    """Call the engine's entry with the fault that `fault.name` names; with none where there is no such key."""
    payload = dict(config)
    asked = {"name": "", "has_receipts": True, **payload.pop("fault", {})}
    fault, deeds = named(asked["name"]) if asked["name"] else None, Deeds()
    if not asked["has_receipts"]:
        unchecked = named("no_receipts")
        fault = unchecked if fault is None else replace(fault, edits=(*fault.edits, *unchecked.edits))
    try:
        with nullcontext() if fault is None else planted(fault, deeds):
            run_engine(payload, level=level, directory=directory, recorder=StepWatch(recorder, deeds, fault))
    finally:
        told = {"is_reached": deeds.is_reached, "step": deeds.step}
        (directory / DEEDS).write_text(json.dumps(told) + "\n", "utf-8")
