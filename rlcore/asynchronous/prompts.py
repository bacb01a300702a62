"""The prompt of a group: a function of its number and of the batches before its version of the weights.

number ─▶ task, by the shares that tasks have ─▶ prompt, by a keyed order of those that are still drawn
"""

from collections.abc import Iterable, Sequence

from rlcore.data.tasks import Task
from rlcore.errors import InvalidValueError
from rlcore.seeds import epoch_items
from rlcore.types import Prompt

Name = tuple[int, str]
"""Number of a prompt's task, and the prompt's id."""


class Prompts:
    """Draws the prompts of groups. Nothing is kept but what follows from the batches: those that are left out."""

    def __init__(self, tasks: Sequence[Task], shares: Sequence[float] | None, *, seed: int, per_step: int) -> None:
        """Draw from tasks by their shares, None for one of each prompt's; `per_step` groups make a step."""
        given = shares or [float(len(task.train)) for task in tasks]
        self._tasks, self._shares = tasks, [share / sum(given) for share in given]
        self._seed, self._per_step = seed, per_step
        self._left_out = [frozenset[Name]()]  # by the number of batches before
        self._drawn, self._counts = list[tuple[int, int]](), [0] * len(tasks)  # task of each group, and its place there

    def leave_out(self, names: Iterable[Sequence[int | str]]) -> None:
        """Take from the next batch, in their order, which prompts are not drawn again."""
        own = frozenset((int(task), str(id)) for task, id in names)
        self._left_out.append(self._left_out[-1] | own)

    def is_over(self) -> bool:
        """Return whether a task has no prompt left that may be drawn."""
        tasks = enumerate(self._tasks)
        return any(self._left_out[-1].issuperset((number, each.id) for each in task.train) for number, task in tasks)

    def of(self, group: int, version: int) -> tuple[int, Prompt, int]:
        """Return a group's task and prompt, and how many groups of its step before it have the same one.

        What batches 0 to version - 1 leave out is known whenever that version is there. Raises InvalidValueError.
        """
        first = group - group % self._per_step
        drawn = [self._draw(each, self._left_out[version]) for each in range(first, group + 1)]
        return *drawn[-1], drawn[:-1].count(drawn[-1])

    def _draw(self, group: int, left_out: frozenset[Name]) -> tuple[int, Prompt]:
        while len(self._drawn) <= group:  # the task that is furthest below its share
            missing = [share * (len(self._drawn) + 1) - n for share, n in zip(self._shares, self._counts, strict=True)]
            task = missing.index(max(missing))
            self._drawn.append((task, self._counts[task]))
            self._counts[task] += 1
        task, place = self._drawn[group]
        prompts = [each for each in self._tasks[task].train if (task, each.id) not in left_out]
        if not prompts:
            raise InvalidValueError(
                f"every prompt of {self._tasks[task].name} is too easy or too hard to be drawn again",
                remedy="other values of buffer.easy_threshold and buffer.hard_threshold, or more prompts",
            )
        parts = ("prompts", task) if task else ("prompts",)
        (item,) = epoch_items(place, 1, len(prompts), self._seed, *parts)
        return task, prompts[item]
