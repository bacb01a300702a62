"""On policy, the trainer's log-probabilities are the sampler's: the comparison as an observer, and its explanation."""

from collections.abc import Callable, Iterator

from rlcore.checks.mismatch import Mismatch, in_context, mismatch_of
from rlcore.checks.mismatch_cause import Cause, causes
from rlcore.data.trajectory import Trajectory
from rlcore.errors import LevelError, RlcoreError
from rlcore.observability.events import (
    Event,
    PolicyMatched,
    RolloutBatched,
    SamplingBegins,
    StepBegins,
    TrajectoriesSampled,
)
from rlcore.observability.observers import Observer


class MatchChecks(Observer):
    """Check that they are equal on every token; a mismatch is explained before it is raised."""

    def __init__(self) -> None:
        self.step = 0
        """Step that has begun."""
        self._sampling: SamplingBegins | None = None
        self._sampled: TrajectoriesSampled | None = None
        self._batched: RolloutBatched | None = None

    def observe(self, event: Event) -> None:
        """Remember the step's rollout, and check log-probabilities of the policy that sampled."""
        match event:
            case StepBegins(step):
                self.step = step
            case SamplingBegins():
                self._sampling = event
            case TrajectoriesSampled():
                self._sampled = event
            case RolloutBatched():
                self._batched = event
            case PolicyMatched():
                found = mismatch_of(event.logprobs, event.rollout_logprobs, event.loss_mask)
                if found is not None:
                    self.found(event, found)

    def found(self, event: PolicyMatched, found: Mismatch) -> None:
        """Raise LevelError with the deepest cause of a mismatch."""
        cause = next(self.causes(event, found.row))
        raise LevelError(
            f"{self.extent(found)}; {cause.what}. The largest: {self.largest(event, found)}",
            legal="equal bits at level invariant",
            remedy=cause.remedy,
            phases=("rollout", "forward"),
        )

    def extent(self, found: Mismatch) -> str:
        """Describe how many tokens differ, and how far."""
        return (
            f"the trainer's log-probability is not the sampler's for {found.num_different} of {found.num_tokens}"
            f" tokens of a pass, by at most {found.largest:.3g} nats"
        )

    def largest(self, event: PolicyMatched, found: Mismatch) -> str:
        """Describe the token with the largest difference, in its context."""
        trajectory, position = self._trajectory(event, found.row), event.first + found.column
        text = f", {in_context(self._sampled.tokenizer, trajectory.tokens, position)}" if self._sampled else ""
        return (
            f"position {position} of {trajectory.name}{text}:"
            f" {found.trainer!r} in the trainer, {found.sampler!r} in the sampler"
        )

    def causes(self, event: PolicyMatched, row: int) -> Iterator[Cause]:
        """Yield the causes of the mismatch in a row, the deepest first; a search that fails is reported as one."""
        assert self._sampling is not None
        trajectory, columns = self._trajectory(event, row), event.loss_mask[row].nonzero().flatten()
        try:
            yield from causes(
                self._sampling.policy.decoder(),
                self._sampling.target,
                trajectory.tokens,
                [event.first + column for column in columns.tolist()],
                event.logprobs[row][columns].detach(),
                t=trajectory.request.params.temperature or 1.0,
            )
        except RlcoreError as error:  # the mismatch is what matters
            yield Cause(f"the search for its cause failed: {error.what}", error.remedy)

    def _trajectory(self, event: PolicyMatched, row: int) -> Trajectory:
        assert self._batched is not None
        return self._batched.trajectories[event.samples[row]]


class MatchReports(MatchChecks):
    """Say how far they are apart, and why, once in each step that has a mismatch; for levels that allow one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._said = say, -1

    def found(self, event: PolicyMatched, found: Mismatch) -> None:
        """Say it, with all causes."""
        if self._said == self.step:
            return
        self._said = self.step
        self._say(f"step {self.step}: {self.extent(found)}")
        self._say(f"  largest: {self.largest(event, found)}")
        for cause in self.causes(event, found.row):
            self._say(f"  cause:   {cause.what}")
