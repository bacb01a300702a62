"""Carries out the commands of a person who stands inside a step.

Going back is doing it again: a fresh process runs from the same checkpoint to where the phase began, and what it has
recorded until then has to be what was recorded before. fork() would be faster, and torch's threads do not survive it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, UsageError
from harness.lab.entry_call import read_refusal
from harness.lab.interactive.answers import Answer, Compared, Listed, Marked, Shown, Stood, Told
from harness.lab.interactive.process import Gone, SteppedRun
from harness.lab.interactive.walk import Visit, Walk, by_key, first_other
from harness.lab.interactive.words import COMMANDS, Command
from harness.lab.recorded_run import RecordedRun
from harness.lab.session import Session
from harness.reporters.replay import output_tail
from harness.trace.chain import PHASES, Leaf, Scope
from harness.trace.element_diff import compare
from harness.trace.reader import read_trace

SCOPES = (Scope.LOGICAL, Scope.PHYSICAL, Scope.SHARD)


@dataclass(frozen=True, slots=True)
class Inside:
    """The step that somebody stands in."""

    run: RecordedRun
    step: int
    directory: Path
    """Of everything that is run again."""
    against: RecordedRun | None = None
    """With what values are compared; None: with the recorded run itself."""
    whose: str = "the recorded run"
    """How a person calls that."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What the run has otherwise, at dotted keys: what must not matter, and secrets."""

    @property
    def other(self) -> RecordedRun:
        """With what values are compared."""
        return self.against or self.run

    def leaves_of(self, run: RecordedRun) -> Sequence[Leaf]:
        """What a recorded run has of the step, as its rank 0 has it; nothing where it did not get there."""
        if not run.trace.logs(self.step):
            return ()
        return [leaf for leaf in run.trace.columns(self.step, 0).leaves() if leaf.scope in SCOPES]


class Console:
    """Stands in a step. `say` is told what takes long."""

    def __init__(self, inside: Inside, session: Session, say: Callable[[str], None]) -> None:
        self._inside = inside
        self._session = session
        self._say = say
        self._process: SteppedRun | None = None
        self._other: SteppedRun | None = None
        self._other_leaves: list[Leaf] = []
        self._breaks: dict[str, None] = {}
        self._num_started = 0
        other = None if inside.against is None else by_key(inside.leaves_of(inside.against))
        self.is_going = False
        """Whether a command is being carried out."""
        self.is_pausing = False
        """Whether it was asked to stop."""
        self.walk = Walk(inside.step, by_key(inside.leaves_of(inside.run)), other)

    async def begin(self) -> Answer:
        """Start the run, and go to the beginning of the step."""
        self._process, gone = await self._start(self._inside.run)
        self.walk.take(gone.leaves, gone.stop)
        return self._stood(gone, self._how_it_came(self._process))

    async def carry_out(self, command: Command) -> Answer:
        """One command; what it was told wrongly is an answer too."""
        self.is_going = True
        try:
            return await self._carry_out(command)
        except HarnessError as error:
            return Told(tuple(str(error).splitlines()), is_refused=True)
        finally:
            self.is_going = self.is_pausing = False

    async def _carry_out(self, command: Command) -> Answer:
        match command.name:
            case "next":
                return await self._next(command.argument)
            case "continue":
                return await self._go(boundaries=False)
            case "back":
                return await self._back()
            case "show":
                return await self._show(command)
            case "compare":
                return await self._compare(command.argument)
            case "list":
                return self._list(command.argument)
            case "break" | "clear":
                return self._break(command)
            case "where":
                return self._stood(Gone((), None), ())
        lines = [f"{f'{name} {usage}'.strip():<22}{does}" for name, (usage, does) in COMMANDS.items()]
        return Told((*lines, "each may be cut to a beginning that no other has"))

    def pause(self) -> None:
        """Stop what goes on at the next value."""
        self.is_pausing = True
        if self._process is not None:
            self._process.pause()

    async def end(self) -> None:
        """End every process."""
        for process in (self._process, self._other):
            if process is not None:
                await process.end()

    # ------------------------------------------------------------------------------------------------------- going

    async def _start(self, run: RecordedRun) -> tuple[SteppedRun, Gone]:
        """A fresh process that has come to the beginning of the step; UsageError where its entry refuses."""
        self._num_started += 1
        inside = self._inside
        envelope = run.envelope_to(inside.step, inside.overrides if run is inside.run else None)
        process = await SteppedRun.start(self._session, envelope, inside.directory, self._num_started, inside.step)
        try:
            gone = await process.arrive()
        except BaseException:
            await process.end()
            raise
        if refusal := read_refusal(process.directory):
            raise UsageError(refusal.what, legal=refusal.legal, remedy=refusal.remedy)
        return process, gone

    def _how_it_came(self, process: SteppedRun) -> tuple[str, ...]:
        """What is to be said of the steps before this one, which were run again."""
        start = self._inside.run.start_before(self._inside.step)
        begun = "from the beginning" if start is None else f"from the checkpoint of step {start}"
        if not process.passed:
            return (f"run again {begun}",)
        heads, others = read_trace(process.directory).ranks[0].heads, self._inside.run.trace.ranks[0].heads
        unlike = [step for step in process.passed if step in others and heads[step].root != others[step].root]
        span = f"{process.passed[0]} to {process.passed[-1]}" if len(process.passed) > 1 else str(process.passed[0])
        if unlike:
            return (f"run again {begun}: step {unlike[0]} did NOT come out as it was recorded",)
        return (f"run again {begun}: step {span} came out as recorded, every bit",)

    async def _next(self, phase: str) -> Answer:
        if phase and phase not in PHASES:
            raise UsageError(f"next {phase}", legal=f"one of the phases {', '.join(PHASES)}")
        return await self._go(boundaries=not phase, phase=phase)

    async def _go(self, *, boundaries: bool, phase: str = "") -> Answer:
        process = self._living()
        if self.walk.has_ended:
            raise UsageError(f"step {self.walk.step} has come to its end", legal="back, list, show, compare or quit")
        phases = [phase] if phase else []
        phases += [each for each in self._breaks if each in PHASES]
        leaves = [each for each in self._breaks if each not in PHASES]
        gone = await process.run_to(boundaries=boundaries, phases=phases, leaves=leaves)
        self.walk.take(gone.leaves, gone.stop)
        return self._stood(gone, self._how_it_ended(gone))

    async def _back(self) -> Answer:
        position, before = self.walk.position_back(), list(self.walk.leaves)
        if self._process is not None:
            await self._process.end()
        self._say(f"going back: step {self.walk.step} is run again to its value {position}")
        self._process, gone = await self._start(self._inside.run)
        self.walk.leaves.clear()
        self.walk.take(gone.leaves, gone.stop)
        if position and gone.stop is not None:
            gone = await self._process.run_to(position=position)
            self.walk.take(gone.leaves, gone.stop)
        if (leaf := first_other(before, self.walk.leaves)) is not None:
            proof = f"NOT the same again: {leaf.phase} {leaf.name} has other bits than before"
        else:
            proof = f"{len(self.walk.leaves)} values came out again as before, every bit"
        return self._stood(Gone((), gone.stop), (proof,))

    def _how_it_ended(self, gone: Gone) -> tuple[str, ...]:
        """What is to be said of the end of the step, or of the process."""
        process = self._process
        assert process is not None
        if gone.stop is None:
            problem = process.run.recording.problems[0].what if process.run and process.run.recording.problems else ""
            return (f"the run has ended within the step{f': {problem}' if problem else ''}", *self._last_words())
        if not self.walk.has_ended:
            return ()
        recorded = self._inside.run.trace.ranks[0].heads.get(self.walk.step)
        made = read_trace(process.directory).ranks[0].heads[self.walk.step]
        if recorded is None:
            return (f"the recorded run has no step {self.walk.step} to compare it with",)
        if made.root == recorded.root:
            return (f"its root is the recorded one, {made.root.hex()}: {made.num_leaves} values, every bit",)
        return (f"its root is NOT the recorded one: {made.root.hex()}, recorded {recorded.root.hex()}",)

    def _last_words(self) -> tuple[str, ...]:
        run = self._process.run if self._process is not None else None
        return () if run is None else tuple(f"| {line}" for line in output_tail(run.output)[-4:])

    def _living(self) -> SteppedRun:
        """The process that stands in the step; UsageError where it has ended."""
        if self._process is None or not self.walk.why:
            raise UsageError(
                "the run has ended", legal="back, list or quit", remedy="back runs it again up to the phase"
            )
        return self._process

    # ----------------------------------------------------------------------------------------------------- looking

    async def _show(self, command: Command) -> Answer:
        position = self.walk.find(command.argument)
        told = await self._living().show(position, command.slices)
        if told is None:
            raise UsageError("the run has ended", legal="back, list or quit")
        if told["e"] == "refused":
            raise UsageError(f"the slice {_slice_text(command)}: {told['what']}")
        shape = None if told["shape"] is None else tuple(told["shape"])
        leaf = self.walk.leaves[position]
        return Shown(leaf, _slice_text(command), shape, told["range"], told["text"], told["is_as_recorded"])

    async def _compare(self, name: str) -> Answer:
        position = self.walk.find(name)
        leaf = self.walk.leaves[position]
        other = by_key(self._inside.leaves_of(self._inside.other)).get((leaf.scope, leaf.key))
        compared = Compared(leaf, other, self._inside.whose, is_equal=leaf == other)
        if other is None or leaf == other or (leaf.dtype, leaf.shape) != (other.dtype, other.shape):
            return compared
        mine, is_as_recorded = await self._living().value(position, leaf)
        theirs = self._inside.other.trace.tensor(self.walk.step, 0, other)
        if theirs is None:
            theirs = await self._value_of_other(other)
        if mine is None or theirs is None or len(mine) != len(theirs):
            return replace(compared, why_unknown="the other run does not come out again as it was recorded")
        if not is_as_recorded:
            return replace(compared, why_unknown="the program has written to it since: go back, and compare it there")
        return replace(compared, value=compare(leaf.dtype, mine, theirs))

    async def _value_of_other(self, leaf: Leaf) -> bytes | None:
        """A value of the other run, which is run again for it to the end of the step; None where it is another one."""
        if self._other is None:
            self._say(f"{self._inside.whose} is run again, up to the end of step {self.walk.step}")
            self._other, gone = await self._start(self._inside.other)
            if gone.stop is not None:
                gone = await self._other.run_to()
            self._other_leaves = list(gone.leaves) if gone.stop is not None else []
        if leaf not in self._other_leaves:
            return None
        value, is_as_recorded = await self._other.value(self._other_leaves.index(leaf), leaf)
        return value if is_as_recorded else None

    def _list(self, phase: str) -> Answer:
        found = [visit for visit in self.walk.visits() if phase in ("", visit.phase)]
        other = "" if self._inside.against is None else self._inside.whose
        return Listed(tuple((visit, self._marked(visit)) for visit in found), other)

    def _break(self, command: Command) -> Answer:
        place = command.argument
        if command.name == "clear":
            if place not in self._breaks:
                raise UsageError(f"clear {place}", legal=", ".join(self._breaks) or "nothing: there is no break")
            del self._breaks[place]
        elif place:
            known = {leaf.name for _, (_, leaf) in enumerate(self.walk.recorded.items())}
            known |= {f"{leaf.phase}/{leaf.name}" for leaf in self.walk.recorded.values()}
            if place not in PHASES and known and place not in known:
                near = [each for each in sorted(known) if place in each]
                raise UsageError(f"break {place}", legal="a phase, or a value", remedy=", ".join(near[:5]))
            self._breaks[place] = None
        places = [f"where {each} begins" if each in PHASES else f"behind {each}" for each in self._breaks]
        return Told((f"stops {', '.join(places)}" if places else "no breaks: continue goes to the end of the step",))

    def _stood(self, gone: Gone, notes: Sequence[str]) -> Stood:
        walk = self.walk
        visits = tuple((visit, self._marked(visit)) for visit in walk.visits(gone.leaves)) if gone.leaves else ()
        last = walk.leaves[-1] if walk.leaves else None
        return Stood(walk.step, walk.why, walk.phase, last, visits, tuple(notes))

    def _marked(self, visit: Visit) -> tuple[Marked, ...]:
        return tuple(Marked(leaf, self.walk.mark(leaf), self.walk.mark_of_other(leaf)) for leaf in visit.leaves)


def _slice_text(command: Command) -> str:
    """The slice as a person writes it."""
    parts = [
        str(each) if isinstance(each, int) else ":".join("" if number is None else str(number) for number in each[:2])
        for each in command.slices
    ]
    return f"[{', '.join(parts)}]" if parts else ""
