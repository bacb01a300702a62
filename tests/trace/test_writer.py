"""The writer: what it leaves behind when the disk is full, the program is killed, or it is called wrongly."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.errors import TraceError
from harness.trace.format import RecordedValue, Scope, read_digested
from harness.trace.reader import read_trace
from harness.trace.values import Float
from harness.trace.writer import TraceWriter, close_log, write_manifest
from tests.support.file_limits import largest_file
from tests.support.traces import manifest_of, recorded_value, steps_of, trace, write
from tests.support.verified import verify

ROOT = Path(__file__).parents[2]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    steps = steps_of(3)
    found = trace(tmp_path / "a", steps)
    assert found.gaps == ()
    assert found.steps == (0, 1, 2)
    assert [found.ranks[0].columns(step).values() for step in found.steps] == [
        list(recorded_values) for recorded_values in steps
    ]
    assert [point.chain for point in found.curve] == [found.ranks[0].heads[step].chain.hex() for step in found.steps]
    assert [point.values["loss"].value() for point in found.curve] == pytest.approx([1.0, 1.0, 1.0])
    assert verify(found) == []


def test_a_line_of_the_curve_is_fit_for_a_golden(tmp_path: Path) -> None:
    write(tmp_path / "a", steps_of(1))
    (line,) = (tmp_path / "a" / "curve.jsonl").read_text("utf-8").splitlines()
    fields = json.loads(line)
    named = ["step", "reward_mean", "loss", "gradient_norm", "kl", "entropy", "completion_length", "chain"]
    assert list(fields) == named
    assert fields["loss"] == ["f32:3f800000", 1.0]
    assert fields["kl"] is None


def test_a_full_disk_ends_the_recording_and_not_the_program(tmp_path: Path) -> None:
    said: list[str] = []
    writer = TraceWriter(tmp_path / "a", manifest_of(), say=said.append)
    steps = steps_of(50)
    with largest_file(4000):
        chains = [writer.append(step, recorded_values) for step, recorded_values in enumerate(steps)]
    num_global = sum(chain is not None for chain in chains)
    assert 0 < num_global < 50
    assert chains[num_global:] == [None] * (50 - num_global)
    assert len(said) == 1
    assert f"ended after {num_global} step{'s' * (num_global != 1)}; the program continues: File too large" in said[0]
    writer.close()
    found = read_trace(tmp_path / "a")
    assert found.steps == tuple(range(num_global))
    assert found.gaps == ("its program did not exit normally", "rank-0.log was not closed")
    assert len(said) == 1


def test_a_disk_that_is_full_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    writer = TraceWriter(tmp_path / "a", manifest_of(), say=said.append)
    writer.append(0, steps_of(1)[0])
    size = (tmp_path / "a" / "rank-0.log").stat().st_size
    with largest_file(size + 10):
        writer.close()
    assert len(said) == 1
    assert "ended after 1 step; " in said[0]
    assert (tmp_path / "a" / "rank-0.log").stat().st_size == size, "what did not fit is taken back"
    found = read_trace(tmp_path / "a")
    assert (found.steps, len(found.gaps)) == ((0,), 2)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["curve.jsonl", "manifest.json", "rank-0.log"]


@pytest.mark.parametrize(
    ("recorded_values", "reason"),
    [
        ([recorded_value("loss", "loss", 1), recorded_value("loss", "loss", 2)], "two values loss loss 0"),
        ([recorded_value("forwards", "x", 1)], "the phase 'forwards'"),
        ([RecordedValue("loss", "loss", 0, "f32", (), "raw", b"")], "the digest of loss has 0 bytes"),
        ([recorded_value("loss", "\ud800", 1)], "cannot be encoded as UTF-8"),
        ([recorded_value("loss", "w", 1, scope=Scope.SHARD)], "a shard of w has a digest"),
    ],
)
def test_a_recorders_mistake_ends_the_recording_and_not_the_program(
    tmp_path: Path, recorded_values: list[RecordedValue], reason: str
) -> None:
    said: list[str] = []
    with TraceWriter(tmp_path / "a", manifest_of(), say=said.append) as writer:
        assert writer.append(0, steps_of(1)[0]) is not None
        assert writer.append(1, recorded_values) is None
        assert writer.append(2, steps_of(1)[0]) is None
    assert len(said) == 1
    assert reason in said[0]
    assert read_trace(tmp_path / "a").steps == (0,)


def test_what_is_there_is_never_written_over(tmp_path: Path) -> None:
    before = write(tmp_path / "a", steps_of(2))
    kept = {path.name: path.read_bytes() for path in before.iterdir()}
    with pytest.raises(TraceError, match="File exists"):
        TraceWriter(before, manifest_of(), say=print)
    assert {path.name: path.read_bytes() for path in before.iterdir()} == kept
    for kept_alone in ("manifest.json", "curve.jsonl"):
        (tmp_path / kept_alone).mkdir()
        (tmp_path / kept_alone / kept_alone).write_text("mine")
        with pytest.raises(TraceError, match="File exists"):
            TraceWriter(tmp_path / kept_alone, manifest_of(), say=print)
        assert [path.read_text() for path in (tmp_path / kept_alone).iterdir()] == ["mine"]
    (tmp_path / "file").touch()
    with pytest.raises(TraceError):
        TraceWriter(tmp_path / "file" / "a", manifest_of(), say=print)


def test_a_program_that_raises_leaves_an_incomplete_trace(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), TraceWriter(tmp_path / "a", manifest_of(), say=print) as writer:
        writer.append(0, steps_of(1)[0])
        raise ZeroDivisionError
    found = read_trace(tmp_path / "a")
    assert found.steps == (0,)
    assert found.gaps == ("its program did not exit normally", "rank-0.log was not closed")


def test_every_step_that_was_appended_survives_sigkill(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from harness.trace.writer import TraceWriter\n"
        "from tests.support.traces import manifest_of, steps_of\n"
        f"writer = TraceWriter(Path({str(tmp_path / 'a')!r}), manifest_of(), say=print)\n"
        "for step, leaves in enumerate(steps_of(10_000)):\n"
        "    writer.append(step, leaves); print(step, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        told += [int(line) for line in process.stdout if line.endswith("\n")]
    found = read_trace(tmp_path / "a")
    assert set(told) <= set(found.steps)
    assert len(found.steps) - len(told) <= 1
    assert verify(found) == []


def curve_of(directory: Path) -> list[dict[str, float]]:
    return [{name: each.value() for name, each in point.values.items()} for point in read_trace(directory).curve]


def test_what_a_program_logs_after_a_step_stands_in_that_steps_line(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a", manifest_of(), say=print)
    writer.log_values({"loss": Float.of(9.0), "early": Float.of(0.5)})
    writer.append(0, [], {"loss": Float.of(1.0)})
    writer.log_values({"kl": Float.of(2.0), "step": Float.of(0.0)})
    assert curve_of(tmp_path / "a") == []
    writer.append(1, [])
    assert curve_of(tmp_path / "a") == [{"loss": 1.0, "early": 0.5, "kl": 2.0}]
    writer.append(2, [])
    writer.log_values({"kl": Float.of(3.0)})
    writer.log_values({"kl": Float.of(4.0)})
    writer.close()
    writer.log_values({"kl": Float.of(5.0)})
    assert curve_of(tmp_path / "a") == [{"loss": 1.0, "early": 0.5, "kl": 2.0}, {}, {"kl": 4.0}]


def test_whoever_started_the_program_may_complete_the_manifest(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "a", manifest_of(), say=print, completes_manifest=False) as writer:
        writer.append(0, steps_of(1)[0])
    found = read_trace(tmp_path / "a")
    assert found.gaps == ("its program did not exit normally",)
    assert found.manifest is not None
    write_manifest(tmp_path / "a", replace(found.manifest, complete=True))
    assert read_trace(tmp_path / "a").gaps == ()


def test_a_log_whose_process_was_ended_from_outside_can_be_closed(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", steps_of(3), complete=False)
    log = directory / "rank-0.log"
    whole = log.read_bytes()
    assert close_log(log) == 3
    assert read_trace(directory).ranks[0].is_closed
    closed = log.read_bytes()
    assert (close_log(log), log.read_bytes()) == (3, closed)
    log.write_bytes(whole[:-1])
    with pytest.raises(TraceError, match="is torn"):
        close_log(log)
    assert log.read_bytes() == whole[:-1]
    with pytest.raises(TraceError, match="cannot be closed: No such file"):
        close_log(directory / "rank-1.log")


def test_kept_tensors_are_there_before_their_step(tmp_path: Path) -> None:
    (step,) = steps_of(1)
    data = bytes(range(4))
    said: list[str] = []
    writer = TraceWriter(tmp_path / "a", manifest_of(), rank=3, say=said.append)
    assert writer.append(7, step, tensors=[(step[2], data)]) is not None
    (tmp_path / "a" / "tensors" / "rank-3-step-7.safetensors").rename(tmp_path / "kept")
    assert read_digested(tmp_path / "kept", step[2]._replace(algorithm="any")) == data
    size = (tmp_path / "a" / "rank-3.log").stat().st_size
    with largest_file(size):
        assert writer.append(8, step, tensors=[(step[0], bytes(100_000))]) is None
    assert (said[0].count("File too large"), list((tmp_path / "a" / "tensors").iterdir())) == (1, [])
    assert list(read_trace(tmp_path / "a").ranks[3].heads) == [7]


def test_steps_only_grow(tmp_path: Path) -> None:
    said: list[str] = []
    writer = TraceWriter(tmp_path / "a", manifest_of(), say=said.append)
    assert writer.append(5, []) is not None
    assert writer.append(5, []) is None
    assert "step 5 was recorded after step 5" in said[0]
