"""What a run writes and shows: metrics as JSON lines and for TensorBoard, completions, a progress bar.

metrics.jsonl       {"step": 3, "reward_mean": 0.71, "seconds/rollout": 0.02, ...}
completions.jsonl   a line for each completion that was shown
tensorboard/        the same numbers
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from rlcore.config import OutputSection
from rlcore.controllers.evaluation import Evaluation
from rlcore.errors import InvalidValueError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

MAX_WIDTH = 32
"""Of a column of text in a table."""


def check_output(section: OutputSection) -> None:
    """Raise InvalidValueError for output that needs a package which is not installed."""
    if section.tensorboard and not find_spec("tensorboard"):
        raise InvalidValueError(
            "output.tensorboard is true, and the package tensorboard is not installed",
            legal="false; metrics.jsonl has the same numbers",
            remedy="pip install 'rlharness[tensorboard]'",
        )


class RunLog:
    """The files of a run, each made with its first line; and its lines on the terminal."""

    def __init__(self, directory: Path, section: OutputSection, *, stream: TextIO | None = None) -> None:
        self.directory = directory
        """Directory of the run."""
        self._section = section
        self._stream = stream or sys.stderr
        self._files: dict[str, TextIO] = {}
        self._board: SummaryWriter | None = None
        self._bar: Any = None
        self._phase, self._num_steps, self._done = "", 1, 0
        self._last: dict[str, int] = {}  # the last step of each kind of line

    def phase(self, name: str, num_steps: int, done: int = 0) -> None:
        """What is counted from here on; the bar before is closed."""
        self._close_bar()
        self._phase, self._num_steps, self._done = name, num_steps, done
        if self._section.shows_progress and self._stream.isatty():
            self._bar = tqdm(total=num_steps, initial=done, desc=name, unit="step", file=self._stream, leave=True)

    def advance(self, **shown: float) -> None:
        """A step is done: the bar moves, or where there is no terminal every tenth part of the steps has a line.

        Steps are numbered from 0, as in the records.
        """
        self._done += 1
        told = {name: f"{value:.3g}" for name, value in shown.items()}
        if self._bar is not None:
            self._bar.set_postfix(told, refresh=False)
            self._bar.update()
        elif (
            self._section.shows_progress
            and self._done * 10 // self._num_steps > (self._done - 1) * 10 // self._num_steps
        ):
            self.say(
                f"{self._phase}: step {self._done - 1} ({self._done} of {self._num_steps}), "
                + ", ".join(map("=".join, told.items()))
            )

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step; nothing for one that is made again after a restart."""
        if not self._is_new("step", step):
            return
        self._numbers(step, values)

    def _numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._write("metrics.jsonl", {"step": step, **{name: _finite(value) for name, value in values.items()}})
        if not self._section.tensorboard:
            return
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.directory / "tensorboard"))
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def evaluation(self, step: int, found: Evaluation) -> None:
        """The numbers of an evaluation, and some of its completions in a table; nothing for one made again."""
        if not self._is_new("evaluation", step):
            return
        values = {
            "evaluation/reward_mean": found.reward_mean,
            "evaluation/completion_length": found.completion_length,
            "evaluation/truncated": found.truncated,
        }
        self._numbers(step, values)
        shown = list(zip(found.trajectories, found.scores.rewards, strict=True))[: self._section.num_shown]
        rows = []
        for trajectory, reward in shown:
            prompt, text = trajectory.request.prompt, trajectory.completion_text
            answer = prompt.columns.get("answer", "")
            told = {"prompt": prompt.text, "completion": text, "answer": answer, "reward": reward}
            self._write("completions.jsonl", {"step": step, **told, "stop_reason": trajectory.stop_reason.value})
            rows.append((*map(str, (prompt.text, text, answer)), _number(reward)))
        when = f"after step {step - 1}" if step else "before step 0"
        self.say(f"{when}: held-out reward {found.reward_mean:.3f} over {len(found.trajectories)} prompts")
        if rows:
            for line in table(("prompt", "completion", "answer", "reward"), rows):
                self.say(line)

    def say(self, line: str) -> None:
        """A line on the terminal, above the bar."""
        tqdm.write(line, file=self._stream)

    def close(self) -> None:
        """Everything is on the disk."""
        self._close_bar()
        for file in self._files.values():
            file.close()
        if self._board is not None:
            self._board.close()

    def _is_new(self, kind: str, step: int) -> bool:
        """Whether a line of this kind has not been written for the step, or for a later one."""
        if step <= self._last.get(kind, -1):
            return False
        self._last[kind] = step
        return True

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _write(self, name: str, values: Mapping[str, object]) -> None:
        if name not in self._files:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._files[name] = (self.directory / name).open("a", encoding="utf-8")
        file = self._files[name]
        file.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns of text, cut to MAX_WIDTH."""
    cut = [[_shortened(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cut) for column in range(len(head))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut
    ]


def _shortened(text: str) -> str:
    text = text.replace("\n", "\\n")
    return text if len(text) <= MAX_WIDTH else text[: MAX_WIDTH - 1] + "…"


def _number(reward: float | None) -> str:
    return "-" if reward is None else f"{reward:.3f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
