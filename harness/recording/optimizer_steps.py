"""Optimizers of a program: their names, and which of their steps are one step of the trace.

| the program | steps of the trace |
|---|---|
| `loss.backward(); muon.step(); adam.step()` | one: different optimizers apply gradients of the same backward |
| `d_loss.backward(); d.step(); g_loss.backward(); g.step()` | two, each with a backward of its own |
| optimizers that step within backward, one for each parameter | one: that of the backward |
| `loss.backward()`, then each optimizer is made when it first steps | one: others may be made after the same backward |

Whether another optimizer follows is not known when one has stepped. The step of the trace waits for what happens next
if another has ever followed this one, if gradients of others are left, and if an optimizer was made after the backward.
It is written when a batch, a backward, a logged value or the end of the process comes.
"""

import weakref
from collections.abc import Callable, Sequence

from torch.optim import Optimizer


class OptimizerNames:
    """Names optimizers by class, numbered in the order in which they were made: Muon, AdamW, AdamW#2."""

    def __init__(self) -> None:
        self._named: dict[int, tuple[weakref.ref[Optimizer], str]] = {}
        """By id, which is one optimizer's for as long as that lives."""
        self._counts: dict[str, int] = {}
        self._alone: str | None = None
        """The one that was the only one when it first stepped."""
        self._num_steps: dict[str, int] = {}

    def see(self, optimizer: Optimizer) -> str:
        """Name an optimizer that has no name; return its name."""
        reference, name = self._named.get(id(optimizer), (None, ""))
        if reference is None or reference() is not optimizer:
            self._named = {key: each for key, each in self._named.items() if each[0]() is not None}
            kind = type(optimizer).__name__
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            name = kind if number == 1 else f"{kind}#{number}"
            self._named[id(optimizer)] = weakref.ref(optimizer), name
        return name

    def living(self) -> list[Optimizer]:
        """Those that still are, in the order in which they were made."""
        return [optimizer for each, _ in self._named.values() if (optimizer := each()) is not None]

    def prefix(self, optimizer: Optimizer) -> str:
        """Return what stands before the names of an optimizer's settings; empty for one that first stepped alone."""
        name = self.see(optimizer)
        return "" if name == self._alone else f"{name}."

    def begin(self, optimizer: Optimizer, owner: str = "") -> tuple[str, int]:
        """Count a step; return (prefix, number of the step among this optimizer's own).

        `owner`, a parameter's name, names an optimizer in its first step: in which order it was made must not count.
        """
        name = self.see(optimizer)
        if owner and name not in self._num_steps:
            name = f"{type(optimizer).__name__} of {owner}"
            self._named[id(optimizer)] = weakref.ref(optimizer), name
        elif not self._num_steps and sum(self._counts.values()) == 1:
            self._alone = name
        number = self._num_steps[name] = self._num_steps.get(name, -1) + 1
        return self.prefix(optimizer), number


class JoinedSteps:
    """Decides, by the names of optimizers, which of their steps are one step of the trace."""

    def __init__(self) -> None:
        self._stepped: list[str] = []
        """Those of the step that waits."""
        self._last: str | None = None
        """The one that has stepped, if nothing else has happened since."""
        self._followed: set[str] = set()
        """Those right after which another optimizer has ever stepped."""
        self.is_growing = self.has_grown = False
        """Whether an optimizer was made after the last backward, or after any: others may be made before the next."""

    def meet(self, *, is_within_step: bool) -> None:
        """Note that an optimizer was made. `is_within_step` says whether a backward lies before it."""
        self.is_growing = self.is_growing or is_within_step or self._last is not None
        self.has_grown = self.has_grown or self.is_growing

    @property
    def is_waiting(self) -> bool:
        """Whether an optimizer has stepped, and the step of the trace has not ended."""
        return bool(self._stepped)

    def has(self, name: str) -> bool:
        """Return whether this optimizer is among those of the step that waits."""
        return name in self._stepped

    def join(self, name: str) -> bool:
        """An optimizer begins a step: return whether it joins the one that waits; if not, that one ends."""
        is_another = self._last is not None and name not in (self._last, *self._stepped)
        if is_another and self._last is not None:
            self._followed.add(self._last)
        if not is_another:
            self._stepped.clear()
        return is_another and self.is_waiting

    def waits(self, names: Sequence[str], leaves_gradients: Callable[[], bool]) -> bool:
        """Return whether the step of the trace waits for others, now that these optimizers have stepped.

        `leaves_gradients` says whether gradients of others are left.
        """
        self._last = names[-1]
        self._stepped += names
        if not self.is_growing and self._last not in self._followed and not leaves_gradients():
            self._stepped.clear()
        return self.is_waiting

    def end(self) -> None:
        """Note another event: no optimizer joins the step that waits."""
        self._last = None
        self.is_growing = False
        self._stepped.clear()
