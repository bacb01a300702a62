"""The section `chaos` of a scenario's file, checked without torch and without the entry."""

import pytest

from harness.bits.errors import UsageError
from harness.lab.chaos.search import Choice, Condition, Factor, Span, is_importable, payload_factors
from harness.lab.experiments.scenario import parse_scenario

HEAD = "about: x\nentry: a:b\ndeterminism: off\nruntime_sections: [spread, output]\n"


def test_factors_of_a_payload_have_values_and_know_what_is_usual() -> None:
    text = HEAD + "chaos: {factors: {spread.n: {min: 1, max: 9}, spread.m: [2, off, null]}}\n"
    section = parse_scenario(text, "f").chaos
    assert payload_factors(section, {"spread.n": 4}) == (
        Factor("spread.n", Span(1, 9), 4),
        Factor("spread.m", Choice((2, "off", None)), None),
    )
    assert section.crash is None
    assert payload_factors(parse_scenario(HEAD, "f").chaos, {}) == ()


def test_a_size_may_have_values_of_its_own() -> None:
    text = HEAD + "sizes: {tiny: {}}\nchaos: {factors: {spread.n: [9, 8]}, sizes: {tiny: {spread.n: [2, 1]}}}\n"
    section = parse_scenario(text, "f").chaos
    assert [each.values for each in payload_factors(section, {}, size="tiny")] == [Choice((2, 1))]
    assert [each.values for each in payload_factors(section, {}, size="smoke")] == [Choice((9, 8))]


def test_factors_have_names_and_what_takes_its_time_is_named() -> None:
    text = HEAD + "chaos: {factors: {spread.n: [1]}, names: {spread.n: how wide it is}, latency: [tools:ask]}\n"
    section = parse_scenario(text, "f").chaos
    assert [each.about for each in payload_factors(section, {})] == ["how wide it is"]
    assert section.latency == ["tools:ask"]


def test_a_factor_needs_its_package_and_the_values_of_other_keys() -> None:
    text = HEAD + (
        "chaos: {factors: {spread.kind: [plain, wide], spread.n: {min: 1, max: 9}},"
        " packages: {spread.kind: wideness}, where: {spread.n: {spread.kind: wide}}}\n"
    )
    section, asked = parse_scenario(text, "f").chaos, []

    def is_installed(package: str) -> bool:
        asked.append(package)
        return len(asked) == 1

    kind, number = payload_factors(section, {"spread.kind": "plain"}, is_installed)
    assert (kind.name, kind.num_quarters, kind.where) == ("spread.kind", 2, ())
    assert (number.name, number.num_quarters) == ("spread.n", 3)
    assert number.where == (Condition("spread.kind", "wide", "plain"),)
    assert [each.name for each in payload_factors(section, {}, is_installed)] == ["spread.n"]
    assert asked == ["wideness"] * 2
    assert is_importable("pytest") and not is_importable("no_such_package_here")


@pytest.mark.parametrize(
    ("chaos", "said"),
    [
        ("{sizes: {huge: {}}}", "chaos.sizes: huge is not one of the sizes, which are none"),
        ("{factors: {seed.x: [1]}}", "chaos: seed.x is not in a section of runtime settings"),
        ("{factors: {spread.n: {min: 1.5, max: 2}}}", "chaos.factors.spread.n"),
        ("{names: {spread.n: how wide it is}}", "chaos.names: spread.n is not one of its factors, which are none"),
        ("{packages: {spread.n: vllm}}", "chaos.packages: spread.n is not one of its factors, which are none"),
        ("{where: {spread.n: {spread.m: 1}}}", "chaos.where: spread.n is not one of its factors, which are none"),
        ("{crash: {output.every: 1}}", "chaos.crash needs resume"),
        ("{crash: {other.every: 1}}", "chaos: other.every is not in a section of runtime settings"),
    ],
)
def test_what_cannot_be_is_refused(chaos: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_scenario(f"{HEAD}chaos: {chaos}\n", "f")
    assert said in refused.value.what
