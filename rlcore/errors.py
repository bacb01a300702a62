"""Errors a user of the engine can cause and mend.

RlcoreError             base of all: says the value, what is legal, and the remedy
├── InvalidValueError   a number or a name that cannot be used (also a ValueError)
├── ShapeError          tensors that do not belong together (also a ValueError)
├── EmptyMaskError      a sample, or a batch, without anything to learn from (also a ValueError)
├── NonFiniteError      NaN or infinity where it would spread to other samples (also a ValueError)
├── StepError           a step that contradicts itself: a bug of the engine (also a RuntimeError)
├── ReplicaError        ranks that must hold equal bits, and do not (also a RuntimeError)
├── LevelError          a level of determinism that is not at work, or cannot be held here (also a ValueError)
├── CheckpointError     a checkpoint that is not whole, or of another model (also a ValueError)
├── WeightSyncError     weights that are not in the sampler as the trainer has them (also a RuntimeError)
├── WorkerError         a worker of a group that failed beyond its own code (also a RuntimeError)
│   └── WorkerDiedError its process has ended: role, rank, process id and exit code
├── PlacementError      processes that fit no node, get no reservation, or do not start (also a RuntimeError)
└── RewardError         a reward function that failed, or returned what is no reward (also a RuntimeError)
"""

from harness.bits.errors import UserError


class RlcoreError(UserError):
    """A failure that is the user's to mend; `phases` are those of a step in which it may lie, as a trace calls them."""

    phases: tuple[str, ...] = ()

    def __init__(self, what: str, *, legal: str = "", remedy: str = "", phases: tuple[str, ...] = ()) -> None:
        super().__init__(what, legal=legal, remedy=remedy)
        self.phases = phases or self.phases


class InvalidValueError(RlcoreError, ValueError):
    """A number or a name that cannot be used."""


class ShapeError(RlcoreError, ValueError):
    """Tensors whose shapes or kinds do not belong together."""


class EmptyMaskError(RlcoreError, ValueError):
    """A sample without a loss token, or a batch without a sample."""


class NonFiniteError(RlcoreError, ValueError):
    """NaN or infinity in a value of one sample that would spread to others."""


class LevelError(RlcoreError, ValueError):
    """A level of determinism that was asked for, and is not at work or cannot be held on this machine.

    `what` begins with the phases, where they are known.
    """

    def __init__(self, what: str, *, legal: str = "", remedy: str = "", phases: tuple[str, ...] = ()) -> None:
        where = f"{' or '.join(phases)}: " if phases else ""
        super().__init__(where + what, legal=legal, remedy=remedy, phases=phases)

    def in_step(self, step: int) -> "LevelError":
        """Return the error of a step, whose remedy is to reproduce the step first."""
        remedy = f"reproduce the step first: rlharness reproduce RUN --step {step} --trace-ops"
        found = LevelError("", legal=self.legal, remedy=f"{remedy}; then {self.remedy}" if self.remedy else remedy)
        found.args, found.what, found.phases = (f"step {step}: {self.what}",), f"step {step}: {self.what}", self.phases
        return found


class StepError(RlcoreError, RuntimeError):
    """A step that contradicts itself, whatever is trained: a bug of the engine, or of what was put into it.

    `what` begins with the phases.
    """

    def __init__(self, what: str, *, phases: tuple[str, ...], legal: str = "", remedy: str = "") -> None:
        super().__init__(f"{' or '.join(phases)}: {what}", legal=legal, remedy=remedy, phases=phases)


class ReplicaError(RlcoreError, RuntimeError):
    """Ranks that must hold equal bits, and do not: memory, a processor or a link has failed without an error."""

    phases = ("optimizer",)

    def __init__(self, what: str, *, ranks: tuple[int, ...], names: tuple[str, ...]) -> None:
        super().__init__(
            what,
            legal="equal bits on all replicas",
            remedy="resume from the last checkpoint; if the same rank differs again, take its GPU or host out of use",
        )
        self.ranks = ranks
        """Ranks at fault: those that differ from the majority, or all if there is none."""
        self.names = names


class CheckpointError(RlcoreError, ValueError):
    """A checkpoint that is not whole, or not of the model its config.json describes."""


class WeightSyncError(RlcoreError, RuntimeError):
    """Weights that did not reach the sampler as the trainer has them, or were changed there."""

    phases = ("sync",)

    def __init__(self, what: str, *, check: str = "", parameter: str = "", legal: str = "", remedy: str = "") -> None:
        told = " ".join(filter(None, (parameter, what)))
        super().__init__(f"{check}: {told}" if check else told, legal=legal, remedy=remedy)
        self.check = check
        self.parameter = parameter


class PlacementError(RlcoreError, RuntimeError):
    """Processes that fit on no node, were not given what they were planned, or ended more often than is allowed."""


class RewardError(RlcoreError, RuntimeError):
    """A reward function that failed, took too long, or returned what is no reward."""

    phases = ("reward",)


class WorkerError(RlcoreError, RuntimeError):
    """A worker that could not be started, or whose answer cannot be brought to the controller."""

    def __init__(self, what: str, *, role: str = "", rank: int = 0, legal: str = "", remedy: str = "") -> None:
        super().__init__(what, legal=legal, remedy=remedy)
        self.role = role
        self.rank = rank


class WorkerDiedError(WorkerError):
    """A worker whose process has ended, or was killed, while its group was in use."""

    def __init__(self, what: str, *, role: str, rank: int, pid: int, remedy: str = "") -> None:
        super().__init__(what, role=role, rank=rank, remedy=remedy)
        self.pid = pid
