"""What `rlharness chaos` was asked for, checked before anything is started; and the directory it goes to."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from harness.bits.errors import HarnessError, UsageError
from harness.lab.chaos.options import DEFAULT_COUNT, DEFAULT_REPEATS, ChaosOptions
from harness.lab.chaos.subject import Subject, make_subject
from harness.lab.experiments.out_directory import out_directory
from harness.lab.experiments.perturbation_factors import Factor, chosen, parse_only
from harness.lab.experiments.program_input import keep_input
from harness.lab.experiments.run_spec import RunSpec
from harness.process.invocation import Invocation

CHAOS = "chaos"


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """A search that can begin."""

    subject: Subject
    factors: tuple[Factor, ...]
    """Those that are changed; a crash has no moments yet, the baseline shows them."""
    directory: Path
    """Absolute; holds a directory for each run that is kept."""
    only: Mapping[str, Any] | None = None
    """The one perturbation that is wanted; None: they are drawn."""
    num_probes: int = DEFAULT_COUNT
    seed: int = 0
    num_repeats: int = DEFAULT_REPEATS
    """The most runs of one perturbation while a cause is looked for."""
    num_steps: int | None = None
    """So many steps are run, from the first on; None: all."""
    max_s: float = inf
    """No run begins later."""
    timeout_s: float = inf
    """Limit on each run."""
    stdin: Path = Path(os.devnull)
    """What every run reads as its standard input."""


def make_plan(
    invocation: Invocation, options: ChaosOptions, chaos_id: str, given: Callable[[], bytes] = bytes
) -> ChaosPlan:
    """The plan of a command line; makes its directory, and keeps in it what `given` reads as the runs' input.

    UsageError for what cannot be used; nothing is made then.
    """
    subject = make_subject(invocation, options)
    is_command = options.scenario is None
    if options.num_steps is not None and is_command:
        raise UsageError(
            "--steps and a command", legal="--steps of a scenario", remedy="pass the number to the command itself"
        )
    check_start(invocation, subject.run_spec({}))
    factors = chosen(subject.factors, options.of_factors.get("factors"))
    only = parse_only(options.of_factors["only"], subject.factors) if "only" in options.of_factors else None
    directory, stdin = make_directory(invocation, options, chaos_id, given() if is_command else b"")
    return ChaosPlan(
        subject=subject,
        factors=factors,
        directory=directory,
        only=only,
        num_probes=options.of_factors.get("count", DEFAULT_COUNT),
        seed=options.of_factors.get("seed", 0),
        num_repeats=options.of_factors.get("repeats", DEFAULT_REPEATS),
        num_steps=options.num_steps,
        max_s=options.max_s,
        timeout_s=options.timeout_s,
        stdin=stdin,
    )


def make_directory(invocation: Invocation, options: ChaosOptions, chaos_id: str, data: bytes) -> tuple[Path, Path]:
    """Make the directory of the runs; return it, and the file in it that every run reads as its input."""
    directory = out_directory(invocation.cwd, options.out, CHAOS, chaos_id).path
    try:
        return directory, keep_input(data, directory)
    except OSError as error:
        raise HarnessError(
            f"standard input cannot be kept in {directory}: {error.strerror}",
            legal="a disk with room for it, since every run reads the same input",
            remedy="name another directory with --out, or give no input: < /dev/null",
        ) from None


def check_start(invocation: Invocation, run_spec: RunSpec) -> None:
    """UsageError where a run could not be started."""
    run_spec.level_env(invocation.environ)
    if shutil.which(run_spec.argv[0], path=invocation.environ.get("PATH")) is None:
        raise UsageError(
            f"{run_spec.argv[0]} cannot be started: program not found",
            legal="a program on PATH, or the path of a program",
            remedy="check the spelling",
        )
