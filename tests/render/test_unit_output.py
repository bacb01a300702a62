import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.process.program_output import harmless, show_file

PIECES = ["text", "ü", "\n", "\r\n", "\r", "\x07", "\x00", "\x9b2J"]
PIECES += ["\x1b", "\x1b[", "\x1b]", "\x1bc", "\x1b(B", "\x1b[31m", "\x1b[0m", "\x1b[2J", "\x1b[1;1H"]
PIECES += ["\x1b]0;title\x07", "\x1b]8;;u\x1b\\", "\x1bP1$r\x1b\\", "\x1b]52;c;" + "A" * 5000]
SAFE = re.compile("(?:[^\x00-\x08\x0b-\x1f\x7f-\x9f]|\x1b\\[[0-9;:]*m)*")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m"),
        (b"\x1b[2Ja\x1b[1;1Hb", "ab"),
        (b"\x1b]0;owned\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        (b"10%\r20%\r\ndone", "10%\n20%\ndone"),
        (b"bell\x07 back\x08", "bell\\x07 back\\x08"),
        (b"end \x1b", "end \\x1b"),
        (b"end \x1b]0;never closed", "end \\x1b]0;never closed"),
        (b"\x1bc\x1b(B\x1b7x", "x"),
    ],
)
def test_what_each_kind_of_output_becomes(data: bytes, expected: str) -> None:
    assert harmless(data, colour=True) == expected


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8), st.booleans())
def test_all_of_an_output_is_safe(pieces: list[str], colour: bool) -> None:
    assert SAFE.fullmatch(harmless("".join(pieces).encode("utf-8", "surrogatepass"), colour=colour))


def shown(path: Path, cap_bytes: int) -> str:
    parts: list[str] = []
    with path.open("rb") as file:
        show_file(file, str(path), parts.append, colour=False, cap_bytes=cap_bytes)
    return "".join(parts)


def test_a_file_up_to_the_cap_is_shown_whole_and_ends_its_line(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"a" * 200_000)
    assert shown(path, 200_000) == "a" * 200_000 + "\n"
    path.write_bytes(b"")
    assert shown(path, 10) == ""


def test_beyond_the_cap_both_ends_are_shown_whole_lines_each(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    lines = [f"line {number}" for number in range(20_000)]
    path.write_text("\n".join(lines) + "\n")
    head, _, tail = shown(path, 10_000).partition("\n[... ")
    assert head.splitlines() == lines[: len(head.splitlines())]
    note, _, tail = tail.partition(" ...]\n\n")
    assert tail.splitlines() == lines[-len(tail.splitlines()) :]
    assert str(path) in note
    assert "0.2 MB" in note
    assert 9_000 < len(head) + len(tail) <= 10_000
