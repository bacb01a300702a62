"""A typed line as a command."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.lab.interactive.words import COMMANDS, Command, parse_line, parse_slices
from tests.trace.traces import SEEDED


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("next", Command("next")),
        ("  n  ", Command("next")),
        ("n optimizer", Command("next", "optimizer")),
        ("c", Command("continue")),
        ("co", None),
        ("show policy.head", Command("show", "policy.head")),
        ("s a/b#1 [0:2, -1]", Command("show", "a/b#1", ((0, 2, None), -1))),
        ("show a[1]", Command("show", "a", (1,))),
        ("show a []", Command("show", "a")),
        ("compare loss", Command("compare", "loss")),
        ("break", Command("break")),
        ("break reward", Command("break", "reward")),
        ("where", Command("where")),
        ("", None),
        ("# a comment", None),
    ],
)
def test_a_line_is_a_command(line: str, command: Command | None) -> None:
    if line == "co":
        with pytest.raises(UsageError, match="short for continue and compare"):
            parse_line(line)
    else:
        assert parse_line(line) == command


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("frobnicate", "'frobnicate' is no command"),
        ("b", "short for back and break"),
        ("show", "legal:  show NAME [SLICE]"),
        ("clear", "legal:  clear PHASE|NAME"),
        ("quit now", "legal:  quit"),
        ("show a [x]", "the slice [x]"),
        ("show a [0:2:0]", "the slice [0:2:0]"),
        ("show a [,]", "the slice [,]"),
    ],
)
def test_what_is_no_command_is_refused_with_what_would_be(line: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_line(line)
    assert said in str(refused.value)


@given(st.text(max_size=40))
@SEEDED
def test_whatever_is_typed_is_a_command_or_refused(line: str) -> None:
    try:
        found = parse_line(line)
    except UsageError:
        return
    assert found is None or found.name in COMMANDS


_NUMBER = st.integers(-99, 99)


@given(st.lists(st.one_of(_NUMBER, st.tuples(*[st.none() | _NUMBER] * 2, st.none() | st.integers(1, 9))), min_size=1))
@SEEDED
def test_a_slice_is_read_as_it_was_meant(slices: list[int | tuple[int | None, int | None, int | None]]) -> None:
    def word(number: int | None) -> str:
        return "" if number is None else str(number)

    parts = [str(each) if isinstance(each, int) else ":".join(map(word, each)) for each in slices]
    assert parse_slices(" , ".join(parts)) == tuple(slices)
