"""The plugin's fixtures in real pytest processes that have nothing of the runner: `free_port` and `gpu_ids`."""

import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.plugin import held_port, visible_gpu_ids

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("RLHARNESS_ATTEMPT", raising=False)


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "harness.plugin", "--strict-markers", "-Werror", "-rs", *args)


IP_LOCAL_PORT_RANGE = 51
"""Linux 6.3 and later: the ports that this socket may be given, lowest in the low half, highest in the high half."""


def is_given(port: int) -> bool:
    """Whether the kernel gives `port` to a socket that asks for any, and may have this one only."""
    with socket.socket() as other:
        try:
            other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", port << 16 | port))
        except OSError:
            pytest.skip("this kernel cannot be made to try one certain port")
        try:
            other.bind(("127.0.0.1", 0))
        except OSError:
            return False
        return bool(other.getsockname()[1] == port)


def test_a_held_port_is_given_to_nobody() -> None:
    with held_port() as port:
        assert not is_given(port)
        with socket.socket() as rude, pytest.raises(OSError, match="in use"):
            rude.bind(("127.0.0.1", port))
    assert is_given(port)


def test_a_server_may_listen_on_a_held_port() -> None:
    with held_port() as port, socket.create_server(("127.0.0.1", port)) as server:  # it sets SO_REUSEADDR
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as accepted:
            assert accepted.getpeername() == client.getsockname()
        assert not is_given(port)


def test_many_held_ports_are_different() -> None:
    with ExitStack() as stack:
        ports = [stack.enter_context(held_port()) for _ in range(200)]
        assert len(set(ports)) == 200


def test_free_port_is_the_tests_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import socket
        def test_serves(free_port):
            with socket.create_server(("127.0.0.1", free_port)):
                socket.create_connection(("127.0.0.1", free_port)).close()
    """)
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,1", ("0", "1")),
        (" 3 , 5", ("3", "5")),
        ("0,-1,2", ("0",)),
        ("GPU-8f2,MIG-1", ("GPU-8f2", "MIG-1")),
    ],
)
def test_cards_are_those_of_cuda_visible_devices(value: str, ids: tuple[str, ...]) -> None:
    assert visible_gpu_ids({"CUDA_VISIBLE_DEVICES": value}) == ids


@pytest.mark.parametrize(
    ("said", "ids"),
    [
        (
            "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-12)\n  MIG 1g.10gb Device 0: (UUID: MIG-9)\n"
            "  MIG 1g.10gb     Device  1: (UUID: MIG-8)\nGPU 1: NVIDIA RTX (Ada) 6000 (UUID: GPU-34)\n",
            ("MIG-9", "MIG-8", "GPU-34"),
        ),
        ("No devices were found\n", ()),
        (None, ()),
    ],
)
def test_without_the_variable_they_are_the_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, ids: tuple[str, ...]
) -> None:
    if said is not None:
        (tmp_path / "said").write_text(said)
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/said\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpu_ids({}) == ids


MARKED = """
import pytest
def test_all(gpu_ids): assert gpu_ids == ("4", "5", "6")
@pytest.mark.gpus(2)
def test_two(gpu_ids): assert gpu_ids == ("4", "5")
@pytest.mark.gpus(0)
def test_none(gpu_ids): assert gpu_ids == ()
@pytest.mark.gpus(4)
def test_four(gpu_ids): raise AssertionError("they are not there")
"""


def test_a_test_gets_as_many_cards_as_it_is_marked_with(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    pytester.makepyfile(MARKED)
    result = run(pytester)
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * needs 4 GPUs; 3 visible here"])


def test_a_lease_that_is_too_small_is_a_failure(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setenv("RLHARNESS_ATTEMPT", "m")
    pytester.makepyfile(MARKED)
    result = run(pytester)
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["E*needs 4 GPUs; 3 visible here"])


@pytest.mark.full
def test_the_fixtures_are_listed_with_what_they_are(pytester: pytest.Pytester) -> None:
    text = run(pytester, "--fixtures").stdout.str()
    assert "A TCP port for the test's own server" in text
    assert "The GPUs the test may use" in text
