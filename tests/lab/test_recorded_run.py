"""A recorded run, read again."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.errors import TraceError, UsageError
from harness.lab.experiment.recorded_run import CHECKPOINTS, read_recorded_run
from tests.support.recorded_runs import CALL, recorded
from tests.support.traces import manifest_of, steps_of, write


@pytest.mark.parametrize(("step", "start"), [(0, None), (1, None), (2, 2), (3, 2), (4, 4), (5, 4)])
def test_a_step_is_run_again_from_the_nearest_checkpoint(tmp_path: Path, step: int, start: int | None) -> None:
    run = recorded(tmp_path / "run", checkpoints=(2, 4))
    (run.directory / CHECKPOINTS / "step-000003.partial").mkdir()

    run_spec = run.spec_to(step)

    assert run.start_before(step) == start
    assert run_spec.call is not None
    assert run_spec.last_step == step
    output = {"note": "x"} if start is None else {"note": "x", "resume": str(run.directory), "resume_step": start}
    assert run_spec.call.config == {"seed": 7, "output": output}
    assert run_spec.identity == run.spec_to(0).identity


def test_what_was_recorded_without_its_secrets_has_to_be_said_again(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", replace(CALL, config={"judge": {"api_key": "<redacted>"}}))

    with pytest.raises(UsageError, match=r"--set judge\.api_key=VALUE"):
        run.spec_to(3)
    run_spec = run.spec_to(3, {"judge.api_key": "abc"})
    assert run_spec.call is not None
    assert run_spec.call.config == {"judge": {"api_key": "abc"}}


def test_every_secret_that_a_run_lacks_is_named_at_once(tmp_path: Path) -> None:
    judge = {"authorization": "<redacted>", "cookie": "<redacted>", "passphrase": "<redacted>"}
    config = {"judge": {"password": "<redacted>", "url": "http://<redacted>@host", **judge}}
    run = recorded(tmp_path / "run", replace(CALL, config=config))

    with pytest.raises(UsageError) as caught:
        run.spec_to(3)
    names = [f"judge.{name}" for name in ("password", "url", *judge)]
    assert caught.value.remedy == f"add {' '.join(f'--set {name}=VALUE' for name in names)}"


def test_a_key_that_a_shell_would_obey_is_quoted(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", replace(CALL, config={"a;touch x": "<redacted>"}))
    with pytest.raises(UsageError, match="remedy: add --set 'a;touch x'=VALUE"):
        run.spec_to(3)


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace"):
        read_recorded_run(tmp_path)
    write(tmp_path / "foreign", steps_of(2), replace(manifest_of(), argv=("python", "train.py")))
    assert read_recorded_run(tmp_path / "foreign").call is None, "the run of a command"
    with pytest.raises(UsageError, match="the command after -- is not that of"):
        read_recorded_run(tmp_path / "foreign", ("python", "other.py"))
    run = recorded(tmp_path / "cut")
    (run.directory / "call.json").write_text('{"entry": ', "utf-8")
    with pytest.raises(UsageError, match="does not name the called entry"):
        read_recorded_run(run.directory)
