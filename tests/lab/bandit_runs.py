"""Runs of the bandit in this process, recorded as those of a session are, without the seconds of importing torch."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.recording.entry_call import EntryCall
from harness.recording.recorder import Recorder
from tests.lab import bandit_entry
from tests.support.recorded_steps import TraceSink

ENTRY = "tests.lab.bandit_entry:run"
CONFIG: Mapping[str, Any] = {"seed": 1, "num_steps": 5, "runtime": {"num_parts": 1}}


def recorded_bandits(directory: Path, **runs: Mapping[str, object]) -> None:
    """A recorded run for each name, with these values in its configuration, and a scenario that names the entry."""
    (directory / "scenarios").mkdir(parents=True)
    scenario = f"about: a bandit that learns\nentry: {ENTRY}\ndeterminism: deterministic\n"
    (directory / "scenarios" / "bandit.yaml").write_text(scenario, "utf-8")
    for name, changed in runs.items():
        call = EntryCall(ENTRY, {**CONFIG, **changed}, ("runtime",))
        (directory / name).mkdir()
        sink = TraceSink(directory / name)
        call.write(directory / name)
        with suppress(ArithmeticError):  # of one that is to break
            bandit_entry.run(call.config, level="off", directory=directory / name, recorder=Recorder(sink))
        sink.writer.close()
