"""Whether a recorded call may be run without asking: it uses nothing but what a scenario here names too.

    call.json of a run or a bundle ─▶ its entry, texts and keys ─ those of the scenarios here ─▶ what only it names
    none ─▶ run      some ─▶ an error that lists them      with --trust: notes that list them ─▶ run

A text of a configuration may name a function, a file or a program: which of them does, the entry alone knows. So every
text counts, and every key. Numbers, true, false and null do not.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.invocation import Invocation
from harness.core.redaction import REDACTED, redact_values
from harness.core.text import count, one_line, path_text
from harness.lab.experiments.bundles.contents import CHECKPOINT_SUFFIXES
from harness.lab.experiments.call_signature import is_signed
from harness.lab.experiments.entry_call import EntryCall
from harness.lab.experiments.recorded_run import CHECKPOINTS, RecordedRun
from harness.lab.experiments.scenario import Scenario
from harness.lab.experiments.scenario_files import all_scenarios
from harness.trace.renames import current_entry

MAX_SHOWN = 40
MAX_TEXT = 160
"""Characters of a key or a value that are shown."""

KeyPath = tuple[str | None, ...]
"""The keys that lead to a value from the top of a configuration; None for any position in a list."""


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Something that a recorded call would use, and that no scenario here names."""

    key: str
    value: Any

    def __str__(self) -> str:
        """KEY = VALUE in one line of ASCII."""
        key = json.dumps(self.key)[1:-1]
        return f"{one_line(key, MAX_TEXT)} = {one_line(json.dumps(self.value), MAX_TEXT)}"


def unnamed_in(call: EntryCall, scenarios: Iterable[Scenario]) -> list[Unnamed]:
    """List what a call names and none of the scenarios does; pure.

    An entry has to be that of a scenario, and so have the keys by which a run is resumed. A text has to be one that a
    scenario of this entry has at the same key in one of its sizes, a key one of its keys. Where no scenario has the
    entry, it is listed with every text; keys of numbers say nothing more then.
    """
    own = [each for each in scenarios if current_entry(each.entry) == call.entry]
    payloads = [each.payload(size, {}) for each in own for size in ("", *each.sizes)]
    allowed = [
        recorded_value
        for payload in payloads
        for each in (payload, redact_values(payload))
        for recorded_value in _recorded_values(each)
    ]
    texts = {(place, value) for place, value in allowed if isinstance(value, str)}
    keys = {(), *(_key(place[:end]) for place, _ in allowed for end in range(1, len(place) + 1))}
    found = [] if own else [Unnamed("entry", call.entry)]
    resumptions = [each.resume.model_dump() for each in own if each.resume]
    if own and call.resume is not None and dict(call.resume) not in resumptions:
        found.append(Unnamed("resume", dict(call.resume)))
    for place, value in _recorded_values(call.config):
        is_text = isinstance(value, str) and value != REDACTED
        if (place, value) not in texts if is_text else own and _key(place) not in keys:
            found.append(Unnamed(".".join(name or "[]" for name in _key(place)), value))
    return found


def check_run(run: RecordedRun, invocation: Invocation, *, is_trusted: bool) -> None:
    """Refuse a run that would use what no scenario here names, unless this user has recorded it, or trusts it.

    Raises UsageError, which lists what that is. Of one that is trusted, notes list it.
    """
    if not is_signed(run.directory, run.call, invocation.environ):
        found = [*_brought_by(run, invocation.cwd), *unnamed_in(run.call, scenarios_here(invocation.cwd))]
        check_trust(path_text(run.directory), found, invocation, is_trusted=is_trusted)


def check_trust(name: str, found: Sequence[Unnamed], invocation: Invocation, *, is_trusted: bool) -> None:
    """The same for what was found; `name` is that of the run or of the bundle."""
    if not found:
        return
    lines = [str(each) for each in sorted(found, key=lambda each: ":" not in str(each.value))]
    if len(lines) > MAX_SHOWN:
        lines[MAX_SHOWN:] = [f"and {len(lines) - MAX_SHOWN:,} more: read its call.json"]
    if is_trusted:
        for line in lines:
            invocation.note(f"note: trusted, though no scenario here names it: {line}")
        return
    known = ", ".join(each.name for each in all_scenarios(invocation.cwd)) or "none found"
    what = f"{one_line(name)} would use {count(len(found), 'value')} that no scenario here names:"
    raise UsageError(
        "\n    ".join([what, *lines]),
        legal=f"what the scenarios here name ({one_line(known)}), and runs that you have recorded on this machine",
        remedy="add --trust only if you trust its author: the code it names runs with all your permissions; or record"
        " it with a scenario of your own",
    )


def scenarios_here(cwd: Path) -> Iterator[Scenario]:
    """Yield every scenario that can be read; any other file names nothing."""
    for file in all_scenarios(cwd):
        with suppress(UsageError):
            yield file.read()


def _brought_by(run: RecordedRun, cwd: Path) -> Iterator[Unnamed]:
    """What a run's directory itself would bring: modules, links, and checkpoints that may hold code."""
    if cwd.resolve().is_relative_to(run.directory.resolve()):
        yield Unnamed("import path", str(cwd))
    checkpoints = run.directory / CHECKPOINTS
    if run.call.resume is None:
        return
    for path in [checkpoints] if checkpoints.is_symlink() else sorted(checkpoints.rglob("*")):
        is_data = path.is_file() and path.suffix in CHECKPOINT_SUFFIXES
        if path.is_symlink() or not (is_data or path.is_dir()):
            yield Unnamed("file", path.relative_to(run.directory).as_posix())


def _recorded_values(value: Any, place: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value that holds no others, and its place."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _recorded_values(inner, (*place, key))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _recorded_values(inner, (*place, None))
    else:
        yield place, value


def _key(place: KeyPath) -> KeyPath:
    """The place of the key that holds a value, by itself or in a list."""
    return _key(place[:-1]) if place and place[-1] is None else place
