"""Options of runs as a person typed them, before any of them is checked against a scenario or a command."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """How a run is recorded: a scenario's or a command's."""

    level: str = ""
    """Level of determinism; empty for the scenario's own, of a command `off`."""
    metrics: tuple[str, ...] = ()
    """Regular expressions, NAME=REGEX, of values of the curve."""
    keep: tuple[str, ...] = ()
    """Steps whose tensors are kept: "3", "3,7" or "10-12"."""
    op_step: int | None = None
    """Step whose operations are recorded."""
    sentinel: int = 0
    """Cadence in optimizer steps at which replicas compare; 0 for never."""


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """What a run of a scenario changes of its file, and how it is recorded."""

    size: str | None = None
    """Name of one of its sizes; None for the command's default."""
    overrides: tuple[str, ...] = ()
    """KEY=VALUE of --set."""
    sweep: tuple[str, ...] = ()
    """KEY=VALUE,VALUE of --sweep."""
    recording: RecordingOptions = RecordingOptions()
