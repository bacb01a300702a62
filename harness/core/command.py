"""Shell commands of the configuration: those that are units of a run, and those that prepare one."""

from dataclasses import dataclass, field, replace

from harness.core.need import Need
from harness.core.redaction import redact_argv

MANAGED = frozenset(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "TMPDIR", "RLHARNESS_ATTEMPT", "MASTER_PORT"))
"""Variables that rlharness sets for every unit, and that no configuration or setup script can set."""


@dataclass(frozen=True, slots=True)
class Command:
    """A line for /bin/sh, with its working directory and its variables."""

    line: str
    cwd: str
    """Absolute path of the working directory."""
    env: tuple[str, ...] = ()
    """Variables as NAME=VALUE, beside those of the environment of rlharness."""
    skip_code: int | None = None
    """Exit code that means "skipped"; None for none."""

    def variables(self) -> dict[str, str]:
        """Return the variables by name."""
        return dict(each.split("=", 1) for each in self.env)

    def without_secrets(self) -> "Command":
        """Return it as records of runs hold it."""
        return replace(self, line=redact_argv(("sh", "-c", self.line))[2], env=redact_argv(self.env))


@dataclass(frozen=True, slots=True)
class CommandRule:
    """A command that is a unit of a run."""

    name: str
    command: Command
    need: Need
    timeout_s: float | None = None
    """Time limit in seconds; None for --timeout."""


@dataclass(frozen=True, slots=True)
class SetupRule:
    """A command that runs once before the units that need it."""

    name: str
    command: Command
    globs: tuple[str, ...] = ("*",)
    """Patterns of the files whose units need it."""
    timeout_s: float | None = None
    """Time limit in seconds; None for --timeout."""
    need: Need = field(default_factory=Need)
