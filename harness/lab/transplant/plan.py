"""Plans the patches of `rlharness transplant`, and their steps, from the two traces, before any run. Pure.

A, B ─▶ first difference ─▶ for each --take, the first step in which B differs ─▶ patches
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.text import count, path_text
from harness.lab.experiments.recorded_run import RecordedRun
from harness.lab.transplant.findings import Pair
from harness.lab.transplant.patches import (
    OPERATION,
    Patch,
    PatchSource,
    candidates,
    check_known,
    common_steps,
    first_put,
    logical_values,
    parse_patch,
    patch_of,
    values_of,
)
from harness.trace.ops import read_ops
from harness.trace.reader import Trace
from harness.trace.value_diff import compare_values


@dataclass(frozen=True, slots=True)
class TransplantPlan:
    """Transplants that can be carried out."""

    pair: Pair
    patches: tuple[Patch, ...]
    """At least one, in the order in which they are tried."""


def make_plan(
    a: RecordedRun, b: RecordedRun, texts: Sequence[str], *, step: int | None, num_steps: int | None, is_once: bool
) -> TransplantPlan:
    """What is put where of what --take texts ask for, or of each phase that differs where there are none.

    UsageError where the two runs cannot be set against each other, and where of something there is nothing to put.
    """
    for run in (a, b):
        if tuple(run.trace.ranks) != (0,):
            raise UsageError(
                f"{path_text(run.directory)} has {count(len(run.trace.ranks), 'rank')}",
                legal="runs of one process, whose memory can be patched",
                remedy="record both runs with one rank",
            )
    common, parts = common_steps(a.trace, b.trace), first_difference(a.trace, b.trace)
    if step is not None and step not in common:
        span = f"{common[0]} to {common[-1]}" if common else "none"
        raise UsageError(
            f"--step {step}",
            legal=f"a step that both runs have recorded: {span}",
            remedy="omit it to begin at the first difference of the patched values",
        )
    if parts is None:
        raise UsageError(
            f"{path_text(a.directory)} and {path_text(b.directory)} are equal in every step that both have",
            legal="two runs that differ",
            remedy="choose another run; rlharness diff shows whether one has more steps",
        )
    takes = [parse_patch(text) for text in dict.fromkeys(texts)] or candidates(
        a.trace, b.trace, parts if step is None else step
    )
    if not takes:
        at = parts if step is None else step
        raise UsageError(
            f"no value that could be patched differs in step {at}",
            legal=f"a step with differing values, e.g. step {parts}; texts cannot be patched",
            remedy="" if at == parts else f"--step {parts}",
        )
    begins = [_begin(take, a.trace, b.trace, parts, step, is_once=is_once) for take in takes]
    last = common[-1] if num_steps is None else min(common[-1], max(begins) + num_steps - 1)
    patches = tuple(
        patch_of(take, a.trace, b.trace, begin, last, is_once=is_once)
        for take, begin in zip(takes, begins, strict=True)
    )
    return TransplantPlan(Pair(a, b, parts, min(begins), last), patches)


def first_difference(a: Trace, b: Trace) -> int | None:
    """The first step that both have and that has other leaves in one of them; None where there is none."""
    return next(_unlike_steps(a, b, common_steps(a, b)), None)


def first_to_put(take: PatchSource, a: Trace, b: Trace, steps: Iterable[int]) -> int | None:
    """The first of these steps in which B has other values of what is taken; None where it has none.

    Of weights it is the step that makes them.
    """
    for step in _unlike_steps(a, b, steps):
        of_a, of_b = values_of(a, step), values_of(b, step)
        taken = take.at(of_a.values())
        if any(taken.takes(key) and of_a.get(key) != of_b.get(key) for key in of_a.keys() | of_b.keys()):
            return step
    return None


def _unlike_steps(a: Trace, b: Trace, steps: Iterable[int]) -> Iterator[int]:
    for step in steps:
        if compare_values(logical_values(a, step), logical_values(b, step)).first is not None:
            yield step


def _check_operation(index: int, directories: tuple[Path, Path], step: int) -> None:
    """UsageError where the operations of a step were recorded in one of the runs, and this is none of them."""
    for directory in directories:
        record = read_ops(directory, 0, step)
        if record is not None and not record.problem and index >= len(record.operations):
            a, b = (shlex.quote(path_text(each)) for each in directories)
            raise UsageError(
                f"--take {OPERATION}{index}: step {step} of {path_text(directory)} has"
                f" {count(len(record.operations), 'operation')}",
                legal=f"{OPERATION}0 to {OPERATION}{len(record.operations) - 1}" if record.operations else "",
                remedy=f"rlharness reproduce {a} --step {step} --trace-ops --against {b} names one that differs",
            )


def _begin(take: PatchSource, a: Trace, b: Trace, parts: int, step: int | None, *, is_once: bool) -> int:
    """With which step a transplant begins: the one that is asked for, else the first with something to put."""
    begin = parts if step is None else step
    if take.operation is not None:  # what operations give is not recorded: only a run shows it
        _check_operation(take.operation, (a.directory, b.directory), begin)
        return begin
    for trace in (a, b):
        check_known(take, trace, begin)
    first = begin - take.is_weights if step is None else first_put(take, a, b, step)
    steps = [each for each in common_steps(a, b) if each >= first]
    is_one = step is not None and (is_once or take.is_weights)
    found = first_to_put(take, a, b, steps[:1] if is_one else steps)
    if found is None:
        where = f"step {begin}" if is_one else f"every step from {begin} on"
        differing = ", ".join(each.text for each in candidates(a, b, parts))
        raise UsageError(
            f"--take {take.text}: the two runs have the same values in {where}",
            legal=f"a difference: in step {parts}, {differing or 'texts only, which cannot be patched'}",
            remedy=f"--take {shlex.quote(candidates(a, b, parts)[0].text)}" if differing else "",
        )
    if step is not None:
        return step
    if take.is_weights and found + 1 not in common_steps(a, b):
        raise UsageError(
            f"--take {take.text}: they differ first after step {found}, and no step follows that both runs have",
            legal="weights at the beginning of a recorded step",
            remedy="record more steps, or patch their source: --take optimizer",
        )
    return found + take.is_weights
