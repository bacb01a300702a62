"""Reports of processes: what is in effect, and a process that differs is named with the value that is legal."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.levels import SETTINGS
from rlcore.determinism import worker_environment
from rlcore.distributed.process_report import (
    BENCHMARK,
    DETERMINISTIC,
    GPU,
    HASH,
    THREADS,
    ProcessName,
    ProcessReport,
    check_reports,
    report_of,
)
from rlcore.errors import LevelError

LEVELS = "deterministic", "invariant"
CAPABILITY = "torch.backends.cpu.get_cpu_capability()"


@pytest.fixture(autouse=True)
def _flags() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.set_num_threads(before[1])


def reports_at(level: str, environ: Mapping[str, str] | None = None) -> list[ProcessReport]:
    """Return reports of the controller, trainer 0, trainer 1 and sampler 0, that agree."""
    values = {
        **worker_environment(level, environ or {}),
        DETERMINISTIC: "True",
        BENCHMARK: "False",
        HASH: "1",
        THREADS: "1",
        CAPABILITY: "AVX2",
        "OMP_NUM_THREADS": "1",
    }
    names = (
        ProcessName("controller", ("controller",), 0),
        ProcessName("trainer", ("actor", "reference"), 0),
        ProcessName("trainer", ("actor",), 1),
        ProcessName("sampler", ("rollout",), 0),
    )
    return [ProcessReport(name, "host", pid, dict(values)) for pid, name in enumerate(names)]


def changed(reports: list[ProcessReport], at: int, name: str, value: str | None) -> list[ProcessReport]:
    values = {key: each for key, each in reports[at].values.items() if key != name}
    found = replace(reports[at], values=values if value is None else {**values, name: value})
    return [*reports[:at], found, *reports[at + 1 :]]


@pytest.mark.parametrize("level", [*LEVELS, "off"])
def test_processes_that_agree_start(level: str) -> None:
    check_reports(reports_at(level), level)


@given(
    st.sampled_from(LEVELS), st.sampled_from([setting.name for setting in SETTINGS]), st.integers(1, 3), st.booleans()
)
def test_a_variable_that_is_not_in_effect_refuses_to_start(level: str, name: str, at: int, is_set: bool) -> None:
    environment = worker_environment(level, {})
    planted = changed(reports_at(level), at, name, "other" if is_set else None)
    if name not in environment:
        assert level == "invariant"
        check_reports(planted, level)
        return
    with pytest.raises(LevelError) as caught:
        check_reports(planted, level)
    assert f"process {planted[at].name.process}, role {', '.join(planted[at].name.roles)}" in caught.value.what
    assert f"rank {planted[at].name.rank}" in caught.value.what
    assert f"{name} is {'other' if is_set else 'not set'}" in caught.value.what
    assert caught.value.legal.startswith(f"{name} {environment[name]}, as in process controller")
    check_reports(planted, "off")


@pytest.mark.parametrize("level", LEVELS)
def test_a_variable_of_one_node_that_moves_bits_refuses_to_start(level: str) -> None:
    planted = changed(reports_at(level), 3, "ATEN_CPU_CAPABILITY", "default")
    with pytest.raises(LevelError) as caught:
        check_reports(planted, level)
    assert "rank 0 (pid 3 on host): ATEN_CPU_CAPABILITY is default" in caught.value.what
    assert caught.value.legal.startswith("ATEN_CPU_CAPABILITY not set, as in process controller")


@pytest.mark.parametrize(
    ("name", "value", "levels"),
    [
        (CAPABILITY, "AVX512", LEVELS),
        ("torch.__version__", "1.0", LEVELS),
        (DETERMINISTIC, "False", LEVELS),
        (BENCHMARK, "True", LEVELS),
        (HASH, "2", ("deterministic",)),
        (THREADS, "2", ("deterministic",)),
        ("OMP_NUM_THREADS", "2", ("deterministic",)),
        (GPU, "a GPU", LEVELS),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_what_torch_reports_must_agree(level: str, name: str, value: str, levels: tuple[str, ...]) -> None:
    planted = changed(reports_at(level), 2, name, value)
    if level not in levels:
        check_reports(planted, level)
        return
    with pytest.raises(LevelError) as caught:
        check_reports(planted, level)
    assert f"process trainer, role actor, rank 1 (pid 2 on host): {name} is {value}" in caught.value.what


def test_processes_of_different_roles_may_have_other_threads_and_gpus() -> None:
    planted = changed(changed(reports_at("deterministic"), 3, THREADS, "4"), 3, GPU, "a GPU")
    check_reports(planted, "deterministic")
    planted = changed(changed(planted, 0, "OMP_NUM_THREADS", None), 3, "OMP_NUM_THREADS", "4")
    check_reports(planted, "deterministic")


def test_an_error_names_no_more_than_a_few() -> None:
    values = {DETERMINISTIC: "False", BENCHMARK: "True"}
    own, *others = reports_at("invariant")
    with pytest.raises(LevelError, match=r"; and \d+ more"):
        check_reports([own, *(replace(each, values=values) for each in others)], "invariant")


# ---------------------------------------------------------------------------------------------------- real processes

CHILD = """
import json, sys
import torch
from rlcore.distributed.process_report import ProcessName, report_of
torch.use_deterministic_algorithms(True)
report = report_of(ProcessName("trainer", ("actor",), int(sys.argv[1])))
print(json.dumps([report.name, report.host, report.pid, report.values]))
"""


def child_report(rank: int, environ: Mapping[str, str]) -> ProcessReport:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    command = [sys.executable, "-c", CHILD, str(rank)]
    done = subprocess.run(command, env={**kept, **environ}, capture_output=True, text=True, check=True)
    (process, roles, found), host, pid, values = json.loads(done.stdout)
    return ProcessReport(ProcessName(process, tuple(roles), found), host, pid, values)


@pytest.mark.full
def test_processes_with_the_levels_environment_start_and_one_without_it_does_not() -> None:
    environment = worker_environment("deterministic", {})
    reports = [child_report(rank, environment) for rank in range(2)]
    check_reports(reports, "deterministic")
    bare = child_report(1, {name: v for name, v in environment.items() if name != "PYTHONHASHSEED"})
    with pytest.raises(LevelError) as caught:
        check_reports([reports[0], bare], "deterministic")
    assert "PYTHONHASHSEED is not set" in caught.value.what
    assert HASH in caught.value.what, "the seed is in effect in one process only"


@pytest.mark.parametrize("is_set", [True, False])
def test_a_report_has_what_is_in_effect(is_set: bool) -> None:
    torch.use_deterministic_algorithms(is_set)
    torch.set_num_threads(1)
    report = report_of(ProcessName("p", ("r",), 0))
    assert report.values[DETERMINISTIC] == str(is_set)
    assert report.values[THREADS] == "1"
    assert report.values["torch.__version__"] == torch.__version__
