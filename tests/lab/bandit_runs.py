"""Runs of the bandit in this process, recorded as those of a session are, without the seconds of importing torch."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.lab.experiments.call_signature import sign_call
from harness.lab.experiments.entry_call import EntryCall
from harness.recording.recorder import Recorder
from tests.lab import bandit_entry
from tests.support.recorded_steps import TraceSink

CONFIG: Mapping[str, Any] = {"seed": 1, "num_steps": 5, "runtime": {"num_parts": 1}}


def recorded_bandits(directory: Path, **runs: Mapping[str, object]) -> None:
    """A recorded run for each name, with these values in its configuration, in the directory of that name."""
    for name, changed in runs.items():
        call = EntryCall("tests.lab.bandit_entry:run", {**CONFIG, **changed}, ("runtime",))
        (directory / name).mkdir(parents=True)
        sink = TraceSink(directory / name)
        call.write(directory / name)
        sign_call(directory / name, call, os.environ)
        with suppress(ArithmeticError):  # of one that is to break
            bandit_entry.run(call.config, level="off", directory=directory / name, recorder=Recorder(sink))
        sink.writer.close()
