"""Paths and node ids of a command line."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Selection:
    """A path as it was given, and what followed it: `TestA::test_x[1]`, empty for all of it."""

    path: str
    absolute: Path
    rest: str


def split_selections(paths: Sequence[str], cwd: Path) -> list[Selection]:
    """Split each of `paths` from the node id in it."""
    selections = []
    for path in paths:
        file, rest = split_node_id(path, cwd)
        selections.append(Selection(file, Path(os.path.abspath(cwd / file)), rest))
    return selections


def split_node_id(text: str, directory: Path) -> tuple[str, str]:
    """Return the path of a path or node id, relative to `directory`, and what follows the `::` after it.

    A `::` inside the brackets of a parameter set does not count. If that path does not exist, `[` and `::` may belong
    to the name of a file: the path is then the shortest one before a `::` that is a file.
    """
    file, colons, _ = text.partition("[")[0].partition("::")
    file = file if colons else text
    if is_oddly_named(text) and not os.path.lexists(directory / file):
        ends = [match.start() for match in re.finditer("::", text)] + [len(text)]
        file = next((text[:end] for end in ends if os.path.isfile(directory / text[:end])), file)
    return file, text[len(file) + 2 :]


def is_oddly_named(path: str) -> bool:
    """Return whether pytest takes a part of this path for a part of a node id."""
    return "[" in path or "::" in path


def selected(selections: Sequence[Selection], file: Path, path: str) -> tuple[str, ...]:
    """Node ids asked for in `file`, whose unit is `path`; none where all of it was asked for as well."""
    if any(not each.rest and (each.absolute == file or each.absolute in file.parents) for each in selections):
        return ()
    return tuple(dict.fromkeys(f"{path}::{each.rest}" for each in selections if each.rest and each.absolute == file))
