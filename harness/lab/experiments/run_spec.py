"""What is run and under which conditions, and how a recording of it begins. The program itself is opaque.

A foreign command line is an anonymous run spec: no sizes, no entry, an identity that is its own words. That of a
scenario calls an entry, in a process of this package's own (`scenario_main`).
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.bits.errors import HarnessError
from harness.bits.files import write_replacing
from harness.bits.levels import OFF, is_intels, level_variables
from harness.bits.redaction import redact_argv, redact_text
from harness.lab.experiments.entry_call import CALL, REJECTION, EntryCall
from harness.lab.experiments.out_directory import OutDirectory
from harness.lab.experiments.recorded_env import recorded_env
from harness.process.scratch import remove_tree
from harness.recording.recording_config import ORDERS, ORDERS_VARIABLE, PROCESSES, RecordingConfig, boot_directory

TRAIN = ("rlharness", "train")
"""With what the command line of a scenario's run begins, as a person would type it."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A program and the conditions of its run."""

    argv: tuple[str, ...]
    identity: Mapping[str, str] = field(default_factory=dict)
    """What the program's configuration means: with other values, runs are not comparable."""
    level: str = OFF
    metrics: tuple[str, ...] = ()
    """NAME=REGEX with one group, or REGEX with named groups."""
    keep: tuple[int, ...] = ()
    """Steps whose tensors are kept."""
    op_step: int | None = None
    """The step whose operations are recorded."""
    sentinel: int = 0
    """Cadence in optimizer steps at which replicas compare; 0 for never."""
    last_step: int | None = None
    """The step after which the run of an entry is ended in order; None: where the entry ends it."""
    callbacks: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """What looks on in the process of an entry: "module:class" of a `RecorderCallback` -> what it is made with."""
    call: EntryCall | None = None
    """Of the entry of a scenario; None of a foreign program."""
    perturbation: Mapping[str, str] = field(default_factory=dict)
    """Runtime settings of the configuration: recorded, but not part of the identity."""
    typed: tuple[str, ...] = ()
    """The words by which a scenario is named after `rlharness train`; of a foreign program none."""

    @property
    def shown_argv(self) -> tuple[str, ...]:
        """The command line as a person would type it, without secrets."""
        return redact_argv((*TRAIN, *self.typed) if self.call is not None and self.typed else self.argv)

    def level_env(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of its level; UsageError where the user has set what excludes it."""
        is_held = self.call is not None
        return level_variables(self.level, environ, is_held_by_entry=is_held, is_intels=is_intels())


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recording that can begin."""

    out: OutDirectory
    env: Mapping[str, str]
    """The program's whole environment."""

    @property
    def directory(self) -> Path:
        """Of the trace; absolute."""
        return self.out.path


def prepare(run_spec: RunSpec, directory: Path, environ: Mapping[str, str], marker: str = "") -> Prepared:
    """Make the directory of a trace and write the orders into it; `marker` is that of an attempt, where there is one.

    UsageError where the directory holds anything, cannot be made, or the level excludes what the user has set;
    nothing is changed then.
    """
    directory = directory.absolute()
    level_env = run_spec.level_env(environ)
    orders = RecordingConfig(
        directory=str(directory),
        argv=run_spec.shown_argv,
        identity=dict(run_spec.identity),
        metrics=run_spec.metrics,
        keep=run_spec.keep,
        op_step=run_spec.op_step,
        sentinel=run_spec.sentinel,
        last_step=run_spec.last_step,
        callbacks=dict(run_spec.callbacks),
        level=run_spec.level,
        level_env=level_env,
        perturbation=dict(run_spec.perturbation),
        has_entry=run_spec.call is not None,
    )
    path = directory / ORDERS
    out = OutDirectory.take(directory)
    try:
        write_replacing(path, orders.to_text())
        if run_spec.call is not None:
            run_spec.call.write(directory)
    except OSError as error:
        with suppress(OSError):
            out.give_back()  # nothing has run: the next command may take it
        raise HarnessError(
            f"{error.filename or path} cannot be written: {error.strerror}",
            legal="a directory with room that this user can write to",
            remedy="make room there, or choose another one with --out",
        ) from None
    env = recorded_env(environ, orders=(ORDERS_VARIABLE, path), boot=boot_directory(), level=level_env, marker=marker)
    return Prepared(out, env)


def notes_on(environ: Mapping[str, str]) -> list[str]:
    """Return notes on variables of an environment that make a recording incomplete."""
    if address := environ.get("RAY_ADDRESS"):
        return [f"RAY_ADDRESS={redact_text(address)}: actors of a cluster that runs already are not recorded"]
    return []


def abandon(prepared: Prepared) -> None:
    """Take back what `prepare` has made, and what a process that did not begin has reported.

    What an entry has written itself stays, and so does a directory that was there before.
    """
    for name in (ORDERS, CALL, REJECTION):
        (prepared.directory / name).unlink(missing_ok=True)
    remove_tree(str(prepared.directory / PROCESSES))
    prepared.out.remove_if_empty()
