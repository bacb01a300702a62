"""Workflow commands of GitHub Actions, read as its runner does."""

import re
from collections.abc import Iterable


def read_back(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as GitHub's runner reads it (actions/runner, ActionCommand.cs)."""
    match = re.fullmatch(r"::([a-z]+)(?: ([^\r\n]*?))?::([^\r\n]*)", line)
    assert match, line

    def unescaped(text: str, *more: tuple[str, str]) -> str:
        for code, character in (*more, ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
            text = text.replace(code, character)
        return text

    pairs = [pair.split("=", 1) for pair in (match[2] or "").split(",") if pair]
    return match[1], {n: unescaped(v, ("%3A", ":"), ("%2C", ",")) for n, v in pairs}, unescaped(match[3])


def obeyed(lines: Iterable[str]) -> list[str]:
    """The lines that GitHub's runner takes for workflow commands (actions/runner, ActionCommandManager.cs)."""
    found, token = [], ""
    for line in lines:
        is_command = line.lstrip().startswith("::") or re.search(r"##\[[a-z-]+[ \]]", line)
        if token:
            token = "" if line.strip() == f"::{token}::" else token
        elif match := re.match(r"\s*::stop-commands::(\S+)", line):
            token = match[1]
        elif is_command:
            found.append(line)
    assert not token, "commands stay stopped"
    return found
