"""Payloads: dotted keys, and the text of what a run is."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.lab.experiment.flat_config import flattened, keys_with_dots, overridden

SEEDED = settings(derandomize=True, max_examples=2 * settings().max_examples)
names = st.sampled_from("abcd")
recorded_values = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-1, 1) | st.text("ab", max_size=2)
values = recorded_values | st.lists(recorded_values, max_size=2)
payloads = st.dictionaries(
    names, st.recursive(values, lambda inner: st.dictionaries(names, inner, max_size=3)), max_size=4
)


def nested(flat: dict[str, str]) -> dict[str, Any]:
    """The inverse of `flattened`."""
    return overridden({}, {dotted: json.loads(text) for dotted, text in flat.items()}, "x")


@SEEDED
@given(payloads)
def test_a_payload_is_known_from_its_text(payload: dict[str, Any]) -> None:
    found = nested(flattened(payload))
    assert json.dumps(found, sort_keys=True) == json.dumps(payload, sort_keys=True)


@SEEDED
@given(payloads, values)
def test_an_override_changes_its_own_place_alone(payload: dict[str, Any], value: Any) -> None:
    before = deepcopy(payload)
    found = overridden(payload, {"e.f.g": value, "h": value}, "x")
    assert payload == before
    assert (found["e"]["f"]["g"], found["h"]) == (value, value)
    assert {name: inner for name, inner in found.items() if name not in "eh"} == payload


@pytest.mark.parametrize(
    ("key", "said"), [("a.b.c", "leads through b, which is 1"), ("a..b", "an empty part"), ("", "an")]
)
def test_keys_that_lead_nowhere_are_refused(key: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        overridden({"a": {"b": 1}}, {key: 2}, "--set")
    assert str(refused.value).startswith(f"--set: {key}")


def test_keys_that_would_be_two_places_are_found() -> None:
    assert list(keys_with_dots({"a": {"b.c": {"d": 1}}, "": 2})) == ["a.b.c", ""]
    assert list(keys_with_dots({"a": {"b": [{"x.y": 1}]}})) == [], "below a list there is no dotted key"
