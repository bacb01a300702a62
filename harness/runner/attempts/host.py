"""The machine on which an attempt runs, as the attempt sees it: this one, or a node of a cluster.

    lease ─▶ HostOf ─▶ Host: what carries attempts out, and the paths and variables there
    UnitRunner ─▶ ProcessSpec, in the paths of the host ─▶ Host.attempts

The report and outputs of an attempt are kept on this machine, wherever it runs: a host that is not this machine brings
them here before `Attempts.run` returns.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.runner.schedule.leases import Lease
from harness.runner.sessions.workers import Attempts

NODE_LOST = "node_lost"
"""Reason in the ProcessEnd of an attempt whose node was lost: nothing is known of how it ended."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host, for one lease."""

    attempts: Attempts
    directory: Path
    """Directory of the run, as the attempt sees it."""
    scratch: Path
    """Directory of the TMPDIRs, as the attempt sees it."""
    cwd: Path
    python: str = sys.executable
    environ: Mapping[str, str] | None = None
    """Variables over those that the host has itself; None for this machine, where the run's own environment counts."""

    @property
    def is_here(self) -> bool:
        """Whether attempts run on this machine, below this process."""
        return self.environ is None


HostOf = Callable[[Lease], Host]
