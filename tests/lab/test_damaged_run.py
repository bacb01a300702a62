"""A recorded run of which any file was cut short, or holds something else: every reader says so, none breaks."""

import io
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.bits.errors import HarnessError
from harness.bits.exit_codes import ExitCode
from harness.cli.main import main
from harness.lab.experiment.recorded_run import read_recorded_run, unfinished_step
from harness.lab.reproduce.reproduction import ReproduceOptions, plan_step
from harness.recording.run_spec import EntryCall
from tests.support.traces import trace_of_values, value

CALL = EntryCall("a:b", {"seed": 7, "output": {}}, ("output",), {"run": "output.resume", "step": "output.resume_step"})
FILES = (
    *("manifest.json", "call.json", "curve.jsonl", "rank-0.log", "tensors/rank-0-step-2.safetensors"),
    *("unfinished/manifest.json", "unfinished/rank-0.log"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps that has ended in a fourth, with a checkpoint and kept tensors; every file is there."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    steps = [[value("rollout", "tokens", "i64", (64,), bytes([step] * 512))] for step in range(4)]
    trace_of_values(directory, steps[:3], keeps=True)
    trace_of_values(directory / "unfinished", [[], [], [], *steps[3:]], keeps=True)
    CALL.write(directory)
    (directory / "checkpoints" / "step-000001").mkdir(parents=True)
    assert [name for name in FILES if not (directory / name).is_file()] == []
    assert list(read(directory)) == []
    return directory


def read(directory: Path) -> Iterator[HarnessError]:
    """What every reader of a run has to say of one, beside what it has read."""

    for step in (2, 3):
        try:
            plan_step(read_recorded_run(directory), step, ReproduceOptions(str(directory)))
        except HarnessError as error:
            yield error
    unfinished_step(directory)


def refused_or_read(whole: Path, name: str, data: bytes) -> None:
    """Each reader of a copy in which this file holds `data` has read it, or says in its own words why not."""
    with TemporaryDirectory() as scratch:
        copy = Path(scratch, "copy")
        shutil.copytree(whole, copy)
        (copy / name).write_bytes(data)
        for error in read(copy):
            assert error.what and (error.legal or error.remedy), error
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            code = main(["diff", str(whole), str(copy)])
        assert code != ExitCode.INTERNAL_ERROR, said.getvalue()


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_thousand_brackets_is_read_or_refused(whole: Path, name: str) -> None:
    refused_or_read(whole, name, b"[" * 100_000 + b"\n")


def test_a_configuration_that_would_exhaust_a_stack_is_refused(whole: Path) -> None:
    deep = (
        b'{"entry": "a:b", "config": '
        + b'{"x": ' * 500
        + b"1"
        + b"}" * 500
        + b', "runtime_sections": [], "resume": null}'
    )
    with pytest.raises(ValueError, match="no call"):
        EntryCall.parse(deep)
    refused_or_read(whole, "call.json", deep)
