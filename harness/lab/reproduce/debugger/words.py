"""A typed line as a command. Pure.

    show policy.head [0:2, -1]   ─▶   Command("show", "policy.head", ((0, 2, None), -1))

A command may be cut to any beginning that no other command has.
"""

import difflib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from harness.core.errors import UsageError
from harness.lab.reproduce.debugger.slices import Slice, parse_slices

COMMANDS = {
    "next": ("[PHASE]", "go on to where the next phase begins, or the next PHASE"),
    "back": ("", "to the beginning of this phase, or from there to that of the phase before"),
    "continue": ("", "go on to the end of the step, or to the next break"),
    "list": ("[PHASE]", "what was recorded, and whether it is the same as in the recorded run"),
    "show": ("NAME [SLICE]", "a value: what it is, its range, its elements; of a part: show NAME [0:2, -1]"),
    "compare": ("NAME [SLICE]", "a value here and in the other run: how many elements differ, by how much, the first"),
    "break": ("[PHASE|NAME]", "stop where this phase begins, or behind this value; alone: say where"),
    "clear": ("PHASE|NAME", "stop there no more"),
    "where": ("", "where the run stands"),
    "help": ("", "this"),
    "quit": ("", "leave"),
}
"""Name -> (arguments, what it does)."""
SHORT = {"c": "continue"}
"""What debuggers have taught hands to type, beside the beginnings."""
SLICED = ("show", "compare")
"""What takes a part of a value."""
MAX_NAMES = 5
"""So many names are offered to somebody who has typed another."""
_SLICE = re.compile(r"\[([^\]]*)\]$")


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be done."""

    name: str
    """A key of COMMANDS."""
    argument: str = ""
    slices: tuple[Slice, ...] = ()


def parse_line(line: str) -> Command | None:
    """The command of a line; None for an empty one and a comment. UsageError for what is none."""
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
        problem = "wants no more words" if rest else "wants a name"
        raise UsageError(
            f"{text!r}: {name} {problem}", legal=f"{name} {usage}".strip(), remedy="help says what each command takes"
        )
    return Command(name, rest, parse_slices(slices) if slices.strip() else ())


def full_name(word: str) -> str:
    """The command of which a word is the beginning; UsageError where it is that of none, or of several."""
    return SHORT.get(word) or completed(word, COMMANDS, "command")


def completed(word: str, known: Collection[str], kind: str) -> str:
    """The one of these that a word is, or begins; `kind` is what each is. UsageError where it is none, or several."""
    found = [each for each in known if each.startswith(word)]
    if word in known or len(found) == 1:
        return word if word in known else found[0]
    raise UsageError(
        f"{word!r} is short for {' and '.join(found)}" if found else f"{word!r} is no {kind}",
        legal=", ".join(known) or f"nothing: there is no {kind}",
        remedy=did_you_mean(word, found or known) or "help says what each command takes",
    )


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The names that hold a word, and those that are spelt much like it, as a question; empty where there is none."""
    names = list(dict.fromkeys(names))
    near = [name for name in names if word in name] + difflib.get_close_matches(word, names, n=MAX_NAMES)
    return f"did you mean {' or '.join(list(dict.fromkeys(near))[:MAX_NAMES])}?" if near else ""
