"""Names of a fingerprint that differ, for a person: values side by side, and long lists of one kind as a line each.

package numpy     A 2.4.1  B 2.2.6
69 packages only in B: aiohttp, anyio, blake3 and 66 more
78 shared libraries differ (62 only in B): --json lists them
"""

from collections.abc import Iterator, Sequence

from harness.bits.text import count, one_line
from harness.trace.verdict import FieldDifference

MAX_FIELDS = 8
"""Maximum number of names of each part that are shown side by side."""
MAX_CHARS = 60
FEW = 3
"""So many of a kind are shown side by side; a line names as many."""
LIBRARY, PACKAGE = "library ", "package "
HEADINGS = {
    "identity": "the configuration or the command differs",
    "content": "data or functions that the configuration names differ",
    "numerics": "hardware or software differs",
    "subject": "the code differs",
    "perturbation": "runtime settings differ",
    "libraries": "libraries that cannot change results differ",
}


def field_lines(part: str, differences: Sequence[FieldDifference]) -> Iterator[str]:
    """Yield the lines on one part of two fingerprints; none if nothing differs."""
    if not differences:
        return
    yield f"  {HEADINGS[part]}"
    libraries = _many([each for each in differences if each.name.startswith(LIBRARY)])
    one_sided = [_many(_only(side, differences)) for side in ("a", "b")]
    summarised = {each.name for group in (libraries, *one_sided) for each in group}
    yield from _side_by_side([each for each in differences if each.name not in summarised])
    for side, packages in zip("AB", one_sided, strict=True):
        if packages:
            names = [each.name.removeprefix(PACKAGE) for each in packages]
            shown = ", ".join(one_line(name, MAX_CHARS) for name in names[:FEW])
            yield f"    {count(len(names), 'package')} only in {side}: {shown} and {len(names) - FEW} more"
    if libraries:
        yield f"    {len(libraries)} shared libraries differ{_sides(libraries)}: --json lists them"


def _only(side: str, differences: Sequence[FieldDifference]) -> list[FieldDifference]:
    """Return the packages that one trace alone has."""
    other = "b" if side == "a" else "a"
    return [each for each in differences if each.name.startswith(PACKAGE) and getattr(each, other) is None]


def _many(fields: list[FieldDifference]) -> list[FieldDifference]:
    return fields if len(fields) > FEW else []


def _sides(fields: Sequence[FieldDifference]) -> str:
    counts = {"A": sum(each.b is None for each in fields), "B": sum(each.a is None for each in fields)}
    told = [f"{number} only in {side}" for side, number in counts.items() if number]
    return f" ({', '.join(told)})" if told else ""


def _side_by_side(differences: Sequence[FieldDifference]) -> Iterator[str]:
    shown = differences[:MAX_FIELDS]
    names = [one_line(each.name, MAX_CHARS) for each in shown]
    absent = ["as committed, or absent" if each.name.startswith("file ") else "none" for each in shown]
    values = [
        tuple(text if value is None else one_line(value, MAX_CHARS) for value in (each.a, each.b))
        for each, text in zip(shown, absent, strict=True)
    ]
    width = max(map(len, names), default=0)
    width_a = max((len(a) for a, _ in values), default=0)
    for name, (a, b) in zip(names, values, strict=True):
        yield f"    {name:<{width}}  A {a:<{width_a}}  B {b}"
    if more := len(differences) - len(shown):
        yield f"    and {more} more"
