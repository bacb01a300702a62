"""The runs of a transplant: A again as it was, B again where its values were not kept, and A with B's values.

A ──▶ control: comes out as it was recorded        B ──▶ donor: the same, its tensors kept
A + values of B, patched by a recorder callback in its process ──▶ comparison
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from harness.core.program_output import output_tail
from harness.lab.experiments.entry_call import read_rejection
from harness.lab.experiments.run import Run, TitledDisplay
from harness.lab.experiments.run_spec import RunSpec
from harness.lab.transplant.comparison import Effect, Outcome, compare_transplants
from harness.lab.transplant.findings import Findings, Pair
from harness.lab.transplant.patches import Patch, logical_values
from harness.recording.patch_report import REPORT, read_report
from harness.trace.attribution import TEXTS
from harness.trace.reader import Trace, read_trace

DONOR = "donor"
VALUES = "harness.recording.patches:Transplant"
OPERATION = "harness.recording.patches:OperationTransplant"
OPERATION_DONOR = "harness.recording.patches:OperationDonor"
RESULTS = "operation.safetensors"


class Runs(Protocol):
    """Starts runs, as a session does."""

    @property
    def interrupted_by(self) -> str:
        """The name of the signal that has asked for the end; empty for none."""

    async def record(self, run_spec: RunSpec, parent: Path) -> Run:
        """Carry out one run, in a directory of its own below `parent`."""


class TransplantExecutor:
    """Starts the runs, one at a time, each in a directory of its own below `directory`."""

    def __init__(self, pair: Pair, session: Runs, directory: Path, lines: TitledDisplay) -> None:
        self._pair = pair
        self._session = session
        self._directory = directory
        self._lines = lines
        self._notes: list[str] = []

    async def search(self, patches: Sequence[Patch]) -> Findings:
        """Every transplant; of the first from which B follows, also whether once is enough."""
        outcomes: list[Outcome] = []
        a, b = await self._repeat(patches)
        waiting = deque(patches)
        while waiting and a is not None and b is not None and not self._session.interrupted_by:
            patch = waiting.popleft()
            outcome = await self._carry_out(patch, a, b)
            if self._session.interrupted_by:  # it did not come to its end
                break
            is_first = all(each.effect is not Effect.BECOMES_B for each in outcomes)
            outcomes.append(outcome)
            if outcome.effect is Effect.BECOMES_B and is_first and patch.last > patch.first:
                waiting.appendleft(replace(patch, last=patch.first, is_once=True))
        interrupted_by = self._session.interrupted_by
        return Findings(self._pair, self._directory, tuple(outcomes), tuple(self._notes), interrupted_by)

    async def _repeat(self, patches: Sequence[Patch]) -> tuple[Trace | None, Trace | None]:
        """A and B once more, as they were: what is proven is proven with them. None for one that recorded nothing.

        Of B, whatever is taken is kept; of both, the last step, so that distances of weights are known.
        """
        pair = self._pair
        first, last = min(patch.first for patch in patches), pair.last
        is_known = all(patch.take.operation is not None or has_kept(pair.b.trace, patch) for patch in patches)
        kept = (last,) if is_known else tuple(range(first, last + 1))
        a = replace(pair.a.spec_to(first), last_step=last, keep=(last,))
        b = replace(pair.b.spec_to(first), last_step=last, keep=kept)
        made_of_a = self._checked(await self._record(a, "A again", "control"), pair.a.trace, "A")
        if made_of_a is None or self._session.interrupted_by:
            return made_of_a, None
        return made_of_a, self._checked(await self._record(b, "B again", "donor"), pair.b.trace, "B")

    async def _carry_out(self, patch: Patch, a: Trace, b: Trace) -> Outcome:
        """One transplant: its run, and what came of it."""
        donor = b.directory
        if (operation := patch.take.operation) is not None:
            donor = await self._record_operation(operation, patch.first)
            if not (donor / RESULTS).is_file():
                missing = f"step {patch.first} of B has no operation {operation}"
                return Outcome(patch, "", Effect.DOES_NOT_FIT, problem=missing)
        name = patch.title.replace(" ", "-").replace("/", "-").replace(",", "")
        report = self._directory / name / REPORT
        report.parent.mkdir()
        run_spec = replace(
            self._pair.a.spec_to(patch.first),
            last_step=self._pair.last,
            keep=(self._pair.last,),
            callbacks=self._callbacks(patch, donor, report),
            op_step=None if operation is None else patch.first,
        )
        made = await self._record(run_spec, f"A with B's {patch.title}", name)
        problem = "" if made.recording.is_complete else _why(made)
        if not made.recording.ranks:
            return Outcome(patch, str(made.recording.directory), Effect.FAILED, problem=problem)
        told = read_report(report.parent)
        return compare_transplants(patch, read_trace(made.recording.directory), a, b, report=told, problem=problem)

    def _callbacks(self, patch: Patch, donor: Path, report: Path) -> Mapping[str, dict[str, Any]]:
        take = patch.take
        if take.operation is not None:
            results = str(donor / RESULTS)
            return {OPERATION: {"index": take.operation, "path": results, "report": str(report), "step": patch.first}}
        fields = {"first": patch.first, "last": patch.last, "phases": take.phases, "values": take.values}
        return {VALUES: {"donor": str(donor), "report": str(report), **fields}}

    async def _record_operation(self, index: int, step: int) -> Path:
        parent = self._directory / f"{DONOR}-operation-{index}"
        parent.mkdir()
        callbacks = {OPERATION_DONOR: {"index": index, "path": str(parent / RESULTS)}}
        run_spec = replace(self._pair.b.spec_to(step), op_step=step, callbacks=callbacks)
        made = await self._record(run_spec, f"B again, operation {index} of step {step} kept", parent.name)
        self._checked(made, self._pair.b.trace, "B")
        return parent

    async def _record(self, run_spec: RunSpec, title: str, name: str) -> Run:
        self._lines.title = title
        run = await self._session.record(run_spec, self._directory / name)
        if refusal := read_rejection(run.recording.directory):
            raise refusal.error()
        self._lines.ended(run)
        return run

    def _checked(self, run: Run, recorded: Trace, name: str) -> Trace | None:
        """The trace of a run that was to come out as recorded, None where it has none; a note where it did not."""
        if not run.recording.is_complete and not self._session.interrupted_by:
            self._notes.append(f"{name} does not run to its end again: {_why(run)}")
        if not run.recording.ranks:
            return None
        made = read_trace(run.recording.directory)
        if (other := first_other_root(made, recorded)) is not None:
            self._notes.append(f"{name} is not reproducible: step {other} has different bits when run again")
        return made


def _why(run: Run) -> str:
    """Why a run is not whole, and the last thing that it printed."""
    return ": ".join([run.recording.problems[0].what, *output_tail(run.output)[-1:]])


def has_kept(trace: Trace, patch: Patch) -> bool:
    """Whether a trace has the values of everything that is taken from it."""
    for step in range(patch.first, patch.last + 1):
        for value in logical_values(trace, step):
            if patch.take.takes(value.key) and value.dtype not in TEXTS and trace.tensor(step, 0, value) is None:
                return False
    return True


def first_other_root(made: Trace, recorded: Trace) -> int | None:
    """The first step of a run that has another root than recorded; None where all are the same."""
    heads, others = made.ranks[0].heads, recorded.ranks[0].heads
    return next((step for step in made.steps if step in others and heads[step].root != others[step].root), None)
