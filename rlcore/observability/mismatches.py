"""How far trainer and sampler are apart in a step, as numbers of its metrics, at every level."""

from rlcore.checks.mismatch import mismatch_of
from rlcore.observability.events import Event, PolicyMatched
from rlcore.observability.observers import Observer


class Mismatches(Observer):
    """Counts the tokens whose log-probability differs; begins again with each step."""

    def __init__(self) -> None:
        self._num_different, self._largest = 0, 0.0

    def observe(self, event: Event) -> None:
        """Add a comparison."""
        if isinstance(event, PolicyMatched):
            found = mismatch_of(event.logprobs, event.rollout_logprobs, event.loss_mask)
            if found is not None:
                self._num_different += found.num_different
                self._largest = max(self._largest, found.largest)

    def take(self) -> dict[str, float]:
        """Return `mismatch/num_tokens` and `mismatch/max_nats` of the step, and begin again."""
        measured = {"mismatch/num_tokens": float(self._num_different), "mismatch/max_nats": self._largest}
        self._num_different, self._largest = 0, 0.0
        return measured
