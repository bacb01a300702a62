"""YAML that selects and never computes: what its words mean, and what is refused with its place."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.lab.experiment.plain_yaml import read_yaml

SEEDED = settings(derandomize=True, max_examples=2 * settings().max_examples)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@SEEDED
@given(plain)
def test_what_is_written_as_json_is_read_with_its_types(value: object) -> None:
    """JSON is YAML 1.2, but for numbers that are written with an E and no dot in YAML 1.1."""
    assert read_yaml(json.dumps(value, ensure_ascii=False).replace("Infinity", ".inf"), "x") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("true", True),
        ("~", None),
        ("", None),
        ("3e-4", 3e-4),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("0o17", 15),
        ("1:30", "1:30"),
        ("2026-11-20", "2026-11-20"),
        ("1_000", "1_000"),
        ("[1, 16]", [1, 16]),
        ("{a: 1}", {"a": 1}),
        ("'3'", "3"),
    ],
)
def test_plain_words(text: str, value: object) -> None:
    found = read_yaml(text, "x")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "x, line 1, column 1: the key 'a' is not text (put it in quotes) or appears twice"),
        ("1: a", "x, line 1, column 1: the key '1' is not text"),
        ("a: !!python/object/apply:os.system [ls]", "x, line 1, column 4: could not determine a constructor"),
        ("a: &x 1\nb: *x", "x, line 2, column 4: aliases are not supported"),
        ("a: !!float b", "x: could not convert"),
        ("a: !own {}", "x, line 1, column 4: could not determine a constructor"),
        ("a: [1", "x, line 1, column 6: "),
        ("a: 1\n--- \nb: 2", "x, line 2, column 1: "),
        ("\x00", "x: "),
        ("[" * 3000, "x: maximum recursion depth"),
        ("a: " + "b" * 300_000, "x: 300,003 characters"),
        ("9" * 5000, "x: Exceeds the limit"),
    ],
)
def test_what_is_refused_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_yaml(text, "x")
    assert refused.value.what.startswith(said)
    assert refused.value.legal
