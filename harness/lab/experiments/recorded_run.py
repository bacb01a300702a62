"""A run that was recorded, read again: its call, and the steps from which a run can resume.

RUN/call.json, manifest.json, rank-0.log, checkpoints/step-000010/ ─▶ RecordedRun ─▶ run spec of some of its steps
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.files import MAX_JSON_BYTES, read_regular
from harness.bits.redaction import REDACTED
from harness.bits.text import path_text
from harness.lab.experiments.checkpoint_check import damage_of
from harness.lab.experiments.entry_call import CALL, EntryCall
from harness.lab.experiments.flat_config import flattened, overridden
from harness.lab.experiments.run_spec import TRAIN, RunSpec
from harness.trace.manifest import Manifest
from harness.trace.reader import Trace, read_trace

AGAIN = "record the run again: rlharness train SCENARIO --out RUN"
CHECKPOINTS = "checkpoints"
"""Below the directory of a run; each checkpoint is a directory named after the step with which it begins."""
_CHECKPOINT = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run of a scenario, recorded by `rlharness train`, `replay` or another command."""

    trace: Trace
    call: EntryCall

    @property
    def directory(self) -> Path:
        """Of its trace."""
        return self.trace.directory

    @property
    def level(self) -> str:
        """At which it was run."""
        manifest = self.trace.manifest
        assert manifest is not None
        return manifest.level

    @property
    def typed(self) -> tuple[str, ...]:
        """The words by which its scenario was named; none where that is not known."""
        argv = self.trace.manifest.argv if self.trace.manifest else ()
        return argv[len(TRAIN) :] if argv[: len(TRAIN)] == TRAIN else ()

    @property
    def checkpoint_steps(self) -> tuple[int, ...]:
        """The steps with which its checkpoints begin, by their names; whole or not."""
        return checkpoint_steps_in(self.directory)

    def start_before(self, step: int) -> int | None:
        """The step with which the nearest whole checkpoint begins that is no later; None for the beginning of the run.

        One that is damaged, by its own checksums, is passed over.
        """
        return next((at for at in self._before(step) if not damage_of(self.checkpoint(at))), None)

    def passed_over(self, step: int) -> tuple[str, ...]:
        """The damaged checkpoints that `start_before` passes over, each with what is wrong with it; newest first."""
        start = self.start_before(step)
        damaged = [at for at in self._before(step) if start is None or at > start]
        return tuple(f"{self.checkpoint(at)}: {damage_of(self.checkpoint(at))}" for at in damaged)

    def checkpoint(self, step: int) -> Path:
        """The directory of the checkpoint that begins with a step."""
        return self.directory / CHECKPOINTS / f"step-{step:06}"

    def _before(self, step: int) -> list[int]:
        """With which steps its checkpoints up to this one begin, latest first; none where it cannot be gone on."""
        return sorted((at for at in self.checkpoint_steps if at <= step and self.call.resume), reverse=True)

    def spec_to(self, step: int, overrides: Mapping[str, Any] | None = None) -> RunSpec:
        """The run spec that runs its steps up to `step` again, from the nearest checkpoint, and then ends.

        `overrides` are values at dotted keys. UsageError where its configuration holds what is kept out of traces.
        """
        start, values = self.start_before(step), dict(overrides or {})
        if start is not None and self.call.resume is not None:
            values |= {self.call.resume["run"]: str(self.directory.absolute()), self.call.resume["step"]: start}
        call = replace(self.call, config=overridden(self.call.config, values, "--set"))
        if hidden := [key for key, text in flattened(call.config).items() if REDACTED in text]:
            raise UsageError(
                f"the secrets of {path_text(self.directory)} were not recorded, but the run needs them",
                legal=f"a value for each of {', '.join(hidden)}",
                remedy=f"add {' '.join(f'--set {shlex.quote(key)}=VALUE' for key in hidden)}",
            )
        from harness.lab.experiments.scenario_spec import spec_of_call  # brings pydantic: half of a command's start

        return replace(spec_of_call(call, self.level), last_step=step, typed=self.typed)


def checkpoint_steps_in(directory: Path) -> tuple[int, ...]:
    """The steps with which the checkpoints of the run in a directory begin, by their names; whole or not."""
    found = (_CHECKPOINT.fullmatch(path.name) for path in (directory / CHECKPOINTS).glob("step-*"))
    return tuple(sorted(int(name[1]) for name in found if name))


def is_recorded_run(directory: Path) -> bool:
    """Whether a directory holds a run of a scenario."""
    return (directory / CALL).is_file()


def read_recorded_run(directory: Path) -> RecordedRun:
    """The run in a directory.

    TraceError where there is no trace; UsageError where it is one of a foreign program, or its call cannot be read.
    """
    trace = read_trace(directory)
    path = directory / CALL
    try:
        call = EntryCall.parse(read_regular(path, max_bytes=MAX_JSON_BYTES, follows_links=True))
    except FileNotFoundError:
        raise UsageError(
            f"{path_text(directory)} is the trace of a command, which reproduce cannot repeat",
            legal="the directory of a run of a scenario",
            remedy="rlharness replay -- COMMAND runs a command again",
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path_text(path)} does not name the called entry and its configuration: {error!s:.100}",
            legal="a file written by rlharness",
            remedy=AGAIN,
        ) from None
    if not isinstance(trace.manifest, Manifest):
        raise UsageError(
            f"{path_text(directory)} has no complete manifest, so its level is unknown",
            legal="a run that is complete except for its last step",
            remedy=AGAIN,
        )
    return RecordedRun(trace, call)
