"""The engine with a fault in it: an entry as a scenario names one.

    rlharness replay faulty.yaml --set fault.name=sync_noop --set fault.has_receipts=false

Without receipts a sync checks nothing, so that the fault reaches the training.
What the fault did goes into fault.json beside the trace.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlcore.entrypoint import run as run_engine
from rlcore.trace import PartRecorder, Recorder, SharedRecorder
from tests.benchmarks.mutations.catalogue import named
from tests.benchmarks.mutations.fault import Probe, honest, replaced
from tests.benchmarks.mutations.faults.weights import SYNC

DEEDS = "fault.json"


@dataclass(frozen=True, slots=True)
class StepWatch:
    """Passes on what the engine tells, and lets the fault know which step it is."""

    recorder: Recorder
    probe: Probe

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
        return self.recorder.share(num_others)


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Recorder) -> None:
    """Call the engine's entry with the fault that `fault.name` names; with none where there is no such key."""
    payload = dict(config)
    asked = {"name": "", "has_receipts": True, **payload.pop("fault", {})}
    name, probe = asked["name"], Probe()
    unchecked = nullcontext() if asked["has_receipts"] else replaced(SYNC, partial(honest(SYNC), checks=frozenset()))
    try:
        with unchecked, named(name).install(probe) if name else nullcontext():
            run_engine(payload, level=level, directory=directory, recorder=StepWatch(recorder, probe))
    finally:
        deeds = {"num_reached": probe.num_reached, "first_effect": probe.first_effect, "step": probe.step}
        (directory / DEEDS).write_text(json.dumps(deeds) + "\n", "utf-8")
