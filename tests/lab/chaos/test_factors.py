"""Factors by name: what this machine allows, how a perturbation is written and read again."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.lab.chaos.search import CRASH, Factor, chosen, format_perturbation, outside_factors, parse_only, written

OWN = Factor("runtime.x", (1, "two"), 1)
WHOLE = Factor("runtime.n", range(1, 5))
FACTORS = (OWN, WHOLE, *outside_factors(4, {}), Factor(CRASH, ("1.loss", "1.end")))
characters = st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co", "Cf", "Zl", "Zp"])  # what YAML has a place for
plain = (
    st.integers() | st.booleans() | st.none() | st.text(characters) | st.floats(allow_nan=False, allow_infinity=False)
)


@settings(derandomize=True)
@given(plain)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert parse_only([f"runtime.x={written(value)}"], FACTORS) == {"runtime.x": value}


def test_a_perturbation_is_told_as_it_is_typed() -> None:
    perturbation = {"runtime.x": "two", "hash_seed": 7, CRASH: "1.end"}
    assert format_perturbation(perturbation) == "runtime.x=two, hash_seed=7, crash=1.end"
    assert parse_only(format_perturbation(perturbation).split(", "), FACTORS) == perturbation
    assert format_perturbation({}) == "nothing changed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runtime.y=1", "--only runtime.y=1"),
        ("threads", "--only threads"),
        ("threads=0", "--only threads=0"),
        ("crash=x.loss", "crash=x.loss"),
        ("runtime.n=1.5", "--only runtime.n=1.5"),
        ("runtime.n=true", "--only runtime.n=true"),
        ("runtime.x=[", "--only runtime.x=["),
    ],
)
def test_what_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_only([text], FACTORS)
    assert refused.value.what.startswith(said)
    assert refused.value.legal


def test_factors_are_chosen_by_name() -> None:
    assert [each.name for each in chosen(FACTORS, "threads, runtime.x,threads")] == ["threads", "runtime.x"]
    assert chosen(FACTORS, None) == FACTORS
    with pytest.raises(UsageError, match="there is no factor 'loud'"):
        chosen(FACTORS, "loud")


def test_what_is_usual_is_what_the_environment_says() -> None:
    found = {each.name: each for each in outside_factors(2, {"PYTHONHASHSEED": "5", "OMP_NUM_THREADS": "2"})}
    assert (found["hash_seed"].usual, found["threads"].usual) == (5, 2)
    assert {each.name: each.usual for each in outside_factors(2, {})} == {"hash_seed": 0, "threads": None}
