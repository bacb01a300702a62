"""Logs that go on: after a restart the same steps come again, and their log is that of a run that was never cut."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trace.reader import read_log
from harness.trace.writer import TraceWriter
from tests.support.traces import Steps, flip_bit, manifest_of, steps_of

NUM_STEPS = 5
STEPS = steps_of(NUM_STEPS)


def written(directory: Path, steps: Steps, first: int = 0, *, closes: bool = True, continues: bool = False) -> str:
    """Write steps into the log of rank 1 and return why the recording ended."""
    writer = TraceWriter(directory, manifest_of(), rank=1, say=lambda line: None, continues=continues)
    for step in range(first, len(steps)):
        writer.append(step, steps[step])
    if closes:
        writer.close()
    return writer.ended_by


@given(cut=st.integers(0, 2**31), num_before=st.integers(0, NUM_STEPS), data=st.data())
def test_a_log_cut_at_any_byte_goes_on_to_the_same_bytes(cut: int, num_before: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        whole, killed = Path(temporary, "whole"), Path(temporary, "killed")
        assert written(whole, STEPS) == "closed"
        written(killed, STEPS[:num_before], closes=data.draw(st.booleans()))
        path = killed / "rank-1.log"
        header = 12
        left = header + cut % (path.stat().st_size - header + 1)
        path.write_bytes(path.read_bytes()[:left])
        num_kept = len(read_log(path).heads)
        first = data.draw(st.integers(0, num_kept), label="step of the checkpoint")
        assert written(killed, STEPS, first, continues=True) == "closed"
        assert path.read_bytes() == (whole / "rank-1.log").read_bytes()


def test_a_step_that_comes_again_with_another_bit_ends_the_recording(tmp_path: Path) -> None:
    written(tmp_path, STEPS[:3], closes=False)
    before = (tmp_path / "rank-1.log").read_bytes()
    changed = steps_of(NUM_STEPS, flip_bit(2, STEPS[2][0].phase, STEPS[2][0].name))
    ended_by = written(tmp_path, changed, 1, continues=True)
    assert "step 2 was run again after a restart, and has other values than before" in ended_by
    assert (tmp_path / "rank-1.log").read_bytes() == before


def test_the_process_that_lives_on_takes_steps_again_and_its_curve_has_each_once(tmp_path: Path) -> None:
    said: list[str] = []
    writer = TraceWriter(tmp_path, manifest_of(), say=said.append)
    for step in (0, 1, 2):
        writer.append(step, STEPS[step])
    writer.repeat()
    for step in (1, 2, 3, 4):
        writer.append(step, STEPS[step])
        writer.log_values({})
    writer.close()
    assert (writer.ended_by, writer.num_steps, said) == ("closed", NUM_STEPS, [])
    whole = TraceWriter(tmp_path / "whole", manifest_of(), say=said.append)
    for step, values in enumerate(STEPS):
        whole.append(step, values)
    whole.close()
    for name in ("rank-0.log", "curve.jsonl"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_new_log_is_begun_where_a_worker_died_before_its_first_step(tmp_path: Path) -> None:
    assert written(tmp_path, STEPS, continues=True) == "closed"
    with pytest.raises(Exception, match="cannot be written"):
        TraceWriter(tmp_path, manifest_of(), rank=1, say=lambda line: None)
