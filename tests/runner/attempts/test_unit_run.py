"""One unit on its lease: its command and environment, its directories, its GPUs. Attempts follow scripts."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.process.supervisor_client import ProcessSpec
from harness.runner import events
from harness.runner.attempts.unit_run import keep_ray_logs
from harness.runner.report_file import TestOutcome, read_report
from harness.runner.units import Outcome
from tests.runner.scripted_run import GPU_0, ScriptedRun, begun, told
from tests.support.fake_meter import FakeMeter
from tests.support.scripted_attempts import FAILING, PASSING, Script

GB = 10**9


def make_ray_logs(spec: ProcessSpec) -> None:
    logs = Path(spec.env["TMPDIR"], "ray", "session_1", "logs", "old")
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("fell over")
    (logs.parents[2] / "session_latest").symlink_to("session_1")


def test_rays_logs_are_kept_smallest_first_up_to_a_limit_and_no_link_is_followed(tmp_path: Path) -> None:
    logs = tmp_path / "ray" / "session_1" / "logs"
    logs.mkdir(parents=True)
    for name, size in (("big", 100), ("small", 1), ("middle", 10)):
        (logs / name).write_bytes(b"x" * size)
    (tmp_path / "secret").write_text("s")
    (logs / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "ray" / "session_2").mkdir()
    (tmp_path / "ray" / "session_2" / "logs").symlink_to(tmp_path)
    keep_ray_logs(tmp_path / "ray", tmp_path / "kept", limit_bytes=50)
    assert sorted(path.name for path in (tmp_path / "kept").rglob("*") if path.is_file()) == ["middle", "small"]
    keep_ray_logs(tmp_path / "no such place", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_disk_too_full_for_rays_logs_costs_a_note(tmp_path: Path) -> None:
    def in_the_way(spec: ProcessSpec) -> None:
        make_ray_logs(spec)
        Path(spec.directory, "ray_logs").write_text("a file where the directory should be")

    run = ScriptedRun(tmp_path, [1], {0: Script(report=FAILING, exit_code=1, on_begin=in_the_way)}).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.FAILED]
    assert "some of Ray's logs of test_0.py could not be kept" in run.runner.notes[0]


def test_a_directory_that_cannot_be_made_is_that_units_failure(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the directory should be")
    run = ScriptedRun(tmp_path, [1, 0]).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.SUPERVISOR_LOST] * 2
    assert "could not be started" in run.results[0].reason
    assert run.of(events.LeaseReturned)[0].gpu_ids == (GPU_0,)


GARBAGE = (
    {"k": "start", "id": 5, "timeout_s": None},
    {"k": "start", "id": "x", "timeout_s": float("nan")},
    {"k": "start", "id": "x"},
    {"k": "end", "id": "x", "outcome": "splendid", "duration_s": 1.0},
    {"k": "end", "id": "x", "outcome": "passed", "duration_s": "soon"},
    {"k": "end", "id": "x", "outcome": "passed", "duration_s": float("inf")},
    {"k": "end"},
    {"k": "what"},
)


def test_what_a_test_writes_into_its_report_becomes_no_event(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, [0], {0: Script(report=(*PASSING[:1], *GARBAGE, *PASSING[1:]))}).run()
    run.assert_sound()
    assert [event.nodeid for event in run.of(events.TestStarted)] == ["test_x.py::test_x"]
    assert [event.outcome for event in run.of(events.TestFinished)] == [TestOutcome.PASSED]


@pytest.mark.parametrize(
    ("exit_code", "outcome"),
    [(0, Outcome.CRASHED), (1, Outcome.FAILED), (4, Outcome.USAGE_ERROR), (5, Outcome.CRASHED)],
)
def test_of_a_report_that_cannot_be_read_the_exit_code_decides_and_none_passes(
    tmp_path: Path, exit_code: int, outcome: Outcome
) -> None:
    report = ({"k": "hello", "version": 9, "pid": 1}, PASSING[-1])
    run = ScriptedRun(tmp_path, [0], {0: Script(report=report, exit_code=exit_code)}).run()
    run.assert_sound()
    assert run.outcomes == [outcome]
    assert "its report could not be read completely: " in run.results[0].reason
    assert "version 9" in run.results[0].reason


@pytest.mark.parametrize("kind", ["a FIFO", "a symbolic link", "a directory", "another file", "nothing"])
def test_what_a_test_puts_in_the_place_of_its_report_is_said_and_not_read(tmp_path: Path, kind: str) -> None:
    def replace(spec: ProcessSpec) -> None:
        report = Path(spec.directory, "report.jsonl")
        report.write_text("".join(json.dumps(line) + "\n" for line in PASSING))
        report.rename(report.with_name("kept"))
        match kind:
            case "a FIFO":
                os.mkfifo(report)
            case "a symbolic link":
                report.symlink_to("/dev/zero")
            case "a directory":
                report.mkdir()
            case "another file":
                report.write_bytes(b"")

    run = ScriptedRun(tmp_path, [0], {0: Script(report=(), on_begin=replace)}).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.PASSED]
    (note,) = run.runner.notes
    report = run.runner.directory(0) / "report.jsonl"
    did, what = ("removed", "") if kind == "nothing" else ("replaced", f" by {kind}")
    assert note.startswith(f"test_0.py {did} its report {report}{what}: ")
    assert report.is_dir() if kind == "a directory" else read_report(report).finished_exit == 0


def test_threads_are_shared_out_among_the_gpus_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(30))
    run = ScriptedRun(tmp_path, [1, 2, 4, 0], num_gpus=4, has_real_gpus=True).run()
    threads = [run.attempts.specs[number].env.get("OMP_NUM_THREADS") for number in range(4)]
    assert threads == ["7", "15", None, None], "all GPUs have all cores, and so do files without any"
    alone = ScriptedRun(tmp_path / "b", [1], num_gpus=1, has_real_gpus=True).run()
    assert "OMP_NUM_THREADS" not in alone.attempts.specs[0].env


def test_memory_that_comes_back_a_little_later_is_waited_for(tmp_path: Path) -> None:
    class Slow(FakeMeter):
        num_asked = 0

        def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
            self.num_asked += 1
            return {GPU_0: GB if 1 < self.num_asked < 5 else 0}

    meter = Slow()
    limits = {"poll_s": 0.0, "wait_s": 1.0, "answer_s": 5.0}
    run = ScriptedRun(tmp_path, [1], meter=meter, num_gpus=1, card_limits=limits).run()
    run.assert_sound()
    assert run.of(events.GpuQuarantined) == []
    assert meter.num_asked == 5


def test_slowness_is_said_once_and_a_silence_is_broken(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, [0, 0], {0: Script(num_steps=10**6)}, cpu_units=1, options={"slow_s": 60.0})
    run.acts = [
        (begun(0), lambda dispatcher: run.clock.advance(61.0)),
        (told(events.Heartbeat), lambda dispatcher: run.clock.advance(61.0)),
        (lambda run, _: len(run.of(events.Heartbeat)) == 2, lambda dispatcher: dispatcher.request_cancel("SIGINT")),
    ]
    run.run()
    (slow,) = run.of(events.AttemptSlow)
    assert (slow.path, slow.running_s) == ("test_0.py", 61.0)
    assert [(beat.num_running, beat.num_queued) for beat in run.of(events.Heartbeat)] == [(1, 1), (1, 1)]
