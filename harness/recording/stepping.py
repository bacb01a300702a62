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
import json
import os
import pdb
import pprint
import select
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from harness.bits.errors import HarnessError, UsageError
from harness.bits.text import count, nearest, one_line
from harness.recording.automatic import active_log, paused_hooks
from harness.recording.operations import OpValues, shown_file
from harness.recording.process import rank_and_world_size
from harness.recording.program_state import kept_generators, outside_modes
from harness.recording.recorder import RecorderCallback
from harness.recording.run_spec import RunEnded
from harness.recording.tensors import NOT_OF_DTYPE, digest_tensor, dtype_name, tensor_bytes
from harness.trace.diff import global_root, global_values
from harness.trace.explanation import TEXTS
from harness.trace.format import MANIFEST, PHASES, UNFINISHED, RecordedValue
from harness.trace.ops import Operation, OpValue, find_non_finite, read_ops
from harness.trace.reader import read_trace
from harness.trace.values import ELEMENT_BYTES, compare, coordinates, shown

MAX_ELEMENTS = 64
"""Of so many elements all are shown."""
NUM_AT_END = 8
"""So many at each end of a tensor that has more."""
LINE_ELEMENTS = 8


def value_range(tensor: torch.Tensor) -> dict[str, float | int]:
    """Least, largest and mean of the finite elements, and how many are NaN or infinite; nothing for no numbers."""
    if not tensor.numel() or tensor.is_complex():
        return {}
    try:
        wide = tensor.detach().double()
    except RuntimeError as error:  # two numbers in a byte: torch computes nothing with float4
        if NOT_OF_DTYPE not in str(error):
            raise
        return {}
    finite = wide[wide.isfinite()]
    found: dict[str, float | int] = {"nan": int(wide.isnan().sum()), "inf": int(wide.isinf().sum())}
    if finite.numel():
        found |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    return found


def elements_text(tensor: torch.Tensor) -> str:
    """The elements with all their digits, in C order; as torch prints them where the dtype is not understood."""
    dtype, flat = dtype_name(tensor.dtype), tensor.reshape(-1)
    if dtype not in ELEMENT_BYTES:
        return str(tensor)
    size, per_line, lines = ELEMENT_BYTES[dtype], min([LINE_ELEMENTS, *tensor.shape[-1:]]), list[str]()
    for part in [flat] if len(flat) <= MAX_ELEMENTS else [flat[:NUM_AT_END], flat[-NUM_AT_END:]]:
        lines += [f"... {len(flat) - 2 * NUM_AT_END:,} more"] if lines else []
        data = bytes(tensor_bytes(part))
        texts = [shown(dtype, int.from_bytes(data[at : at + size], "little")) for at in range(0, len(data), size)]
        lines += ["  ".join(texts[at : at + per_line]) for at in range(0, len(texts), per_line)]
    return "\n".join(lines) or "no elements"


ORDERS, ANSWERS, OWNER = "orders.pipe", "answers.pipe", "owner"
PHASE, VALUE, PAUSE, LINE = "phase", "value", "pause", "at a line"
"""Reasons for a pause: a phase begins, a break holds, Ctrl-C, pdb was left."""
BEGIN, END, ERROR = "beginning", "end", "error"
ENDS = {BEGIN: "at the beginning of step", END: "at the end of step", ERROR: "an error has ended step"}
"""Further reasons."""
BOUNDARY = "boundary"
"""Any phase, where the one up to which a run goes on is named."""
EQUAL, DIFFERENT, ABSENT = "=", "!", "?"
WORDS = {"nan": "NaN", "inf": "Inf"}
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
SHORT = {"n": "next", "c": "continue", "s": "step", "l": "list", "o": "operation", "b": "break", "cl": "clear"}
SHORT |= {"w": "where", "bt": "where", "u": "up", "d": "down", "h": "help", "q": "quit", "exit": "quit"}


@dataclass(frozen=True, slots=True)
class Held:
    """A recorded value of the step."""

    recorded: RecordedValue
    visit: str
    """Its phase; "loss #1" where the step comes to that for the second time."""
    value: Any
    """A tensor, ours or the program's; or the text that was recorded."""
    is_copy: bool = True
    made: OpValue | None = None
    """As a record of operations describes it; None for a text."""

    @property
    def name(self) -> str:
        """Name of the value, with its occurrence after the first."""
        occurrence = self.recorded.occurrence
        return one_line(self.recorded.name) + (f"#{occurrence}" if occurrence else "")

    @property
    def kind(self) -> str:
        """Dtype and shape."""
        return kind_text(self.recorded.dtype, self.recorded.shape)

    @property
    def not_finite(self) -> list[str]:
        """nan, inf: what it holds beside finite numbers."""
        return sorted(self.made.not_finite) if self.made else []


class Stepping(RecorderCallback):
    """Pauses in one step. `pipes` is the directory of both pipes, `directory` that of this run's trace.

    `runs` are the traces that it is compared with: the recorded run, and another one. `state` names the step and what
    an earlier process knew: this one runs up to its position, and says whether the values are the same.
    """

    pauses = True

    def __init__(self, pipes: str, directory: str, runs: Sequence[str], **state: Any) -> None:
        self.pipes, self.directory, self.runs = Path(pipes), Path(directory), [Path(each) for each in runs]
        self.step, self.whose, self.colour = state["step"], state.get("whose", ""), state.get("colour", False)
        self.breaks, self.until = dict.fromkeys(state.get("breaks", ())), ""
        self.why, self.phase, self.num_shown = BEGIN, "", 0
        self.held: list[Held] = []
        self.at_hand: list[Held] = []
        """The first value of the phase that begins."""
        self.others: list[dict[Any, RecordedValue]] = []
        """What each of the runs has of the step, by scope and key."""
        self.line_tracer: Any = None
        """What traces the program's lines, while pdb does."""
        self._begun, self._before, self._passed = state.get("begun", ""), state.get("before", ()), list[int]()
        self._position, self._left_bytes, self._is_within = state.get("position", 0), MAX_COPIED_BYTES, False
        self._console: Console | None = None

    # -------------------------------------------------------------------------------------------------- the program

    def on_begin_step(self, step: int) -> None:
        """Pause before everything."""
        self._is_within = step == self.step and self._is_first()
        if self._is_within:
            self.held, self.num_shown, self._left_bytes = [], 0, MAX_COPIED_BYTES
            self.others = [values_of(each, step) for each in self.runs]
            if not self._position:
                self.pause(BEGIN, notes=self._how_it_came())

    def on_value(self, recorded_value: RecordedValue, value: Any) -> None:
        """Hold a value; pause before it if its phase begins, after it if a break holds."""
        if not self._is_within:
            return
        phase, held = recorded_value.phase, self._hold(recorded_value, value)
        begins = bool(self.held) and held.visit != self.held[-1].visit
        is_wanted = begins and (self.until in (BOUNDARY, phase) or phase in self.breaks)
        self.at_hand = [held]
        if is_wanted or self._position == len(self.held) > 0:
            self.pause(PHASE, phase)
        elif self._console is not None and self._console.pipe.was_paused():
            self.pause(PAUSE, phase)
        self.at_hand = []
        self.held.append(held)
        if not self._position and self.breaks.keys() & {*names_of(recorded_value), *held.not_finite}:
            self.pause(VALUE)

    def on_end_step(self, step: int, values: object) -> None:
        """Pause after the last value."""
        if self._is_within:
            self.pause(END, notes=[self._how_it_ended()])
        self._is_within = False
        self._passed.append(step)

    def on_break_off(self, step: int, error: BaseException | None) -> None:
        """Pause where an error has ended the step."""
        if self._is_within and error is not None and not isinstance(error, RunEnded):
            note = f"the program has raised {type(error).__name__}: {one_line(str(error))}"
            self.pause(ERROR, notes=[note], error=error)

    def pause(self, why: str, phase: str = "", notes: Sequence[str] = (), error: BaseException | None = None) -> None:
        """Answer until the program is to go on."""
        self._console = self._console or Console(self)
        self.why, self.phase, self.until, self.line_tracer = why, phase, "", None
        if self._position:
            notes, self._position, self.num_shown = [*notes, self._proof()], 0, len(self.held)
        sys.settrace(None)
        with outside_modes(), torch.no_grad(), kept_generators(), paused_hooks():
            self._console.show_position(notes)
            self._console.interaction(None if error else sys._getframe(), error.__traceback__ if error else None)
        sys.settrace(self.line_tracer)

    def leave_step(self) -> None:
        """Run on to the next step, past every stop."""
        self.step, self._is_within = self.step + 1, False

    def _is_first(self) -> bool:
        """Whether this process is the one that pauses: of the first rank, and the first to come here."""
        if self._console is None and not rank_and_world_size(os.environ)[0]:
            with suppress(FileExistsError):
                (self.pipes / OWNER).touch(exist_ok=False)
                return True
        return self._console is not None

    def _hold(self, recorded_value: RecordedValue, value: Any) -> Held:
        phase, last = recorded_value.phase, self.held[-1] if self.held else None
        num_before = len({each.visit for each in self.held if each.recorded.phase == phase})
        visit = f"{phase} #{num_before}" if num_before else phase
        visit = last.visit if last is not None and last.recorded.phase == phase else visit
        if not isinstance(value, torch.Tensor):
            return Held(recorded_value, visit, value)
        with outside_modes(), torch.no_grad():
            made, num_bytes = description_of(value), value.numel() * value.element_size()
            is_copy = num_bytes <= self._left_bytes
            self._left_bytes -= num_bytes if is_copy else 0
            value = value.detach().to("cpu", copy=True) if is_copy else value.detach()
            return Held(recorded_value, visit, value, is_copy, made)

    # ----------------------------------------------------------------------------------------------------- position

    def visits(self, first: int = 0) -> list[tuple[str, list[Held]]]:
        """The phases as they came, each with its values; from value number `first` on."""
        return [(name, list(values)) for name, values in groupby(self.held[first:], lambda each: each.visit)]

    def state(self, position: int) -> dict[str, Any]:
        """What a process is given that runs up to this position again."""
        before = [each.recorded.digest.hex() for each in self.held[:position]]
        return {"step": self.step, "position": position, "breaks": [*self.breaks], "before": before}

    def find(self, text: str) -> Held | None:
        """The last value of a name: NAME, PHASE/NAME, either with #OCCURRENCE. UsageError if several phases have it."""
        found: dict[str, Held] = {}
        for each in (*self.held, *self.at_hand):
            names = names_of(each.recorded)
            if text in (*names, *(f"{name}#{each.recorded.occurrence}" for name in names)):
                found[names[1]] = each
        if len(found) > 1:
            raise UsageError(f"several phases have {text!r}", legal=", ".join(found), remedy="type the phase before it")
        return next(iter(found.values()), None)

    def marks(self, held: Held) -> list[str]:
        """What a value is to that of each of the runs."""
        found = [each.get((held.recorded.scope, held.recorded.key)) for each in self.others]
        return [ABSENT if each is None else EQUAL if each == held.recorded else DIFFERENT for each in found]

    def _proof(self) -> str:
        """Whether the step came out again as in the process before this one."""
        made = [each.recorded.digest.hex() for each in self.held]
        if made == self._before:
            return f"{count(len(made), 'value')} reproduced, every bit"
        pairs = zip(self.held, made, self._before, strict=False)
        unlike = next((f"{each.recorded.phase} {each.name} has different bits" for each, a, b in pairs if a != b), "")
        return f"NOT reproduced: {unlike or f'{len(made):,} of {len(self._before):,} values'}"

    def _how_it_came(self) -> list[str]:
        """What is known of the steps that were run again on the way."""
        passed, begun, self._passed, self._begun = self._passed, self._begun, [], ""
        if not passed or not begun:
            return [begun] if begun else []
        made, run = (read_trace(each) for each in (self.directory, self.runs[0]))
        known = [step for step in passed if global_root(run, step) is not None]
        if unlike := [step for step in known if global_root(made, step) != global_root(run, step)]:
            return [f"{begun}: step {unlike[0]} is NOT reproduced"]
        span = f"step {passed[0]} is" if len(passed) == 1 else f"steps {passed[0]} to {passed[-1]} are"
        return [f"{begun}: {span} reproduced, every bit" if known else begun]

    def _how_it_ended(self) -> str:
        """Whether the step is the recorded one."""
        recorded, made = (global_root(read_trace(each), self.step) for each in (self.runs[0], self.directory))
        if recorded is None or made is None:
            return f"step {self.step} is not in {'the recorded run' if recorded is None else 'this trace'}"
        if made != recorded:
            return f"its root digest is NOT the recorded one: {made.hex()}, recorded {recorded.hex()}"
        num_equal = sum(self.marks(each)[0] == EQUAL for each in self.held)
        return f"its root digest is the recorded one, {made.hex()}: {count(num_equal, 'value')}, every bit"


class Pipe:
    """Both pipes as the files of a prompt: what is written before a line is read is the answer to the line before."""

    def __init__(self, stepping: Stepping) -> None:
        self._orders = os.open(stepping.pipes / ORDERS, os.O_RDONLY | os.O_CLOEXEC)
        self._answers = os.open(stepping.pipes / ANSWERS, os.O_WRONLY | os.O_CLOEXEC)
        self._stepping, self._heard, self._text = stepping, b"", ""

    def write(self, text: str) -> None:
        """Add to the present answer."""
        self._text += text

    def flush(self) -> None:
        """Wait for the next prompt."""

    def readline(self) -> str:
        """Send the answer with the prompt that ends it, and return the next line that is typed."""
        text, _, prompt = self._text.rpartition("\n")
        answer, at, self._text = {"lines": text.splitlines()}, self._stepping, ""
        names = [each.recorded.name for each in at.held] or [each.name for each in at.others[0].values()]
        words, state = [*COMMANDS, *PHASES, *dict.fromkeys(names)], at.state(len(at.held))
        return self.ask(prompt=prompt, answer=answer, words=words, state=state) + "\n"

    def ask(self, **message: Any) -> str:
        """Send a message, and return the line that answers it. RunEnded if the parent is gone."""
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

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The frames of the user's code and of packages, without torch's, the standard library's and ours."""
        stack, _ = super().get_stack(f, t)
        users = [each for each in stack if shown_file(each[0].f_code.co_filename) is not None] or stack
        return users, len(users) - 1

    def canonic(self, filename: str) -> str:
        """How a file is shown."""
        return shown_file(filename) or super().canonic(filename)

    def onecmd(self, line: str) -> bool:
        """Carry out a line; whatever goes wrong is its answer, and never ends the program."""
        word, _, rest = line.strip().partition(" ")
        name, rest = SHORT.get(word, word), rest.strip()
        if not name or name.startswith("#"):
            return False
        try:
            if name not in COMMANDS:
                name, rest = "p", line.strip()
            usage = COMMANDS[name][0]
            if bool(rest) > bool(usage) or (usage and not usage.startswith("[") and not rest):
                raise UsageError(repr(line.strip()), legal=f"{name} {usage}".strip(), remedy="help lists the commands")
            return bool(getattr(self, f"do_{name}")(rest))
        except RunEnded:
            raise
        except BaseException as error:  # of an expression: whatever it is, the program goes on
            self.error(str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}")
        return False

    def show_position(self, notes: Sequence[str]) -> None:
        """Answer with what was recorded since the last pause, and where the program is."""
        at, visits = self._at, self._at.visits(self._at.num_shown)
        at.num_shown = len(at.held)
        for name, values in visits:
            self.message(f"  {name:<13} {self._summary(values)}")
        place = f"before {at.phase}" if at.phase else at.why
        if at.why == VALUE:
            place = f"after {at.held[-1].recorded.phase} {at.held[-1].name}"
        self.prompt = f"(step {at.step}, {place}) "
        self.message(f"{ENDS[at.why]} {at.step}" if at.why in ENDS else place)
        for note in notes:
            self.message(f"  {note}")

    # -------------------------------------------------------------------------------------------------------- going

    def _go(self, until: str) -> bool:
        if self._at.why in (END, ERROR):
            legal = f"{'step, ' if self._at.why == END else ''}back, list, show, compare or quit"
            raise UsageError(f"step {self._at.step} has ended", legal=legal, remedy="back repeats it")
        self._at.until = until
        return True

    def do_next(self, arg: str) -> bool:
        if arg and arg not in PHASES:
            raise UsageError(f"{arg!r} is not a phase", legal=", ".join(PHASES), remedy=nearest(arg, PHASES) or "next")
        return self._go(arg or BOUNDARY)

    def do_continue(self, arg: str) -> bool:
        return self._go("")

    def do_step(self, arg: str) -> bool:
        if self._at.why != END:
            self._go("")
        self._at.leave_step()
        return True

    def do_back(self, arg: str) -> None:
        at = self._at
        if at.why == BEGIN:
            self.message(f"this is already the beginning of step {at.step}")
        else:
            self.pipe.ask(again=at.state(len(at.held) - len(at.visits()[-1][1]) if at.held else 0))

    def do_quit(self, arg: str) -> None:
        self.pipe.ask(left=True)

    def do_pdb(self, arg: str) -> bool:
        return Lines(self.pipe, self._at).enter(self.stack[self.curindex][0])

    # --------------------------------------------------------------------------------------------------- expressions

    def do_p(self, arg: str) -> None:
        self.message(repr(self._value(arg)))

    def do_pp(self, arg: str) -> None:
        self.message(pprint.pformat(self._value(arg)))

    def _value(self, text: str) -> Any:
        """An expression in the present frame; names that no variable has are those of recorded values."""
        recorded = {each.recorded.name: each.value for each in (*self._at.held, *self._at.at_hand)}
        frame = self.stack[self.curindex][0]
        try:
            return eval(text, {**recorded, **vars(builtins), **frame.f_globals, **frame.f_locals})
        except (SyntaxError, NameError):
            if (held := self._at.find(text)) is None:
                raise
            return held.value

    def do_show(self, arg: str) -> None:
        held = self._at.find(arg)
        value, head, lines = held.value if held else self._value(arg), arg, [""]
        if isinstance(value, torch.Tensor):
            dtype, numbers = dtype_name(value.dtype), value_range(value)
            told = [f"{name} {numbers[name]:.9g}" for name in ("min", "max", "mean") if name in numbers]
            told += [f"{numbers[name]:,} {word}" for name, word in WORDS.items() if name in numbers]
            text = elements_text(value.detach())
            head, lines = f"{arg}  {kind_text(dtype, value.shape)}", [", ".join(told), *text.splitlines()]
        else:
            lines = repr(value)[:MAX_TEXT_CHARS].splitlines()
        if held:
            head = f"{held.recorded.phase} {held.name}  {held.kind}"
            if not held.is_copy and digest_tensor(value).digest != held.recorded.digest:
                lines.append("the program has written to it since it was recorded; this is its current value")
        self.message("\n  ".join([head, *(line.rstrip() for line in lines if line)]))

    def do_where(self, arg: str) -> None:
        self.show_position([])
        self.print_stack_trace()
        number = self.stack[self.curindex][1]
        super().do_list(f"{max(1, number - CONTEXT_LINES)}, {number + CONTEXT_LINES}")

    def do_operation(self, arg: str) -> None:
        at, log = self._at, active_log()
        record = read_ops(at.directory, (log.rank if log else 0) or 0, at.step)
        if record is None:
            remedy = f"leave, and open the debugger with --step {at.step} --trace-ops"
            raise UsageError(f"the operations of step {at.step} are not recorded", legal="--trace-ops", remedy=remedy)
        found: list[tuple[str, Operation | None]] = []
        if arg:
            held = at.find(arg)
            value = held.made if held and held.made else description_of(torch.as_tensor(self._value(arg)))
            bits = value.dtype, value.algorithm, value.digest
            makers = [
                one for one in record.operations if bits in [(v.dtype, v.algorithm, v.digest) for v in one.outputs]
            ]
            found = [("made by", makers[-1])] if makers else []
        elif first := find_non_finite(record):
            word, number = WORDS[first.kind], first.num_between
            passed = f", passed on by {count(number, 'operation')}," if number else ""
            found = [
                (f"first {word}: {'an argument of' if first.is_argument else 'made by'}", first.made_by),
                (f"{word} from before the step, read by", first.read_by),
            ]
            found += [(f"from an Inf{passed} that was made by", first.origin)]
        for what, operation in found:
            if operation is not None:
                self.message(f"{what} {operation.phase} {operation.name} (#{operation.index}), {operation.at}")
                self.message(f"  it read {'; '.join(map(_operand_text, operation.inputs)) or 'no tensor'}")
        if not found:
            self.message(f"no operation of this step has made {arg or 'a NaN or an Inf'}")

    # ------------------------------------------------------------------------------------------------------- values

    def do_list(self, arg: str) -> None:
        visits = [visit for visit in self._at.visits() if arg in ("", visit[1][0].recorded.phase)]
        if not visits:
            self.message(f"nothing{f' of {arg}' if arg else ''} recorded so far")
            return
        head = "= as recorded, ! different, ? missing; nan, inf: holds such elements"
        whose = f"; second mark: compared with {one_line(self._at.whose)}" if len(self._at.runs) > 1 else ""
        self.message(head + whose)
        for name, values in visits:
            self.message(name)
            kept = sorted(values, key=lambda each: not self._is_notable(each))[:MAX_LISTED]
            width = max(len(each.name) for each in kept)
            for each in (each for each in values if any(each is one for one in kept)):
                marks, rest = " ".join(self._at.marks(each)), "  ".join([each.kind, *each.not_finite])
                line = f"  {marks}  {each.name:<{width}}  {rest}"
                self.message(self._red(line) if self._is_notable(each) else line)
            if len(values) > MAX_LISTED:
                self.message(f"  and {count(len(values) - MAX_LISTED, 'value')} more")

    def do_compare(self, arg: str) -> None:
        at = self._at
        if (held := at.find(arg)) is None:
            names = [name for each in at.held for name in names_of(each.recorded)]
            remedy = nearest(arg, names) or "next or continue runs to later values"
            raise UsageError(f"no value {arg!r} is recorded so far", legal="the names that list shows", remedy=remedy)
        value, other = held.recorded, at.others[-1].get((held.recorded.scope, held.recorded.key))
        self.message(f"{value.phase} {held.name}  {held.kind}, compared with {one_line(at.whose)}")
        if other is None or value == other:
            self.message("  no such value there" if other is None else "  equal, every bit")
        elif (value.dtype, value.shape) != (other.dtype, other.shape) or value.dtype in TEXTS:
            self.message(f"  DIFFERENT: there {kind_text(other.dtype, other.shape)}")
        else:
            self._compare_elements(held, other)

    def _compare_elements(self, held: Held, other: RecordedValue) -> None:
        at, mine = self._at, bytes(tensor_bytes(held.value))
        theirs = read_trace(at.runs[-1]).tensor(at.step, 0, other)
        if theirs is None:
            theirs = read_trace(Path(self.pipe.ask(wanted=at.step))).tensor(at.step, 0, other)
        found = compare(other.dtype, mine, theirs) if theirs is not None else None
        if found is None:
            self.message("  DIFFERENT by an unknown amount: the other run is not reproduced")
            return
        furthest = [] if found.max_ulp is None else [f"{found.max_ulp:,} ulp"]
        furthest += [] if found.max_abs is None else [f"{found.max_abs:.3g}"]
        at_most = f", by at most {' or '.join(furthest)}" if furthest else ""
        first = coordinates(found.first, [range(size) for size in other.shape])
        self.message(f"  DIFFERENT in {found.num_different:,} of {count(found.num_elements, 'element')}{at_most}")
        self.message(f"  the first, {first}: here {found.a}, there {found.b}")
        if found.num_nan_only_a or found.num_nan_only_b:
            self.message(f"  NaN here only: {found.num_nan_only_a:,}, there only: {found.num_nan_only_b:,}")

    def do_break(self, arg: str, temporary: object = None) -> None:
        at = self._at
        names = [name for value in at.others[0].values() for name in names_of(value)]
        if arg and arg not in (*WORDS, *PHASES, *names) and names:
            legal = f"nan, inf, {', '.join(PHASES)}, or the name of a value"
            remedy = nearest(arg, (*PHASES, *names)) or "list shows the names"
            raise UsageError(f"{arg!r} is neither a phase nor a value of this step", legal=legal, remedy=remedy)
        at.breaks |= {arg: None} if arg else {}
        places = [f"{'at' if each in WORDS else 'before' if each in PHASES else 'after'} {each}" for each in at.breaks]
        self.message(f"stops {', '.join(places)}" if places else "no stops: continue runs to the end of the step")

    def do_clear(self, arg: str) -> None:
        self._at.breaks.pop(arg, None)
        self.do_break("")

    def do_help(self, arg: str) -> None:
        for name, (usage, does) in COMMANDS.items():
            self.message(f"{f'{name} {usage}'.strip():<28}{does}")
        self.message("anything else is an expression; short forms are pdb's")

    def _is_notable(self, held: Held) -> bool:
        return set(self._at.marks(held)) != {EQUAL} or bool(held.not_finite)

    def _red(self, text: str) -> str:
        return f"\x1b[1;31m{text}\x1b[0m" if self._at.colour else text

    def _summary(self, values: Sequence[Held]) -> str:
        """5 values: as recorded; 2 NOT as in the other run, first rewards; 1 with NaN, first rewards."""
        told = []
        columns = zip(*map(self._at.marks, values), strict=True)
        for phrase, marks in zip(("as recorded", "as in the other run"), columns, strict=False):
            if DIFFERENT in marks:
                first = values[marks.index(DIFFERENT)].name
                told.append(self._red(f"{marks.count(DIFFERENT):,} NOT {phrase}, first {first}"))
            elif EQUAL not in marks:
                told.append(f"not {phrase.removeprefix('as ')}")
            elif ABSENT in marks:
                told.append(f"{marks.count(EQUAL):,} {phrase}, {marks.count(ABSENT):,} missing")
            else:
                told.append(phrase)
        for word, name in WORDS.items():
            if found := [each for each in values if word in each.not_finite]:
                told.append(self._red(f"{len(found):,} with {name}, first {found[0].name}"))
        return f"{count(len(values), 'value')}: {'; '.join(told)}"


class Lines(pdb.Pdb):
    """pdb itself, line by line through the user's code; `c` without breakpoints and `q` return to the console."""

    def __init__(self, pipe: Pipe, stepping: Stepping) -> None:
        super().__init__(stdin=pipe, stdout=pipe, nosigint=True, readrc=False)  # type: ignore[arg-type]
        self._at, self._is_left, self._is_entered = stepping, False, False

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
        """Ask; once the prompt is left for good, return to the console's."""
        super().interaction(*where)
        if self._is_left and self._is_entered:
            self._at.pause(LINE)

    def do_continue(self, arg: str) -> bool:
        self._is_left = not self.breaks
        if self._is_left:
            self._at.line_tracer = None
        self.set_continue()
        return True

    def do_quit(self, arg: str) -> bool:
        self.clear_all_breaks()
        return self.do_continue("")

    do_c = do_cont = do_continue
    do_q = do_exit = do_EOF = do_quit


def values_of(directory: Path, step: int) -> dict[Any, RecordedValue]:
    """What a trace has of a step: of this rank, or of all together where it has other ranks than this run."""
    trace, log = read_trace(directory), active_log()
    if not trace.logs(step) and (directory / UNFINISHED / MANIFEST).exists():
        trace = read_trace(directory / UNFINISHED)
    if not (ranks := trace.logs(step)):
        return {}
    is_alike = len(ranks) in (1, log.num_ranks if log is not None else 1)
    values = trace.columns(step, min(ranks)).values() if is_alike else global_values(trace, step)[0]
    return {(value.scope, value.key): value for value in values}


def names_of(value: RecordedValue) -> tuple[str, str]:
    """What a value may be called."""
    return value.name, f"{value.phase}/{value.name}"


def description_of(tensor: torch.Tensor) -> OpValue:
    """A tensor as a record of operations describes it."""
    dtype, shape, algorithm, digest, *layout = OpValues().read(tensor)[0].split(" ")
    return OpValue(dtype, shape, algorithm, digest, tuple(layout))


def kind_text(dtype: str, shape: Iterable[Any]) -> str:
    """f32 [2, 3]."""
    return f"{one_line(dtype)} [{', '.join(map(str, shape))}]"


def _operand_text(value: OpValue) -> str:
    words = " and ".join(sorted(WORDS[word] for word in value.not_finite))
    return f"{value.dtype} [{value.shape.replace(',', ', ')}]" + (f" with {words}" if words else "")
