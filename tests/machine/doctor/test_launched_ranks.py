"""`doctor --distributed` in each rank of a launcher: torchrun, Slurm's variables, a rank that is missing or cut off."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.doctor.environment import Job, find_job
from tests.machine.network.pretended import environment
from tests.support.networks.host import Host, why_not
from tests.support.networks.situations import OPEN_PORT, closed_hosts, two_hosts

pytestmark = pytest.mark.timeout(300)

DOCTOR = ("-m", "harness", "doctor", "--distributed", "--json")
LAYERS = ["store", "ranks", "Gloo", "first collective"]
LONG_S = 240.0
Ended = tuple[int | None, str]
"""Exit code and standard output."""


def launched(settings: Mapping[str, str], *argv: str) -> Ended:
    """`argv`, or the doctor, as a launcher starts it with `settings`."""
    words = argv or (sys.executable, *DOCTOR)
    env = {name: value for name, value in environment(settings).items() if name not in ("RANK", "WORLD_SIZE")}
    env |= settings
    done = subprocess.run(words, env=env, cwd="/tmp", capture_output=True, text=True, timeout=LONG_S, check=False)
    return done.returncode, done.stdout


def together(*ranks: Callable[[], Ended]) -> list[Ended]:
    """What ranks that run at the same time end with, in their order."""
    ended: dict[int, Ended] = {}
    threads = [
        threading.Thread(target=lambda n=n, rank=rank: ended.update({n: rank()})) for n, rank in enumerate(ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [ended[n] for n in range(len(ranks))]


def findings(output: str) -> dict[str, dict[str, Any]]:
    """The one report that was printed."""
    return {finding["check"]: finding for finding in json.loads(output)["findings"]}


def free_port() -> str:
    with socket.socket() as held:
        held.bind(("", 0))
        return str(held.getsockname()[1])


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "alpha", "MASTER_PORT": "1234"},
            Job(3, 8, 1, "alpha:1234"),
        ),
        (
            {
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "4",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_NODELIST": "gpu[03-07,9],cpu1",
            },
            Job(1, 4, 1, "gpu03:29500"),
        ),
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "a1,b[2-3]", "MASTER_PORT": "7"},
            Job(1, 2, 0, "a1:7"),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n[1-2]-ib"}, Job(0, 2, 0, "n1-ib:29500")),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n1", "MASTER_ADDR": "10.0.0.1"},
            Job(0, 2, 0, "10.0.0.1:29500"),
        ),
    ],
)
def test_a_launchers_variables_give_a_rank(environ: dict[str, str], job: Job) -> None:
    assert find_job(environ) == job


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "no launcher has given this process a rank"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "no launcher has given this process a rank and an address"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "RANK=2 and WORLD_SIZE=2: the last rank is 1"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "x"}, "MASTER_PORT=x"),
    ],
)
def test_a_process_without_a_rank_is_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_job(environ)


@pytest.mark.full
def test_two_ranks_of_torchrun_print_one_report() -> None:
    torch = pytest.importorskip("torch")
    assert torch.distributed.is_available()
    code, output = launched(
        {}, sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *DOCTOR
    )
    assert code == ExitCode.OK
    found = findings(output)
    assert list(found) == LAYERS
    assert {finding["severity"] for finding in found.values()} == {"fine"}
    assert found["ranks"]["measured"].startswith("2 ranks in ")


def of_slurm(rank: int, port: str) -> dict[str, str]:
    names = {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NODELIST": "localhost",
    }
    return {**names, "MASTER_PORT": port}


@pytest.mark.full
def test_two_ranks_with_slurms_variables() -> None:
    pytest.importorskip("torch")
    port = free_port()
    first, second = together(lambda: launched(of_slurm(0, port)), lambda: launched(of_slurm(1, port)))
    assert (first[0], second) == (ExitCode.OK, (ExitCode.OK, ""))
    assert list(findings(first[1])) == LAYERS


@pytest.mark.full
def test_a_rank_that_never_comes_is_named() -> None:
    pytest.importorskip("torch")
    code, output = launched(of_slurm(0, free_port()))
    assert code == ExitCode.TESTS_FAILED
    ranks = findings(output)["ranks"]
    assert ranks["severity"] == "broken"
    assert ranks["measured"].startswith(f"rank 0 on {socket.gethostname()} failed while connecting every rank")
    assert "rank 1 did not come within 45 s" in ranks["measured"]


@pytest.mark.full
def test_a_port_that_is_taken_on_rank_0s_host_is_named() -> None:
    pytest.importorskip("torch")
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = launched({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    assert code == ExitCode.TESTS_FAILED
    assert f"port: {port}" in findings(output)["store"]["measured"]


# ---- several hosts ----


def on(one: Host, rank: int, address: str, **settings: str) -> Callable[[], Ended]:
    """Rank `rank` of two, on a pretended host."""
    torchs = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": address}
    env = environment({**torchs, "MASTER_PORT": str(OPEN_PORT), **settings})

    def run() -> Ended:
        done = one.run(sys.executable, *DOCTOR, timeout_s=LONG_S, env=env)
        return done.exit_code, done.output

    return run


def last_line(output: str) -> str:
    return output.strip().splitlines()[-1]


needs_hosts = pytest.mark.skipif(bool(why_not()), reason=f"no pretended hosts: {why_not()}")


@pytest.mark.full
@needs_hosts
def test_a_rank_is_named_whose_address_the_others_cannot_reach() -> None:
    pytest.importorskip("torch")
    with two_hosts() as (alpha, beta):
        first, second = together(on(alpha, 0, "10.78.0.1", GLOO_SOCKET_IFNAME="good0"), on(beta, 1, "10.78.0.1"))
    assert (first[0], second[0]) == (ExitCode.TESTS_FAILED, ExitCode.TESTS_FAILED)
    found = findings(last_line(first[1]))
    assert found["store"]["severity"] == "fine"
    does = "rank 0 on alpha failed while connecting every rank to every other one"
    cut_off = "rank 1 on beta is not reached at 10.77.0.2 (Gloo: this host's name beta resolves to it)"
    assert found["ranks"]["measured"] == f"{does}: ConnectionError: {cut_off} by rank 0 on alpha: timed out (2 ranks)"
    assert "GLOO_SOCKET_IFNAME" in found["ranks"]["remedy"]
    assert "Gloo" not in found
    assert cut_off in findings(last_line(second[1]))["ranks"]["measured"]


@pytest.mark.full
@needs_hosts
def test_a_rank_that_cannot_reach_rank_0_says_so_itself() -> None:
    pytest.importorskip("torch")
    closed = str(OPEN_PORT + 1)
    with closed_hosts() as (alpha, beta):
        first, second = together(
            on(alpha, 0, "10.77.0.1", MASTER_PORT=closed), on(beta, 1, "10.77.0.1", MASTER_PORT=closed)
        )
    assert (first[0], second[0]) == (ExitCode.TESTS_FAILED, ExitCode.TESTS_FAILED)
    assert "rank 1 did not come within 45 s" in findings(last_line(first[1]))["ranks"]["measured"]
    store = findings(last_line(second[1]))["store"]
    assert store["measured"].startswith(
        f"rank 1 on beta failed while meeting at the store of rank 0 at 10.77.0.1:{closed}"
    )
