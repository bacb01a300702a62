"""Paths and node ids of a command line."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Selection:
    """A path as it was given, and what followed it: `TestA::test_x[1]`, empty for all of it."""

    absolute: Path
    rest: str


def split_selections(paths: Sequence[str], cwd: Path) -> list[Selection]:
    """Split each of `paths` from the node id in it."""
    return [Selection(Path(os.path.abspath(cwd / file)), rest) for file, rest in map(split_node_id, paths)]


def split_node_id(text: str) -> tuple[str, str]:
    """Return the path of a path or node id, and what follows the `::` after it, as pytest splits them.

    A `::` inside the brackets of a parameter set does not count, and a `[` before any `::` belongs to the path.
    """
    file, colons, _ = text.partition("[")[0].partition("::")
    return (file, text[len(file) + 2 :]) if colons else (text, "")


def selected(selections: Sequence[Selection], file: Path, path: str) -> tuple[str, ...]:
    """Node ids asked for in `file`, whose unit is `path`; none where all of it was asked for as well."""
    if any(not each.rest and (each.absolute == file or each.absolute in file.parents) for each in selections):
        return ()
    return tuple(dict.fromkeys(f"{path}::{each.rest}" for each in selections if each.rest and each.absolute == file))
