"""TMPDIR, socket paths, /dev/shm and limits: each judgement, and the real trial in a real directory."""

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.doctor import directories
from harness.doctor.directories import (
    Directory,
    Limit,
    Trial,
    check_resource_limits,
    check_shared_memory,
    check_socket_paths,
    check_tmpdir,
    read_trial,
    survey_directory,
)
from harness.doctor.host import Answer, Host, module_command
from harness.doctor.lock_trial import STEPS, fastest
from harness.machine.findings import Finding, Severity
from harness.process.scratch import MAX_TMPDIR_BYTES, Mount
from tests.support.fake_clock import FakeClock
from tests.support.finding_checks import severities, sound

GB = 10**9
LOCAL = Directory("/scratch", True, "ext4", 50 * GB, 100 * GB)
QUICK = Trial(dict.fromkeys(STEPS, 0.0004), {})


def judged(directory: Directory = LOCAL, trial: Trial | None = QUICK, better: str = "/tmp") -> Finding:
    (finding,) = sound([check_tmpdir(directory, trial, is_set=True, better=better)])
    return finding


def tried(took_s: dict[str, float] | None = None, errors: dict[str, str] | None = None, problem: str = "") -> Trial:
    return Trial({**QUICK.took_s, **(took_s or {})}, errors or {}, problem)


# ---- TMPDIR ----


def test_a_local_tmpdir_is_fine() -> None:
    assert judged() == Finding("TMPDIR", Severity.FINE, "/scratch (ext4, 50.0 GB free): a lock took 0.4 ms")
    unset = check_tmpdir(Directory("/tmp", True, "overlay", 3 * GB, 4 * GB), QUICK, is_set=False)
    assert unset.measured == "/tmp (TMPDIR is not set) (overlay, 3.0 GB free): a lock took 0.4 ms"


@pytest.mark.parametrize(
    ("directory", "trial", "severity", "said"),
    [
        (LOCAL, None, "broken", "/scratch is not a directory in which this process can create files"),
        (LOCAL, tried(errors={"flock": "no locks available"}), "broken", "flock: no locks available"),
        (LOCAL, tried(problem="no answer within 5 s"), "broken", "the trial: no answer within 5 s"),
        (Directory("/n", True, "nfs4", GB * 9, GB * 9), QUICK, "warning", "/n (nfs4, 9.0 GB free): a lock took 0.4 ms"),
        (Directory("/n", True, "fuse.sshfs", GB * 9, GB * 9), QUICK, "warning", "fuse.sshfs"),
        (LOCAL, tried({"lockf": 0.35}), "warning", "lockf took 0.35 s"),
        (LOCAL, tried({"mmap": 0.1}), "warning", "mmap took 0.10 s"),
        (Directory("/full", True, "ext4", 20_000_000, GB), QUICK, "warning", "20 MB free"),
    ],
)
def test_a_tmpdir_that_is_not(directory: Directory, trial: Trial | None, severity: str, said: str) -> None:
    finding = judged(directory, trial)
    assert finding.severity.value == severity
    assert said in finding.measured
    if "full" not in directory.path:
        assert finding.exports == (("TMPDIR", "/tmp"),)
        assert judged(directory, trial, better="").exports == ()


def test_the_step_that_hung_is_named() -> None:
    lines = "".join(json.dumps({"step": step, "took_s": 0.001, "error": ""}) + "\n" for step in ("create", "flock"))
    trial = read_trial(Answer("warning: odd\n" + lines, None, "no answer within 5 s"))
    assert judged(trial=trial).measured.endswith("lockf: no answer within 5 s")


def test_a_trial_that_dies_says_what_it_said_last() -> None:
    trial = read_trial(Answer("ModuleNotFoundError: No module named 'harness'\n", 1))
    assert "create: the trial ended with 1: ModuleNotFoundError" in judged(trial=trial).measured


def test_the_real_trial_takes_every_step_and_leaves_nothing(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)  # longer than a socket's path may be
    deep.mkdir()
    done = subprocess.run(
        module_command("harness.doctor.lock_trial", str(deep)), capture_output=True, text=True, check=True
    )
    trial = read_trial(Answer(done.stdout))
    assert (set(trial.took_s), trial.errors) == (set(STEPS), {})
    assert list(deep.iterdir()) == []


def test_the_real_trial_in_no_directory(tmp_path: Path) -> None:
    command = module_command("harness.doctor.lock_trial", str(tmp_path / "gone"))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert read_trial(Answer(done.stdout)).errors == {"create": "No such file or directory"}


def test_the_whole_look_tries_the_directory_that_is_set(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    async def ask(argv: Sequence[str], *, limit_s: float) -> Answer:
        asked.append(argv)
        return Answer("".join(json.dumps({"step": step, "took_s": 1e-5, "error": ""}) + "\n" for step in STEPS))

    (finding,) = asyncio.run(directories.inspect_tmpdir(Host({"TMPDIR": str(tmp_path)}, tmp_path, ask)))
    assert asked[0][-1] == str(tmp_path)
    assert finding.measured.startswith(str(tmp_path))
    asked.clear()
    (finding,) = sound(asyncio.run(directories.inspect_tmpdir(Host({"TMPDIR": str(tmp_path / "gone")}, tmp_path, ask))))
    assert asked == [], "there is nowhere to try"
    assert finding.severity is Severity.BROKEN


def test_a_survey_tells_the_file_system_behind_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    surveyed = survey_directory(str(tmp_path / "link"), [Mount("/", "ext4"), Mount("/proc", "proc")])
    assert surveyed.fs_type == "proc"
    (tmp_path / "file").touch()
    assert not survey_directory(str(tmp_path / "file"), []).is_writable


def test_a_file_system_that_does_not_answer() -> None:
    for check, path in (("TMPDIR", "/tmp"), ("TMPDIR", "/net/x"), ("/dev/shm", "/dev/shm")):
        (finding,) = sound([directories.unanswering(check, path)])
        assert (finding.check, finding.severity) == (check, Severity.BROKEN)
        assert bool(finding.exports) is (path == "/net/x")


# ---- socket paths ----


@given(st.integers(1, 200), st.sampled_from(["TMPDIR", "RAY_TMPDIR"]))
def test_a_tmpdir_is_too_long_from_the_byte_on_at_which_rays_sockets_do_not_fit(length: int, name: str) -> None:
    environ = {"TMPDIR": "/tmp"} | {name: "/" + "x" * (length - 1)}
    (finding,) = sound([check_socket_paths(environ)])
    assert (finding.severity is Severity.BROKEN) is (length > MAX_TMPDIR_BYTES)
    if finding.severity is Severity.BROKEN:
        mended = {key: value for key, value in environ.items() if key not in finding.unsets} | dict(finding.exports)
        assert check_socket_paths(mended).severity is Severity.FINE


# ---- /dev/shm ----


@pytest.mark.parametrize(
    ("total_bytes", "free_bytes", "severity"),
    [
        (64 << 20, 64 << 20, "broken"),  # Docker's
        (GB, GB, "warning"),
        (16 * GB, 10_000_000, "warning"),
        (16 * GB, 8 * GB, "fine"),
    ],
)
def test_shared_memory_by_its_size(total_bytes: int, free_bytes: int, severity: str) -> None:
    directory = Directory("/dev/shm", True, "tmpfs", free_bytes, total_bytes)
    assert severities([check_shared_memory(directory)]) == {"/dev/shm": severity}


def test_shared_memory_that_is_not_there() -> None:
    assert severities([check_shared_memory(Directory("/dev/shm", False))]) == {"/dev/shm": "broken"}


# ---- limits ----

NONE = Limit(inf, inf)
HEALTHY = {
    "nofile": Limit(1024, 1_048_576),
    "nproc": Limit(96_000, 96_000),
    "memlock": Limit(65_536, inf),
    "as": NONE,
    "fsize": NONE,
}


def test_the_limits_of_a_usual_desktop_are_fine() -> None:
    (finding,) = sound(check_resource_limits(HEALTHY, has_rdma=False, is_root=False))
    assert finding.measured == "1,024 open files (up to 1,048,576), 96,000 processes"
    unlimited = HEALTHY | {"nproc": NONE}
    assert check_resource_limits(unlimited, has_rdma=False, is_root=False)[0].measured.endswith("unlimited processes")


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [
        ("nofile", Limit(1024, 1024), {"open files": "warning"}),
        ("nproc", Limit(1000, 9000), {"processes": "warning"}),
        ("as", Limit(32 * GB, inf), {"address space": "broken"}),
        ("memlock", Limit(inf, inf), {"ulimits": "fine"}),
        ("fsize", Limit(2_000_000, inf), {"file size": "broken"}),
        ("fsize", Limit(20 * GB, 20 * GB), {"file size": "warning"}),
    ],
)
def test_limits_that_are_too_low(name: str, limit: Limit, expected: dict[str, str]) -> None:
    assert (
        severities(check_resource_limits(HEALTHY | {name: limit}, has_rdma=name == "memlock", is_root=False))
        == expected
    )


def test_a_limit_on_files_is_lifted_where_it_may_be() -> None:
    for limit, remedy in (
        (Limit(2_000_000, inf), "ulimit -f unlimited"),
        (Limit(2_000_000, 2_000_000), "docker run --ulimit fsize=-1:-1"),
    ):
        (finding,) = check_resource_limits(HEALTHY | {"fsize": limit}, has_rdma=False, is_root=True)
        assert finding.measured == "a file may have 2 MB at most"
        assert finding.remedy.endswith(remedy)


def test_locked_memory_matters_beside_infiniband_and_processes_not_to_root() -> None:
    assert severities(check_resource_limits(HEALTHY, has_rdma=True, is_root=False)) == {"locked memory": "broken"}
    few = HEALTHY | {"nproc": Limit(10, 10)}
    assert severities(check_resource_limits(few, has_rdma=False, is_root=True)) == {"ulimits": "fine"}


def test_this_machine_has_limits_and_shared_memory() -> None:
    async def nobody(argv: Sequence[str], *, limit_s: float) -> Answer:
        raise AssertionError("no child is asked here")

    host = Host(dict(os.environ), Path("/"), nobody)
    for look in (directories.inspect_limits, directories.inspect_shared_memory, directories.inspect_socket_paths):
        assert sound(asyncio.run(look(host)))


@pytest.mark.parametrize(("tries_s", "expected_s"), [((0.9, 0.5, 0.25), 0.25), ((0.25, 0.5, 0.9), 0.25)])
def test_a_step_is_as_slow_as_its_fastest_try(tries_s: tuple[float, ...], expected_s: float) -> None:
    """A slow file system is slow each time; a busy machine is slow now and then."""
    clock, left = FakeClock(), list(tries_s)

    def carry_out() -> None:
        clock.advance(left.pop(0))

    assert fastest(carry_out, clock) == (expected_s, None)
    assert left == []


def test_a_step_that_fails_is_not_tried_again() -> None:
    clock, failure = FakeClock(), OSError(5, "no")
    began_s = clock.monotonic_s()

    def carry_out() -> None:
        clock.advance(0.5)
        raise failure

    assert fastest(carry_out, clock) == (0.5, failure)
    assert clock.monotonic_s() - began_s == 0.5
