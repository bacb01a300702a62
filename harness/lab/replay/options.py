"""Options of `rlharness replay`."""

from dataclasses import dataclass, field
from math import inf

from harness.lab.experiments.scenario_options import ScenarioOptions


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What a command line asks of fresh runs that are compared, or of one that ends where a condition holds."""

    scenario: str | None = None
    """Name or file of a scenario; None for the command after `--`."""
    scenario_options: ScenarioOptions = field(default_factory=ScenarioOptions)
    """What the runs change of it, and how they are recorded."""
    num_runs: int | None = None
    """Number of runs; None for as many as it takes to compare."""
    against: str | None = None
    """Directory of the trace that every run is compared with; None for the first run."""
    step: int | None = None
    """Step whose tensors are kept."""
    has_operations: bool = False
    """Whether the operations of that step are recorded, in runs of their own."""
    break_on: tuple[str, ...] = ()
    """Conditions of --break-on."""
    until: tuple[str, ...] = ()
    """Comparisons of --until."""
    resume_at: str | None = None
    """After how many steps a run is ended: "4", or "4,9"; None unless a resume is compared."""
    resume_command: str | None = None
    """Command line that resumes the run."""
    out: str | None = None
    """Directory of the runs; None for one below `.rlharness/replays`."""
    timeout_s: float = inf
    """Limit on each run, in seconds."""

    @property
    def has_condition(self) -> bool:
        """Whether one run is asked for, which ends where a condition holds."""
        return bool(self.break_on or self.until)
