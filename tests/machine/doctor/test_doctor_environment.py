"""Ray's addresses, tried for real on this machine's loopback."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.doctor import environment
from harness.doctor.environment import check_ray_variables, classify_address, endpoint
from harness.doctor.host import Answer, Host
from harness.machine.findings import Finding, Severity
from tests.support.finding_checks import severities, sound


def look(environ: dict[str, str]) -> dict[str, Finding]:
    async def nobody(argv: Sequence[str], *, limit_s: float) -> Answer:
        raise AssertionError("no child is asked here")

    return {
        finding.check: finding
        for finding in sound(asyncio.run(environment.inspect_ray(Host(environ, Path("/"), nobody))))
    }


def test_an_environment_without_ray_is_fine(tmp_path: Path) -> None:
    found = look({"TMPDIR": str(tmp_path)})
    assert {check: finding.measured for check, finding in found.items()} == {"Ray": "none of its variables is set"}


def test_an_address_that_answers_is_joined(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found = look({"TMPDIR": str(tmp_path), "RAY_ADDRESS": address})["RAY_ADDRESS"]
        assert (found.severity, found.measured) == (Severity.WARNING, f"RAY_ADDRESS={address}: it answers")
        client = look({"TMPDIR": str(tmp_path), "RAY_ADDRESS": f"ray://{address}"})["RAY_ADDRESS"]
        assert client.severity is Severity.WARNING


def test_a_dead_address_breaks(tmp_path: Path) -> None:
    with socket.socket() as held:  # bound and not listening: nobody else can answer there
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        found = look({"TMPDIR": str(tmp_path), "RAY_ADDRESS": address})["RAY_ADDRESS"]
    assert (found.severity, found.measured) == (Severity.BROKEN, f"RAY_ADDRESS={address}: connection refused")
    assert (found.remedy, found.unsets) == ("unset RAY_ADDRESS", ("RAY_ADDRESS",))


def test_an_address_behind_a_full_queue_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "CONNECT_S", 0.1)
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for waiting in (first, second):  # nobody takes them: the third is not let in
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found = look({"TMPDIR": str(tmp_path), "RAY_ADDRESS": address})["RAY_ADDRESS"]
    assert found.measured == f"RAY_ADDRESS={address}: no answer within 0.1 s"


def test_the_cluster_that_ray_start_noted_is_tried(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    path = tmp_path / "ray" / "ray_current_cluster"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        path.write_text(f"127.0.0.1:{held.getsockname()[1]}\n")
        for name in ("TMPDIR", "RAY_TMPDIR"):
            found = look({"TMPDIR": "/nowhere", name: str(tmp_path)})["ray_current_cluster"]
            assert found.severity is Severity.BROKEN
            assert found.remedy == f"ray stop; rm -f {path}"


@pytest.mark.parametrize(
    ("value", "severity"), [("", "warning"), ("auto", "fine"), ("local", "fine"), ("head", "broken"), ("a:b", "broken")]
)
def test_addresses_that_name_no_place(value: str, severity: str) -> None:
    assert severities([classify_address("RAY_ADDRESS", value, "")]) == {"RAY_ADDRESS": severity}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("ray://head:10001", ("head", 10001)),
        ("ray://head", ("head", 10001)),
        ("http://head", ("head", 80)),
        ("http://127.0.0.1:8265/path", ("127.0.0.1", 8265)),
        ("[::1]:6379", ("::1", 6379)),
        ("head", None),
        ("", None),
        ("auto", None),
        ("local", None),
        ("a:port", None),
        ("a:99999", None),
    ],
)
def test_endpoints(address: str, expected: tuple[str, int] | None) -> None:
    assert endpoint(address) == expected


@given(st.text())
def test_no_text_is_too_odd_for_an_address(address: str) -> None:
    found = endpoint(address)
    assert found is None or (found[0] and 0 < found[1] < 65536)
    sound([classify_address("RAY_ADDRESS", address, "")])


def test_other_variables_of_ray_are_told() -> None:
    environ = {"RAY_TMPDIR": "/r", "RAY_ADDRESS": "auto", "RAY_DEDUP_LOGS": "0", "HOME": "/"}
    assert check_ray_variables(environ).measured == "set: RAY_DEDUP_LOGS=0 RAY_TMPDIR=/r"
