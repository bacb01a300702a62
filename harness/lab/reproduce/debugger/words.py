"""A typed line as a command. Pure.

    show policy.head [0:2, -1]   ─▶   Command("show", "policy.head", ((0, 2, None), -1))

A command may be cut to any beginning that no other command has.
"""

import difflib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from harness.bits.errors import UsageError
from harness.lab.reproduce.debugger.slices import Slice, parse_slices

COMMANDS = {
    "next": ("[PHASE]", "run to the beginning of the next phase, or of the next PHASE"),
    "back": ("", "go back to the beginning of this phase, or of the previous phase"),
    "continue": ("", "run to the end of the step, or to the next stop"),
    "list": ("[PHASE]", "list the values, and whether they equal those of the recorded run"),
    "show": ("NAME [SLICE]", "show the type, range and elements of a value; of a part: show NAME [0:2, -1]"),
    "compare": ("NAME [SLICE]", "compare a value with the other run: differing elements, distance, first difference"),
    "break": ("[PHASE|NAME]", "stop before this phase or after this value; without a name, list the stops"),
    "clear": ("PHASE|NAME", "remove this stop"),
    "where": ("", "show the current position"),
    "help": ("", "show this list"),
    "quit": ("", "leave the debugger"),
}
"""Name -> (arguments, what it does)."""
SHORT = {"c": "continue"}
"""What debuggers have taught hands to type, beside the beginnings."""
SLICED = ("show", "compare")
"""What takes a part of a value."""
MAX_NAMES = 5
"""Number of names that an error suggests for an unknown one."""
_SLICE = re.compile(r"\[([^\]]*)\]$")


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be done."""

    name: str
    """A key of COMMANDS."""
    argument: str = ""
    slices: tuple[Slice, ...] = ()


def parse_line(line: str) -> Command | None:
    """Parse the command of a line; None for an empty one and a comment. UsageError for any other line."""
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    word, _, rest = text.partition(" ")
    name, rest, slices = full_name(word), rest.strip(), ""
    if name in SLICED and (match := _SLICE.search(rest)):
        rest, slices = rest[: match.start()].strip(), match[1]
    usage = COMMANDS[name][0]
    is_wanted, is_allowed = bool(usage) and not usage.startswith("["), bool(usage)
    if (is_wanted and not rest) or (rest and not is_allowed):
        problem = "takes no more arguments" if rest else "needs a name"
        raise UsageError(
            f"{text!r}: {name} {problem}",
            legal=f"{name} {usage}".strip(),
            remedy="help lists the commands",
        )
    return Command(name, rest, parse_slices(slices) if slices.strip() else ())


def full_name(word: str) -> str:
    """The command of which a word is the beginning; UsageError where it is that of none, or of several."""
    return SHORT.get(word) or completed(word, COMMANDS, "command")


def completed(word: str, known: Collection[str], kind: str) -> str:
    """Return the one that a word equals or begins; `kind` names them. UsageError for no match, or several."""
    found = [each for each in known if each.startswith(word)]
    if word in known or len(found) == 1:
        return word if word in known else found[0]
    raise UsageError(
        f"{word!r} is short for {' and '.join(found)}" if found else f"{word!r} is not a {kind}",
        legal=", ".join(known) or f"nothing: there is no {kind}",
        remedy=did_you_mean(word, found or known) or "help lists the commands",
    )


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The names that hold a word, and those that are spelt much like it, as a question; empty where there is none."""
    names = list(dict.fromkeys(names))
    near = [name for name in names if word in name] + difflib.get_close_matches(word, names, n=MAX_NAMES)
    return f"did you mean {' or '.join(list(dict.fromkeys(near))[:MAX_NAMES])}?" if near else ""
