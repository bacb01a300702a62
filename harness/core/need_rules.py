"""Rules that map patterns of files to needs, and the table that answers for a file."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.need import Need

if TYPE_CHECKING:
    from pathspec import PathSpec

MAX_SEARCHED = 20_000
"""Files among which a pattern of the needs table is looked for."""


@dataclass(frozen=True, slots=True)
class NeedRule:
    """Need of the files that match a pattern."""

    glob: str
    need: Need | None
    """None where the entry sets a timeout only."""
    timeout_s: float | None = None


class NeedsTable:
    """The rules of the configuration and of `--needs`, ready to be asked about files."""

    def __init__(self, rules: Iterable[NeedRule]) -> None:
        self._last_first = [(rule, match_spec(rule.glob)) for rule in rules][::-1]

    def need(self, path: str) -> Need | None:
        """Return the need of the last matching rule with one for `path`, relative to the root directory; else None."""
        return next((rule.need for rule, spec in self._last_first if rule.need and spec.match_file(path)), None)

    def timeout_s(self, path: str) -> float | None:
        """The time limit that the last matching rule with a timeout sets; None for none."""
        return next(
            (rule.timeout_s for rule, spec in self._last_first if rule.timeout_s and spec.match_file(path)), None
        )

    def idle(self, paths: Sequence[str]) -> list[str]:
        """Patterns that match none of `paths`: most likely misspelt."""
        return [rule.glob for rule, spec in self._last_first if not any(spec.match_file(path) for path in paths)][::-1]

    def idle_below(self, root: Path, paths: Sequence[str]) -> list[str]:
        """Patterns that match none of `paths` and no other file below `root`; empty for a tree too large to search."""
        idle = set(self.idle(paths))
        if not idle:
            return []
        for number, path in enumerate(_files_below(root)):
            if number == MAX_SEARCHED:
                return []
            idle -= {rule.glob for rule, spec in self._last_first if rule.glob in idle and spec.match_file(path)}
        return [rule.glob for rule, _ in self._last_first if rule.glob in idle][::-1]


def _files_below(root: Path) -> Iterator[str]:
    """Yield the files below a directory, relative to it, without those of hidden directories."""
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".") and name != "__pycache__"]
        yield from (os.path.relpath(os.path.join(directory, name), root) for name in files)


def paths_matching(pattern: str, paths: Sequence[str]) -> list[str]:
    """Return those of `paths` that match a pattern of .gitignore, in their order."""
    spec = match_spec(pattern)
    return [path for path in paths if spec.match_file(path)]


def match_spec(glob: str) -> "PathSpec[Any]":
    """Return the matcher of a pattern as in .gitignore."""
    from pathspec import PathSpec

    return PathSpec.from_lines("gitignore", [glob])
