"""Rewards by a model: at level invariant a score depends on its own text alone, and errors name what is wrong."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.data.rewards import Reward, TrainerState
from rlcore.data.scoring import score
from rlcore.determinism import at_level
from rlcore.errors import InvalidValueError, RewardError
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.rewards.reward_model import ModelReward, TorchScorer
from rlcore.types import StopReason
from tests.rlcore.data.completions import completion
from tests.rlcore.training.recorded import Lost, config, first_difference, recorded
from tests.support.reward_models import CONFIG, classifier_of, sequences_of, write_reward_model
from tests.support.samplers import TOKENIZER

HELD = partial(at_level, "invariant", CONFIG, length=96)
TRAINING: dict[str, Any] = {"num_steps": 2, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4}
MATCHING = "rlcore.rewards.text:matching"


def task(**section: Any) -> dict[str, Any]:
    return {"name": "reverse_text", "num_prompts": 24, "num_heldout": 4, "min_length": 2, "max_length": 5} | section


def scores(sequences: Sequence[Sequence[int]], batch_size: int, *, is_held: bool) -> list[float]:
    options: dict[str, Any] = {"held": HELD} if is_held else {}
    return TorchScorer(classifier_of(), batch_size=batch_size, **options)(sequences)


def orders(sequences: list[list[int]], *, is_held: bool) -> list[list[float]]:
    """Scores in the sequences' order, by batches of different sizes and orders of arrival."""
    return [
        *(scores(sequences, size, is_held=is_held) for size in (1, 2, 5, 64)),
        *(scores(sequences[::-1], size, is_held=is_held)[::-1] for size in (3, 64)),
    ]


def test_scores_do_not_depend_on_batch_or_arrival() -> None:
    first, *others = orders(sequences_of(), is_held=True)
    assert all(other == first for other in others)
    assert len(set(first)) == len(first)


def test_without_the_level_they_do() -> None:
    first, *others = orders(sequences_of(), is_held=False)
    assert not all(other == first for other in others)
    for other in others:
        torch.testing.assert_close(torch.tensor(other), torch.tensor(first), rtol=0, atol=1e-4)


class Lengths:
    """A scorer that notes what it is given."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        self.given += map(list, sequences)
        return [float(len(each)) for each in sequences]


def test_a_sequence_is_prompt_completion_and_end() -> None:
    scorer = Lengths()
    reward = Reward("model", ModelReward(scorer, TOKENIZER, 20))
    texts = ["ab", "cde", ""]
    reasons = [StopReason.EOS, StopReason.LENGTH, StopReason.EOS]
    given = [completion(text, prompt="xyz", sample_index=at, stop_reason=reasons[at]) for at, text in enumerate(texts)]
    assert score([reward], given, step=0).rewards == [6.0, 6.0, 4.0]
    assert scorer.given[0] == [*TOKENIZER.encode("xyzab"), TOKENIZER.eos_id]
    assert scorer.given[1] == TOKENIZER.encode("xyzcde")


def test_arrival_changes_the_order_that_the_scorer_sees_and_no_reward() -> None:
    texts = [chr(ord("a") + number) * (number + 1) for number in range(9)]
    columns = {"prompts": ["p"] * 9, "completions": texts, "stop_reasons": ["length"] * 9}
    seen = []
    for seed, step in ((0, 1), (3, 1), (3, 2)):
        scorer = Lengths()
        found = ModelReward(scorer, TOKENIZER, 20, seed)(**columns, trainer_state=TrainerState(step))
        assert found == [float(number + 2) for number in range(9)]
        seen.append(scorer.given)
    assert seen[0] == [TOKENIZER.encode("p" + text) for text in texts]
    assert seen[1] != seen[0] and seen[1] != seen[2]


@pytest.mark.parametrize(("text", "what"), [("ab" * 40, "of 81 tokens"), ("A", "'A' in a text")])
def test_a_completion_that_it_cannot_read_is_named(text: str, what: str) -> None:
    reward = Reward("model", ModelReward(Lengths(), TOKENIZER, 40))
    with pytest.raises(RewardError, match=what) as caught:
        score([reward], [completion("b"), completion(text, stop_reason=StopReason.LENGTH)], step=0)
    assert "for sample 1" in caught.value.what and caught.value.legal


# ----------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.full
def test_runs_do_not_depend_on_arrival_and_a_checkpoint_replaces_a_drawn_model(tmp_path: Path) -> None:
    model = {"max_length": 64}
    first = recorded(config(training=TRAINING, task=task(rewards=[MATCHING], reward_model=model)), tmp_path / "a")
    runtime = {"arrival_seed": 5, "concurrency": 3, "training_threads": 2}
    of = config(training=TRAINING, runtime=runtime, task=task(rewards=[MATCHING], reward_model=model))
    assert first_difference(first, recorded(of, tmp_path / "b")) is None
    again = {"path": str(tmp_path / "a" / "reward_model"), "max_length": 64}
    of = config(training=TRAINING, task=task(rewards=[MATCHING], reward_model=again))
    assert first_difference(first, recorded(of, tmp_path / "c")) is None
    without = recorded(config(training=TRAINING, task=task(rewards=[MATCHING])), tmp_path / "d")
    assert first_difference(first, without) is not None


def test_a_model_alone_is_the_only_reward(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "{"ab" * count}"}}\n' for count in range(1, 29)), "utf-8")
    of = config(
        training=TRAINING,
        warm_start={"num_steps": 0},
        task=task(name="file", path=str(prompts), reward_model={"max_length": 128}),
    )
    assert recorded(of, tmp_path / "run").curve[1]["reward_mean"] != 0.0


def broken(directory: Path, fault: str) -> dict[str, Any]:
    write_reward_model(directory)
    if fault == "no tokenizer":
        (directory / "tokenizer.json").unlink()
    elif fault == "no weights":
        (directory / "model.safetensors").unlink()
    elif fault == "another alphabet":
        CharacterTokenizer("xyz").save(directory)
    elif fault == "a larger tokenizer":
        CharacterTokenizer("".join(map(chr, range(97, 97 + 40)))).save(directory)
    elif fault == "a policy":
        (directory / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}', "utf-8")
    return {"path": str(directory), "max_length": 96}


@pytest.mark.parametrize(
    ("fault", "error", "what"),
    [
        ("no tokenizer", InvalidValueError, "task.reward_model.path .*holds no tokenizer.json"),
        ("no weights", InvalidValueError, "task.reward_model.path .*cannot be read"),
        ("another alphabet", InvalidValueError, "in a text"),
        ("a larger tokenizer", InvalidValueError, "a tokenizer of 43 tokens"),
        ("a policy", InvalidValueError, "task.reward_model.path .*architecture Qwen3ForCausalLM"),
    ],
)
def test_a_bad_checkpoint_ends_the_run_before_its_warm_start(
    tmp_path: Path, fault: str, error: type[Exception], what: str
) -> None:
    of = config(task=task(reward_model=broken(tmp_path / "model", fault)), warm_start={"num_steps": 1_000_000})
    with pytest.raises(error, match=what):
        recorded(of, tmp_path / "run")


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    of = config(task=task(reward_model={"path": str(tmp_path / "nowhere")}))
    with pytest.raises(InvalidValueError, match=r"task.reward_model.path '.*nowhere'"):
        recorded(of, tmp_path / "run")


def test_bf16_is_scored_too() -> None:
    classifier, sequences = classifier_of().to(torch.bfloat16), sequences_of()
    held = partial(at_level, "invariant", CONFIG, dtype=torch.bfloat16, length=96)
    first, other = (TorchScorer(classifier, batch_size=size, held=held)(sequences) for size in (64, 3))
    assert first == other and len(set(first)) > len(first) // 2


@pytest.mark.full
def test_a_run_with_a_drawn_model_resumes(tmp_path: Path) -> None:
    of: dict[str, Any] = {"training": {**TRAINING, "num_steps": 3}, "task": task(reward_model={"max_length": 64})}
    whole = recorded(config(**of), tmp_path / "whole")
    with pytest.raises(Lost):
        recorded(config(**of, output={"checkpoint_every": 1}), tmp_path / "lost", stop_after=1)
    resumed = recorded(config(**of, output={"resume": str(tmp_path / "lost")}), tmp_path / "resumed")
    assert {step for step, *_ in resumed.leaves} == {1, 2}
    assert first_difference(whole, resumed) is None
