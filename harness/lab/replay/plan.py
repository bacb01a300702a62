"""What `rlharness replay` was asked for, checked before anything is started; and the directory it goes to."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError, UsageError
from harness.core.invocation import Invocation
from harness.core.text import path_text
from harness.lab.experiments.command_spec import foreign_envelope
from harness.lab.experiments.out_directory import OutDirectory, out_directory, place_of
from harness.lab.experiments.program_input import keep_input
from harness.lab.experiments.run_spec import Envelope
from harness.lab.experiments.scenario import SMOKE
from harness.lab.experiments.scenario_files import A_COMMAND, A_RUN, nothing_to_run
from harness.lab.experiments.scenario_spec import asked_scenario, scenario_envelope
from harness.trace.reader import Trace, read_trace

REPLAYS = "replays"


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A replay that can begin."""

    envelope: Envelope
    """Of the first run."""
    program: str
    """The path of the program."""
    out: OutDirectory
    """Holds a directory for each run."""
    num_runs: int
    level_env: Mapping[str, str] = field(default_factory=dict)
    """What every process shall have of the level."""
    against: Trace | None = None
    """With what every run is compared; None: with the first run."""
    op_step: int | None = None
    """The step whose operations are recorded, each time in a run of its own."""
    timeout_s: float = inf
    stdin: Path = Path(os.devnull)
    """What every run reads as its standard input."""
    variants: tuple[Envelope, ...] = ()
    """Of a scenario whose runs differ in what must not matter: theirs, one after the other, around and around."""
    typed: tuple[str, ...] = ()
    """The words by which a scenario is named after `rlharness replay`; of a foreign program none."""

    @property
    def directory(self) -> Path:
        """That of `out`; absolute."""
        return self.out.path

    def envelope_of(self, number: int) -> Envelope:
        """That of a run; they count from 1."""
        return self.variants[(number - 1) % len(self.variants)] if self.variants else self.envelope


def make_plan(
    invocation: Invocation, arguments: Mapping[str, Any], replay_id: str, given: Callable[[], bytes] = bytes
) -> ReplayPlan:
    """The plan of a command line; makes its directory, and keeps in it what `given` reads as the runs' input.

    UsageError and TraceError for what cannot be used; nothing is made then.
    """
    envelopes, typed = envelopes_of(invocation, {**arguments, "keep": _steps_to_keep(arguments), "op_step": None})
    envelope = envelopes[0]
    level_env = envelope.level_env(invocation.environ)
    program = program_of(envelope, invocation)
    if arguments["op"] and arguments["step"] is None:
        raise UsageError("--op without --step", legal="--step K --op", remedy="name the step that diverged")
    against = arguments["against"]
    trace = read_trace(place_of(invocation.cwd, against)) if against else None
    num_runs = _num_runs(arguments, len(envelopes))
    data = b"" if typed else given()  # the last that may take long or be refused before anything is made
    out = out_directory(invocation.cwd, arguments["out"], REPLAYS, replay_id)
    return ReplayPlan(
        envelope=envelope,
        program=program,
        level_env=level_env,
        against=trace,
        num_runs=num_runs,
        op_step=arguments["step"] if arguments["op"] else None,
        timeout_s=arguments["timeout"] or inf,
        out=out,
        stdin=_keep(data, out.path),
        variants=envelopes if len(envelopes) > 1 else (),
        typed=typed,
    )


def envelopes_of(invocation: Invocation, arguments: Mapping[str, Any]) -> tuple[tuple[Envelope, ...], tuple[str, ...]]:
    """(an envelope for each run that differs from the others, the words that name the scenario, if it is one)."""
    if arguments.get("scenario") is None and not invocation.trailing:
        raise nothing_to_run("replay", invocation.cwd, A_RUN, "--bundle FILE")
    if arguments.get("scenario") is None:
        return (foreign_envelope(invocation, arguments),), ()
    if invocation.trailing:
        raise UsageError(
            f"the scenario {arguments['scenario']} and a command",
            legal="one of the two: a scenario, or a command after --",
            remedy="what a scenario does is changed with --set KEY=VALUE",
        )
    asked = asked_scenario(invocation, arguments, SMOKE, A_RUN, A_COMMAND)
    return tuple(scenario_envelope(asked, arguments, variant) for variant in range(asked.num_variants)), asked.typed


def program_of(envelope: Envelope, invocation: Invocation) -> str:
    """The path of the program that is started; UsageError where there is none."""
    program = shutil.which(envelope.argv[0], path=invocation.environ.get("PATH"))
    if program is None:
        raise UsageError(
            f"{envelope.argv[0]} cannot be started: there is no such program",
            legal="a program on the path, or the path of one",
            remedy="check how it is spelled",
        )
    return program


def _keep(data: bytes, directory: Path) -> Path:
    try:
        return keep_input(data, directory)
    except OSError as error:
        raise HarnessError(
            f"standard input cannot be kept in {path_text(directory)}: {error.strerror}",
            legal="a disk with room for it, since every run is given the same",
            remedy="name another place with --out, or give none: < /dev/null",
        ) from None


def _steps_to_keep(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    return () if arguments["step"] is None else (str(arguments["step"]),)


def _num_runs(arguments: Mapping[str, Any], num_variants: int) -> int:
    """As many as it takes to compare one with another, and each with its own values, unless told otherwise.

    UsageError for one run that is compared with nothing.
    """
    num_runs, against = arguments["runs"], arguments["against"]
    if num_runs == 1 and not against:
        raise UsageError(
            "--runs 1: a run that is compared with nothing",
            legal="2 runs or more, or --against DIR",
            remedy="rlharness trace --out DIR -- COMMAND, or rlharness train SCENARIO --out DIR, records a run alone",
        )
    return int(num_runs or max(num_variants, 1 if against else 2))
