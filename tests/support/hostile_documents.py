"""Hypothesis strategies: documents that a reader understands, changed as somebody would who wishes it ill."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

DEEP = 100_000
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 10**30, -(10**400), 1e308, float("inf"), float("-inf"), float("nan")),
    *(2**31, 2**62, [0] * 20_000, {str(number): number for number in range(5_000)}),
    *("", "x", "9" * 5000, "\x00", "\x1b]0;P\x07\n", "\ud800", "../../etc/passwd", "/dev/zero", "a" * 70_000),
    *([], {}, [[]], [None], {"": None}, ["x"] * 3, {"k": []}, [[["x"]]]),
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*place, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 20)):
            yield from _places(value[index], (*place, index))


def _changed(document: Any, place: tuple[Any, ...], value: Any, kind: str) -> Any:
    if not place:
        return value
    changed = copy.deepcopy(document)
    parent = changed
    for step in place[:-1]:
        parent = parent[step]
    if kind == "removed":
        del parent[place[-1]]
    elif kind == "renamed" and isinstance(parent, dict):
        parent[f"{place[-1]}x"] = parent.pop(place[-1])
    else:
        parent[place[-1]] = value
    return changed


@st.composite
def changed_json(draw: st.DrawFn, line: bytes) -> bytes:
    """A JSON document with one or two of its values replaced, removed or renamed."""
    document = json.loads(line)
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from(list(_places(document))))
        document = _changed(document, place, draw(st.sampled_from(HOSTILE)), draw(st.sampled_from(KINDS)))
    return json.dumps(document).encode()


KINDS = ("replaced", "replaced", "removed", "renamed")


@st.composite
def hostile(draw: st.DrawFn, document: bytes) -> bytes:
    """A document that is changed: a value of its JSON, some of its bytes, its end; or something else altogether."""
    how = draw(st.sampled_from(("json", "json", "json", "bytes", "cut", "deep", "noise")))
    if how == "json" and (lines := _json_lines(document)):
        at = draw(st.integers(0, len(lines) - 1))
        return b"".join(b"%s\n" % (draw(changed_json(line)) if i == at else line) for i, line in enumerate(lines))
    if how == "cut":
        return document[: draw(st.integers(0, len(document)))]
    if how == "deep":
        opened, closed = draw(st.sampled_from(((b"[", b"]"), (b'{"a":', b"}"), (b"[{", b"}]"))))
        return opened * DEEP + draw(st.sampled_from((b"", closed * DEEP)))
    if how == "noise":
        return draw(st.binary(max_size=300))
    changed = bytearray(document)
    for _ in range(draw(st.integers(1, 8))):
        if changed:
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


def _json_lines(document: bytes) -> list[bytes]:
    """The document as one JSON value, or one of each line; nothing where it is neither."""
    for pieces in ([document], document.splitlines()):
        try:
            for piece in pieces:
                json.loads(piece)
        except ValueError:
            continue
        return pieces
    return []
