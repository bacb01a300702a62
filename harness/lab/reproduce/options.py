"""Options of `rlharness reproduce`, and which of them go together."""

from dataclasses import dataclass, fields
from math import inf

from harness.bits.errors import UsageError
from harness.lab.experiments.recorded_kind import RecordedKind


@dataclass(frozen=True, slots=True)
class ReproduceOptions:
    """What a command line asks of something recorded that is run again."""

    subject: str
    """Directory of a recorded run, or a bundle."""
    step: int | None = None
    """Step that is run again; None for the whole run, of a bundle for its own."""
    has_operations: bool = False
    """Whether the operations of that step are recorded, in a run of their own."""
    is_interactive: bool = False
    """Whether the step debugger is opened at that step."""
    commands: str | None = None
    """File from which the step debugger reads its commands; None for standard input."""
    against: str | None = None
    """Another run: its step is run again too; its trace, where the whole run is."""
    bundle: str | None = None
    """File in which the bundle of the step is written."""
    refers_to_checkpoint: bool = False
    """Whether the bundle names its checkpoint in place of holding it."""
    break_on: tuple[str, ...] = ()
    """Conditions of --break-on."""
    until: tuple[str, ...] = ()
    """Comparisons of --until."""
    is_trusted: bool = False
    """Whether code and files that no scenario here names may be used."""
    overrides: tuple[str, ...] = ()
    """KEY=VALUE of --set, of sections that are free."""
    out: str | None = None
    """Directory of the runs; None for one below `.rlharness/reproductions`."""
    timeout_s: float = inf
    """Limit on each run, in seconds."""

    @property
    def has_condition(self) -> bool:
        """Whether the run ends where a condition holds."""
        return bool(self.break_on or self.until)


OF_A_RUN = {
    "--step": "step",
    "--interactive": "is_interactive",
    "--commands": "commands",
    "--against": "against",
    "--bundle": "bundle",
    "--reference-checkpoint": "refers_to_checkpoint",
    "--break-on": "break_on",
    "--until": "until",
}
"""Options that a bundle leaves no room for, and the field that holds each."""
OUTSIDE_THE_DEBUGGER = {
    "--bundle": "bundle",
    "--reference-checkpoint": "refers_to_checkpoint",
    "--break-on": "break_on",
    "--until": "until",
    "--timeout": "timeout_s",
}
"""Options that the step debugger has no use for, and the field that holds each."""


def check_options(options: ReproduceOptions, kind: RecordedKind) -> None:
    """Refuse options that mean nothing beside each other, or for what is run again, with a UsageError."""
    if kind is RecordedKind.BUNDLE:
        _refuse(
            options,
            OF_A_RUN,
            "with a bundle",
            legal="--trace-ops, --set, --timeout, --out, --trust, --json, --color",
            remedy="leave it out: a bundle holds one step of one run",
        )
    elif options.is_interactive:
        if options.step is None:
            raise UsageError(
                "--interactive without --step",
                legal="--step K --interactive",
                remedy="name the step at which the debugger opens",
            )
        _refuse(
            options,
            OUTSIDE_THE_DEBUGGER,
            "with --interactive",
            legal="--step, --against, --trace-ops, --set of a free section, --commands, --out, --trust, --json",
            remedy="leave it out; the command break stops where something is recorded",
        )
    elif options.commands is not None:
        raise UsageError(
            "--commands without --interactive", legal="--interactive --commands FILE", remedy="add --interactive"
        )
    elif options.has_operations and options.has_condition:
        raise UsageError(
            "--trace-ops with a condition",
            legal="one run, which stops when the condition holds",
            remedy="inspect the bundle that it writes: rlharness reproduce FILE --trace-ops",
        )
    elif options.has_operations and options.step is None:
        raise UsageError(
            "--trace-ops without --step", legal="--step K --trace-ops", remedy="name the step to look into"
        )
    elif options.refers_to_checkpoint and options.bundle is None and not options.has_condition:
        raise UsageError(
            "--reference-checkpoint without a bundle",
            legal="--bundle FILE --reference-checkpoint",
            remedy="name the bundle to write, or omit the option",
        )


def _refuse(options: ReproduceOptions, names: dict[str, str], where: str, *, legal: str, remedy: str) -> None:
    """UsageError for those of the named options that were given."""
    defaults = {field.name: field.default for field in fields(options)}
    given = [name for name, field in names.items() if getattr(options, field) != defaults[field]]
    if given:
        raise UsageError(f"{', '.join(given)} {where}", legal=legal, remedy=remedy)
