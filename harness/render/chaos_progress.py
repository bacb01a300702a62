"""A search for what matters though it must not, while it goes on: a line for each probe, on standard error."""

from math import isfinite

from harness.core.clock import Clock
from harness.core.text import count, one_line
from harness.lab.chaos.comparison import Outcome, Sign
from harness.lab.chaos.plan import ChaosPlan
from harness.lab.experiments.perturbation_factors import Perturbation, format_perturbation
from harness.render.console import say

EVERY_S = 30.0
"""How often a run that goes on is worth a line."""
SIGNS = {
    Sign.SAME: "every bit is the same",
    Sign.MOVED: "DIVERGED",
    Sign.BROKE: "BROKE",
    Sign.NOT_APPLIED: "NOT APPLIED",
}


class ChaosLines:
    """Hears of runs, and of probes made of them.

    The first two are the baseline and itself once more; then come those that were drawn, or the one that was asked for,
    several times; after the first that fails, those by which its cause is found, of which nobody knows how many there
    will be.
    """

    def __init__(self, plan: ChaosPlan, clock: Clock) -> None:
        self._noun = "probe" if plan.only is None else "run"
        self._num_probes = plan.num_probes if plan.only is None else plan.num_repeats
        self._max_s = plan.max_s
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._probes_began_s = self._began_s
        self._num_done = -1
        """Probes that have ended; the baseline is before them."""
        self._has_found = False
        self._said_s = 0.0
        self._text = ""

    def begins(self, perturbation: Perturbation) -> None:
        """A run under this perturbation starts."""
        self._text = one_line(format_perturbation(perturbation))
        if self._num_done < 0:
            say("the baseline: with nothing changed, and once more")
            self._num_done = 0
        elif self._num_done == 0 and not perturbation:
            self._probes_began_s = self._clock.monotonic_s()

    def ended(self, outcome: Outcome, duration_s: float) -> None:
        """It has ended."""
        if self._has_found:
            title = "looking for the cause"
        elif self._num_done == 0:
            title = "the baseline"
        else:
            title = f"{self._noun} {self._num_done} of {self._num_probes}"
        self._num_done += 1
        self._has_found = self._has_found or outcome.has_failed
        at = f" at step {outcome.step}" if outcome.step is not None else ""
        say(f"{title}: {self._text}: {SIGNS[outcome.sign]}{at}, {duration_s:.1f} s{self._left()}")

    def _left(self) -> str:
        """How long the probes that are left will take; nothing while nobody knows how many these are."""
        num_left = self._num_probes + 1 - self._num_done
        if self._has_found or num_left <= 0:
            return ""
        now_s = self._clock.monotonic_s()
        left_s = (now_s - self._probes_began_s) / self._num_done * num_left
        if isfinite(self._max_s):
            left_s = min(left_s, max(0.0, self._began_s + self._max_s - now_s))
        return f"; about {_minutes(left_s)} left"

    # Of single runs, as supervised runs tell them:

    def begin(self, number: int, *, has_operations: bool) -> None:
        """A run starts."""
        self._said_s = 0.0

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """It goes on."""
        if elapsed_s - self._said_s >= EVERY_S:
            self._said_s = elapsed_s
            say(f"{self._text}: {count(num_steps, 'step')} after {elapsed_s:.0f} s")

    def end(self, line: str) -> None:
        """It has ended: its probe says how."""

    def close(self) -> None:
        """No more runs."""


def _minutes(seconds: float) -> str:
    """40 s, 12 min."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
