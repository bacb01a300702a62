"""`rlharness replay --resume-at`: what a resume loses is named, and an honest resume is silent."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.replay.resumption import LossCode, Record, Resumption, compare_resumed, first_unequal, read_record
from tests.support.cli_commands import Done, type_command
from tests.support.suite_runs import environment

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "resumed.py"
RECORDED = """\
import runpy, sys, torch
from harness.recording.resumption_recorder import ResumptionRecorder
lines, end_at, *sys.argv = sys.argv[1:]
ResumptionRecorder(lines, end_at=int(end_at) or None)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def record(side: Path, name: str, *words: str, end_at: int = 0) -> Record:
    """Run the program without a trace; the lines that its recorder leaves."""
    side.mkdir(exist_ok=True)
    lines = side.parent / name
    command = [sys.executable, "-c", RECORDED, str(lines), str(end_at), str(PROGRAM), "ck", *words]
    done = subprocess.run(command, cwd=side, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == (-9 if end_at else 0), done.stderr
    return read_record(lines, name)


Resume = Callable[..., Resumption]


@pytest.fixture(scope="module")
def resume(tmp_path_factory: pytest.TempPathFactory) -> Resume:
    """Resume the program after 7 steps with these words; each straight and interrupted run is made once."""
    top = tmp_path_factory.mktemp("resumed")

    @cache
    def ended(words: tuple[str, ...]) -> tuple[Path, Record, Record]:
        place = top / str(len([*top.iterdir()]))
        place.mkdir()
        straight = record(place / "a", "straight", *words)
        interrupted = record(place / "b", "ended", *words, end_at=7)
        assert first_unequal(straight, interrupted) is None
        return place, straight, interrupted

    def resumed(*words: str, always: tuple[str, ...] = ()) -> Resumption:
        place, straight, interrupted = ended(always)
        name = "-".join(("resumed", *words))
        shutil.copytree(place / "b", place / f"side-{name}")
        found = compare_resumed(
            straight, record(place / f"side-{name}", name, *words, *always, "--resume"), interrupted.saves[-1]
        )
        assert found is not None and found.step == 6
        return found

    return resumed


@pytest.mark.full
@pytest.mark.parametrize("words", [(), ("--evaluate",)])
def test_an_honest_resume_is_silent(resume: Resume, words: tuple[str, ...]) -> None:
    assert not resume(*words).losses


FAULTS = {
    "moments": (
        LossCode.LOST,
        6,
        "AdamW's moments and step count (exp_avg, exp_avg_sq, step) of all 6 weights are lost",
    ),
    "schedule": (LossCode.SETTING, 7, "lr is 0.0095 against 0.0065, that of step 1"),
    "average": (LossCode.CHECKPOINT, 9, "average.0.weight"),
    "buffers": (LossCode.NOT_RESTORED, 6, "buffers and weights outside the optimizer are those of step 0"),
    "generator": (LossCode.GENERATOR, 6, "torch's generator was set back: it stands where manual_seed(0) puts it"),
    "position": (LossCode.DATA_START_OVER, 6, "the batch is that of step 0: the data start over"),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_step(resume: Resume, fault: str) -> None:
    code, step, text = FAULTS[fault]
    first = resume("--lose", fault).losses[0]
    assert (first.code, first.step) == (code, step), first.sentence
    assert text in first.sentence


@pytest.mark.full
@pytest.mark.parametrize("words", [(), ("--compile",), ("--prompts",)])
def test_recording_moves_no_bit(tmp_path: Path, words: tuple[str, ...]) -> None:
    def printed(*start: str) -> str:
        command = [sys.executable, *start, str(PROGRAM), "ck", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
        return done.stdout

    assert printed() == printed("-W", "error", "-c", RECORDED, str(tmp_path / "lines"), "0")
    assert len(read_record(tmp_path / "lines", "run 1").steps) == 14


@pytest.mark.full
def test_workers_with_generators_of_their_own(resume: Resume) -> None:
    first = resume(always=("--lose", "workers")).losses[0]
    assert first.code is LossCode.DATA_VALUES
    assert "though the loader asked for the same indices" in first.sentence


@pytest.mark.full
def test_prompts_that_were_generated_and_not_trained(resume: Resume) -> None:
    assert not resume(always=("--prompts",)).losses
    losses = resume("--lose", "prompts", always=("--prompts",)).losses
    assert losses[0].sentence == "the samples are those of steps 7, 8"
    assert losses[1].sentence == "until the end, 3 of 28 samples are never trained"


def compare(directory: Path, *words: str, at: str = "7", resumed: str = "", **env: str) -> Done:
    shutil.copy(PROGRAM, directory / "train.py")
    command = f"{sys.executable} train.py ck --resume {resumed}"
    options = ("--out", "r", "--json", "--resume-at", at, "--resume-command", command)
    return type_command(directory, "replay", *options, "--", sys.executable, "train.py", "ck", *words, **env)


def test_a_resume_that_loses_its_moments(tmp_path: Path) -> None:
    (tmp_path / "ck").write_text("the user's own checkpoint")
    done = compare(tmp_path, resumed="--lose moments")
    assert done.code == ExitCode.DIVERGED, done.stderr
    told = json.loads(done.stdout)
    assert (told["verdict"], told["resumed_at"], told["losses"][0]["code"]) == ("LOST", 6, "lost")
    assert (tmp_path / "ck").read_text() == "the user's own checkpoint"
    assert not (tmp_path / "r" / "straight").exists(), "copies are removed"


@pytest.mark.full
def test_a_second_resume_that_loses_nothing(tmp_path: Path) -> None:
    done = compare(tmp_path, at="4,9")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert json.loads(done.stdout)["resumed_at"] == 9


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "writes"),
    [((), "one after 12 steps"), (("--pickle",), "none with torch.save or safetensors, but ck")],
)
def test_nothing_to_resume_from(tmp_path: Path, words: tuple[str, ...], writes: str) -> None:
    done = compare(tmp_path, "--save-every", "12", *words)
    assert done.code == ExitCode.NOT_COMPARABLE
    told = json.loads(done.stdout)
    assert told["verdict"] == "NOTHING TO RESUME"
    assert told["reason"] == f"no checkpoint was seen within 7 steps; the straight run writes {writes}"
    assert "No such file" in told["output"][-1]


@pytest.mark.full
def test_weights_lost_from_a_checkpoint_that_is_not_recognised(tmp_path: Path) -> None:
    done = compare(tmp_path, "--pickle", resumed="--pickle --lose weights")
    assert done.code == ExitCode.DIVERGED, done.stdout + done.stderr


@pytest.mark.full
def test_a_program_that_does_not_repeat_itself(tmp_path: Path) -> None:
    told = json.loads(compare(tmp_path, "--unseeded").stdout)
    assert told["verdict"] == "CANNOT TELL"
    assert "weights of two straight runs differ before step 0" in told["reason"]


@pytest.mark.full
def test_a_resume_that_is_refused_shows_its_reason(tmp_path: Path) -> None:
    done = compare(tmp_path, resumed="--no-such-option")
    told = json.loads(done.stdout)
    assert (done.code, told["verdict"]) == (ExitCode.NOT_COMPARABLE, "CANNOT TELL")
    assert "unrecognized arguments: --no-such-option" in told["output"][-1]
