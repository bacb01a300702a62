"""Runs of the bandit in this process, recorded as those of a session are, without the seconds of importing torch."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.lab.experiments.call_signature import sign_call
from harness.lab.experiments.entry_call import EntryCall
from harness.lab.experiments.recorded_run import RecordedRun, read_recorded_run
from harness.lab.experiments.recording_result import Problem, Recording
from harness.lab.experiments.run import Run
from harness.lab.experiments.run_spec import RunSpec
from harness.lab.experiments.scenario_spec import spec_of_call
from harness.recording.callbacks import make_callbacks
from harness.recording.op_log import OpLog
from harness.recording.op_mode import OpMode
from harness.recording.recorder import Recorder
from harness.recording.recording_config import RunEnded
from harness.trace.reader import read_trace
from tests.lab import bandit_entry
from tests.support.recorded_steps import TraceSink

CONFIG: Mapping[str, Any] = {"seed": 1, "num_steps": 5, "runtime": {"num_parts": 1}}


@dataclass
class InProcess:
    """Starts runs in the place of a session. `interrupted_by` is set once as many have ended as `ends_after` says."""

    interrupted_by: str = ""
    ends_after: int = 1000
    names: list[str] = field(default_factory=list)
    """Of the directories, in the order of the runs."""

    async def record(self, run_spec: RunSpec, parent: Path) -> Run:
        """The same call, orders and trace."""
        directory = parent / "run-1"
        directory.mkdir(parents=True)
        problems: tuple[Problem, ...] = ()
        sink, call = TraceSink(directory), run_spec.call
        assert call is not None
        call.write(directory)
        sign_call(directory, call, os.environ)
        callbacks = make_callbacks(run_spec.callbacks)

        def operations(step: int) -> OpMode | None:
            if step != run_spec.op_step:
                return None
            mode = OpMode(OpLog(directory, rank=0, step=step, say=print))
            mode.callbacks = callbacks
            return mode

        recorder = Recorder(
            sink,
            keeps=frozenset(run_spec.keep).__contains__,
            operations=operations,
            last_step=run_spec.last_step,
            callbacks=callbacks,
        )
        try:
            with suppress(RunEnded):
                bandit_entry.run(call.config, level=run_spec.level, directory=directory, recorder=recorder)
        except ArithmeticError:
            problems = (Problem("the program ended with exit code 1"),)
        sink.writer.close()
        trace = read_trace(directory)
        self.names.append(parent.name)
        if len(self.names) >= self.ends_after:
            self.interrupted_by = "SIGINT"
        recording = Recording(directory, len(problems), len(trace.steps), tuple(trace.ranks), 0, problems)
        return Run(1, False, recording, 0.1)


async def bandit(parent: Path, **changed: object) -> RecordedRun:
    """A recorded run with these values in its configuration."""
    call = EntryCall("tests.lab.bandit_entry:run", {**CONFIG, **changed}, ("runtime",))
    run = await InProcess().record(spec_of_call(call, "off"), parent)
    return read_recorded_run(run.recording.directory)


def recorded_bandits(directory: Path, **runs: Mapping[str, object]) -> None:
    """A recorded run for each name, in the directory of that name."""
    for name, changed in runs.items():
        run = asyncio.run(bandit(directory / f"{name}-parent", **changed))
        run.directory.rename(directory / name)
