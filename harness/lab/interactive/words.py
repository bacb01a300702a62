"""A typed line as a command. Pure.

    show policy.head [0:2, -1]   ─▶   Command("show", "policy.head", ((0, 2, None), -1))

A command may be cut to any beginning that no other command has.
"""

import re
from dataclasses import dataclass

from harness.errors import UsageError

COMMANDS = {
    "next": ("[PHASE]", "go on to where the next phase begins, or the next PHASE"),
    "back": ("", "to the beginning of this phase, or from there to that of the phase before"),
    "continue": ("", "go on to the end of the step, or to the next break"),
    "list": ("[PHASE]", "what was recorded, and whether it is the same as in the recorded run"),
    "show": ("NAME [SLICE]", "a value: what it is, its range, its elements; of a part: show NAME [0:2, -1]"),
    "compare": ("NAME", "a value here and in the other run: how many elements differ, by how much, the first"),
    "break": ("[PHASE|NAME]", "stop where this phase begins, or behind this value; alone: say where"),
    "clear": ("PHASE|NAME", "stop there no more"),
    "where": ("", "where the run stands"),
    "help": ("", "this"),
    "quit": ("", "leave"),
}
"""Name -> (arguments, what it does)."""
SHORT = {"c": "continue"}
"""What debuggers have taught hands to type, beside the beginnings."""
_SLICE = re.compile(r"\[([^\]]*)\]$")
_PART = re.compile(r"(-?\d+)?(?:(:)(-?\d+)?(?::(\d+)?)?)?")

Slice = int | tuple[int | None, int | None, int | None]
"""An index, or begin, end and step of a part."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be done."""

    name: str
    """A key of COMMANDS."""
    argument: str = ""
    slices: tuple[Slice, ...] = ()


def parse_line(line: str) -> Command | None:
    """The command of a line; None for an empty one and a comment. UsageError for what is none."""
    text = line.partition("#")[0].strip() if line.lstrip().startswith("#") else line.strip()
    if not text:
        return None
    word, _, rest = text.partition(" ")
    name, rest, slices = full_name(word), rest.strip(), ""
    if name == "show" and (match := _SLICE.search(rest)):
        rest, slices = rest[: match.start()].strip(), match[1]
    usage = COMMANDS[name][0]
    is_wanted, is_allowed = bool(usage) and not usage.startswith("["), bool(usage)
    if (is_wanted and not rest) or (rest and not is_allowed):
        raise UsageError(f"{text!r}", legal=f"{name} {usage}".strip(), remedy="help says what each command takes")
    return Command(name, rest, parse_slices(slices) if slices.strip() else ())


def full_name(word: str) -> str:
    """The command of which a word is the beginning; UsageError where it is that of none, or of several."""
    found = [name for name in COMMANDS if name.startswith(word)]
    if word in (*COMMANDS, *SHORT):
        return SHORT.get(word, word)
    if len(found) != 1:
        what = f"{word!r} is short for {' and '.join(found)}" if found else f"{word!r} is no command"
        raise UsageError(what, legal=", ".join(COMMANDS), remedy="help says what each does")
    return found[0]


def parse_slices(text: str) -> tuple[Slice, ...]:
    """What stands in the brackets of a slice: numbers, and parts BEGIN:END:STEP, with commas between them."""
    found: list[Slice] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or not part.strip() or match[4] == "0":
            raise UsageError(f"the slice [{text}]", legal="numbers and BEGIN:END:STEP, as in [0:2, -1]")
        begin, colon, end, step = match.groups()
        found.append((_number(begin), _number(end), _number(step)) if colon else int(begin))
    return tuple(found)


def _number(text: str | None) -> int | None:
    return int(text) if text else None
