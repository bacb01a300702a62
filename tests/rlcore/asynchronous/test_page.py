"""The page of asynchronous GRPO: its files are read and belong together, and its table of options is what runs did."""

import json
import re
import signal
import time
from pathlib import Path

import pytest
import yaml

from rlcore.asynchronous.run import Family, check_together
from rlcore.asynchronous.settings import read_infer, read_orch, read_train
from rlcore.errors import InvalidValueError, WorkerError
from tests.benchmarks.asynchronous_options import OPTIONS, RESULTS, render

PAGE = (Path(__file__).parents[3] / "rlcore" / "ASYNCHRONOUS.md").read_text("utf-8")
BLOCKS = re.findall(r"```yaml\n(?:# (\w+)\.yaml\n)?(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    found = {role: tmp_path / f"{role}.yaml" for role, _ in BLOCKS if role}
    for role, text in BLOCKS:
        if role:
            found[role].write_text(text, "utf-8")
    return found


def test_the_three_files_are_of_one_run(files: dict[str, Path]) -> None:
    check_together(files["train"], files["infer"], files["orch"])
    notices = [line for read in (read_train, read_infer, read_orch) for line in read(files[read.__name__[5:]])[1]]
    assert len(notices) == 2 and "optimizer" in notices[0] and "verifiers" in notices[1]


@pytest.mark.parametrize(
    ("role", "line", "told"),
    [
        ("train", "output_dir: ./elsewhere", "trains for .*/elsewhere/run_default"),
        ("infer", "model: ./other", "the models are"),
        ("infer", "port: 8001", "serves port 8001"),
        ("train", "max_steps: 20", "max_steps is 20 in .*, and 40 in"),
        ("train", "loss: {teacher_tau: 0.5}", "loss.teacher_tau is set"),
        ("orch", "seq_len: 65", "seq_len is 65 in .*, and sequence_len 64"),
        ("orch", "model: {name: ./model, lora_rank: 4}", "model.lora_rank is 4"),
    ],
)
def test_files_of_two_runs_are_refused(files: dict[str, Path], role: str, line: str, told: str) -> None:
    key = line.partition(":")[0]
    kept = [each for each in files[role].read_text("utf-8").splitlines() if not each.startswith(f"{key}:")]
    files[role].write_text("\n".join([*kept, line]), "utf-8")
    with pytest.raises(InvalidValueError, match=told):
        check_together(files["train"], files["infer"], files["orch"])


def test_the_scenario_has_sections_that_are_read(tmp_path: Path) -> None:
    (text,) = [text for role, text in BLOCKS if not role]
    config = yaml.safe_load(text)["config"]
    for read in (read_train, read_infer, read_orch):
        role = read.__name__[5:]
        own = {"model": {"name": "m"}} if role == "orch" else {"model": "m"}
        (tmp_path / role).write_text(yaml.safe_dump({**config[role], **own}), "utf-8")
        read(tmp_path / role)


def test_the_table_of_options_is_what_the_stored_runs_have_shown() -> None:
    rows = json.loads(RESULTS.read_text("utf-8"))["rows"]
    assert [row["option"] for row in rows] == [option.name for option in OPTIONS], "each was run"
    assert render(PAGE, rows) == PAGE
    assert render(PAGE, rows[1:]) != PAGE


def test_a_process_that_is_killed_is_started_again_and_one_that_fails_ends_the_run(tmp_path: Path) -> None:
    """A recorded trainer looks after the other two while it waits: without that it would wait for ever."""
    broken, said = tmp_path / "orch.yaml", list[str]()
    broken.write_text("modle: x", "utf-8")
    with Family({"orch": broken}, said.append) as family:
        first = family.children["orch"]
        first.send_signal(signal.SIGKILL)
        first.wait()
        family.tend()
        assert family.children["orch"] is not first and "was ended by SIGKILL: it is started again" in said[0]
        with pytest.raises(WorkerError, match="orch has ended with 4"):
            while True:
                family.tend()
                time.sleep(0.05)
    assert family.children["orch"].poll() is not None
