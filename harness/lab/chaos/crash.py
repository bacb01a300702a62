"""An entry that calls another, and dies by SIGKILL at a given moment of it. Lives in the process of that entry.

begin_step 2, rollout ..., reward ..., │ backward     crash=2.backward: here, and nothing of step 2 is recorded
begin_step 2, ..., end_step │                         crash=2.end: step 2 is recorded, nothing after it has happened
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.lab.experiment.scenario_main import load_entry

END = "end"
"""Instead of a phase: the crash comes right after the step is recorded."""


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Call the entry of `config`, with its own configuration, up to the moment that stands beside them."""
    entry, crashing = load_entry(config["entry"]), CrashingRecorder(recorder, config["step"], config["phase"])
    entry(config["config"], level=level, directory=directory, recorder=crashing)


class CrashingRecorder:
    """The recorder that an entry is given, until its process dies."""

    def __init__(self, recorder: Any, step: int, phase: str) -> None:
        self._recorder = recorder
        self._step = step
        self._phase = phase
        self._now: int | None = None

    def begin_step(self, step: int) -> None:
        """A step begins."""
        self._now = step
        self._recorder.begin_step(step)

    def record(self, phase: str, name: str, value: Any, **others: Any) -> None:
        """A value; of the phase that is waited for, the first is the last thing that happens."""
        if (self._now, phase) == (self._step, self._phase):
            die()
        self._recorder.record(phase, name, value, **others)

    def end_step(self, **values: Any) -> None:
        """A step ends."""
        self._recorder.end_step(**values)
        if (self._now, END) == (self._step, self._phase):
            die()


def die() -> None:
    """As by a machine that is lost: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)
