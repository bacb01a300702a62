"""A session whose runs are played: traces written by hand, none of which was started."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.lab.experiment.launcher import OUTPUT, Run
from harness.lab.experiment.recording_result import Problem, Recording
from harness.recording.run_spec import Rejection, RunSpec
from harness.render.run_lines import RunLines
from harness.trace.format import Kept
from tests.support.traces import trace_of_values, value

Gradient = Callable[[int], tuple[float, ...]]
"""Of a step."""
HEAD = "head"
OTHERS = (0.5, 0.25, 0.125, 0.0625)
"""So that a gradient is too large to stand in its leaf."""


def steady(step: int) -> tuple[float, ...]:
    return (1.0 + step, 2.0, *OTHERS)


def rounded(step: int) -> tuple[float, ...]:
    return (1.0 + step, 2.0000002, *OTHERS) if step >= 1 else steady(step)


def doubled(step: int) -> tuple[float, ...]:
    return (2.0 + 2 * step, 4.0, *OTHERS) if step >= 1 else steady(step)


@dataclass
class PlayedSession:
    """Gives runs whose gradients are told for each side and run."""

    gradients: Mapping[str, Sequence[Gradient]]
    """By side; the last one of a side is that of all further runs."""
    records_more: str = ""
    """A side whose steps have a value of their own."""
    broken: str = HEAD
    """The side whose runs do not come to their end, for this reason, with these words as their last."""
    problem: str = ""
    refusal: Rejection | None = None
    printed: str = ""
    interrupted_by: str = ""
    interrupted_at: int = 10**9
    asked: list[tuple[str, int | None]] = field(default_factory=list)
    """(directory, last step) of each run."""
    display: RunLines = field(default_factory=RunLines)

    async def record(
        self, run_spec: RunSpec, parent: Path, number: int = 1, *, environ: Mapping[str, str], cwd: Path
    ) -> Run:
        self.asked.append((parent.name, run_spec.last_step))
        if len(self.asked) >= self.interrupted_at:
            self.interrupted_by = "SIGINT"
        side = parent.name.partition("-")[0]
        of_side = self.gradients[side]
        at = sum(name.partition("-")[0] == side for name, _ in self.asked) - 1
        gradient = of_side[min(at, len(of_side) - 1)]
        num_steps = 3 if run_spec.last_step is None else run_spec.last_step + 1
        directory = parent / f"run-{number}"
        more = [value("loss", "clip_fraction", "f32", (), bytes(4))] if side == self.records_more else []
        values = [[*values_of(step, gradient)[:1], *more, *values_of(step, gradient)[1:]] for step in range(num_steps)]
        trace_of_values(directory, values, keeps=bool(run_spec.keep))
        problems = (Problem(self.problem),) if self.problem and side == self.broken else ()
        if self.refusal is not None and side == self.broken:
            self.refusal.write(directory)
        (directory / OUTPUT).write_text(self.printed, encoding="utf-8")
        return Run(number, False, Recording(directory, 0, num_steps, (0,), 1, problems), 3.0)


def values_of(step: int, gradient: Gradient) -> list[Kept]:
    """A step: tokens, a gradient."""
    tokens = value("rollout", "tokens", "i64", (2, 2), struct.pack("<4q", 1, 2, 3, step))
    numbers = gradient(step)
    return [tokens, value("backward", "w", "f32", (len(numbers),), struct.pack(f"<{len(numbers)}f", *numbers))]
