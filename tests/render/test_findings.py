"""Findings as text against goldens, as JSON, and as lines that a real shell evaluates."""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.findings import Severity
from harness.doctor import gpus, packages, resources
from harness.doctor.checks import Check, examine
from harness.doctor.environment import check_bits, check_ranks, check_ray
from harness.doctor.host import Host
from harness.doctor.packages import Installed
from harness.doctor.resources import GroupLimits
from harness.machine.findings import MachineFinding
from harness.machine.gpu_health import GpuHealth, MachineHealth
from harness.machine.inventory import Gpu, Inventory
from harness.machine.network.preflight import NetworkCode
from harness.process.children import Answer
from harness.render.findings import findings_json, findings_text, fix_lines
from tests.support.finding_checks import as_findings, ask_none, sound
from tests.support.manual import goldens

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
GB = 10**9
INF = float("inf")
H200 = "NVIDIA H200"


def trial(fs_type: str) -> list[Answer]:
    """A quick directory of 81 GB."""
    return [Answer("ok", value) for value in ("/var/tmp", (fs_type, 81 * GB), None, 0.0003)]


def of_environment(**environ: str) -> list[MachineFinding]:
    host = Host({"TMPDIR": "/nowhere", **environ}, ask_none)
    return [each for check in (check_ray, check_ranks, check_bits) for each in check(host)]


def healthy() -> list[MachineFinding]:
    """Every check, on a machine of two GPUs with nothing wrong."""
    both = [GpuHealth(n, f"GPU-{n}", H200, (9, 0), num_links=18, num_active_links=18) for n in range(2)]
    health = MachineHealth("570.86.15", (12, 8), tuple(both))
    inventory = Inventory(tuple(Gpu(f"GPU-{n}", n, H200, 141.0, (9, 0)) for n in range(2)))
    torch = [Answer("ok", ("2.11.0+cu128", "12.8")), Answer("ok", (True, "", ["sm_90"]))]
    limits = {"nofile": (1024, 1_048_576), "nproc": (515_000, 515_000), **dict.fromkeys(("memlock", "as"), (INF, INF))}
    return [
        gpus.classify_driver(health, has_device_file=True),
        *gpus.classify_gpus(health, inventory),
        *gpus.classify_links(both),
        gpus.classify_torch(torch, health, 2),
        NetworkCode.REACHED(answering="lo, eth0", chosen="NCCL eth0 10.0.0.5, Gloo lo 127.0.0.1"),
        resources.classify_tmpdir("", trial("ext4")),
        resources.classify_shared_memory(64 * GB, 63 * GB),
        *resources.classify_ulimits(limits | {"fsize": (INF, INF)}, has_rdma=True, is_root=False),
        resources.classify_containment("pidns", {"cgroup": "no cgroup v2 hierarchy is mounted"}),
        *resources.classify_group_limits(GroupLimits(), 128 * GB, 16, {}),
        *of_environment(OMP_NUM_THREADS="8", PYTHONHASHSEED="0"),
        *packages.classify_versions([Installed("torch", "2.11.0+cu128"), Installed("transformers", "5.17.0")]),
    ]


def container(monkeypatch: pytest.MonkeyPatch) -> list[MachineFinding]:
    """Every check, in a container of another machine: no network, no GPUs, Docker's own sizes."""
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/.dockerenv")
    limits = {"nofile": (1_048_576, 1_048_576), **dict.fromkeys(("nproc", "memlock", "as", "fsize"), (INF, INF))}
    refused = {"cgroup": "Read-only file system", "pidns": "Operation not permitted"}
    health = MachineHealth(problem="no NVIDIA driver here")
    return [
        gpus.classify_driver(health, has_device_file=False),
        gpus.classify_torch([Answer("ok", ("2.13.0+cpu", ""))], health, 0),
        NetworkCode.REACHED(answering="lo", chosen="NCCL lo, Gloo lo, Ray lo"),
        resources.classify_tmpdir("", trial("overlay")),
        resources.classify_shared_memory(64 << 20, 64 << 20),
        *resources.classify_ulimits(limits, has_rdma=False, is_root=True),
        resources.classify_containment("subreaper", refused),
        *resources.classify_group_limits(GroupLimits(8 * GB, GB, 2.0), 128 * GB, 16, {}),
        *of_environment(),
        *packages.classify_versions([Installed("torch", "2.13.0+cpu"), Installed("ray", "2.60.0")]),
    ]


def in_order(findings: list[MachineFinding]) -> tuple[MachineFinding, ...]:
    """As the doctor shows them."""
    return asyncio.run(examine(Host({}, ask_none), [Check("all", lambda host: findings, 5.0)]))


def test_the_text_is_the_golden(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    golden("doctor.txt", findings_text(in_order(healthy()), took_s=0.83, colour=False) + "\n")
    found = container(monkeypatch)
    golden("doctor_container.txt", findings_text(in_order(found), took_s=0.83, colour=False) + "\n")
    golden("doctor_colour.txt", findings_text(in_order(found[4:8]), took_s=0.83, colour=True) + "\n")


def test_a_healthy_machine_raises_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {finding.severity for finding in sound(healthy())} == {Severity.FINE}
    assert fix_lines(healthy()) == []
    found = sound(container(monkeypatch))
    assert len({finding.check for finding in found}) == len(found)


def test_the_manual_shows_the_goldens() -> None:
    names = ("doctor", "doctor_container", "doctor_distributed")
    assert goldens(r"doctor\w*") == {name: (GOLDEN / f"{name}.txt").read_text() for name in names}


def test_json_holds_all_of_it() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        waits = of_environment(RAY_ADDRESS=address)[0]
    value = json.loads(json.dumps(findings_json([waits], exit_code=1, took_s=0.83456)))
    assert value == {
        "version": 1,
        "exit_code": 1,
        "took_s": 0.835,
        "findings": [
            {
                "code": "ray_dead",
                "check": "RAY_ADDRESS",
                "severity": "broken",
                "measured": f"RAY_ADDRESS={address}: connection refused",
                "breaks": "ray.init waits there for over two minutes, then fails",
                "remedy": "unset RAY_ADDRESS",
                "exports": {},
                "unsets": ["RAY_ADDRESS"],
                "details": [],
            }
        ],
    }


def test_details_are_shown_below_and_foreign_text_is_made_safe() -> None:
    printed = {"check": "NC\x1bCL", "severity": "broken", "measured": "a\nb", "breaks": "c", "remedy": "d"}
    found = as_findings([printed | {"details": ["NCCL INFO \x1b[31m Bootstrap", "x"]}])
    lines = findings_text(found, took_s=1, colour=False).splitlines()
    assert lines[:5] == [
        "BROKEN   NC\\x1bCL  a b",
        "           breaks: c",
        "           remedy: d",
        "           | NCCL INFO \\x1b[31m Bootstrap",
        "           | x",
    ]


# ---- --fix ----


def test_what_mends_is_set_once_and_what_is_set_is_not_unset() -> None:
    text = {"check": "a", "measured": "m", "breaks": "b", "remedy": "r"}
    findings = as_findings(
        [
            {**text, "severity": "broken", "exports": {"X": "1"}, "unsets": ["Y"]},
            {**text, "severity": "warning", "exports": {"X": "2", "Z": "a b"}, "unsets": ["X", "Y"]},
            {**text, "severity": "fine", "exports": {"W": "eth0"}},
        ]
    )
    assert fix_lines(findings) == ["unset Y", "export X=1", "export Z='a b'", "export W=eth0"]
    hint = 'to fix the variables:  eval "$(rlharness doctor --fix)"'
    assert findings_text(findings, took_s=1, colour=False).endswith(hint)
    assert hint not in findings_text(findings, took_s=1, colour=False, fix_command="")


VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@given(st.dictionaries(st.sampled_from("ABC"), VALUES), st.sets(st.sampled_from("ABCD")))
@settings(max_examples=25)
def test_a_shell_takes_the_lines_for_what_they_say(exports: dict[str, str], unsets: set[str]) -> None:
    values = {"check": "a", "severity": "broken", "measured": "m", "breaks": "b", "remedy": "r", "exports": exports}
    (finding,) = as_findings([{**values, "unsets": sorted(unsets)}])
    script = 'eval "$1"; env -0'
    lines = "\n".join(fix_lines([finding]))
    env = dict.fromkeys("ABCD", "old") | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", script, "sh", lines], env=env, capture_output=True, check=True)
    after = dict(entry.partition("=")[::2] for entry in done.stdout.decode().split("\0") if entry)
    kept = dict.fromkeys(set("ABCD") - unsets, "old") | exports
    assert {name: value for name, value in after.items() if name in "ABCD"} == kept
