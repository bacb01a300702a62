"""The section `chaos` of a scenario's file, checked without torch and without the entry."""

import pytest

from harness.bits.errors import UsageError
from harness.lab.chaos.search import Factor, payload_factors
from harness.lab.experiment.scenario import parse_scenario

HEAD = "about: x\nentry: a:b\ndeterminism: off\nruntime_sections: [spread, output]\n"


def test_factors_of_a_payload_have_values_and_know_what_is_usual() -> None:
    text = HEAD + "chaos: {factors: {spread.n: {min: 1, max: 9}, spread.m: [2, off, null]}}\n"
    section = parse_scenario(text, "f").chaos
    assert payload_factors(section, {"spread.n": 4}) == (
        Factor("spread.n", range(1, 10), 4),
        Factor("spread.m", (2, "off", None), None),
    )
    assert section.crash is None
    assert payload_factors(parse_scenario(HEAD, "f").chaos, {}) == ()


def test_a_size_may_have_values_of_its_own() -> None:
    text = HEAD + "sizes: {tiny: {}}\nchaos: {factors: {spread.n: [9, 8]}, sizes: {tiny: {spread.n: [2, 1]}}}\n"
    section = parse_scenario(text, "f").chaos
    assert [each.values for each in payload_factors(section, {}, size="tiny")] == [(2, 1)]
    assert [each.values for each in payload_factors(section, {}, size="smoke")] == [(9, 8)]


@pytest.mark.parametrize(
    ("chaos", "said"),
    [
        ("{sizes: {huge: {}}}", "chaos.sizes: huge is not one of the sizes, which are none"),
        ("{factors: {seed.x: [1]}}", "chaos: seed.x is not in a section of runtime settings"),
        ("{factors: {spread.n: {min: 1.5, max: 2}}}", "chaos.factors.spread.n"),
        ("{crash: {output.every: 1}}", "chaos.crash needs resume"),
        ("{crash: {other.every: 1}}", "chaos: other.every is not in a section of runtime settings"),
    ],
)
def test_what_cannot_be_is_refused(chaos: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_scenario(f"{HEAD}chaos: {chaos}\n", "f")
    assert said in refused.value.what
