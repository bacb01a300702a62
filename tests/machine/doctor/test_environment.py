"""Ray's addresses, tried for real on loopback; ranks that were inherited; variables that move bits."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.findings import Severity
from harness.bits.levels import MOVE_BITS
from harness.doctor import environment
from harness.doctor.environment import LOWERED, check_bits, check_ranks, check_ray, endpoint
from tests.support.finding_checks import found_by, severities


@pytest.fixture
def dead() -> Iterator[str]:
    """An address that is bound and does not listen: nobody else can answer there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


# ---- Ray ----


def test_an_environment_without_ray_is_fine(tmp_path: Path) -> None:
    found = found_by(check_ray, {"TMPDIR": str(tmp_path)})
    assert {check: finding.measured for check, finding in found.items()} == {"Ray": "none of its variables is set"}


def test_an_address_that_answers_is_joined(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        for value in (address, f"ray://{address}"):
            found = found_by(check_ray, {"TMPDIR": str(tmp_path), "RAY_ADDRESS": value})["RAY_ADDRESS"]
            assert (found.severity, found.measured) == (Severity.WARNING, f"RAY_ADDRESS={value}: it answers")


def test_a_dead_address_breaks(tmp_path: Path, dead: str) -> None:
    found = found_by(check_ray, {"TMPDIR": str(tmp_path), "RAY_ADDRESS": dead})["RAY_ADDRESS"]
    assert (found.severity, found.measured) == (Severity.BROKEN, f"RAY_ADDRESS={dead}: connection refused")
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
        found = found_by(check_ray, {"TMPDIR": str(tmp_path), "RAY_ADDRESS": address})["RAY_ADDRESS"]
    assert found.measured == f"RAY_ADDRESS={address}: no answer within 0.1 s"


def test_the_cluster_that_ray_start_noted_is_tried(tmp_path: Path, dead: str) -> None:
    (tmp_path / "ray").mkdir()
    path = tmp_path / "ray" / "ray_current_cluster"
    path.write_text(f"{dead}\n")
    for name in ("TMPDIR", "RAY_TMPDIR"):
        found = found_by(check_ray, {"TMPDIR": "/nowhere", name: str(tmp_path)})["ray_current_cluster"]
        assert found.severity is Severity.BROKEN
        assert found.remedy == f"ray stop; rm -f {path}"


@pytest.mark.parametrize(
    ("value", "severity"),
    [("", ""), ("auto", "broken"), ("local", ""), ("head", "broken"), ("a:b", "broken")],
)
def test_addresses_that_name_no_host(value: str, severity: str, tmp_path: Path) -> None:
    found = found_by(check_ray, {"TMPDIR": str(tmp_path), "RAY_ADDRESS": value, "RAY_DEDUP_LOGS": "0"})
    assert [found["RAY_ADDRESS"].severity.value] == [severity] if severity else "RAY_ADDRESS" not in found
    assert found["Ray"].measured == "set: RAY_DEDUP_LOGS=0"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("ray://head:10001", ("head", 10001)),
        ("ray://head", ("head", 10001)),
        ("http://127.0.0.1:8265/path", ("127.0.0.1", 8265)),
        ("[::1]:6379", ("::1", 6379)),
        ("head", None),
        ("", None),
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


# ---- ranks ----


@pytest.mark.parametrize(
    ("environ", "severity"),
    [
        ({}, "fine"),
        ({"MASTER_ADDR": "localhost"}, "fine"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, "fine"),
        ({"WORLD_SIZE": "8"}, "fine"),
        ({"WORLD_SIZE": "8", "RANK": "3", "MASTER_ADDR": "head"}, "warning"),
    ],
)
def test_inherited_ranks(environ: dict[str, str], severity: str) -> None:
    (finding,) = found_by(check_ranks, environ).values()
    assert finding.severity.value == severity
    assert set(finding.unsets) == (environ.keys() if severity == "warning" else set())


# ---- bits ----


@pytest.mark.parametrize(
    ("name", "value"),
    [("NVIDIA_TF32_OVERRIDE", "1"), ("ONEDNN_DEFAULT_FPMATH_MODE", "bf16"), ("OMP_DYNAMIC", "true")],
)
def test_what_costs_bits_is_a_warning(name: str, value: str) -> None:
    assert severities(found_by(check_bits, {name: value}).values()) == {name: "warning", "bits": "fine"}


@given(st.dictionaries(st.sampled_from(sorted(MOVE_BITS)), st.sampled_from(["0", "1", "TRUE", "any", "bf16", "x", ""])))
def test_every_variable_that_moves_bits_is_shown_and_the_remedy_ends_the_warnings(environ: dict[str, str]) -> None:
    found = found_by(check_bits, environ)
    shown = " ".join(finding.measured for finding in found.values())
    assert all(name in shown for name in environ)
    gone = {name for finding in found.values() for name in finding.unsets}
    mended = found_by(check_bits, {name: value for name, value in environ.items() if name not in gone})
    assert {finding.severity for finding in mended.values()} == {Severity.FINE}
    assert set(LOWERED) <= MOVE_BITS
