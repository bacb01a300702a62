"""The run spec of a command line that is not ours: its words as its identity, its options checked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.bits.digests import digest
from harness.bits.errors import UsageError
from harness.bits.levels import OFF
from harness.bits.redaction import REDACTED, redact_argv
from harness.recording.metrics import parse_pattern
from harness.recording.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class SpecOptions:
    """What a command line changes of a scenario, and how runs of it or of a command are recorded."""

    size: str | None = None
    """Name of one of the scenario's sizes; None for the command's default."""
    overrides: tuple[str, ...] = ()
    """KEY=VALUE of --set."""
    sweep: tuple[str, ...] = ()
    """KEY=VALUE,VALUE of --sweep."""
    level: str = ""
    """Level of determinism; empty for the scenario's own, of a command `off`."""
    metrics: tuple[str, ...] = ()
    """Regular expressions, NAME=REGEX, of values of the curve."""
    keep: tuple[str, ...] = ()
    """Steps whose tensors are kept: "3", "3,7" or "10-12"."""
    op_step: int | None = None
    """Step whose operations are recorded."""
    all_state: bool = False
    """Whether large state of optimizers is recorded in every step."""
    sentinel: int = 0
    """Cadence in optimizer steps at which replicas compare; 0 for never."""


MAX_STEPS = 10_000
MAX_NAME = 60
_STEPS = re.compile(r"(\d+)(?:-(\d+))?")


def make_command_spec(argv: tuple[str, ...], options: SpecOptions) -> RunSpec:
    """The run spec of the words of a command; UsageError where there are none, or an option cannot be used."""
    if not argv:
        raise UsageError("the command to record is missing", remedy="add it after --, as in: -- python train.py")
    if hidden := next((word for word in argv if REDACTED in word), ""):
        what = f"{hidden} stands for a secret that rlharness removed from the command"
        raise UsageError(what, remedy=f"replace {REDACTED} by the secret, or pass it in an environment variable")
    return RunSpec(
        argv=argv,
        identity=command_identity(argv),
        level=options.level or OFF,
        metrics=tuple(map(checked_metric, options.metrics)),
        keep=parse_steps(options.keep),
        op_step=options.op_step,
        all_state=options.all_state,
        sentinel=options.sentinel,
    )


def command_name(argv: Sequence[str]) -> str:
    """A command as the name of a directory, its program without a path: "python-train-py-seed-7".

    A long one ends with a digest of all.
    """
    program, *arguments = redact_argv(argv)
    name = re.sub(r"\W+", "-", " ".join([Path(program).name, *arguments])).strip("-") or "command"
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}-{digest(name.encode())[1].hex()[:8]}"


def command_identity(argv: tuple[str, ...]) -> dict[str, str]:
    """What a command line means, as names and values: the program, its options, its other words in order.

    Two command lines that differ in an option's value differ in that name alone. Secrets are taken out.
    """
    words = redact_argv(argv)
    told = {"program": [Path(words[0]).name]}
    num_words = 0
    option = ""
    for word in words[1:]:
        name, is_assigned, value = word.partition("=")
        if word.startswith("-") and word != "-":
            told.setdefault(name, []).append(value)
            option = "" if is_assigned else name
        elif option:
            told[option][-1] = word
            option = ""
        else:
            num_words += 1
            told[f"argument {num_words}"] = [word]
    return {name: ", ".join(values) for name, values in told.items()}


def parse_steps(texts: Sequence[str]) -> tuple[int, ...]:
    """Steps from texts like "3", "3,7" and "10-12", each once and in order; UsageError for any other."""
    steps: set[int] = set()
    for part in ",".join(texts).split(",") if texts else ():
        match = _STEPS.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < MAX_STEPS:
            raise UsageError(
                f"--save-tensors {part}", legal=f"steps as 3, or 3,7, or 10-12; at most {MAX_STEPS:,} at once"
            )
        steps.update(range(first, last + 1))
    return tuple(sorted(steps))


def checked_metric(text: str) -> str:
    """A metric as it was given; UsageError where the program's processes could not take anything from it."""
    try:
        parse_pattern(text)
    except ValueError as error:
        example = r"--metric 'reward=mean reward ([-\d.e]+)', or a REGEX with a named group for each number"
        raise UsageError(f"--metric {text}: {error}", remedy=example) from None
    return text
