"""Patches from one run into another: their syntax, and the values and steps that they name. Pure.

advantages                  every value of the phase advantage; so rewards, rollout (or tokens), gradients, any phase
optimizer/policy.head       one value; policy.head#1 its second occurrence of a step
rewards+advantages          both
weights                     the weights that a step begins with: what the step before has made of them
op:17                       what operation 17 of the step gives
"""

import difflib
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.core.errors import UsageError
from harness.core.text import path_text
from harness.recording.patch_report import is_taken
from harness.trace.attribution import TEXTS
from harness.trace.chain import PHASES, Key, RecordedValue, Scope
from harness.trace.reader import Trace

ALIASES = {"advantages": "advantage", "rewards": "reward", "tokens": "rollout", "gradients": "backward"}
"""What people call a phase by."""
WEIGHTS = "weights"
OPERATION = "op:"
LEGAL = f"{', '.join(ALIASES)}, {WEIGHTS}, a phase ({', '.join(PHASES)}), PHASE/NAME or op:N; several joined by +"
_OPERATION = re.compile(r"op:(\d+)")
_OCCURRENCE = re.compile(r"(.+)#(\d+)")

Named = tuple[str, str] | Key
"""A recorded value by phase and name, and perhaps its occurrence."""


@dataclass(frozen=True, slots=True)
class PatchSource:
    """What is taken, as it was asked for."""

    text: str
    phases: tuple[str, ...] = ()
    """All of whose leaves are taken."""
    values: tuple[Named, ...] = ()
    operation: int | None = None
    is_weights: bool = False

    def takes(self, key: Key) -> bool:
        """Whether the patch has a value."""
        return is_taken(key, self.phases, self.values)

    def at(self, values: Iterable[RecordedValue]) -> "PatchSource":
        """Return the same patch for the values of a step, with the names of weights resolved."""
        return replace(self, values=weights_of(values)) if self.is_weights else self


@dataclass(frozen=True, slots=True)
class Patch:
    """One transplant that can be carried out."""

    take: PatchSource
    first: int
    """The first step in which something is put."""
    last: int
    """The last one."""
    is_once: bool = False
    """Whether it is put in one step alone."""

    @property
    def title(self) -> str:
        """advantages, from step 12 on."""
        if self.take.is_weights:
            return f"weights, with which step {self.first + 1} begins"
        return f"{self.take.text}, {f'at step {self.first} only' if self.is_once else f'from step {self.first} on'}"


def parse_patch(text: str) -> PatchSource:
    """What a --take asks for; UsageError for anything else."""
    words = text.split("+")
    if match := _OPERATION.fullmatch(text):
        return PatchSource(text, operation=int(match[1]))
    if text == WEIGHTS:
        return PatchSource(text, is_weights=True)
    phases: list[str] = []
    values: list[Named] = []
    for word in words:
        phase, slash, name = word.partition("/")
        phase = ALIASES.get(phase, phase)
        if phase not in PHASES or (slash and not name):
            near = difflib.get_close_matches(word, (*ALIASES, WEIGHTS, *PHASES), n=1)
            raise UsageError(f"--take {text}", legal=LEGAL, remedy=f"--take {near[0]}" if near else "")
        if not slash:
            phases.append(phase)
        elif match := _OCCURRENCE.fullmatch(name):
            values.append((phase, match[1], int(match[2])))
        else:
            values.append((phase, name))
    return PatchSource(text, tuple(phases), tuple(values))


def weights_of(values: Iterable[RecordedValue]) -> tuple[Named, ...]:
    """Return the parameters among the values of a step: the optimizer's values that have the name of a gradient."""
    named = {(value.phase, value.name) for value in values}
    return tuple(
        ("optimizer", name) for phase, name in sorted(named) if phase == "backward" and ("optimizer", name) in named
    )


def patch_of(take: PatchSource, a: Trace, b: Trace, step: int, last: int, *, is_once: bool = False) -> Patch:
    """How something is taken from B into A from a step on; UsageError for weights that no step has made."""
    first = first_put(take, a, b, step)
    if take.is_weights:
        found = take.at(logical_values(a, first))
        if not found.values:
            raise UsageError(
                f"no weights are recorded in step {first} of {path_text(a.directory)}",
                legal="optimizer values with the names of gradients",
                remedy="patch a recorded value: --take PHASE/NAME",
            )
        return Patch(found, first, first, is_once=True)
    is_once = is_once or take.operation is not None
    return Patch(take, first, first if is_once else last, is_once)


def first_put(take: PatchSource, a: Trace, b: Trace, step: int) -> int:
    """In which step something is put that is asked for from `step` on: weights where they are made.

    UsageError for weights that no step of both has made.
    """
    first = step - 1 if take.is_weights else step
    if first not in a.steps or first not in b.steps:
        raise UsageError(
            f"the {take.text} of step {step} are not recorded in both runs: step {first} made them",
            legal="a step after one that both runs recorded",
            remedy=f"--step {common_steps(a, b)[0] + 1}",
        )
    return first


def check_known(take: PatchSource, trace: Trace, step: int) -> None:
    """Raise UsageError if this step lacks one of the phases or values."""
    keys = [value.key for value in logical_values(trace, step)]
    known = {key[:2] for key in keys}
    absent = [phase for phase in take.phases if phase not in {key[0] for key in keys}]
    absent += ["/".join(map(str, named[:2])) for named in take.values if named[:2] not in known]
    if absent:
        names = [f"{phase}/{name}" for phase, name in known]
        near = difflib.get_close_matches(absent[0], names, n=1)
        raise UsageError(
            f"--take {take.text}: {path_text(trace.directory)} records no {absent[0]} in step {step}",
            legal=f"phases and values of that step, of the phases {', '.join(dict.fromkeys(key[0] for key in keys))}",
            remedy=f"--take {shlex.quote(near[0])}" if near else "",
        )


def candidates(a: Trace, b: Trace, step: int) -> tuple[PatchSource, ...]:
    """Return the default patches: each phase that differs in a step, in recording order.

    Phases of which only texts differ are left out: they cannot be patched. If rollouts and rewards both
    differ, also both together: rewards are computed before either is recorded.
    """
    of_a, of_b = values_of(a, step), values_of(b, step)
    phases = tuple(dict.fromkeys(key[0] for key, value in of_a.items() if of_b.get(key) not in (None, value)))
    takes = [PatchSource(_word_of(phase), (phase,)) for phase in phases]
    if {"rollout", "reward"} <= set(phases):
        takes.insert(phases.index("reward") + 1, PatchSource("rollout+rewards", ("rollout", "reward")))
    return tuple(takes)


def common_steps(a: Trace, b: Trace) -> Sequence[int]:
    """Those that both have recorded, in order."""
    return sorted(set(a.steps) & set(b.steps))


def values_of(trace: Trace, step: int) -> dict[Key, RecordedValue]:
    """Return the global values of a step that can be patched into another run, in recording order: all but texts."""
    return {value.key: value for value in logical_values(trace, step) if value.dtype not in TEXTS}


def logical_values(trace: Trace, step: int) -> Sequence[RecordedValue]:
    """Those of a step that are free of ranks, as rank 0 has them, in the order of recording."""
    return [value for value in trace.columns(step, 0).values() if value.scope is Scope.LOGICAL]


def _word_of(phase: str) -> str:
    """What a person types for a phase."""
    words = {phase: word for word, phase in ALIASES.items() if word != "tokens"}
    return words.get(phase, phase)
