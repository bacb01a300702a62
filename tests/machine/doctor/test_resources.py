"""TMPDIR, /dev/shm, ulimits, containment and control groups: each verdict, and the real trial in a real directory."""

import tempfile
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.findings import Severity
from harness.doctor import resources
from harness.doctor.host import Host, open_probes
from harness.doctor.resources import (
    GroupLimits,
    classify_containment,
    classify_group_limits,
    classify_shared_memory,
    classify_tmpdir,
    classify_ulimits,
    read_group_limits,
)
from harness.machine.findings import MachineFinding
from harness.process.children import Answer
from harness.process.invocation import Invocation
from tests.support.finding_checks import found_by, severities, sound

GB = 10**9


def tried(
    fs_type: str = "ext4", free_gb: float = 50, lock_s: float = 0.0004, better: str = "/var/tmp", *, ended: str = ""
) -> MachineFinding:
    """The finding for a trial of /scratch; `ended` is the step at which it failed, its kind and the reason."""
    answers = [Answer("ok", value) for value in (better, (fs_type, int(free_gb * GB)), None, lock_s)]
    if ended:
        step, kind, reason = ended.split(" ", 2)
        number = resources.STEPS.index(step)
        answers = [*answers[:number], Answer(kind, reason)]
    (finding,) = sound([classify_tmpdir("/scratch", answers)])
    return finding


# ---- TMPDIR ----


@pytest.mark.parametrize(
    ("trial", "severity", "said"),
    [
        ({}, "fine", "/scratch (ext4, 50.0 GB free): a lock took 0.4 ms"),
        ({"ended": "lock failed OSError: no locks available"}, "broken", "lock: OSError: no locks available"),
        ({"ended": "survey failed OSError: no"}, "broken", "/scratch is not a directory in which this"),
        ({"ended": "create late no answer within 5 s"}, "broken", "(ext4, 50.0 GB free): create: no answer within 5 s"),
        ({"ended": "trial lost it exited with 1"}, "broken", "/scratch: trial: it exited with 1"),
        ({"fs_type": "nfs4", "free_gb": 9}, "warning", "/scratch (nfs4, 9.0 GB free): a lock took 0.4 ms"),
        ({"fs_type": "fuse.sshfs"}, "warning", "fuse.sshfs"),
        ({"lock_s": 0.35}, "warning", "a lock took 0.35 s"),
        ({"free_gb": 0.02}, "warning", "20 MB free"),
    ],
)
def test_a_tmpdir_by_its_trial(trial: dict[str, Any], severity: str, said: str) -> None:
    finding = tried(**trial)
    assert finding.severity.value == severity
    assert said in finding.measured


def test_a_better_directory_is_named() -> None:
    assert tried("nfs4").exports == {"TMPDIR": "/var/tmp"}
    assert tried("nfs4", better="").exports == {}


def test_the_real_trial_leaves_nothing_and_names_a_directory_that_is_not_there(tmp_path: Path) -> None:
    def look(directory: Path) -> MachineFinding:
        with open_probes(Invocation(tmp_path, {})) as probes:
            (finding,) = sound(resources.check_tmpdir(Host({"TMPDIR": str(directory)}, probes.ask)))
        return finding

    assert look(tmp_path).measured.startswith(f"{tmp_path} (")
    assert list(tmp_path.iterdir()) == []
    gone = look(tmp_path / "gone")
    assert gone.measured == f"{tmp_path}/gone is not a directory in which this process can create files"


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
    assert severities([classify_shared_memory(total_bytes, free_bytes)]) == {"/dev/shm": severity}


def test_shared_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "SHM", "/nowhere")
    assert found_by(resources.check_shared_memory, {})["/dev/shm"].severity is Severity.BROKEN


# ---- ulimits ----

HEALTHY = {"nofile": (1024, 1_048_576), "nproc": (96_000, 96_000), "memlock": (65_536, inf), "as": (inf, inf)}
HEALTHY |= {"fsize": (inf, inf)}


def test_the_limits_of_a_usual_desktop_are_fine() -> None:
    (finding,) = sound(classify_ulimits(HEALTHY, has_rdma=False, is_root=False))
    assert finding.measured == "1,024 open files (up to 1,048,576), 96,000 processes"
    unlimited = HEALTHY | {"nproc": (inf, inf)}
    assert classify_ulimits(unlimited, has_rdma=False, is_root=False)[0].measured.endswith("unlimited processes")


@pytest.mark.parametrize(
    ("name", "limit", "expected", "remedy"),
    [
        ("nofile", (1024, 1024), {"open files": "warning"}, "* - nofile 65536"),
        ("nproc", (1000, 9000), {"processes": "warning"}, "--ulimit nproc=65536:65536"),
        ("as", (32 * GB, inf), {"address space": "broken"}, "ulimit -v unlimited"),
        ("memlock", (65_536, inf), {"locked memory": "broken"}, "* - memlock unlimited"),
        ("memlock", (inf, inf), {"ulimits": "fine"}, ""),
        ("fsize", (2_000_000, inf), {"file size": "broken"}, "ulimit -f unlimited"),
        ("fsize", (20 * GB, 20 * GB), {"file size": "warning"}, "docker run --ulimit fsize=-1:-1"),
    ],
)
def test_limits_that_are_too_low(name: str, limit: tuple[float, float], expected: dict[str, str], remedy: str) -> None:
    found = classify_ulimits(HEALTHY | {name: limit}, has_rdma=name == "memlock", is_root=False)
    assert severities(found) == expected
    assert remedy in found[0].remedy


def test_processes_do_not_matter_to_root() -> None:
    few = HEALTHY | {"nproc": (10, 10)}
    assert severities(classify_ulimits(few, has_rdma=False, is_root=True)) == {"ulimits": "fine"}


# ---- containment and control groups ----


@pytest.mark.parametrize(
    ("backend", "severity"), [("cgroup", "fine"), ("pidns", "fine"), ("subreaper", "warning"), ("", "broken")]
)
def test_containment_by_backend(backend: str, severity: str) -> None:
    (finding,) = sound([classify_containment(backend, {"cgroup": "no cgroup v2 here"})])
    assert finding.severity.value == severity
    assert "no cgroup v2 here" in finding.measured


@pytest.mark.parametrize(
    ("limits", "check"),
    [
        (GroupLimits(), ""),
        (GroupLimits(999 * GB, 999 * GB, 16.0), ""),
        (GroupLimits(memory_bytes=8 * GB, used_memory_bytes=7_900_000_000), "memory limit"),
        (GroupLimits(num_cpus=2.0), "CPU limit"),
    ],
)
def test_a_limit_that_is_felt_is_a_warning(limits: GroupLimits, check: str) -> None:
    found = severities(classify_group_limits(limits, 64 * GB, 16, {}))
    assert {name for name, severity in found.items() if severity != "fine"} == ({check} if check else set())


def test_a_limit_on_memory_that_is_far_away_is_shown() -> None:
    memory = classify_group_limits(GroupLimits(8 * GB, GB), 64 * GB, 1, {})[0]
    assert (memory.severity, memory.measured) == (Severity.FINE, "8.0 GB of the machine's 64.0 GB")


@given(st.floats(0.1, 64.0), st.integers(1, 64))
def test_the_threads_that_are_recommended_are_enough_and_not_too_many(num_cpus: float, num_cores: int) -> None:
    limits = GroupLimits(num_cpus=num_cpus)
    finding = sound(classify_group_limits(limits, GB, num_cores, {}))[1]
    assert (finding.severity is Severity.WARNING) is (num_cpus < num_cores)
    if finding.exports:
        assert 1 <= int(finding.exports["OMP_NUM_THREADS"]) <= max(1.0, num_cpus)
        again = classify_group_limits(limits, GB, num_cores, finding.exports)[1]
        assert again.severity is Severity.FINE, "what it asks for is enough"


def tree(root: Path, own: str, files: dict[str, str]) -> Path:
    """A root directory with proc and sys in it; `files` by their place below sys/fs/cgroup."""
    texts = {"proc/self/cgroup": own, **{f"sys/fs/cgroup/{path}": f"{text}\n" for path, text in files.items()}}
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_a_container_that_sees_its_own_part_only(tmp_path: Path) -> None:
    files = {"memory.max": f"{8 * GB}", "memory.current": f"{7 * GB}", "cpu.max": "250000 100000"}
    files["memory.stat"] = f"anon 3\ninactive_file {4 * GB}\nactive_file 9"
    assert read_group_limits(tree(tmp_path, "1:name=systemd:/\n0::/\n", files)) == GroupLimits(8 * GB, 3 * GB, 2.5)


def test_no_limits(tmp_path: Path) -> None:
    files = {"memory.max": "max", "cpu.max": "max 100000"}
    assert read_group_limits(tree(tmp_path, "0::/\n", files)) == GroupLimits()
    assert read_group_limits(tmp_path / "nowhere") == GroupLimits()


@given(st.lists(st.none() | st.integers(1, 10**12), min_size=1, max_size=5))
def test_the_tightest_group_on_the_way_up_counts(limits: list[int | None]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        below = [f"g{depth}" for depth in range(1, len(limits))]
        files = {
            "/".join([*below[:depth], "memory.max"]): "max" if limit is None else str(limit)
            for depth, limit in enumerate(limits)
        }
        read = read_group_limits(tree(Path(directory), "0::/" + "/".join(below) + "\n", files))
        assert read.memory_bytes == min((limit for limit in limits if limit is not None), default=None)
