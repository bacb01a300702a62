"""The step debugger, in the process of the program: pauses a run in one step and carries out what is typed there.

    on_begin_step ─▶ pause    on_value ─▶ pause, where a phase begins or a break holds    on_end_step ─▶ pause
    an uncaught error within the step ─▶ pause, in the frames of the error

    {"prompt": "(step 4, before loss) ", "answer": {...}, ...}  ─▶ parent     parent ─▶  "p loss"
    {"again": {...}} or {"left": true}                          ─▶ parent, which ends this process
    {"wanted": 4}                                               ─▶ parent     parent ─▶  directory of the other trace
                                     parent ─▶  null, while the program runs: pause at the next value

The prompt is pdb's, in the frame of the user's code. Each message is a line of JSON in a named pipe. The parent has the
terminal: it hands over each line, and runs the command again for `back`. A process whose parent is gone ends.

Paused, no bit of the run moves: the recorder's hooks rest, gradients are off, the program's modes are off, and the
default generators are as they were when the program goes on. Values are copied when they are recorded, since programs
write into their tensors later. After MAX_COPIED_BYTES of a step the program's own tensors are held instead.
"""

import builtins
import ctypes
import difflib
import json
import os
import pdb
import re
import select
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from harness.bits.errors import HarnessError, UsageError
from harness.bits.text import count, one_line
from harness.recording.active import active_log, pause_hooks
from harness.recording.breakpoints import OF_TENSORS, first_element
from harness.recording.callbacks import RecorderCallback
from harness.recording.op_source import shown_file
from harness.recording.op_values import OpValues
from harness.recording.process import rank_and_world_size
from harness.recording.program_modes import outside_modes
from harness.recording.random_states import kept_generators
from harness.recording.recording_config import RunEnded
from harness.recording.tensors import digest_tensor, dtype_name, tensor_bytes
from harness.recording.value_text import elements_text, value_range
from harness.trace.attribution import TEXTS
from harness.trace.chain import PHASES, Key, RecordedValue, Scope
from harness.trace.element_diff import compare, coordinates
from harness.trace.global_values import global_root, global_values
from harness.trace.layout import MANIFEST, UNFINISHED
from harness.trace.non_finite import find_non_finite
from harness.trace.ops import Operation, read_ops
from harness.trace.reader import read_trace

ORDERS, ANSWERS, OWNER = "orders.pipe", "answers.pipe", "owner"
BEGIN, PHASE, VALUE, PAUSE, LINE, END, ERROR = "begin", "phase", "value", "pause", "line", "end", "error"
"""Reasons for a pause: the step or a phase begins, a break holds, Ctrl-C, pdb was left, the step ends, an error."""
BOUNDARY = "boundary"
"""In place of the phase up to which a run goes on: any."""
WORDS = {"nan": "NaN", "inf": "Inf"}
EQUAL, DIFFERENT, ABSENT = "=", "!", "?"
NAMES_OF_MARKS = {EQUAL: "equal", DIFFERENT: "different", ABSENT: "absent"}
MAX_COPIED_BYTES = 2**30
MAX_TEXT_CHARS = 4_000
MAX_LISTED = 40
"""Maximum number of listed values of a phase; those that differ or are not finite come first."""
CONTEXT_LINES = 3
COMMANDS = {
    "next": ("[PHASE]", "run to the beginning of the next phase, or of the next PHASE"),
    "back": ("", "go back to the beginning of this phase, or of the previous phase"),
    "continue": ("", "run to the end of the step, or to the next stop"),
    "step": ("", "run to the beginning of the next step"),
    "list": ("[PHASE]", "list the values: equal to those of the recorded run? NaN or Inf?"),
    "show": ("NAME|EXPR", "show the type, range and elements of a value, with all digits"),
    "compare": ("NAME", "compare a value with the other run: differing elements, distance, first difference"),
    "operation": ("[NAME|EXPR]", "name the operation that made a value, or the step's first NaN; with --trace-ops"),
    "break": ("[nan|inf|PHASE|NAME]", "stop at a NaN, an Inf, before a phase or after a value; alone, list the stops"),
    "clear": ("nan|inf|PHASE|NAME", "remove this stop"),
    "p": ("EXPR", "print an expression, evaluated in the program's frame"),
    "pp": ("EXPR", "print it over several lines"),
    "where": ("", "show the position, the frames of your code, and the source"),
    "up": ("[COUNT]", "go to the frame that called this one"),
    "down": ("[COUNT]", "go back down"),
    "pdb": ("", "open pdb at this line; its c or q returns here"),
    "help": ("", "show this list"),
    "quit": ("", "leave the debugger"),
}
"""Name -> (arguments, what it does)."""
SHORT = {"n": "next", "b": "break", "c": "continue", "cont": "continue", "s": "step", "l": "list", "cl": "clear"}
SHORT |= {"w": "where", "bt": "where", "u": "up", "d": "down", "h": "help", "q": "quit", "exit": "quit", "o": "operation"}
"""pdb's, besides unambiguous prefixes."""
_OCCURRENCE = re.compile(r"(.+)#(\d+)")


@dataclass(frozen=True, slots=True)
class Held:
    """A recorded value of the step."""

    recorded: RecordedValue
    value: Any
    """A tensor, ours or the program's; or the text that was recorded."""
    is_copy: bool
    not_finite: tuple[str, ...]
    """nan, inf: what it holds beside finite numbers."""
    made: str
    """Its digest as operations have it; empty if none are recorded."""

    @property
    def name(self) -> str:
        """Name of the value, with its occurrence after the first."""
        occurrence = self.recorded.occurrence
        return one_line(self.recorded.name) + (f"#{occurrence}" if occurrence else "")

    @property
    def names(self) -> tuple[str, str]:
        """What it may be called."""
        return self.recorded.name, f"{self.recorded.phase}/{self.recorded.name}"


Values = Mapping[tuple[Scope, Key], RecordedValue]
Visit = tuple[str, int, list[Held]]
"""Consecutive values of one phase: the phase, how often it was there before, the values."""


class Stepping(RecorderCallback):
    """Pauses in one step. `pipes` is the directory of both pipes, `directory` that of this run's trace.

    `run` and `other` are traces that it is compared with. `position`, `breaks` and `before`, digests, are those of an
    earlier process: it runs up to that position, and says whether the values are the same.
    """

    pauses = True

    def __init__(
        self,
        pipes: str,
        directory: str,
        run: str,
        step: int,
        other: str = "",
        whose: str = "the recorded run",
        begun: str = "",
        has_operations: bool = False,
        colour: bool = False,
        position: int = 0,
        breaks: Sequence[str] = (),
        before: Sequence[str] = (),
        max_copied_bytes: int = MAX_COPIED_BYTES,
    ) -> None:
        self.pipes, self.directory, self.run, self.other_run = pipes, Path(directory), run, other
        self.step, self.whose, self.begun, self.colour = step, whose, begun, colour
        self.has_operations, self.position, self.before = has_operations, position or None, list(before)
        self.breaks: dict[str, None] = dict.fromkeys(breaks)
        self.until, self.why, self.phase = "", BEGIN, ""
        self.held: list[Held] = []
        self.at_hand: Held | None = None
        """The first value of the phase that begins."""
        self.num_shown = 0
        self.recorded: Values = {}
        self.other: Values | None = None
        self.line_tracer: Any = None
        """What traces the program's lines, while pdb does."""
        self._left_bytes = self._max_copied_bytes = max_copied_bytes
        self._passed: list[int] = []
        self._is_within = False
        self._console: Console | None = None

    # -------------------------------------------------------------------------------------------------- the program

    def on_begin_step(self, step: int) -> None:
        """Pause before everything."""
        self._is_within = step == self.step and self._is_first()
        if not self._is_within:
            return
        self.held, self.num_shown, self._left_bytes = [], 0, self._max_copied_bytes
        self.recorded = values_of(self.run, step)
        self.other = values_of(self.other_run, step) if self.other_run else None
        if self.position is None:
            self.pause(BEGIN, notes=self._how_it_came())

    def on_value(self, recorded_value: RecordedValue, value: Any) -> None:
        """Hold a value; pause before it if its phase begins, after it if a break holds."""
        if not self._is_within:
            return
        phase, held = recorded_value.phase, self._hold(recorded_value, value)
        begins = bool(self.held) and phase != self.held[-1].recorded.phase
        self.at_hand = held
        if self.position == len(self.held):
            self.pause(PHASE, phase)
        elif begins and (self.until in (BOUNDARY, phase) or phase in self.breaks):
            self.pause(PHASE, phase)
        elif self._console is not None and self._console.pipe.was_paused():
            self.pause(PAUSE, phase)
        self.at_hand = None
        self.held.append(held)
        if self.position is None and self.breaks.keys() & {*held.names, *held.not_finite}:
            self.pause(VALUE)

    def on_end_step(self, step: int, values: object) -> None:
        """Pause after the last value."""
        if not self._is_within:
            self._passed.append(step)
            return
        if step == self.step:
            self.pause(END, notes=self._how_it_ended())
        self._is_within = False
        self._passed.append(step)

    def on_break_off(self, step: int, error: BaseException | None) -> None:
        """Pause where an error has ended the step."""
        if self._is_within and error is not None and not isinstance(error, RunEnded):
            self.pause(ERROR, notes=[f"the program has raised {type(error).__name__}: {one_line(str(error))}"], error=error)

    def pause(
        self, why: str, phase: str = "", *, notes: Iterable[str] = (), error: BaseException | None = None
    ) -> None:
        """Answer until the program is to go on."""
        if self._console is None:
            self._console = Console(self)
        self.why, self.phase, self.until = why, phase, ""
        notes = [*notes, *self._proof()]
        sys.settrace(None)
        with outside_modes(), torch.no_grad(), kept_generators(), paused_hooks():
            self._console.open(notes, error)
        sys.settrace(self.line_tracer)

    def _is_first(self) -> bool:
        """Whether this process is the one that pauses: the first rank's, and the first to come here."""
        if self._console is not None:
            return True
        if rank_and_world_size(os.environ)[0]:
            return False
        try:
            Path(self.pipes, OWNER).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _hold(self, recorded_value: RecordedValue, value: Any) -> Held:
        if not isinstance(value, torch.Tensor):
            return Held(recorded_value, value, True, (), "")
        value = value.detach()
        made = made_by_digest(value) if self.has_operations else ""
        num_bytes = value.numel() * value.element_size()
        if is_copy := num_bytes <= self._left_bytes:
            self._left_bytes -= num_bytes
            data = bytearray(tensor_bytes(value))
            flat = torch.frombuffer(data, dtype=value.dtype) if data else torch.empty(0, dtype=value.dtype)
            value = flat.reshape(value.shape)
        not_finite = tuple(word for word in OF_TENSORS if first_element(word, value) is not None)
        return Held(recorded_value, value, is_copy, not_finite, made)

    # ----------------------------------------------------------------------------------------------------- position

    def visits(self, first: int = 0) -> list[Visit]:
        """The phases as they came, with their values from number `first` on."""
        found, counts, at = [], dict[str, int](), 0
        for phase, group in groupby(self.held, key=lambda each: each.recorded.phase):
            own = list(group)
            if kept := own[max(0, first - at) :]:
                found.append((phase, counts.get(phase, 0), kept))
            counts[phase], at = counts.get(phase, 0) + 1, at + len(own)
        return found

    def state(self, position: int) -> dict[str, Any]:
        """What a process is given that runs up to this position again."""
        before = [each.recorded.digest.hex() for each in self.held[:position]]
        return {"step": self.step, "position": position, "breaks": [*self.breaks], "before": before}

    def find(self, text: str) -> Held | None:
        """The last value of a name: NAME, PHASE/NAME, either with #OCCURRENCE. UsageError if several phases have it."""
        match = _OCCURRENCE.fullmatch(text)
        name, occurrence = (match[1], int(match[2])) if match else (text, None)
        known = [*self.held, *([self.at_hand] if self.at_hand else [])]
        found = [each for each in known if name in each.names and occurrence in (None, each.recorded.occurrence)]
        if len(keys := {each.recorded.key[:2] for each in found}) > 1:
            names = ", ".join(f"{phase}/{each}" for phase, each in sorted(keys))
            raise UsageError(f"{text!r} is the name of several values", legal=names, remedy="type its phase before it")
        return found[-1] if found else None

    def _proof(self) -> list[str]:
        """Whether the step came out again as in the process before this one."""
        if self.position is None:
            return []
        self.position, before = None, self.before
        if not before:
            return []
        pairs = zip(self.held, before, strict=False)
        if (unlike := next((each for each, digest in pairs if each.recorded.digest.hex() != digest), None)) is not None:
            return [f"NOT reproduced: {unlike.recorded.phase} {unlike.name} has different bits"]
        if len(self.held) < len(before):
            return [f"NOT reproduced: {count(len(self.held), 'value')}, {len(before):,} before"]
        return [f"{count(len(before), 'value')} reproduced, every bit"]

    def _how_it_came(self) -> list[str]:
        """What is known of the steps that were run again on the way."""
        passed, self._passed, begun, self.begun = self._passed, [], self.begun, ""
        made, run = (read_trace(self.directory) if passed else None), read_trace(Path(self.run))
        known = [step for step in passed if made and global_root(run, step) is not None]
        if made is None or not known or not begun:
            return [begun] if begun else []
        if unlike := [step for step in known if global_root(made, step) != global_root(run, step)]:
            return [f"{begun}: step {unlike[0]} is NOT reproduced"]
        span = f"step {passed[0]} is" if len(passed) == 1 else f"steps {passed[0]} to {passed[-1]} are"
        return [f"{begun}: {span} reproduced, every bit"]

    def _how_it_ended(self) -> list[str]:
        """Whether the step is the recorded one."""
        recorded, made = (global_root(read_trace(Path(each)), self.step) for each in (self.run, self.directory))
        if recorded is None or made is None:
            whose = "the recorded run has no" if recorded is None else "the disk did not store this"
            return [f"{whose} step {self.step}: there is nothing to compare"]
        if made == recorded:
            return [f"its root digest is the recorded one, {made.hex()}: {count(len(self.held), 'value')}, every bit"]
        return [f"its root digest is NOT the recorded one: {made.hex()}, recorded {recorded.hex()}"]


class Pipe:
    """Both pipes as the files of a prompt: what is written before a line is read is the answer to the line before."""

    def __init__(self, stepping: Stepping) -> None:
        self._orders = os.open(Path(stepping.pipes, ORDERS), os.O_RDONLY | os.O_CLOEXEC)
        self._answers = os.open(Path(stepping.pipes, ANSWERS), os.O_WRONLY | os.O_CLOEXEC)
        self._stepping = stepping
        self._heard = b""
        self._text = ""
        self.data: dict[str, Any] = {}
        """Fields of the present answer, beside its lines."""

    def write(self, text: str) -> None:
        """Add to the present answer."""
        self._text += text

    def flush(self) -> None:
        """Wait for the next prompt."""

    def readline(self) -> str:
        """Send the answer with the prompt that ends it, and return the next line that is typed."""
        text, _, prompt = self._text.rpartition("\n")
        answer = {"answer": "text", **self.data, "lines": text.splitlines()}
        self._text, self.data = "", {}
        stepping = self._stepping
        recorded = [each.recorded.name for each in stepping.held] or [each.name for each in stepping.recorded.values()]
        words = [*COMMANDS, *PHASES, *dict.fromkeys(recorded)]
        state = stepping.state(len(stepping.held))
        return self.ask(prompt=prompt, answer=answer, words=words, state=state) + "\n"

    def ask(self, **message: Any) -> str:
        """Send a message, and return the line that answers it. RunEnded if nobody is there."""
        left = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while left:
                left = left[os.write(self._answers, left) :]
        except BrokenPipeError:
            raise RunEnded from None
        while (line := self._next()) is None:
            pass  # a pause that came too late
        return line

    def was_paused(self) -> bool:
        """Whether a pause was asked for while the program ran."""
        return bool(select.select([self._orders], [], [], 0)[0]) and self._next() is None

    def _next(self) -> str | None:
        while b"\n" not in self._heard:
            if not (piece := os.read(self._orders, 1 << 16)):
                raise RunEnded
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        found: str | None = json.loads(line)
        return found


class Console(pdb.Pdb):
    """The prompt of the debugger: pdb's, in the frames of the user's code, with commands for phases and values."""

    def __init__(self, stepping: Stepping) -> None:
        self.pipe = Pipe(stepping)
        super().__init__(stdin=self.pipe, stdout=self.pipe, nosigint=True, readrc=False)  # type: ignore[arg-type]
        self.reset()
        self._at = stepping

    def open(self, notes: Sequence[str], error: BaseException | None) -> None:
        """Show the position, and carry out commands until one of them lets the program go on."""
        self._show_position(notes)
        if error is not None:
            self.interaction(None, error.__traceback__)
        else:
            self.interaction(sys._getframe(), None)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The frames of the user's code and of packages, without torch's, the standard library's and ours."""
        stack, _ = super().get_stack(f, t)
        users = [each for each in stack if shown_file(each[0].f_code.co_filename) is not None] or stack
        return users, len(users) - 1

    def canonic(self, filename: str) -> str:
        """How a file is shown."""
        return shown_file(filename) or super().canonic(filename)

    def onecmd(self, line: str) -> bool:
        """Carry out a line; whatever goes wrong is its answer."""
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            return False
        try:
            name = SHORT.get(word) or (word if word in COMMANDS else "")
            if not name and word.isidentifier() and not self._is_variable(word):
                name = next(iter(each for each in COMMANDS if each.startswith(word)), "")
                name = name and completed(word, COMMANDS, "command")
            if not name:  # an expression
                return bool(self.do_p(line.strip()))
            usage = COMMANDS[name][0]
            if bool(rest) > bool(usage) or (not rest and usage and not usage.startswith("[")):
                raise UsageError(f"{line.strip()!r}", legal=f"{name} {usage}".strip(), remedy="help lists the commands")
            return bool(getattr(self, f"do_{name}")(rest.strip()))
        except HarnessError as error:
            self.error(str(error))
        except RunEnded:
            raise
        except BaseException as error:  # of an expression: it must not end the program
            self.error(f"{type(error).__name__}: {error}")
        return False

    def error(self, msg: str) -> None:
        """Answer with an error."""
        self.pipe.data["is_refused"] = True
        self.pipe.write(f"*** {msg}\n")

    # -------------------------------------------------------------------------------------------------------- going

    def _go(self, until: str) -> bool:
        at = self._at
        if at.why in (END, ERROR):
            legal = "back, list, show, compare or quit" if at.why == ERROR else "step, back, list, show, compare or quit"
            raise UsageError(f"step {at.step} has ended", legal=legal, remedy="back repeats it, up to its last phase")
        at.until = until
        return True

    def do_next(self, arg: str) -> bool:
        return self._go(completed(arg, PHASES, "phase") if arg else BOUNDARY)

    def do_continue(self, arg: str) -> bool:
        return self._go("")

    def do_step(self, arg: str) -> bool:
        if self._at.why != END:
            self._go("")
        self._at.step += 1
        return True

    def do_back(self, arg: str) -> None:
        at = self._at
        if at.why == BEGIN:
            self.message(f"this is already the beginning of step {at.step}")
            return
        visits = at.visits()
        self.pipe.ask(again=at.state(len(at.held) - len(visits[-1][2]) if visits else 0))

    def do_quit(self, arg: str) -> None:
        self.pipe.ask(left=True)

    def do_pdb(self, arg: str) -> bool:
        lines = Lines(self, self._at)
        self._at.until = ""
        if lines.enter(self.curframe):
            return True
        self.print_stack_entry(self.stack[self.curindex])
        return False

    # --------------------------------------------------------------------------------------------------- expressions

    def _getval(self, arg: str) -> Any:  # what p, pp and whatis of all pdbs call
        try:
            return self._value(arg)
        except BaseException as error:
            self.error(f"{type(error).__name__}: {error}" if not isinstance(error, HarnessError) else str(error))
            raise

    def _value(self, text: str) -> Any:
        """An expression in the present frame; names that no variable has are those of recorded values."""
        recorded = {each.recorded.name: each.value for each in self._at.held}
        if (at_hand := self._at.at_hand) is not None:
            recorded[at_hand.recorded.name] = at_hand.value
        scope = {**recorded, **vars(builtins), **self.curframe.f_globals, **self.curframe_locals}
        try:
            return eval(text, scope)
        except (SyntaxError, NameError):
            if (held := self._at.find(text)) is None:
                raise
            return held.value

    def _is_variable(self, name: str) -> bool:
        return name in self.curframe_locals or name in self.curframe.f_globals or self._at.find(name) is not None

    def _known(self, text: str) -> Held:
        """A recorded value by its name."""
        if (held := self._at.find(text)) is None:
            names = [name for each in self._at.held for name in each.names]
            remedy = did_you_mean(text, names) or "next or continue runs to later values"
            raise UsageError(f"no value {text!r} is recorded so far", legal="the names that list shows", remedy=remedy)
        return held

    def do_show(self, arg: str) -> None:
        held = self._at.find(arg)
        value = held.value if held is not None else self._value(arg)
        head, data = arg, {"answer": "shown", "range": {}, "is_as_recorded": True}
        if held is not None:
            head, data = f"{held.recorded.phase} {held.name}", data | value_json(held)
            data["is_as_recorded"] = held.is_copy or digest_tensor(value).digest == held.recorded.digest
        if isinstance(value, torch.Tensor):
            dtype, range_of, value = dtype_name(value.dtype), value_range(value), value.detach()
            text = elements_text(dtype, value, [range(size) for size in value.shape])
            told = [f"{name} {range_of[name]:.9g}" for name in ("min", "max", "mean") if name in range_of]
            told += [count(int(range_of[name]), word, word) for name, word in WORDS.items() if name in range_of]
            text = "\n".join([*([", ".join(told)] if told else []), text])
            data |= {"range": range_of, "dtype": dtype, "shape": list(value.shape)}
            head += f"  {kind_text(dtype, value.shape)}"
        else:
            text = repr(value)
        self.message(head)
        text = text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}..."
        for line in text.splitlines():
            self.message(f"  {line.rstrip()}")
        if not data["is_as_recorded"]:
            self.message("  the program has written to it since it was recorded; this is its current value")
        self.pipe.data = {**data, "text": text}

    def do_where(self, arg: str) -> None:
        self._show_position([], first=len(self._at.held))
        self.print_stack_trace()
        number = self.stack[self.curindex][1]
        super().do_list(f"{max(1, number - CONTEXT_LINES)}, {number + CONTEXT_LINES}")

    def do_operation(self, arg: str) -> None:
        at = self._at
        log = active_log()
        record = read_ops(at.directory, (log.rank if log else 0) or 0, at.step)
        if record is None:
            remedy = "leave, and open the debugger at this step with --trace-ops"
            raise UsageError(f"the operations of step {at.step} are not recorded", legal="--trace-ops", remedy=remedy)
        if arg:
            held = at.find(arg)
            made = held.made if held is not None else made_by_digest(torch.as_tensor(self._value(arg)))
            found = [each for each in record.operations if any(made == digest_text(out) for out in each.outputs)]
            if not found:
                self.message(f"no operation of step {at.step} has made {arg}: it was there before, or is data")
            for each in found[-1:]:
                self._show_operation("made by", each)
            return
        first = find_non_finite(record)
        if first is None:
            self.message(f"every value that step {at.step} has read so far is finite")
            return
        if first.made_by is not None:
            self._show_operation(f"first {WORDS[first.kind]}: made by", first.made_by)
        if first.read_by is not None:
            self._show_operation(f"first {WORDS[first.kind]}: there before the step, read by", first.read_by)
        if first.origin is not None:
            self._show_operation(f"from an Inf, passed on by {count(first.num_between, 'operation')}, made by", first.origin)

    def _show_operation(self, what: str, operation: Operation) -> None:
        self.message(f"{what} {operation.phase} {operation.name} (#{operation.index}), {operation.at}")
        read = [
            kind_text(each.dtype, each.shape.split(",") if each.shape else ())
            + (f" with {' and '.join(sorted(WORDS[word] for word in each.not_finite))}" if each.not_finite else "")
            for each in operation.inputs
        ]
        self.message(f"  it read {'; '.join(read) or 'no tensor'}")

    # ------------------------------------------------------------------------------------------------------- values

    def do_list(self, arg: str) -> None:
        phase, at = completed(arg, PHASES, "phase") if arg else "", self._at
        visits = [visit for visit in at.visits() if phase in ("", visit[0])]
        if not visits:
            self.message(f"nothing of {phase} recorded so far" if phase else "nothing recorded so far")
            return
        head = "= as recorded, ! different, ? missing; nan, inf: holds such elements"
        self.message(f"{head}; second mark: compared with {one_line(at.whose)}" if at.other is not None else head)
        for phase, number, values in visits:
            self.message(visit_name(phase, number))
            notable = [each for each in values if self._is_notable(each)]
            kept = [*notable, *(each for each in values if not self._is_notable(each))][:MAX_LISTED]
            width = max(len(each.name) for each in kept)
            for each in values:
                if not any(each is one for one in kept):
                    continue
                marks = self._red(" ".join(self._marks(each)), self._is_notable(each))
                words = self._red("  " + " ".join(each.not_finite)) if each.not_finite else ""
                self.message(f"  {marks}  {each.name:<{width}}  {kind_of(each.recorded)}{words}")
            if len(values) > MAX_LISTED:
                self.message(f"  and {count(len(values) - MAX_LISTED, 'value')} more")
        self.pipe.data = {"answer": "listed", "visits": [self._visit_json(visit) for visit in visits]}

    def do_compare(self, arg: str) -> None:
        at, held = self._at, self._known(arg)
        value, others = held.recorded, at.recorded if at.other is None else at.other
        other = others.get((value.scope, value.key))
        self.message(f"{value.phase} {held.name}  {kind_of(value)}, compared with {one_line(at.whose)}")
        self.pipe.data = {"answer": "compared", **value_json(held), "whose": at.whose, "is_equal": value == other}
        if other is None:
            self.message("  no such value there")
        elif value == other:
            self.message("  equal, every bit")
        elif (value.dtype, value.shape) != (other.dtype, other.shape):
            self.message(f"  here {kind_of(value)}, there {kind_of(other)}")
        elif value.dtype in TEXTS:
            self.message("  DIFFERENT: texts have no elements; use show")
        else:
            self._compare_elements(held, other)

    def _compare_elements(self, held: Held, other: RecordedValue) -> None:
        at = self._at
        directory = at.other_run or at.run
        rank = min(read_trace(Path(directory)).logs(at.step), default=0)
        theirs = read_trace(Path(directory)).tensor(at.step, rank, other)
        if theirs is None:
            theirs = read_trace(Path(self.pipe.ask(wanted=at.step))).tensor(at.step, rank, other)
        mine = bytes(tensor_bytes(held.value))
        if theirs is None or len(mine) != len(theirs):
            self.message("  DIFFERENT by an unknown amount: the other run is not reproduced")
            return
        found = compare(held.recorded.dtype, mine, theirs)
        furthest = [] if found.max_ulp is None else [f"{found.max_ulp:,} ulp"]
        furthest += [] if found.max_abs is None else [f"{found.max_abs:.3g}"]
        at_most = f", by at most {' ('.join(furthest)}{')' if len(furthest) > 1 else ''}" if furthest else ""
        self.message(f"  DIFFERENT in {found.num_different:,} of {count(found.num_elements, 'element')}{at_most}")
        first = coordinates(found.first, [range(size) for size in held.recorded.shape])
        self.message(f"  the first, {first}: here {found.a}, there {found.b}")
        if found.num_nan_only_a or found.num_nan_only_b:
            self.message(f"  NaN here only: {found.num_nan_only_a:,}, there only: {found.num_nan_only_b:,}")
        self.pipe.data |= {"num_different": found.num_different, "first": first, "here": found.a, "there": found.b}
        self.pipe.data |= {"max_ulp": found.max_ulp, "max_abs": str(found.max_abs)}

    def do_break(self, arg: str) -> None:
        at = self._at
        if arg:
            names = [name for key in at.recorded for name in (key[1][1], f"{key[1][0]}/{key[1][1]}")]
            if arg in OF_TENSORS or arg in names or (not names and not any(each.startswith(arg) for each in PHASES)):
                at.breaks[arg] = None
            elif any(each.startswith(arg) for each in PHASES):
                at.breaks[completed(arg, PHASES, "phase")] = None
            else:
                legal = f"nan, inf, {', '.join(PHASES)}, or the name of a value"
                remedy = did_you_mean(arg, names) or "list shows the names"
                raise UsageError(f"{arg!r} is neither a phase nor a value of this step", legal=legal, remedy=remedy)
        places = [
            f"at {WORDS[each]}" if each in OF_TENSORS else f"before {each}" if each in PHASES else f"after {each}"
            for each in at.breaks
        ]
        self.message(f"stops {', '.join(places)}" if places else "no stops: continue runs to the end of the step")

    def do_clear(self, arg: str) -> None:
        del self._at.breaks[completed(arg, self._at.breaks, "stop")]
        self.do_break("")

    def do_help(self, arg: str) -> None:
        for name, (usage, does) in COMMANDS.items():
            self.message(f"{f'{name} {usage}'.strip():<28}{does}")
        self.message("anything else is an expression; a command may be shortened to an unambiguous prefix")

    # ------------------------------------------------------------------------------------------------------ showing

    def _show_position(self, notes: Sequence[str], first: int | None = None) -> None:
        at = self._at
        visits = at.visits(at.num_shown if first is None else first)
        at.num_shown = len(at.held)
        for phase, number, values in visits:
            self.message(f"  {visit_name(phase, number):<13} {self._summary(values)}")
        where = {BEGIN: "at the beginning of step", END: "at the end of step", ERROR: "an error has ended step"}
        self.message(f"{where[at.why]} {at.step}" if at.why in where else self._place())
        for note in notes:
            self.message(f"  {one_line(note)}")
        self.prompt = f"(step {at.step}, {self._place()}) "
        data = {"answer": "paused", "step": at.step, "at": at.why, "phase": at.phase, "notes": list(notes)}
        self.pipe.data = {**data, "visits": [self._visit_json(visit) for visit in visits]}

    def _place(self) -> str:
        at = self._at
        if at.why in (BEGIN, END, ERROR):
            return {BEGIN: "beginning", END: "end", ERROR: "error"}[at.why]
        if at.why == LINE:
            frame, number = self.get_stack(sys._getframe(), None)[0][-1]
            return f"{shown_file(frame.f_code.co_filename)}:{number}"
        last = at.held[-1] if at.held else None
        return f"before {at.phase}" if at.phase else f"after {last.recorded.phase} {last.name}" if last else "beginning"

    def _marks(self, held: Held) -> list[str]:
        key = (held.recorded.scope, held.recorded.key)
        found = [each.get(key) for each in (self._at.recorded, self._at.other) if each is not None]
        return [ABSENT if each is None else EQUAL if each == held.recorded else DIFFERENT for each in found]

    def _is_notable(self, held: Held) -> bool:
        return set(self._marks(held)) != {EQUAL} or bool(held.not_finite)

    def _red(self, text: str, is_notable: bool = True) -> str:
        return f"\x1b[1;31m{text}\x1b[0m" if self._at.colour and is_notable else text

    def _summary(self, values: Sequence[Held]) -> str:
        """5 values: as recorded; 2 NOT as in the other run, first rewards; 1 with NaN, first rewards."""
        columns = zip(*map(self._marks, values), strict=True)
        told = [
            self._agreement(marks, values, phrase)
            for marks, phrase in zip(columns, ("as recorded", "as in the other run"), strict=False)
        ]
        for word, name in WORDS.items():
            if found := [each for each in values if word in each.not_finite]:
                told.append(self._red(f"{len(found):,} with {name}, first {found[0].name}"))
        return f"{count(len(values), 'value')}: {'; '.join(told)}"

    def _agreement(self, marks: Sequence[str], values: Sequence[Held], phrase: str) -> str:
        if DIFFERENT in marks:
            return self._red(f"{marks.count(DIFFERENT):,} NOT {phrase}, first {values[marks.index(DIFFERENT)].name}")
        if set(marks) == {ABSENT}:
            return f"not {phrase.removeprefix('as ')}"
        if ABSENT in marks:
            return f"{marks.count(EQUAL):,} {phrase}, {marks.count(ABSENT):,} missing"
        return phrase

    def _visit_json(self, visit: Visit) -> dict[str, Any]:
        phase, number, values = visit
        found = []
        for each in values:
            marks = dict(zip(("recorded", "other"), map(NAMES_OF_MARKS.get, self._marks(each)), strict=False))
            found.append({**value_json(each), "other": None, **marks})
        return {"phase": phase, "number": number, "values": found}


class Lines(pdb.Pdb):
    """pdb itself, line by line through the user's code; `c` without breakpoints and `q` return to the console."""

    def __init__(self, console: Console, stepping: Stepping) -> None:
        super().__init__(stdin=console.pipe, stdout=console.pipe, nosigint=True, readrc=False)  # type: ignore[arg-type]
        self._at = stepping
        self._is_left = False
        self._is_entered = False

    def enter(self, frame: FrameType) -> bool:
        """Ask at the present line of a frame; whether the program is to run on from there."""
        self.reset()
        caller: FrameType | None = frame
        while caller is not None:
            caller.f_trace, self.botframe, caller = self.trace_dispatch, caller, caller.f_back
        self._at.line_tracer = self.trace_dispatch
        self.interaction(frame, None)
        # Before Python 3.13 a function's variables are written back only after a trace function.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        self._is_entered = True
        return not self._is_left

    def stop_here(self, frame: FrameType) -> bool:
        """Whether to ask in a frame: never in torch's, the standard library's and ours."""
        return shown_file(frame.f_code.co_filename) is not None and bool(super().stop_here(frame))

    def interaction(self, *where: Any) -> None:
        """Ask, and once the prompt is left return to the console's."""
        super().interaction(*where)
        if self._is_left and self._is_entered:
            self._at.pause(LINE)

    def do_continue(self, arg: str) -> bool:
        self._is_left = not self.breaks
        if self._is_left:
            self._at.line_tracer = None
        self.set_continue()
        return True

    do_c = do_cont = do_continue

    def do_quit(self, arg: str) -> bool:
        self.clear_all_breaks()
        return self.do_continue("")

    do_q = do_exit = do_EOF = do_quit


@contextmanager
def paused_hooks() -> Iterator[None]:
    """Let the recorder's hooks rest."""
    pause_hooks(is_paused=True)
    try:
        yield
    finally:
        pause_hooks(is_paused=False)


def values_of(directory: str, step: int) -> Values:
    """What a trace has of a step, that of all ranks if it has others than this run; nothing if it did not get there."""
    trace = read_trace(Path(directory))
    unfinished = Path(directory, UNFINISHED)
    if not trace.logs(step) and (unfinished / MANIFEST).exists():
        trace = read_trace(unfinished)
    log = active_log()
    logs = trace.logs(step)
    if not logs:
        return {}
    is_alike = len(logs) in (1, log.num_ranks if log is not None else 1)
    values = trace.columns(step, min(logs)).values() if is_alike else global_values(trace, step)[0]
    return {(value.scope, value.key): value for value in values}


def made_by_digest(tensor: torch.Tensor) -> str:
    """The bits of a tensor as a record of operations has them, whatever its shape."""
    dtype, _, algorithm, digest, *_ = OpValues().read(tensor)[0].split(" ")
    return f"{dtype} {algorithm} {digest}"


def digest_text(value: Any) -> str:
    """The same of a value in such a record."""
    return f"{value.dtype} {value.algorithm} {value.digest}"


def completed(word: str, known: Collection[str], kind: str) -> str:
    """The one that a word equals or begins; `kind` names them. UsageError for none, or several."""
    found = [each for each in known if each == word] or [each for each in known if each.startswith(word)]
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"{word!r} is short for {' and '.join(found)}" if found else f"{word!r} is not a {kind}",
        legal=", ".join(known) or f"nothing: there is no {kind}",
        remedy=did_you_mean(word, found or known) or "help lists the commands",
    )


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Up to five names that hold a word, or are spelt much like it, as a question; empty if there is none."""
    names = list(dict.fromkeys(names))
    near = [name for name in names if word in name] + difflib.get_close_matches(word, names, n=5)
    return f"did you mean {' or '.join(list(dict.fromkeys(near))[:5])}?" if near else ""


def visit_name(phase: str, number: int) -> str:
    return f"{phase} #{number}" if number else phase


def kind_of(value: RecordedValue) -> str:
    return kind_text(one_line(value.dtype), value.shape)


def kind_text(dtype: str, shape: Iterable[Any]) -> str:
    return f"{dtype} [{', '.join(map(str, shape))}]"


def value_json(held: Held) -> dict[str, Any]:
    value = held.recorded
    fields = {"phase": value.phase, "name": value.name, "occurrence": value.occurrence, "dtype": value.dtype}
    return {**fields, "shape": list(value.shape), "digest": value.digest.hex(), "not_finite": list(held.not_finite)}
