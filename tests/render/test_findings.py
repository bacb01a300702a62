"""Findings as text against goldens, as JSON, and as lines that a real shell evaluates."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.doctor import containers, directories, environment, gpus, packages, rank_variables
from harness.doctor.bit_variables import check_bit_variables, check_hash_seed
from harness.doctor.cgroup_limits import GroupLimits
from harness.doctor.directories import Directory, Limit, Trial
from harness.doctor.examination import in_order
from harness.doctor.host import Answer
from harness.doctor.packages import Installed
from harness.machine.findings import Finding, Severity
from harness.machine.gpu_health import GpuHealth, MachineHealth
from harness.machine.inventory import Gpu, Inventory
from harness.render.findings import findings_json, findings_text, fix_lines
from tests.support.finding_checks import sound
from tests.support.manual import goldens

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
GB = 10**9
INF = float("inf")
QUICK = Trial({"create": 0.0002, "flock": 0.0003, "lockf": 0.0002, "mmap": 0.0009, "socket": 0.0001}, {})
H200 = "NVIDIA H200"
NETWORK = Finding(
    "network", Severity.FINE, "this host reaches itself on lo, eth0; picked: NCCL eth0 10.0.0.5, Gloo lo 127.0.0.1"
)


def healthy() -> tuple[Finding, ...]:
    """Every room, on a machine of two GPUs with nothing wrong."""
    both = [GpuHealth(n, f"GPU-{n}", H200, (9, 0), num_links=18, num_active_links=18) for n in range(2)]
    health = MachineHealth("570.86.15", (12, 8), tuple(both))
    inventory = Inventory(tuple(Gpu(f"GPU-{n}", n, H200, 141.0, (9, 0)) for n in range(2)))
    torch = gpus.Torch("2.11.0+cu128", "12.8", is_available=True, archs=("sm_90",))
    limits = {"nofile": Limit(1024, 1_048_576), "nproc": Limit(515_000, 515_000), "memlock": Limit(INF, INF)}
    return (
        *gpus.check_driver(health, has_device_file=True),
        *gpus.check_gpus(health, inventory),
        *gpus.check_links(both),
        *gpus.check_torch(torch, health, num_usable=2),
        NETWORK,
        directories.check_tmpdir(
            Directory("/tmp", True, "ext4", 81 * GB, 100 * GB), QUICK, is_set=False, better="/var/tmp"
        ),
        directories.check_socket_paths({}),
        directories.check_shared_memory(Directory("/dev/shm", True, "tmpfs", 63 * GB, 64 * GB)),
        *directories.check_resource_limits(
            limits | {"as": Limit(INF, INF), "fsize": Limit(INF, INF)}, has_rdma=True, is_root=False
        ),
        containers.check_containment("pidns", {"cgroup": "no cgroup v2 hierarchy is mounted"}, in_container=False),
        *containers.check_group_limits(GroupLimits(), memory_bytes=128 * GB, num_cores=16, environ={}),
        environment.check_ray_variables({}),
        rank_variables.check_ranks({}),
        check_hash_seed({"PYTHONHASHSEED": "0"}),
        *check_bit_variables({"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "8"}),
        *packages.check_versions([Installed("torch", "2.11.0+cu128"), Installed("transformers", "5.17.0")]),
        packages.check_pip(Answer("No broken requirements found.\n")),
    )


def container() -> tuple[Finding, ...]:
    """Every room, in a container of another machine: no network, no GPUs, Docker's own sizes."""
    network = Finding("network", Severity.FINE, "this host reaches itself on lo; picked: NCCL lo, Gloo lo, Ray lo")
    limits = {"nofile": Limit(1_048_576, 1_048_576), "nproc": Limit(INF, INF), "memlock": Limit(INF, INF)}
    refused = {"cgroup": "Read-only file system", "pidns": "Operation not permitted"}
    group = GroupLimits(memory_bytes=8 * GB, used_memory_bytes=GB, num_cpus=2.0)
    health = MachineHealth(problem="no NVIDIA driver here", has_driver=False)
    tmpdir = Directory("/tmp", True, "overlay", 81 * GB, 100 * GB)
    return (
        *gpus.check_driver(health, has_device_file=False),
        *gpus.check_torch(gpus.Torch("2.13.0+cpu"), health, num_usable=0),
        network,
        directories.check_tmpdir(tmpdir, QUICK, is_set=False, better="/var/tmp"),
        directories.check_socket_paths({}),
        directories.check_shared_memory(Directory("/dev/shm", True, "tmpfs", 64 << 20, 64 << 20)),
        *directories.check_resource_limits(
            limits | {"as": Limit(INF, INF), "fsize": Limit(INF, INF)}, has_rdma=False, is_root=True
        ),
        containers.check_containment("subreaper", refused, in_container=True),
        *containers.check_group_limits(group, memory_bytes=128 * GB, num_cores=16, environ={}),
        environment.check_ray_variables({}),
        rank_variables.check_ranks({}),
        check_hash_seed({}),
        *check_bit_variables({}),
        *packages.check_versions([Installed("torch", "2.13.0+cpu"), Installed("ray", "2.60.0")]),
        packages.check_pip(Answer("No broken requirements found.\n")),
    )


@pytest.mark.parametrize(
    ("name", "findings", "colour"),
    [
        ("doctor.txt", healthy(), False),
        ("doctor_container.txt", container(), False),
        ("doctor_colour.txt", container()[5:9], True),
    ],
)
def test_the_text_is_the_golden(
    golden: Callable[[str, str], None], name: str, findings: tuple[Finding, ...], colour: bool
) -> None:
    golden(name, findings_text(in_order(findings), took_s=0.83, colour=colour) + "\n")


def test_a_healthy_machine_raises_no_alarm() -> None:
    assert {finding.severity for finding in healthy()} == {Severity.FINE}
    assert fix_lines(healthy()) == []
    assert sound(healthy())
    assert len({finding.check for finding in sound(container())}) == len(container())


def test_the_manual_shows_the_goldens() -> None:
    names = ("doctor", "doctor_container", "doctor_distributed")
    assert goldens(r"doctor\w*") == {name: (GOLDEN / f"{name}.txt").read_text() for name in names}


def test_json_holds_all_of_it() -> None:
    waits = environment.classify_address("RAY_ADDRESS", "10.0.0.9:6379", "no answer within 1 s")
    value = json.loads(json.dumps(findings_json([waits], exit_code=1, took_s=0.83456)))
    assert value == {
        "version": 1,
        "exit_code": 1,
        "took_s": 0.835,
        "findings": [
            {
                "check": "RAY_ADDRESS",
                "severity": "broken",
                "measured": "RAY_ADDRESS=10.0.0.9:6379: no answer within 1 s",
                "breaks": "ray.init waits there for over two minutes, then fails",
                "remedy": "unset RAY_ADDRESS",
                "exports": {},
                "unsets": ["RAY_ADDRESS"],
                "details": [],
            }
        ],
    }


def test_details_are_shown_below_and_foreign_text_is_made_safe() -> None:
    finding = Finding("NC\x1bCL", Severity.BROKEN, "a\nb", "c", "d", details=("NCCL INFO \x1b[31m Bootstrap", "x"))
    lines = findings_text([finding], took_s=1, colour=False).splitlines()
    assert lines[:5] == [
        "BROKEN   NC\\x1bCL  a b",
        "           breaks: c",
        "           remedy: d",
        "           | NCCL INFO \\x1b[31m Bootstrap",
        "           | x",
    ]


# ---- --fix ----


def test_what_mends_is_set_once_and_what_is_set_is_not_unset() -> None:
    findings = [
        Finding("a", Severity.BROKEN, "m", "b", "r", (("X", "1"),), ("Y",)),
        Finding("b", Severity.WARNING, "m", "b", "r", (("X", "2"), ("Z", "a b")), ("X", "Y")),
        Finding("c", Severity.FINE, "every pair of hosts can talk", "", "", (("W", "eth0"),)),
    ]
    assert fix_lines(findings) == ["unset Y", "export X=1", "export Z='a b'", "export W=eth0"]
    hint = 'to fix the variables:  eval "$(rlharness doctor --fix)"'
    assert findings_text(findings, took_s=1, colour=False).endswith(hint)
    assert hint not in findings_text(findings, took_s=1, colour=False, fix_command="")


VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@given(st.dictionaries(st.sampled_from("ABC"), VALUES), st.sets(st.sampled_from("ABCD")))
@settings(max_examples=25)
def test_a_shell_takes_the_lines_for_what_they_say(exports: dict[str, str], unsets: set[str]) -> None:
    finding = Finding("a", Severity.BROKEN, "m", "b", "r", tuple(exports.items()), tuple(sorted(unsets)))
    script = 'eval "$1"; env -0'
    lines = "\n".join(fix_lines([finding]))
    env = dict.fromkeys("ABCD", "old") | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", script, "sh", lines], env=env, capture_output=True, check=True)
    after = dict(entry.partition("=")[::2] for entry in done.stdout.decode().split("\0") if entry)
    kept = dict.fromkeys(set("ABCD") - unsets, "old") | exports
    assert {name: value for name, value in after.items() if name in "ABCD"} == kept
