"""A typed line as a command."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.lab.reproduce.debugger.words import COMMANDS, Command, parse_line
from tests.support.traces import SEEDED


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
        ("comp loss [0:2, 3]", Command("compare", "loss", ((0, 2, None), 3))),
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
        ("frobnicate", "'frobnicate' is not a command"),
        ("b", "short for back and break"),
        ("nxt", "remedy: did you mean next?"),
        ("show", "'show': show needs a name\n  legal:  show NAME [SLICE]"),
        ("clear", "legal:  clear PHASE|NAME"),
        ("quit now", "'quit now': quit takes no more arguments\n  legal:  quit"),
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
