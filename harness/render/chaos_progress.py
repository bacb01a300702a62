"""Progress of a perturbation search: a line for each probe, on standard error."""

from math import isfinite

from harness.bits.text import count, one_line
from harness.lab.chaos.search import ChaosPlan, Outcome, Sign
from harness.lab.chaos.vary import VaryPlan
from harness.lab.experiments.launcher import Run
from harness.lab.experiments.perturbation import Perturbation, format_perturbation
from harness.process.clock import Clock
from harness.render.console import say
from harness.render.run_lines import RunLines

SIGNS = {
    Sign.SAME: "every bit equal",
    Sign.MOVED: "DIVERGED",
    Sign.BROKE: "BROKE",
    Sign.NOT_APPLIED: "NOT APPLIED",
}


class SearchLines(RunLines):
    """Display of a search, which reports each result itself."""

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Report nothing yet."""
        self._said_s = 0.0


class VaryLines(SearchLines):
    """Display of a comparison of settings: a line for each run."""

    def __init__(self, plan: VaryPlan) -> None:
        super().__init__()
        self._number, self._num_runs = 0, 3 + sum(len(values) - 1 for values in plan.settings.values())

    def begins(self, what: str) -> None:
        """Report that a run starts."""
        self._number += 1
        self.title = f"run {self._number} of {max(self._number, self._num_runs)}: {what}"

    def finished(self, run: Run, duration_s: float) -> None:
        """Report the end of a run."""
        say(f"{one_line(self.title)}: {count(run.recording.num_steps, 'step')}, {duration_s:.1f} s")


class ChaosLines(SearchLines):
    """Display of a perturbation search.

    The first two runs are the baseline and its repetition. Then come the drawn perturbations, or several runs of the
    requested one. After the first failure come the runs that search for its cause; their number is unknown.
    """

    def __init__(self, plan: ChaosPlan, clock: Clock) -> None:
        super().__init__()
        self._noun, self._num_probes = ("probe", plan.num_probes) if plan.only is None else ("run", plan.num_repeats)
        self._max_s, self._clock = plan.max_s, clock
        self._began_s = self._probes_began_s = clock.monotonic_s()
        self._num_done = -1
        """Number of finished probes, after the baseline."""
        self._has_found = False

    def begins(self, what: Perturbation) -> None:
        """Report that a run with this perturbation starts."""
        self.title = format_perturbation(what)
        if self._num_done < 0:
            say("baseline: two runs without perturbation")
            self._num_done = 0
        elif self._num_done == 0 and not what:
            self._probes_began_s = self._clock.monotonic_s()

    def finished(self, outcome: Outcome, duration_s: float) -> None:
        """Report the end of a probe."""
        if self._has_found:
            title = "searching for the cause"
        elif self._num_done == 0:
            title = "baseline"
        else:
            title = f"{self._noun} {self._num_done} of {self._num_probes}"
        self._num_done += 1
        self._has_found = self._has_found or outcome.has_failed
        at = f" at step {outcome.step}" if outcome.step is not None else ""
        say(f"{title}: {one_line(self.title)}: {SIGNS[outcome.sign]}{at}, {duration_s:.1f} s{self._left()}")

    def _left(self) -> str:
        """Return the time that the remaining probes will take; empty while their number is unknown."""
        num_left = self._num_probes + 1 - self._num_done
        if self._has_found or num_left <= 0:
            return ""
        now_s = self._clock.monotonic_s()
        left_s = (now_s - self._probes_began_s) / self._num_done * num_left
        if isfinite(self._max_s):
            left_s = min(left_s, max(0.0, self._began_s + self._max_s - now_s))
        return f"; about {_minutes(left_s)} left"


def _minutes(seconds: float) -> str:
    """40 s, 12 min."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
