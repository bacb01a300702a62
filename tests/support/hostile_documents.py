"""Documents that a reader understands, changed as somebody would who wishes it ill: for hypothesis and for Atheris."""

import copy
import json
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

DEEP = 100_000
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 10**30, -(10**400), 1e308, float("inf"), float("-inf"), float("nan")),
    *(2**31, 2**62, [0] * 5_000, {str(number): number for number in range(2_000)}),
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
    if how == "json" and (found := _json_in(document)):
        at = draw(st.integers(0, len(found.values) - 1))
        return found.joined([draw(changed_json(value)) if i == at else value for i, value in enumerate(found.values)])
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


def changed_at_random(document: bytes, seed: int) -> bytes | None:
    """The document with one value of its JSON replaced, removed or renamed; None where it has no JSON."""
    if (found := _json_in(document)) is None:
        return None
    drawn = random.Random(seed)
    at = drawn.randrange(len(found.values))
    value = json.loads(found.values[at])
    place = drawn.choice(list(_places(value)))
    known = [_at(value, each) for each in _places(value)]  # one of its own values may be as bad elsewhere
    other = drawn.choice(HOSTILE if drawn.random() < 0.7 else known)
    changed = json.dumps(_changed(value, place, other, drawn.choice(KINDS))).encode()
    return found.joined([changed if i == at else each for i, each in enumerate(found.values)])


@dataclass(frozen=True)
class _Json:
    """The JSON values in a document."""

    values: Sequence[bytes]
    """One to a line; or one whose length stands before it, in 8 bytes."""
    tail: bytes | None
    """What follows a value with a length; None for lines."""

    def joined(self, values: Sequence[bytes]) -> bytes:
        """The document with these values."""
        if self.tail is None:
            return b"".join(b"%s\n" % value for value in values)
        return struct.pack("<Q", len(values[0])) + values[0] + self.tail


def _json_in(document: bytes) -> _Json | None:
    """The document as one JSON value, as one of each line, or as a file of safetensors; None where it is neither."""
    length = int.from_bytes(document[:8], "little")
    for values, tail in (
        ([document], None),
        (document.splitlines(), None),
        ([document[8 : 8 + length]], document[8 + length :]),
    ):
        try:
            for value in values:
                json.loads(value)
        except (ValueError, RecursionError):
            continue
        if values:
            return _Json(values, tail)
    return None


def _at(document: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        document = document[step]
    return document
