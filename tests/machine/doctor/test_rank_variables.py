"""Places among ranks that were inherited, do not fit, or cannot be; addresses and ports of rank 0."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.doctor import rank_variables
from harness.doctor.host import Answer, Host
from harness.doctor.rank_variables import check_numbers, check_ranks, classify_address, classify_port, inspect_ranks
from harness.machine.findings import Finding, Severity
from tests.support.finding_checks import severities, sound

PLACE = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
TEXTS = st.one_of(st.integers(-3, 9).map(str), st.sampled_from(["", "x", " 2 ", "1.0", "70000"]), st.text(max_size=3))


def look(environ: Mapping[str, str]) -> list[Finding]:
    async def nobody(argv: Sequence[str], *, limit_s: float) -> Answer:
        raise AssertionError("no child is asked here")

    return sound(asyncio.run(inspect_ranks(Host(environ, Path("/"), nobody))))


@pytest.mark.parametrize(
    ("environ", "severity"),
    [
        ({}, "fine"),
        ({"MASTER_ADDR": "localhost"}, "fine"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, "fine"),
        ({"WORLD_SIZE": "8"}, "fine"),
        ({"WORLD_SIZE": "8", "RANK": "3"}, "warning"),
        ({"WORLD_SIZE": "x", "RANK": "3"}, "fine"),
    ],
)
def test_inherited_ranks(environ: dict[str, str], severity: str) -> None:
    assert severities([check_ranks(environ)]) == {"ranks": severity}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, {}),
        ({"LOCAL_RANK": "-1"}, {}),
        ({"RANK": "x"}, {"RANK": "RANK=x, which is not a number of at least 0"}),
        ({"RANK": ""}, {"RANK": "RANK is empty, which is not a number of at least 0"}),
        ({"RANK": "-1"}, {"RANK": "RANK=-1, which is not a number of at least 0"}),
        ({"WORLD_SIZE": "0"}, {"WORLD_SIZE": "WORLD_SIZE=0, which is not a number of at least 1"}),
        ({"RANK": "8"}, {"RANK": "RANK=8 and WORLD_SIZE=8: the last rank is 7"}),
        ({"LOCAL_RANK": "2"}, {"LOCAL_RANK": "LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2: the last rank is 1"}),
        (
            {"LOCAL_WORLD_SIZE": "9"},
            {"LOCAL_WORLD_SIZE": "LOCAL_WORLD_SIZE=9 and WORLD_SIZE=8: more ranks on this host than on all"},
        ),
        (
            {"WORLD_SIZE": "1"},
            {
                "RANK": "RANK=3 and WORLD_SIZE=1: the last rank is 0",
                "LOCAL_RANK": "LOCAL_RANK=1 and WORLD_SIZE=1: the last rank is 0",
                "LOCAL_WORLD_SIZE": "LOCAL_WORLD_SIZE=2 and WORLD_SIZE=1: more ranks on this host than on all",
            },
        ),
    ],
)
def test_numbers_that_do_not_fit(given: dict[str, str], said: dict[str, str]) -> None:
    found = sound(check_numbers({**PLACE, **given}))
    assert {finding.check: finding.measured for finding in found} == said
    assert {finding.severity for finding in found} <= {Severity.BROKEN}


@pytest.mark.parametrize(
    ("value", "is_port"),
    [("29500", True), (" 29500 ", True), ("1", True), ("65535", True), ("", True)]
    + [(value, False) for value in ("0", "65536", "-1", "port", "29500.0", "localhost:29500")],
)
def test_ports(value: str, is_port: bool) -> None:
    found = sound(classify_port({"MASTER_PORT": value}))
    assert [finding.unsets for finding in found] == ([] if is_port else [("MASTER_PORT",)])
    assert classify_port({}) == []


@pytest.mark.parametrize(
    ("address", "resolved", "expected"),
    [
        ("", {}, {}),
        ("10.0.0.1", {}, {}),
        ("::1", {}, {}),
        ("head", {"head": ("10.0.0.1",)}, {}),
        ("head", {"head": ()}, {"MASTER_ADDR": "broken"}),
        ("head", {}, {"MASTER_ADDR": "warning"}),
    ],
)
def test_addresses(address: str, resolved: dict[str, tuple[str, ...]], expected: dict[str, str]) -> None:
    assert severities(classify_address({"MASTER_ADDR": address}, resolved)) == expected


def test_the_resolver_is_asked_for_a_name_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {finding.check: finding.severity for finding in look({"MASTER_ADDR": "localhost"})} == {
        "ranks": Severity.FINE
    }
    monkeypatch.setattr(rank_variables, "NAME_S", 60.0)  # of a resolver that is slow to say no
    (unknown, _) = look({"MASTER_ADDR": "no-such-host.invalid"})
    assert unknown.measured == "MASTER_ADDR=no-such-host.invalid, which has no address"
    monkeypatch.delattr(rank_variables, "read_network")
    assert [finding.check for finding in look({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"})] == [
        "MASTER_PORT",
        "ranks",
    ]


@given(environ=st.dictionaries(st.sampled_from([*PLACE, "MASTER_PORT"]), TEXTS))
def test_what_is_wrong_is_said_once_and_its_remedy_mends_it(environ: dict[str, str]) -> None:
    found = sound([*check_numbers(environ), *classify_port(environ)])
    assert len({finding.check for finding in found}) == len(found)
    gone = {name for finding in found for name in finding.unsets}
    mended = {name: value for name, value in environ.items() if name not in gone}
    assert gone <= environ.keys()
    assert [*check_numbers(mended), *classify_port(mended)] == []


@given(st.data())
def test_a_place_that_can_be_is_left_alone(data: st.DataObject) -> None:
    world = data.draw(st.integers(1, 64))
    local = data.draw(st.integers(1, world))
    place = {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": local,
        "RANK": data.draw(st.integers(0, world - 1)),
        "LOCAL_RANK": data.draw(st.integers(0, local - 1)),
        "MASTER_PORT": data.draw(st.integers(1, 65535)),
    }
    environ = {name: str(value) for name, value in place.items()}
    assert [*check_numbers(environ), *classify_port(environ)] == []
