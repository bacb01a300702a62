"""Training on from a checkpoint of one's own: its weights are changed by what was asked for, and by nothing else."""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlcore.config import read_config
from rlcore.entrypoint import train
from rlcore.errors import CheckpointError, InvalidValueError, RewardError
from rlcore.models.checkpoints import load, save
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from tests.rlcore.training.recorded import Digests


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A model of the user's, trained elsewhere."""
    tokenizer = CharacterTokenizer("0123456789=")
    shape = DecoderConfig("qwen3", tokenizer.vocab_size, 32, 1, 2, 1, head_width=16, ffn_width=64)
    save(Decoder(shape).initialise(3), tmp_path / "mine")
    tokenizer.save(tmp_path / "mine")
    return tmp_path / "mine"


def payload(checkpoint: Path, **sections: Any) -> dict[str, Any]:
    """One step of GRPO on prompts with answers, whose learning rate moves each weight by a millionth."""
    rows = [{"prompt": f"{number}=", "answer": f"{number}"} for number in range(12)]
    path = checkpoint.parent / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return {
        "model": {"path": str(checkpoint)},
        "task": {
            "name": "file", "path": str(path), "num_prompts": 8, "num_heldout": 4,
            "rewards": ["tests.rlcore.data.reward_examples:length"],
        },
        "sampling": {"max_tokens": 4},
        "algorithm": {"name": "grpo"},
        "optimizer": {"learning_rate": 1e-6},
        "training": {"num_steps": 1, "prompts_per_step": 2, "group_size": 2, "microbatch_size": 4},
        "output": {"tensorboard": False, "shows_progress": False, "num_shown": 0},
        **sections,
    }  # fmt: skip


def largest_change(of: dict[str, Any], checkpoint: Path) -> float:
    """How far a run moves the weight of the checkpoint that it moves most."""
    state = train(read_config(of), level="off", directory=checkpoint.parent / "run", recorder=Digests())
    theirs = dict(load(checkpoint).named_parameters())
    return max(float((each - theirs[name]).detach().abs().max()) for name, each in state.decoder.named_parameters())


def test_a_column_of_answers_does_not_make_a_checkpoint_learn_them(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 < largest_change(payload(checkpoint), checkpoint) < 1e-5
    announced = capsys.readouterr().err
    assert f"model:      the checkpoint {checkpoint}, 9,792 parameters" in announced
    assert "warm start: none; warm_start.num_steps=N asks for one" in announced


def test_a_warm_start_that_is_written_down_is_announced_and_carried_out(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = payload(checkpoint, warm_start={"num_steps": 2, "batch_size": 4, "learning_rate": 1e-2, "target_reward": 1.0})
    assert largest_change(of, checkpoint) > 1e-3
    announced = capsys.readouterr().err
    assert "up to 2 supervised steps on the column `answer`, 4 prompts each, learning rate 0.01" in announced
    assert ". They change the checkpoint's weights" in announced


@pytest.mark.parametrize(
    ("sections", "num_steps"),
    [
        ({}, 100),
        ({"model": {"path": "mine"}}, 0),
        ({"model": {"path": "mine"}, "warm_start": {"num_steps": 7}}, 7),
        ({"model": {"path": "mine"}, "warm_start": {"learning_rate": 1e-5}}, 100),
        ({"warm_start": {"num_steps": 0}}, 0),
    ],
    ids=["new model", "checkpoint", "checkpoint, asked for", "checkpoint, only its rate", "new model, not wanted"],
)
def test_how_many_steps_a_warm_start_has(sections: dict[str, Any], num_steps: int) -> None:
    of = read_config({"task": {"name": "sorting"}, "algorithm": {"name": "grpo"}, **sections})
    assert of.warm_start.num_steps == num_steps


def test_a_mistake_in_the_model_section_is_reported_alone() -> None:
    with pytest.raises(InvalidValueError) as caught:
        read_config({"task": {"name": "sorting"}, "algorithm": {"name": "grpo"}, "model": {"path": 3}})
    assert (caught.value.what, caught.value.legal) == ("model.path is 3", "a valid string")


def failing(completions: list[str], **_: Any) -> list[float]:
    raise KeyError("boom")


def test_a_reward_that_raises_leaves_its_traceback_in_the_runs_directory(checkpoint: Path) -> None:
    of = payload(checkpoint)
    of["task"]["rewards"] = [f"{__name__}:failing"]
    with pytest.raises(RewardError, match=r"raised KeyError: 'boom', at .*test_own_checkpoint\.py:\d+ in failing"):
        train(read_config(of), level="off", directory=checkpoint.parent / "run", recorder=Digests())
    written = (checkpoint.parent / "run" / "reward_error.txt").read_text("utf-8")
    assert 'raise KeyError("boom")' in written


def test_a_prompt_without_room_in_the_context_is_refused_before_anything_runs(checkpoint: Path) -> None:
    of = payload(checkpoint, sampling={"max_tokens": 10**6})
    with pytest.raises(
        InvalidValueError, match=r"prompts\.jsonl:\d+: a prompt of \d tokens, and up to 1000000 after it"
    ):
        train(read_config(of), level="off", directory=checkpoint.parent / "run", recorder=Digests())


class Described(Digests):
    """A recorder that is told what the run is made of."""

    content: Mapping[str, str]

    def describe(self, content: Mapping[str, str]) -> None:
        self.content = content


@pytest.mark.parametrize(
    ("name", "file", "change"),
    [
        ("prompts", "prompts.jsonl", lambda text: text.replace(b'"answer": "5"', b'"answer": "6"')),
        ("source of mine:length", "mine.py", lambda text: text.replace(b"len(x)", b"-len(x)")),
        ("tokenizer of model.path", "mine/tokenizer.json", lambda text: text + b"\n"),
        ("weights of model.path", "mine/model.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    ],
)
def test_other_content_is_named_and_not_resumed(
    checkpoint: Path, name: str, file: str, change: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, recorders, path = payload(checkpoint), list[Described](), checkpoint.parent / file
    of["task"]["rewards"] = ["mine:length"]
    (checkpoint.parent / "mine.py").write_text(
        "def length(completions, **_):\n    return [len(x) for x in completions]\n"
    )
    monkeypatch.syspath_prepend(checkpoint.parent)
    monkeypatch.delitem(sys.modules, "mine", raising=False)

    def recorded(directory: str, num_steps: int, resume: str = "") -> Digests:
        of["training"]["num_steps"], of["output"]["resume"] = num_steps, resume
        recorders.append(Described())
        train(read_config(of), level="off", directory=checkpoint.parent / directory, recorder=recorders[-1])
        return recorders[-1]

    recorded("first", 1)
    first = str(checkpoint.parent / "first")
    assert list(recorded("again", 2, first).curve) == [1]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=rf"is of another run: content\.{re.escape(name)} differ \("):
        recorded("other", 2, first)
    one, again, other = (each.content for each in recorders)
    assert one == again
    assert {each for each in one if one[each] != other[each]} == {name}
