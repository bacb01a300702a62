"""Carries out the commands of the step debugger.

Going back is doing it again: a fresh process runs from the same checkpoint to where the phase began, and what it has
recorded until then has to be what was recorded before. fork() would be faster, and torch's threads do not survive it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.bits.errors import HarnessError, UsageError
from harness.bits.text import count
from harness.lab.experiments.launcher import Launcher
from harness.lab.experiments.out_directory import OutDirectory
from harness.lab.experiments.recorded_run import RecordedRun
from harness.lab.reproduce.debugger.answers import Answer, Compared, Listed, Marked, Message, Paused, Shown
from harness.lab.reproduce.debugger.process import ProcessGone, SteppedRun
from harness.lab.reproduce.debugger.slices import Slice, part_bytes, ranges_of, shape_of, slices_text
from harness.lab.reproduce.debugger.step_progress import StepProgress, Visit, by_key, first_other, names_of
from harness.lab.reproduce.debugger.words import COMMANDS, Command, completed, did_you_mean
from harness.process.program_output import output_tail
from harness.recording.entry_call import read_rejection
from harness.recording.stepping_messages import BEGIN
from harness.trace.attribution import TEXTS
from harness.trace.chain import PHASES, RecordedValue, Scope
from harness.trace.element_diff import compare
from harness.trace.global_values import global_root, global_values
from harness.trace.reader import read_trace

SCOPES = (Scope.LOGICAL, Scope.PHYSICAL, Scope.SHARD)


@dataclass(frozen=True, slots=True)
class StepDebugger:
    """The step at which the debugger is paused."""

    run: RecordedRun
    step: int
    out: OutDirectory
    """Of everything that is run again."""
    against: RecordedRun | None = None
    """With what values are compared; None: with the recorded run itself."""
    whose: str = "the recorded run"
    """How a person calls that."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of the run by dotted key: runtime settings and secrets."""

    @property
    def other(self) -> RecordedRun:
        """With what values are compared."""
        return self.against or self.run

    def recorded_values_of(self, run: RecordedRun) -> Sequence[RecordedValue]:
        """What a recorded run has of the step, its ranks together; nothing where it did not get there."""
        logs = run.trace.logs(self.step)
        if not logs:
            return ()
        if len(logs) > 1:
            return global_values(run.trace, self.step)[0]
        (rank,) = logs
        return [value for value in run.trace.columns(self.step, rank).values() if value.scope in SCOPES]


class Console:
    """Debugs a step. `say` reports slow work."""

    def __init__(self, inside: StepDebugger, session: Launcher, say: Callable[[str], None]) -> None:
        self._inside = inside
        self._session = session
        self._say = say
        self._process: SteppedRun | None = None
        self._other: SteppedRun | None = None
        self._other_values: list[RecordedValue] = []
        self._breaks: dict[str, None] = {}
        self._num_started = 0
        other = None if inside.against is None else by_key(inside.recorded_values_of(inside.against))
        self.is_going = False
        """Whether a command is being carried out."""
        self.is_pausing = False
        """Whether it was asked to stop."""
        self.walk = StepProgress(inside.step, by_key(inside.recorded_values_of(inside.run)), other)

    @property
    def has_begun(self) -> bool:
        """Whether the debugger has paused at the step."""
        return self._num_started > 1 or self._process is not None

    async def begin(self) -> Answer:
        """Start the run, and go to the beginning of the step."""
        self._process, gone = await self._start(self._inside.run)
        self.walk.take(gone.values, gone.stop)
        return self._stood(gone, (*self._how_it_came(self._process), *self._how_it_ended(gone)))

    async def carry_out(self, command: Command) -> Answer:
        """Carry out one command; its errors are answers too."""
        self.is_going = True
        try:
            return await self._carry_out(command)
        except HarnessError as error:
            return Message(tuple(str(error).splitlines()), is_refused=True)
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
                return await self._compare(command)
            case "list":
                return self._list(command.argument)
            case "break" | "clear":
                return self._break(command)
            case "where":
                return self._stood(ProcessGone((), None), ())
        lines = [f"{f'{name} {usage}'.strip():<22}{does}" for name, (usage, does) in COMMANDS.items()]
        return Message((*lines, "each may be shortened to an unambiguous prefix"))

    def pause(self) -> None:
        """Pause the run at the next value."""
        self.is_pausing = True
        if self._process is not None:
            self._process.pause()

    async def end(self) -> None:
        """End every process."""
        for process in (self._process, self._other):
            if process is not None:
                await process.end()

    # ------------------------------------------------------------------------------------------------------- going

    async def _start(self, run: RecordedRun) -> tuple[SteppedRun, ProcessGone]:
        """A fresh process that has come to the beginning of the step; UsageError where its entry refuses."""
        self._num_started += 1
        inside = self._inside
        run_spec = run.spec_to(inside.step, inside.overrides if run is inside.run else None)
        process = await SteppedRun.start(self._session, run_spec, inside.out.path, self._num_started, inside.step)
        try:
            gone = await process.arrive()
        except BaseException:
            await process.end()
            raise
        if refusal := read_rejection(process.directory):
            raise refusal.error()
        return process, gone

    def _how_it_came(self, process: SteppedRun) -> tuple[str, ...]:
        """What is to be said of the steps before this one, which were run again."""
        start = self._inside.run.start_before(self._inside.step)
        begun = "from the beginning" if start is None else f"from the checkpoint of step {start}"
        if not process.passed:
            return (f"repeated {begun}",)
        made, recorded = read_trace(process.directory), self._inside.run.trace
        known = [step for step in process.passed if global_root(recorded, step) is not None]
        if not known:
            return (f"repeated {begun}",)
        if unlike := [step for step in known if global_root(made, step) != global_root(recorded, step)]:
            return (f"repeated {begun}: step {unlike[0]} is NOT reproduced",)
        first, last = process.passed[0], process.passed[-1]
        span = f"step {first} is" if first == last else f"steps {first} to {last} are"
        return (f"repeated {begun}: {span} reproduced, every bit",)

    async def _next(self, word: str) -> Answer:
        phase = completed(word, PHASES, "phase") if word else ""
        return await self._go(boundaries=not phase, phase=phase)

    async def _go(self, *, boundaries: bool, phase: str = "") -> Answer:
        process = self._living()
        if self.walk.has_ended:
            raise UsageError(
                f"step {self.walk.step} has ended",
                legal="back, list, show, compare or quit",
                remedy="back repeats it, up to its last phase",
            )
        phases = [phase] if phase else []
        phases += [each for each in self._breaks if each in PHASES]
        recorded_values = [each for each in self._breaks if each not in PHASES]
        gone = await process.run_to(boundaries=boundaries, phases=phases, values=recorded_values)
        self.walk.take(gone.values, gone.stop)
        return self._stood(gone, self._how_it_ended(gone))

    async def _back(self) -> Answer:
        if self.walk.why == BEGIN:
            return Message((f"this is already the beginning of step {self.walk.step}",))
        position, before = self.walk.position_back(), list(self.walk.values)
        if self._process is not None:
            await self._process.end()
        self._process = None
        self.walk.take((), None)
        to = f"up to its first {count(position, 'value')}" if position else "up to its beginning"
        self._say(f"going back: repeating step {self.walk.step} {to}")
        self._process, gone = await self._start(self._inside.run)
        self.walk.values.clear()
        self.walk.take(gone.values, gone.stop)
        if position and gone.stop is not None:
            gone = await self._process.run_to(position=position)
            self.walk.take(gone.values, gone.stop)
        recorded_values = self.walk.values
        if not position:  # nothing of the step has come out yet
            return self._stood(ProcessGone((), gone.stop), self._how_it_ended(gone))
        if (recorded_value := first_other(before, recorded_values)) is not None:
            proof = f"NOT reproduced: {recorded_value.phase} {recorded_value.name} has different bits"
        elif len(recorded_values) < position:
            proof = f"NOT reproduced: {count(len(recorded_values), 'value')}, {position:,} before"
        else:
            proof = f"{count(len(recorded_values), 'value')} reproduced, every bit"
        return self._stood(ProcessGone((), gone.stop), (proof, *self._how_it_ended(gone)))

    def _how_it_ended(self, gone: ProcessGone) -> tuple[str, ...]:
        """What is to be said of the end of the step, or of the process."""
        process = self._process
        assert process is not None
        if gone.stop is None:
            where = "within" if process.has_arrived else "before"
            problem = process.run.recording.problems[0].what if process.run and process.run.recording.problems else ""
            return (f"the run has ended {where} the step{f': {problem}' if problem else ''}", *self._last_words())
        if not self.walk.has_ended:
            return ()
        recorded = global_root(self._inside.run.trace, self.walk.step)
        made = global_root(read_trace(process.directory), self.walk.step)
        if recorded is None or made is None:
            whose = "the recorded run has no" if recorded is None else "the disk did not store this"
            return (f"{whose} step {self.walk.step}: there is nothing to compare",)
        if made == recorded:
            num_values = count(len(self.walk.values), "value")
            return (f"its root digest is the recorded one, {made.hex()}: {num_values}, every bit",)
        return (f"its root digest is NOT the recorded one: {made.hex()}, recorded {recorded.hex()}",)

    def _last_words(self) -> tuple[str, ...]:
        run = self._process.run if self._process is not None else None
        return () if run is None else tuple(f"| {line}" for line in output_tail(run.output)[-4:])

    def _living(self) -> SteppedRun:
        """The process that stands in the step; UsageError where it has ended."""
        if self._process is None or not self.walk.why:
            raise _has_ended()
        return self._process

    # ----------------------------------------------------------------------------------------------------- looking

    async def _show(self, command: Command) -> Answer:
        position = self.walk.find(command.argument)
        recorded_value = self.walk.values[position]
        ranges = _checked_ranges(recorded_value, command.slices)
        told = await self._living().show(position, ranges)
        if told is None:
            raise _has_ended()
        shape = None if recorded_value.dtype in TEXTS else shape_of(command.slices, ranges)
        return Shown(
            recorded_value, slices_text(command.slices), shape, told["range"], told["text"], told["is_as_recorded"]
        )

    async def _compare(self, command: Command) -> Answer:
        position = self.walk.find(command.argument)
        recorded_value = self.walk.values[position]
        ranges = _checked_ranges(recorded_value, command.slices)
        other = by_key(self._inside.recorded_values_of(self._inside.other)).get(
            (recorded_value.scope, recorded_value.key)
        )
        part = slices_text(command.slices)
        compared = Compared(
            recorded_value, other, self._inside.whose, is_equal=recorded_value == other, part=part, ranges=ranges
        )
        if (
            other is None
            or recorded_value == other
            or (recorded_value.dtype, recorded_value.shape) != (other.dtype, other.shape)
        ):
            return compared
        if recorded_value.dtype in TEXTS:
            return replace(compared, why_unknown="texts have no elements; use show")
        mine, is_as_recorded = await self._living().value(position, recorded_value)
        theirs = self._inside.other.trace.tensor(self.walk.step, 0, other)
        if theirs is None:
            theirs = await self._value_of_other(other)
        if mine is None or theirs is None or len(mine) != len(theirs):
            return replace(compared, why_unknown="the other run is not reproduced")
        if not is_as_recorded:
            return replace(compared, why_unknown="the program has written to it since; go back and compare it there")
        if command.slices:
            mine, theirs = (part_bytes(each, recorded_value.shape, ranges) for each in (mine, theirs))
        return replace(compared, is_equal=mine == theirs, difference=compare(recorded_value.dtype, mine, theirs))

    async def _value_of_other(self, recorded_value: RecordedValue) -> bytes | None:
        """A value of the other run, which is run again for it to the end of the step; None where it is another one."""
        if self._other is None:
            self._say(f"repeating {self._inside.whose} up to the end of step {self.walk.step}")
            self._other, gone = await self._start(self._inside.other)
            if gone.stop is not None:
                gone = await self._other.run_to()
            self._other_values = list(gone.values) if gone.stop is not None else []
        if recorded_value not in self._other_values:
            return None
        value, is_as_recorded = await self._other.value(self._other_values.index(recorded_value), recorded_value)
        return value if is_as_recorded else None

    def _list(self, word: str) -> Answer:
        phase = completed(word, PHASES, "phase") if word else ""
        found = [visit for visit in self.walk.visits() if phase in ("", visit.phase)]
        if not found:
            return Message((f"nothing of {phase} recorded so far" if phase else "nothing recorded so far",))
        other = "" if self._inside.against is None else self._inside.whose
        return Listed(tuple((visit, self._marked(visit)) for visit in found), other)

    def _break(self, command: Command) -> Answer:
        if command.name == "clear":
            del self._breaks[completed(command.argument, self._breaks, "break")]
        elif command.argument:
            self._breaks[self._place(command.argument)] = None
        places = [f"before {each}" if each in PHASES else f"after {each}" for each in self._breaks]
        return Message((f"stops {', '.join(places)}" if places else "no stops: continue runs to the end of the step",))

    def _place(self, word: str) -> str:
        """The phase or the value that somebody means; any word may be a value where nothing was recorded of the step.

        UsageError for a word that is neither.
        """
        names = names_of(self.walk.recorded.values())
        if word in names or (not names and not any(phase.startswith(word) for phase in PHASES)):
            return word
        if any(phase.startswith(word) for phase in PHASES):
            return completed(word, PHASES, "phase")
        raise UsageError(
            f"{word!r} is neither a phase nor a value of this step",
            legal=f"{', '.join(PHASES)}, or the name of a value",
            remedy=did_you_mean(word, names) or "list shows the names",
        )

    def _stood(self, gone: ProcessGone, notes: Sequence[str]) -> Paused:
        walk = self.walk
        visits = tuple((visit, self._marked(visit)) for visit in walk.visits(gone.values)) if gone.values else ()
        last = walk.values[-1] if walk.values else None
        return Paused(walk.step, walk.why, walk.phase, last, visits, tuple(notes))

    def _marked(self, visit: Visit) -> tuple[Marked, ...]:
        return tuple(
            Marked(recorded_value, self.walk.mark(recorded_value), self.walk.mark_of_other(recorded_value))
            for recorded_value in visit.values
        )


def _has_ended() -> UsageError:
    return UsageError("the run has ended", legal="back, list or quit", remedy="back repeats it, up to its last phase")


def _checked_ranges(recorded_value: RecordedValue, slices: Sequence[Slice]) -> tuple[range, ...]:
    """The indices of a part of a value; UsageError where it has none."""
    if slices and (recorded_value.dtype in TEXTS or recorded_value.scope is Scope.SHARD):
        kind = "a text" if recorded_value.dtype in TEXTS else "a part of a tensor"
        raise UsageError(
            f"the slice {slices_text(slices)} of {recorded_value.name}, which is {kind}",
            legal="a slice of a tensor",
            remedy="omit the brackets",
        )
    return () if recorded_value.dtype in TEXTS else ranges_of(slices, recorded_value.shape)
