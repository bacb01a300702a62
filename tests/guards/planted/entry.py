"""The engine with a fault in it: an entry as a scenario names one.

    rlharness replay faulty.yaml --set fault.name=sync_noop --set fault.has_receipts=false

Without receipts a sync checks nothing, so that the fault reaches the training.
What the fault did goes into fault.json beside the trace.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlcore.entrypoint import run as run_engine
from rlcore.log import PartRecorder, Recorder, SharedRecorder
from tests.guards.planted.catalogue import named
from tests.guards.planted.fault import Probe, honest, replaced
from tests.guards.planted.faults.weights import SYNC

DEEDS = "fault.json"
REACHED = ".reached"


@dataclass(frozen=True, slots=True)
class StepWatch:
    """Passes on what the engine tells, and lets the fault know which step it is."""

    recorder: Recorder
    probe: Probe
    name: str
    """Of the fault; empty without one."""
    directory: Path

    def begin_step(self, step: int) -> None:
        """As a recorder's."""
        self.probe.begin(step)
        self.recorder.begin_step(step)

    def record(self, phase: str, name: str, value: Any) -> None:
        """As a recorder's."""
        self.recorder.record(phase, name, value)

    def end_step(self, **values: Any) -> None:
        """As a recorder's."""
        self.recorder.end_step(**values)
        self.probe.end()

    def share(self, num_others: int) -> Sequence[Callable[[], PartRecorder]]:
        """As a recorder's."""
        assert isinstance(self.recorder, SharedRecorder)
        openers = self.recorder.share(num_others)
        return [
            partial(open_in_rank, opener, self.name, self.directory / f"{rank}{REACHED}")
            for rank, opener in enumerate(openers)
        ]


_for_life = ExitStack()
"""Holds the fault of a process that trains with others; nobody closes it."""


class RankProbe(Probe):
    """The probe of another process, which leaves a file where its fault has been reached."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def reached(self, *, has_effect: bool = True) -> None:
        """As a probe's; it knows no step."""
        self._path.touch()


def open_in_rank(opener: Callable[[], PartRecorder], name: str, path: Path) -> PartRecorder:
    """Put the fault into a process that trains with others, for as long as it lives, and open its recorder."""
    if name:
        _for_life.enter_context(named(name).install(RankProbe(path)))
    return opener()


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Recorder) -> None:
    """Call the engine's entry with the fault that `fault.name` names; with none where there is no such key."""
    payload = dict(config)
    asked = {"name": "", "has_receipts": True, **payload.pop("fault", {})}
    name, probe = asked["name"], Probe()
    unchecked = nullcontext() if asked["has_receipts"] else replaced(SYNC, partial(honest(SYNC), checks=frozenset()))
    try:
        with unchecked, named(name).install(probe) if name else nullcontext():
            run_engine(payload, level=level, directory=directory, recorder=StepWatch(recorder, probe, name, directory))
    finally:
        num_reached = probe.num_reached + len(list(directory.glob(f"*{REACHED}")))
        deeds = {"num_reached": num_reached, "first_effect": probe.first_effect, "step": probe.step}
        (directory / DEEDS).write_text(json.dumps(deeds) + "\n", "utf-8")
