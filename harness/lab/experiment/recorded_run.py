"""A run that was recorded, read again: its call or its command, and the steps from which a run can resume.

RUN/call.json, manifest.json, rank-0.log, checkpoints/step-000010/ ─▶ RecordedRun ─▶ run spec of some of its steps
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.bits.errors import TraceError, UsageError
from harness.bits.files import MALFORMED, MAX_JSON_BYTES, read_regular
from harness.bits.redaction import REDACTED, redact_argv
from harness.bits.text import path_text
from harness.lab.experiment.command_spec import command_identity
from harness.lab.experiment.flat_config import flattened, overridden
from harness.recording.run_spec import CALL, RUN, TRAIN, EntryCall, RunSpec
from harness.trace.format import MANIFEST, UNFINISHED
from harness.trace.reader import Trace, excerpt, read_trace

AGAIN = "record the run again: rlharness train SCENARIO --out RUN"
CHECKPOINTS = "checkpoints"
"""Below the directory of a run; each checkpoint is a directory named after the step with which it begins."""
_CHECKPOINT = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run of a scenario or of a command, recorded by `rlharness train`, `trace`, `replay` or another command."""

    trace: Trace
    call: EntryCall | None
    """None for a command."""
    argv: tuple[str, ...] = ()
    """The words of a command; secrets are REDACTED in those that were recorded."""
    metrics: tuple[str, ...] = ()
    """Patterns with which values of its curve were read."""

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

    def start_before(self, step: int) -> int | None:
        """Return the step with which the nearest checkpoint begins that is no later; None for the run's beginning."""
        can_resume = self.call is not None and self.call.resume
        return max((at for at in checkpoint_steps_in(self.directory) if at <= step and can_resume), default=None)

    def spec_to(self, step: int, overrides: Mapping[str, Any] | None = None) -> RunSpec:
        """The run spec that runs its steps up to `step` again, from the nearest checkpoint, and then ends.

        `overrides` are values at dotted keys. UsageError where its configuration holds what is kept out of traces.
        """
        if self.call is None:
            if hidden := [word for word in self.argv if REDACTED in word]:
                typed = shlex.join([word.replace(REDACTED, "VALUE") for word in self.argv])
                what = f"the secrets of {path_text(self.directory)} were not recorded: {', '.join(hidden)}"
                raise UsageError(what, remedy=f"rlharness reproduce {path_text(self.directory)} -- {typed}")
            identity = command_identity(self.argv)
            return RunSpec(argv=self.argv, identity=identity, level=self.level, metrics=self.metrics, last_step=step)
        start, values = self.start_before(step), dict(overrides or {})
        if start is not None and self.call.resume is not None:
            values |= {self.call.resume["run"]: str(self.directory.absolute()), self.call.resume["step"]: start}
        call = replace(self.call, config=overridden(self.call.config, values, "--set"))
        if hidden := [key for key, text in flattened(call.config).items() if REDACTED in text]:
            what = f"the secrets of {path_text(self.directory)} were not recorded, but the run needs them"
            raise UsageError(what, remedy=f"add {' '.join(f'--set {shlex.quote(key)}=VALUE' for key in hidden)}")
        from harness.lab.experiment.scenario import spec_of_call  # brings pydantic: half of a command's start

        return replace(spec_of_call(call, self.level), last_step=step, typed=self.typed)


def checkpoint_steps_in(directory: Path) -> tuple[int, ...]:
    """The steps with which the checkpoints of the run in a directory begin, by their names; whole or not."""
    found = (_CHECKPOINT.fullmatch(path.name) for path in (directory / CHECKPOINTS).glob("step-*"))
    return tuple(sorted(int(name[1]) for name in found if name))


def read_recorded_run(directory: Path, argv: tuple[str, ...] = ()) -> RecordedRun:
    """The run in a directory; `argv` is its command where it was typed again, with its secrets.

    TraceError where there is no trace; UsageError where its call cannot be read, or its command is another.
    """
    trace, path = read_trace(directory), directory / CALL
    manifest = trace.manifest
    if not path.exists() and manifest is not None and manifest.argv and manifest.argv[: len(TRAIN)] != TRAIN:
        if argv and redact_argv(argv) != manifest.argv:
            what = f"the command after -- is not that of {path_text(directory)}: {shlex.join(manifest.argv)}"
            raise UsageError(what, legal="the recorded command with its secrets, or nothing after --")
        try:
            metrics = RunSpec.parse(read_regular(directory / RUN).decode()).metrics
        except (OSError, *MALFORMED):  # a trace without its orders: its command has to do
            metrics = ()
        return RecordedRun(trace, None, argv or manifest.argv, metrics)
    if argv:
        what = "a recorded run of a scenario and a command"
        raise UsageError(what, remedy="omit everything after --; rlharness replay -- COMMAND runs a command")
    try:
        call = EntryCall.parse(read_regular(path, max_bytes=MAX_JSON_BYTES, follows_links=True))
    except FileNotFoundError:
        raise UsageError(
            f"{path_text(directory)} says nothing of how it was run: it has no {CALL}", remedy=AGAIN
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path_text(path)} does not name the called entry and its configuration: {error!s:.100}", remedy=AGAIN
        ) from None
    if manifest is None:
        raise UsageError(f"{path_text(directory)} has no complete manifest, so its level is unknown", remedy=AGAIN)
    return RecordedRun(trace, call)


def unfinished_trace(directory: Path) -> Trace | None:
    """What was recorded of the step in whose middle a run has ended; None where it ended between two steps."""
    path = directory / UNFINISHED
    return read_trace(path) if (path / MANIFEST).exists() else None


def unfinished_step(directory: Path) -> int | None:
    """The step in whose middle a run has ended; None where it ended between two, or what was kept cannot be read."""
    try:
        trace = unfinished_trace(directory)
    except TraceError:
        return None
    return None if trace is None else max(trace.steps, default=None)


def recorded_steps_of(trace: Trace) -> list[int]:
    """The steps that are recorded of a run, with the one in whose middle it has ended."""
    unfinished = unfinished_trace(trace.directory)
    return sorted({*trace.steps, *(unfinished.steps if unfinished else ())})


def trace_of_step(trace: Trace, step: int) -> Trace | None:
    """A trace of this step alone; None where it was not recorded."""
    if step in trace.steps:
        return excerpt(trace, step, step)
    unfinished = unfinished_trace(trace.directory)
    return excerpt(unfinished, step, step) if unfinished is not None and step in unfinished.steps else None


def check_step(trace: Trace, step: int) -> None:
    """UsageError for a step of which nothing was recorded."""
    known = recorded_steps_of(trace)
    if step not in known:
        span = f"{known[0]} to {known[-1]}" if known else "none"
        what = f"--step {step}: {path_text(trace.directory)} has none"
        raise UsageError(what, legal=f"a step that it has recorded: {span}", remedy="record a run with more steps")


def root_of(trace: Trace | None, rank: int) -> bytes | None:
    """The root of the one step of a trace, in the log of a rank; None where that is not there."""
    log = trace.ranks.get(rank) if trace is not None else None
    return next(iter(log.heads.values())).root if log is not None and log.heads else None
