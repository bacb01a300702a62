"""Limits of control groups, read from trees of files as both versions lay them out."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.doctor.cgroup_limits import GroupLimits, read_group_limits

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:27 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
    "32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n"
    "33 23 0:29 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids\n"
)
GB = 10**9


def tree(root: Path, own: str, mounts: str, files: dict[str, str]) -> Path:
    """A root directory with proc and sys in it; `files` by their place below sys/fs/cgroup."""
    texts = {"proc/self/cgroup": own, "proc/self/mountinfo": "22 27 0:21 / /proc rw - proc proc rw\n" + mounts}
    for path, text in (texts | {f"sys/fs/cgroup/{path}": f"{text}\n" for path, text in files.items()}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_version_2_in_a_container_that_sees_its_own_part_only(tmp_path: Path) -> None:
    files = {"memory.max": f"{8 * GB}", "memory.current": f"{7 * GB}", "cpu.max": "250000 100000"}
    files["memory.stat"] = f"anon 3\ninactive_file {4 * GB}\nactive_file 9"
    files |= {"pids.max": "4096", "pids.current": "17"}
    assert read_group_limits(tree(tmp_path, "0::/\n", V2, files)) == GroupLimits(8 * GB, 3 * GB, 2.5, 4096, 17)


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "user.slice/memory.max": f"{4 * GB}",
        "user.slice/memory.current": f"{GB}",
        "user.slice/session.scope/memory.max": "max",
        "user.slice/session.scope/memory.current": "5",
        "user.slice/session.scope/cpu.max": "max 100000",
        "user.slice/cpu.max": "50000 100000",
        "elsewhere/memory.max": "1",
    }
    limits = read_group_limits(tree(tmp_path, "0::/user.slice/session.scope\n", V2, files))
    assert limits == GroupLimits(4 * GB, GB, 0.5)


def test_version_1(tmp_path: Path) -> None:
    own = "9:memory:/docker/abc\n8:cpu,cpuacct:/docker/abc\n7:pids:/docker/abc\n1:name=systemd:/\n0::/\n"
    files = {
        "memory/docker/abc/memory.limit_in_bytes": f"{2 * GB}",
        "memory/docker/abc/memory.usage_in_bytes": f"{GB + 5}",
        "memory/docker/abc/memory.stat": "cache 9\ninactive_file 1\ntotal_inactive_file 5",
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "400000",
        "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
        "pids/docker/abc/pids.max": "100",
        "pids/docker/abc/pids.current": "99",
    }
    assert read_group_limits(tree(tmp_path, own, V1, files)) == GroupLimits(2 * GB, GB, 4.0, 100, 99)


def test_version_1_with_the_containers_part_mounted(tmp_path: Path) -> None:
    mounts = V1.replace("0:27 / ", "0:27 /docker/abc ")
    files = {"memory/memory.limit_in_bytes": f"{2 * GB}", "memory/memory.usage_in_bytes": "5"}
    limits = read_group_limits(tree(tmp_path, "9:memory:/docker/abc\n", mounts, files))
    assert limits == GroupLimits(2 * GB, 5)


def test_no_limits(tmp_path: Path) -> None:
    own = "9:memory:/\n8:cpu,cpuacct:/\n0::/\n"
    files = {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu,cpuacct/cpu.cfs_quota_us": "-1"}
    assert read_group_limits(tree(tmp_path, own, V1, files)) == GroupLimits()
    assert read_group_limits(tmp_path / "nowhere") == GroupLimits()


@given(st.lists(st.none() | st.integers(1, 10**12), min_size=1, max_size=5))
def test_depth_does_not_matter(limits: list[int | None]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        below = [f"g{depth}" for depth in range(1, len(limits))]
        files = {
            "/".join([*below[:depth], "memory.max"]): "max" if limit is None else str(limit)
            for depth, limit in enumerate(limits)
        }
        read = read_group_limits(tree(Path(directory), "0::/" + "/".join(below) + "\n", V2, files))
        assert read.memory_bytes == min((limit for limit in limits if limit is not None), default=None)


def test_this_machine_can_be_read() -> None:
    limits = read_group_limits()
    assert limits.num_cpus is None or limits.num_cpus > 0
