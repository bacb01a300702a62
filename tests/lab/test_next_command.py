"""Next commands, after a run that has not come to its own end."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.main import cli
from harness.lab.experiment.hints import next_command, program_command
from harness.lab.experiment.recording_result import Recording
from harness.recording.metrics import Stop
from harness.recording.run_spec import EntryCall, Report, RunSpec
from tests.support.traces import steps_of, write

RESUME = {"run": "output.resume", "step": "output.resume_step"}
SCENARIO = RunSpec(("python",), call=EntryCall("a:b", {}, ("output",), RESUME), typed=("tiny", "--set", "seed=3"))
PROGRAM = RunSpec(("python", "a b.py"), level="deterministic", metrics=("loss=l (.)",))
KILLED, INTERRUPTED = 137, 130


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Two whole steps in the directory `run` of the working directory; the program ended with 1."""
    write(tmp_path / "run", steps_of(2))
    monkeypatch.chdir(tmp_path)
    return Recording(tmp_path / "run", 1, 2, (0,), 100)


def with_unfinished(run: Recording) -> Recording:
    """The same, in whose step 2 the run has ended."""
    write(run.directory / "unfinished", steps_of(3))
    return run


def with_checkpoint(run: Recording) -> Recording:
    (run.directory / "checkpoints" / "step-000001").mkdir(parents=True)
    return run


def typed(run_spec: RunSpec, recording: Recording, stop: Stop | None = None) -> str:
    """The whole line; every option in it is one of its command's."""
    found = next_command(run_spec, recording, stop)
    if found is None:
        return ""
    words = shlex.split(found.command)
    own = words[: words.index("--")] if "--" in words else words
    known = {option for parameter in cli.commands[own[1]].params for option in parameter.opts}
    assert {word for word in own if word.startswith("--")} <= known
    return str(found)


def test_a_run_that_ended_by_itself_needs_nothing(run: Recording) -> None:
    for run_spec in (SCENARIO, PROGRAM):
        assert typed(run_spec, replace(run, exit_code=0)) == ""
        assert typed(run_spec, replace(run, ranks=())) == "", "there is nothing to look at"


def test_the_step_in_which_a_run_died_is_looked_into(run: Recording) -> None:
    assert typed(SCENARIO, with_unfinished(run)) == "look closer: rlharness reproduce run --step 2 --trace-ops"
    assert typed(SCENARIO, with_checkpoint(run)) == "look closer: rlharness reproduce run --step 2 --trace-ops"


def test_the_step_at_which_a_condition_held_is_looked_into(run: Recording) -> None:
    for code in (0, 1, INTERRUPTED):
        line = typed(SCENARIO, replace(run, exit_code=code), Stop("loss>3.0", 1))
        assert line == "look closer: rlharness reproduce run --step 1 --trace-ops"


@pytest.mark.parametrize("code", [KILLED, INTERRUPTED])
def test_a_run_that_somebody_has_ended_goes_on_from_its_checkpoint(run: Recording, code: int) -> None:
    recording = with_checkpoint(replace(run, exit_code=code))
    line = typed(SCENARIO, recording if code == KILLED else with_unfinished(recording))
    assert line == (
        "resume from its last checkpoint: rlharness train tiny --set seed=3 --set output.resume=run --out OTHER"
    )


def test_without_a_checkpoint_somebody_can_stand_in_the_step_behind_the_last(run: Recording) -> None:
    line = "debug the step that it died in: rlharness reproduce run --step 2 --interactive"
    assert typed(SCENARIO, replace(run, exit_code=KILLED)) == line
    assert typed(SCENARIO, replace(run, exit_code=INTERRUPTED)) == "", "who has pressed Ctrl-C knows why"
    (run.directory / "unfinished").mkdir()
    (run.directory / "unfinished" / "manifest.json").write_text("[]", "utf-8")
    assert typed(SCENARIO, run) == line, "what was kept cannot be read"


def died_in(run: Recording, *steps: int | None) -> Recording:
    """The same, whose processes report that they ended in the middle of these steps; None: between two."""
    made = [Report(pid, ("a.py",), "python", unfinished_step=step) for pid, step in enumerate(steps)]
    return replace(run, reports=tuple(made))


def test_a_command_that_died_after_its_last_step_has_no_step_to_look_into(run: Recording) -> None:
    assert typed(PROGRAM, run) == typed(PROGRAM, died_in(run, None, None)) == ""


def test_a_command_is_run_anew_under_the_same_conditions(run: Recording) -> None:
    again = "--trace-ops --level deterministic --metric 'loss=l (.)' -- python 'a b.py'"
    assert typed(PROGRAM, died_in(run, None, 3, 2)) == f"look closer: rlharness replay --step 2 {again}"
    assert typed(PROGRAM, replace(run, ranks=()), Stop("nan", 0)) == f"look closer: rlharness replay --step 0 {again}"
    assert typed(PROGRAM, replace(died_in(run, 2), exit_code=INTERRUPTED)) == ""


def test_a_limit_stays_what_it_was() -> None:
    line = program_command(PROGRAM, 7, 30.0)
    assert line.endswith("--timeout 30 -- python 'a b.py'")
