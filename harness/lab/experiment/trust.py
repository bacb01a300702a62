"""Whether a recorded call may be run without asking: its entry, and all that may name code, a scenario here names too.

    call.json of a run ─▶ its entry, texts and keys with a colon ─ those of the scenarios here ─▶ the rest
    none ─▶ run      some ─▶ an error that lists them      with --trust: notes that list them ─▶ run

Who has recorded the run does not matter: a file can be forged. A text with a colon may name a function (module:name) or
an address, from which some clients take code: which of them does, the entry alone knows. All other
values are free.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.redaction import redact_argv, redact_values
from harness.bits.text import count, one_line, path_text
from harness.lab.experiment.recorded_run import CHECKPOINTS, RecordedRun
from harness.lab.experiment.scenario import Scenario, all_scenarios
from harness.process.invocation import Invocation
from harness.recording.run_spec import EntryCall

CHECKPOINT_SUFFIXES = (".json", ".jsonl", ".safetensors", ".txt", ".model", ".jinja")
"""Formats of checkpoints that hold data: weights, plain values, and what tokenizers are saved as."""
MAX_SHOWN = 40
MAX_TEXT = 160
"""Characters of a key or a value that are shown."""


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Something that a recorded call would use, and that no scenario here names."""

    key: str
    value: Any

    def __str__(self) -> str:
        """KEY = VALUE in one line of ASCII."""
        return f"{one_line(json.dumps(self.key)[1:-1], MAX_TEXT)} = {one_line(json.dumps(self.value), MAX_TEXT)}"


def unnamed_in(call: EntryCall, scenarios: Iterable[Scenario]) -> list[Unnamed]:
    """List what a call names and none of the scenarios does; pure.

    An entry has to be that of a scenario. A text or a key with a colon has to be in the configuration of one, in one of
    its sizes, as it is there or as it is recorded.
    """
    entries: set[str] = set()
    named: set[str] = set()
    for scenario in scenarios:
        entries |= {scenario.entry} if scenario.entry else set()
        for payload in (scenario.payload(size, {}) for size in ("", *scenario.sizes)):
            for config in (payload, redact_values(payload)):
                named |= {text for keys, value in _values(config) for text in (*keys, value) if isinstance(text, str)}
    found = [] if call.entry in entries else [Unnamed("entry", call.entry)]
    for keys, value in _values(call.config):
        if any(isinstance(text, str) and ":" in text and text not in named for text in (*keys, value)):
            found.append(Unnamed(".".join(keys), value))
    return found


def check_run(run: RecordedRun, invocation: Invocation, *, is_trusted: bool) -> None:
    """Refuse a run that would use what no scenario here names, unless this user trusts it.

    Raises UsageError, which lists what that is. Of one that is trusted, notes list it.
    """
    scenarios = _scenarios_here(invocation.cwd)
    if run.call is None:
        if invocation.trailing or _names_command(run, scenarios):
            return
        if not is_trusted:
            typed = one_line(shlex.join(run.argv))
            what = f"{path_text(run.directory)} would run the command that it holds: {typed}"
            raise UsageError(what, remedy=f"add to this line: -- {typed}; or --trust if you trust it")
        found = [Unnamed("command", shlex.join(run.argv))]
    else:
        found = [*unnamed_in(run.call, scenarios), *_brought_by(run, run.call, invocation.cwd)]
    if not found:
        return
    lines = [str(each) for each in found]
    if len(lines) > MAX_SHOWN:
        lines[MAX_SHOWN:] = [f"and {len(lines) - MAX_SHOWN:,} more: read its call.json"]
    if is_trusted:
        for line in lines:
            invocation.note(f"note: trusted, though no scenario here names it: {line}")
        return
    known = one_line(", ".join(each.name for each in all_scenarios(invocation.cwd)) or "none found")
    what = f"{one_line(path_text(run.directory))} would use {count(len(found), 'value')} that no scenario here names:"
    remedy = "add --trust only if you trust its author: the code it names runs with all your permissions"
    raise UsageError("\n    ".join([what, *lines]), legal=f"what the scenarios here name ({known})", remedy=remedy)


def _scenarios_here(cwd: Path) -> Iterator[Scenario]:
    """Yield every scenario that can be read; any other file names nothing."""
    for file in all_scenarios(cwd):
        with suppress(UsageError):
            yield file.read()


def _names_command(run: RecordedRun, scenarios: Iterable[Scenario]) -> bool:
    """Whether a scenario has this command in one of its sizes."""
    return any(
        scenario.command is not None and redact_argv(scenario.words(scenario.payload(size, {}))) == run.argv
        for scenario in scenarios
        for size in ("", *scenario.sizes)
    )


def _brought_by(run: RecordedRun, call: EntryCall, cwd: Path) -> Iterator[Unnamed]:
    """What a run's directory itself would bring: modules, links, and checkpoints that may hold code."""
    if cwd.resolve().is_relative_to(run.directory.resolve()):
        yield Unnamed("import path", str(cwd))
    checkpoints = run.directory / CHECKPOINTS
    if call.resume is None:
        return
    for path in [checkpoints] if checkpoints.is_symlink() else sorted(checkpoints.rglob("*")):
        is_data = path.is_file() and path.suffix in CHECKPOINT_SUFFIXES
        if path.is_symlink() or not (is_data or path.is_dir()):
            yield Unnamed("file", path.relative_to(run.directory).as_posix())


def _values(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that holds no others, and the keys that lead to it; [] for any position in a list."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _values(inner, (*keys, key))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _values(inner, (*keys, "[]"))
    else:
        yield keys, value
