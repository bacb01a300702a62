"""Recorded runs of one command, from its first to its last: every command of this room that starts runs does it here.

    with open_session(invocation, ...) as session:
        run = await session.record(envelope, directory, 1)

A first signal ends the run that goes on in order, a second at once; what was recorded is kept, and no run begins after
it unless it is asked for.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from harness.clock import SystemClock
from harness.lab.envelope import Envelope
from harness.lab.supervised import Display, Place, Run, SupervisedRuns
from harness.runner.attempt import Supervisors, find_py_spy, probe_tiers
from harness.runner.interruption import Interruption


class Session:
    """Starts recorded runs, one at a time."""

    def __init__(self, supervisors: Supervisors, place: Place, display: Display, interruption: Interruption) -> None:
        self._supervisors = supervisors
        self._place = place
        self._display = display
        self._interruption = interruption

    @property
    def interrupted_by(self) -> str:
        """The name of the signal that has asked for the end; empty for none."""
        return self._interruption.by

    async def record(
        self,
        envelope: Envelope,
        parent: Path,
        number: int = 1,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Run:
        """Carry out one run, in a directory of its own below `parent`; elsewhere, or with other variables, if told."""
        place = replace(self._place, environ=environ or self._place.environ, cwd=cwd or self._place.cwd)
        runs = SupervisedRuns(self._supervisors, place, self._display, SystemClock(), self._interruption)
        return await runs.record(envelope, parent, number)


@contextmanager
def open_session(place: Place, display: Display) -> Iterator[Session]:
    """Hear signals and hold what ends processes, until no more runs are wanted; inside a running event loop."""
    with (
        Interruption() as interruption,
        closing(Supervisors(probe_tiers().chosen, place.run_id, find_py_spy())) as supervisors,
    ):
        yield Session(supervisors, place, display, interruption)
