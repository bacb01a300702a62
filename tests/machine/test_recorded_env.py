"""The environment of a recorded program: the table, and nothing beside it."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.lab.experiments import recorded_env
from harness.recording.recording_config import ORDERS_VARIABLE
from tests.support.manual import text

TRACE, BOOT = ("TRACE", Path("/out/orders.json")), Path("/boot")
words = st.text("abcPY_=/:", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("before", "after"), [(None, "/boot"), ("", "/boot"), ("/a", "/boot:/a"), ("/a:/b", "/boot:/a:/b")]
)
def test_the_directory_that_starts_a_recording_comes_first(before: str | None, after: str) -> None:
    parent = {} if before is None else {"PYTHONPATH": before}
    env = recorded_env.recorded_env(parent, orders=TRACE, boot=BOOT, level={})
    assert env == {"TRACE": "/out/orders.json", "PYTHONPATH": after}


@settings(derandomize=True)
@given(st.dictionaries(words, words), st.dictionaries(words.map("L_{}".format), words))
def test_everything_else_is_as_it_was(parent: dict[str, str], level: dict[str, str]) -> None:
    env = recorded_env.recorded_env(parent, orders=TRACE, boot=BOOT, level=level)
    own = {"TRACE", "PYTHONPATH", *level}
    assert {name: value for name, value in env.items() if name not in own} == {
        name: value for name, value in parent.items() if name not in own
    }
    assert level.items() <= env.items()


def test_the_manual_has_the_table() -> None:
    (table,) = re.findall(r"^\| variable \| in a recorded program \|\n(?:\|.*\n)+", text(), re.MULTILINE)
    told, documented = (re.findall(r"`([A-Z_]+)`", text) for text in (table, recorded_env.__doc__ or ""))
    env = recorded_env.recorded_env({}, orders=(ORDERS_VARIABLE, Path("/o")), boot=BOOT, level={}, marker="m")
    assert set(told) == set(documented) == env.keys()
