"""One process's part in a recording: its rank, its log, its report, and that nothing of it ends the program."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.recording.process import ProcessLog, rank_and_world_size, write_report
from harness.recording.recorder import Recorder
from harness.recording.run_spec import PROCESSES, Report, RunSpec
from harness.trace import read_trace
from harness.trace.format import chain_start
from harness.trace.values import Float
from tests.support.recorded_programs import run


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ProcessLog]:
    made = ProcessLog(RunSpec(directory=str(tmp_path), identity={"command": "x"}))
    yield made
    made.close()


def report(directory: Path, pid: int | None = None) -> Report:
    return Report.parse((directory / PROCESSES / f"{pid or os.getpid()}.json").read_text())


def record(log: ProcessLog, num_steps: int = 2) -> None:
    recorder = Recorder(log)
    for step in range(num_steps):
        recorder.begin_step(step)
        recorder.record("loss", "loss", torch.tensor(float(step)))
        recorder.end_step(loss=float(step))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"RANK": "1"}, (0, 1)),
        ({"RANK": "4", "WORLD_SIZE": "4"}, (0, 1)),
        ({"RANK": "x", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, (0, 1)),
    ],
)
def test_the_rank_is_what_the_launcher_says(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_and_world_size(environ) == expected


def test_the_log_is_opened_by_the_first_step(tmp_path: Path, log: ProcessLog) -> None:
    assert not list(tmp_path.glob("rank-*.log"))
    assert report(tmp_path).rank is None
    record(log)
    log.close()
    trace = read_trace(tmp_path)
    assert (trace.gaps, trace.steps) == ((), (0, 1))
    assert (report(tmp_path).rank, report(tmp_path).num_steps, report(tmp_path).is_closed) == (0, 2, True)
    assert trace.manifest is not None
    assert trace.manifest.fingerprint.identity == {"command": "x"}


def test_what_must_not_matter_is_told_in_the_fingerprint_and_no_secret(tmp_path: Path) -> None:
    told = {"runtime.threads": "2", "output.hub_token": '"verysecret"'}
    made = ProcessLog(RunSpec(directory=str(tmp_path), identity={"seed": "7"}, perturbation=told))
    made.content = {"prompts": "d1"}
    record(made)
    made.close()
    manifest = read_trace(tmp_path).manifest
    assert manifest is not None
    assert (manifest.fingerprint.identity, manifest.fingerprint.content) == ({"seed": "7"}, {"prompts": "d1"})
    assert manifest.fingerprint.perturbation["runtime.threads"] == "2"
    assert manifest.fingerprint.perturbation["output.hub_token"] == "<redacted>"
    assert "world size" in manifest.fingerprint.perturbation


def test_a_rank_that_is_taken_gives_the_next_number_and_the_same_start_of_the_chain(
    tmp_path: Path, log: ProcessLog
) -> None:
    record(log)
    other = ProcessLog(RunSpec(directory=str(tmp_path), identity={"command": "x"}))
    record(other)
    assert (log.rank, other.rank) == (0, 1)
    log.close()
    other.close()
    logs = read_trace(tmp_path).ranks
    assert logs[0].heads[1].chain == logs[1].heads[1].chain
    assert chain_start({"command": "x"}) != chain_start({})


def test_values_from_before_the_first_step_are_the_firsts(tmp_path: Path, log: ProcessLog) -> None:
    log.log_values({"accuracy": Float.of(0.5)})
    record(log)
    log.close()
    curve = read_trace(tmp_path).curve
    assert [sorted(point.values) for point in curve] == [["accuracy", "loss"], ["loss"]]


def test_giving_up_is_said_once_and_ends_nothing_else(
    tmp_path: Path, log: ProcessLog, capsys: pytest.CaptureFixture[str]
) -> None:
    record(log)
    log.give_up("a reason")
    log.give_up("another")
    record(log, 5)
    log.close()
    assert capsys.readouterr().err == "rlharness: recording ended, the program continues: a reason\n"
    trace = read_trace(tmp_path)
    assert trace.steps == (0, 1)
    assert trace.gaps
    assert (report(tmp_path).problem, report(tmp_path).is_closed) == ("a reason", False)


def test_a_report_is_rewritten_in_its_place_where_nothing_new_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    first = Report(7, ("a.py",), "python", rank=0)
    write_report(tmp_path, first)
    size_bytes = (tmp_path / "7.json").stat().st_size
    monkeypatch.setattr(os, "replace", full)
    write_report(tmp_path, replace(first, problem="\x00" * 9999, num_steps=10**9))
    assert (tmp_path / "7.json").stat().st_size == size_bytes
    written = Report.parse((tmp_path / "7.json").read_text())
    assert (written.problem, written.num_steps) == ("\x00" * 500, 10**9)
    write_report(tmp_path, first)
    assert Report.parse((tmp_path / "7.json").read_text()) == first, "nothing is left of the longer one"
    with pytest.raises(OSError, match=r"8\.json"):
        write_report(tmp_path, replace(first, pid=8))


FILL = """
import sys, torch
weight = torch.nn.Parameter(torch.ones(40, 20))
optimizer = torch.optim.SGD([weight])
for step in range(8):
    if step == 3:
        try:
            with open(sys.argv[1], "wb", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(512))
        except OSError:
            pass
    weight.square().sum().backward()
    optimizer.step()
"""


@pytest.mark.full
def test_a_disk_that_is_full_is_reported_and_nothing_closes_its_log(tmp_path: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)]
    if subprocess.run([*unshare, *mount], check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    trace = [sys.executable, "-m", "harness", "trace", "--out", f"{tmp_path}/t", "--"]
    program = [sys.executable, "-c", f"{FILL}\nimport os; os._exit(0)", f"{tmp_path}/ballast"]
    done = run(*unshare, "sh", "-c", f"{shlex.join(mount)} && {shlex.join(trace + program)}")
    assert done.exit_code == 12, done.errors
    assert "INCOMPLETE: recorded " in done.errors
    assert "): No space left on device\n" in done.errors
    assert "its log was closed" not in done.errors


DYING = """
import torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight])
for step in range(2):
    (weight * torch.rand(4)).sum().backward()
    optimizer.step()
"""
DYING_INSIDE = """
from harness.recording import open_recorder
recorder = open_recorder()
for step in (6, 7):
    recorder.begin_step(step)
    recorder.record("loss", "loss", 0.5)
    if step == 6:
        recorder.end_step()
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "step"),
    [
        pytest.param(DYING, None, marks=pytest.mark.full),
        pytest.param(DYING + "weight.sum().backward()\n", 2, marks=pytest.mark.full),
        (DYING_INSIDE, 7),
        pytest.param(DYING_INSIDE + "recorder.end_step()\n", None, marks=pytest.mark.full),
    ],
)
def test_the_step_in_which_a_program_died_is_reported_and_none_behind_its_last(
    tmp_path: Path, program: str, step: int | None
) -> None:
    trace = [sys.executable, "-m", "harness", "trace", "--out", f"{tmp_path}/t", "--"]
    done = run(*trace, sys.executable, "-c", f"{program}raise RuntimeError('it cannot be saved')")
    assert done.exit_code == 1, done.errors
    (path,) = (tmp_path / "t" / PROCESSES).glob("*.json")
    assert Report.parse(path.read_text()).unfinished_step == step
    looks = [line for line in done.errors.splitlines() if "look closer" in line]
    assert len(looks) == (step is not None)
    assert all(f"look closer: rlharness replay --step {step} --trace-ops -- " in line for line in looks)


@pytest.mark.parametrize(("mode", "cluster"), [(1, "Ray"), (0, ""), (None, "")])
def test_workers_of_ray_say_so(
    tmp_path: Path, log: ProcessLog, monkeypatch: pytest.MonkeyPatch, mode: int | None, cluster: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(WORKER_MODE=1))
    worker = SimpleNamespace(global_worker=SimpleNamespace(mode=mode))
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    record(log)
    assert report(tmp_path).cluster == cluster


def test_a_forked_child_leaves_its_parents_log_alone_and_may_have_its_own(tmp_path: Path, log: ProcessLog) -> None:
    record(log)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            is_fresh = log.rank is None and log.is_recording
            record(log, 3)
            log.close()
            status = 0 if is_fresh and log.rank == 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    recorder = Recorder(log)
    recorder.begin_step(2)
    recorder.end_step()
    log.close()
    ranks = read_trace(tmp_path).ranks
    assert {rank: len(each.heads) for rank, each in ranks.items()} == {0: 3, 1: 3}
    assert all(each.is_closed for each in ranks.values())
    assert report(tmp_path, child).num_steps == 3
