"""What orch checks before it works: a replay is of equal settings; errors of the task have the keys of orch.yaml."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from rlcore.asynchronous.directory import BATCH, BATCHES, publish
from rlcore.asynchronous.orchestrator import Orchestrator
from rlcore.asynchronous.processes import _bound, run_orch
from rlcore.asynchronous.settings import read_orch
from rlcore.data.tasks import alphabet
from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models.tokenizer import CharacterTokenizer
from tests.support.asynchronous_run import make_model, write_files


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    async def nothing(_: Orchestrator) -> None: ...

    monkeypatch.setattr(Orchestrator, "work", nothing)
    return make_model(tmp_path / "model")


def orch(run: Path, model: Path, **settings: Any) -> None:
    run_orch(read_orch(write_files(run, model, **settings)["orch"])[0], print)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"batch_size": 32}, "batch_size was 16, and is 32"),
        ({"rollouts_per_example": 8}, "rollouts_per_example was 4, and is 8"),
        ({"seed": 7}, "seed was 42, and is 7"),
        ({"sampling": {"max_tokens": 9}}, 'sampling was {"max_tokens": 8, .*}, and is {"max_tokens": 9,'),
        ({"batch_size": 8, "seed": 1}, "batch_size was 16, and is 8; .*seed was 42, and is 1"),
        ({"max_off_policy_steps": 4}, "max_off_policy_steps was 8, and is 4"),
    ],
)
def test_a_replay_of_other_settings_is_an_error(tmp_path: Path, model: Path, other: dict[str, Any], said: str) -> None:
    orch(tmp_path / "run", model)
    schedule = tmp_path / "run" / "run_default"
    publish(schedule / BATCHES, 0, {BATCH: b"{}"})
    with pytest.raises(CheckpointError, match=f"{schedule} is of a run of other settings: .*{said}") as caught:
        orch(tmp_path / "again", model, mode="replay", schedule=str(schedule), **other)
    assert "schedule" in caught.value.remedy


def test_a_replay_may_have_another_mode_number_of_steps_and_distance(tmp_path: Path, model: Path) -> None:
    orch(tmp_path / "run", model, mode="free", max_async_level=2)
    publish(tmp_path / "run" / "run_default" / BATCHES, 0, {BATCH: b"{}"})
    orch(tmp_path / "again", model, mode="replay", schedule=str(tmp_path / "run" / "run_default"), num_steps=3)


def test_too_few_rows_are_said_by_the_keys_of_the_file(tmp_path: Path, model: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": text, "answer": text}) + "\n" for text in "abc"), "utf-8")
    args = {"path": str(rows), "num_prompts": 64, "num_heldout": 1, "rewards": ["harness:exact"]}
    with pytest.raises(InvalidValueError, match=r"64 \+ 1 are wanted") as caught:
        orch(tmp_path / "run", model, env=[{"id": "file", "args": args}])
    assert caught.value.legal == "env.0.args.num_prompts + env.0.args.num_heldout at most 3"


def test_a_teacher_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    model, other = make_model(tmp_path / "model"), make_model(tmp_path / "other")
    CharacterTokenizer(alphabet("arithmetic")).save(other)
    teacher: dict[str, Any] = {"teacher_model": {"model": {"name": str(other)}}}
    section, _ = read_orch(write_files(tmp_path / "run", model, **teacher)["orch"])
    with pytest.raises(InvalidValueError, match=f"the teacher {other} has another vocabulary than {model}"):
        run_orch(section, lambda line: None)


@pytest.mark.parametrize("is_shared", [(True, False), (False, True)])
def test_a_port_of_one_kind_can_be_had_by_the_other_at_once(is_shared: tuple[bool, bool]) -> None:
    """Connections that ended a moment ago keep a port for those alone who may use it again."""
    first = _bound("127.0.0.1", 0, is_shared=is_shared[0])
    port = first.getsockname()[1]
    first.listen()
    with socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = first.accept()
        accepted.close()  # the server hangs up first: the line waits
        client.recv(1)
    first.close()
    _bound("127.0.0.1", port, is_shared=is_shared[1]).close()
