"""Whole runs with an environment: no runtime setting, latency or resume moves a bit, and settings that do not fit."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest

from rlcore import entrypoint
from rlcore.checks import Checks
from rlcore.config import RunConfig
from rlcore.data import environments
from rlcore.data.trajectory import Role
from rlcore.entrypoint import train
from rlcore.errors import InvalidValueError, StepError
from rlcore.samplers.build import build_sampler
from rlcore.train import Step
from tests.rlcore.training.recorded import STAGES, Digests, Lost, config, first_difference, recorded, trained
from tests.support.run_configs import with_section

ECHO: dict[str, Any] = {"name": "tests.support.scripted_turns:Echo", "max_turns": 3, "max_answer_tokens": 6}
SAY = "text.swapcase() + str(len(seen))"
"""Another text in each turn, of any length."""
REWARD = "sum(map(ord, text)) % 7 / 7"


def turns(algorithm: str = "grpo", *, arguments: Any = None, sections: Any = None, **settings: Any) -> RunConfig:
    """Three steps of three turns."""
    environment = {**ECHO, "arguments": {"say": SAY, "reward": REWARD, **(arguments or {})}, **settings}
    training = {"num_steps": 3, "prompts_per_step": 2, "group_size": 2, "microbatch_size": 2}
    given: dict[str, Any] = {"task": {"environment": environment}, "training": training, "sampling": {"max_tokens": 5}}
    for key, section in (sections or {}).items():
        given[key] = {**given.get(key, {}), **section}
    return config(algorithm, **given)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Digests:
    return recorded(turns(), tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize(
    "runtime",
    [
        {"arrival_seed": 5, "concurrency": 3, "preempt_every": 2},
        {"token_budget": 128, "world_size": 2, "sampling_threads": 2},
    ],
)
def test_runtime_settings_move_no_bit(runtime: dict[str, Any], undisturbed: Digests, tmp_path: Path) -> None:
    found = recorded(with_section(turns(), "runtime", runtime), tmp_path)
    assert first_difference(undisturbed, found) is None


def test_latency_of_the_environment_moves_no_bit(undisturbed: Digests, tmp_path: Path) -> None:
    found = recorded(turns(arguments={"delay_s": 0.02}), tmp_path)
    different = first_difference(undisturbed, found)
    assert different is None
    assert any(value["gradient_norm"] for value in found.curve.values())


def test_a_loop_that_takes_answers_as_they_arrive_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Naive(ThreadPoolExecutor):
        def map(self, function: Any, *given: Any, **_: Any) -> Iterator[Any]:  # type: ignore[override]
            calls = [self.submit(function, *each) for each in zip(*map(list, given), strict=True)]
            return iter([each.result() for each in as_completed(calls)])

    monkeypatch.setattr(environments, "ThreadPoolExecutor", Naive)
    with pytest.raises(StepError, match="completion order"):
        recorded(turns(arguments={"delay_s": 0.02}), tmp_path)


def test_a_resume_moves_no_bit(undisturbed: Digests, tmp_path: Path) -> None:
    of = with_section(turns(), "output", {"checkpoint_every": 1})
    with pytest.raises(Lost):
        recorded(of, tmp_path / "lost", stop_after=1)
    found = recorded(with_section(of, "output", {"resume": str(tmp_path / "lost")}), tmp_path / "resumed")
    assert first_difference(undisturbed, found) is None


def test_recorded_answers_are_the_same_run(tmp_path: Path) -> None:
    dice = {"name": "tests.support.scripted_turns:Dice", "arguments": {}, "answers": str(tmp_path / "answers.jsonl")}
    of = turns()
    section = of.task.environment
    assert section is not None
    of = with_section(of, "task", {"environment": section.model_copy(update=dice)})
    one, two = (recorded(of, tmp_path / name) for name in ("one", "two"))
    assert first_difference(one, two) is None
    (tmp_path / "answers.jsonl").unlink()
    assert first_difference(one, recorded(of, tmp_path / "three")) is not None


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("grpo", {"advantage": "remax"}), ("grpo", {"advantage": "dr_grpo", "loss": "cispo"}), ("ppo", {})],
)
def test_each_algorithm_learns_from_several_turns(
    name: str, algorithm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, after = list[Step](), Checks.after

    def kept(self: Checks, step: Step) -> None:
        steps.append(step)
        after(self, step)

    monkeypatch.setattr(Checks, "after", kept)
    say = {"reward": "0.5", "say": "text * 9 if len(seen) == 2 else 'a'"}
    trained(turns(name, arguments=say, sections={"algorithm": algorithm}), tmp_path)
    for each in itertools.chain.from_iterable(step.rollouts for step in steps):
        roles = [turn.role for turn in each.turns]
        assert roles == [Role.PROMPT, *[Role.ASSISTANT, Role.TOOL] * 3]
        assert each.turns[4].end - each.turns[4].begin <= 6
        assert each.outcome is not None and each.outcome.reward == 1.5 and each.is_truncated
    assert all(set(step.batch["rewards"].tolist()) == {1.5} for step in steps)


def test_the_longest_sequence_has_room_for_every_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def built(*given: Any, longest: int, **rest: Any) -> Any:
        lengths.append(longest)
        return build(*given, longest=longest, **rest)

    build = build_sampler
    monkeypatch.setattr(entrypoint, "build_sampler", built)
    state = trained(turns(), tmp_path)
    assert lengths == [state.task.longest_prompt + 3 * 5 + 4 * 6]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"task\.environment and sampling\.two_stage are both set"):
        turns(sections={"sampling": {"two_stage": STAGES, "stop_strings": [";"]}})
    with pytest.raises(InvalidValueError, match=r"task\.environment\.name is 'tool'") as refused:
        config(task={"environment": {"name": "tool"}})
    assert refused.value.legal == "tools, module:function"
    with pytest.raises(InvalidValueError, match=r"task\.environment\.answers is '/home/a/\.bashrc'"):
        config(task={"environment": {"answers": "/home/a/.bashrc"}})
    with pytest.raises(InvalidValueError, match="nope"):
        train(turns(arguments={"nope": 1}), level="invariant", directory=tmp_path, recorder=Digests())


def test_answers_belong_into_a_directory(tmp_path: Path) -> None:
    of = turns(arguments={}, answers="no/such/answers.jsonl")
    with pytest.raises(InvalidValueError, match=r"task\.environment\.answers 'no/such'"):
        train(of, level="invariant", directory=tmp_path, recorder=Digests())


def test_a_run_without_an_environment_is_still_itself() -> None:
    assert config().identity()["task"]["environment"] is None
