"""Controls of which groups are trained: each moves its own values, and nothing moves without it.

Rewards and answers follow from the request, as in test_orchestrator.
"""

import asyncio
import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from string import printable
from typing import Any

import pytest

from rlcore.asynchronous.audit import audit
from rlcore.asynchronous.directory import BROADCASTS, EVALUATIONS, METRICS, read, read_batch, retire, steps
from rlcore.asynchronous.settings import read_orch, task_section
from rlcore.data import tools
from rlcore.data.rewards import Reward
from rlcore.data.tasks import Task, make_task
from rlcore.errors import InvalidValueError
from rlcore.models.tokenizer import CharacterTokenizer
from tests.rlcore.asynchronous import test_orchestrator
from tests.rlcore.asynchronous.test_orchestrator import (
    SMALL,
    TOKENIZER,
    Answer,
    Server,
    batches,
    completion,
    go,
    late,
    make,
    said,
)
from tests.support.asynchronous_run import write_files


def rated(directory: Path, rate: Callable[[str, str], float], num_prompts: int = 5) -> Task:
    """The task with a reward of prompt and completion."""
    section, _ = read_orch(write_files(directory / "files", directory / "model", **SMALL)["orch"])
    env = section.env[0].model_copy(update={"args": {"num_prompts": num_prompts, "num_heldout": 2}})
    task = make_task(task_section(env, "env"), TOKENIZER, section.seed)

    def mine(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return list(map(rate, prompts, completions))

    return replace(task, rewards=(Reward("mine", mine),))


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [row for step in range(len(batches(run))) for row in read_batch(run, step)["rows"]]


def fates_of(run: Path) -> list[list[str]]:
    return [[fate for _, _, fate in read_batch(run, step)["ledger"]] for step in range(len(batches(run)))]


def by_prompt(prompt: str, text: str) -> float:
    """0 or 1 for all completions of some prompts, and between for those of others."""
    return [0.0, 1.0, (len(set(text)) + 1) / 9][kind_of(prompt)]


def kind_of(prompt: str) -> int:
    return min(sum(map(ord, prompt)) % 5, 2)


def test_groups_that_all_fail_or_all_pass_are_left_out_and_others_drawn_for_them(tmp_path: Path) -> None:
    filtering: dict[str, Any] = {
        "buffer": {"online_difficulty_filtering": True},
        "oversampling_factor": 2.0,
        "batch_size": 4,
    }
    task = rated(tmp_path, by_prompt)
    go(make(tmp_path / "run", task=task, **filtering))
    go(make(tmp_path / "late", Server(late(3)), task=task, **filtering))
    assert batches(tmp_path / "run") == batches(tmp_path / "late")
    means = defaultdict[int, list[float]](list)
    for row in rows_of(tmp_path / "run"):
        means[row["group"]].append(row["reward"])
    assert all(0 < sum(each) / len(each) < 1 for each in means.values())
    counts = Counter(fate for fates in fates_of(tmp_path / "run") for fate in fates)
    assert counts["filtered"] and counts["surplus"] and counts.total() == 16, "twice as many as are trained at most"
    assert all(fates.count("trained") <= 2 for fates in fates_of(tmp_path / "run"))
    assert audit(tmp_path / "run").is_right
    go(make(tmp_path / "none", task=task))
    assert {row["reward"] for row in rows_of(tmp_path / "none")} & {0.0, 1.0}, "without it they are trained"


def test_a_step_of_which_everything_is_filtered_trains_nothing_and_says_so(tmp_path: Path) -> None:
    task = rated(tmp_path, lambda prompt, text: 1.0)
    go(make(tmp_path / "run", task=task, buffer={"online_difficulty_filtering": True}))
    assert not rows_of(tmp_path / "run") and audit(tmp_path / "run").fates == {"filtered": 12}
    assert "step 3: every group is filtered, and nothing is trained" in said


@pytest.mark.parametrize(("bound", "gone"), [("easy_threshold", 1), ("hard_threshold", 0)])
def test_prompts_that_are_too_easy_or_too_hard_are_not_drawn_again(tmp_path: Path, bound: str, gone: int) -> None:
    task = rated(tmp_path, by_prompt, 12)
    pools: dict[str, Any] = {"buffer": {bound: float(gone)}, "num_steps": 8}
    go(make(tmp_path / "run", task=task, **pools))
    go(make(tmp_path / "late", Server(late(5)), task=task, **pools))
    assert batches(tmp_path / "run") == batches(tmp_path / "late")
    kind = {prompt.id: kind_of(prompt.text) for prompt in task.train}
    last = defaultdict[str, int](int)
    first: dict[str, int] = {}
    for step in range(8):
        for row in read_batch(tmp_path / "run", step)["rows"]:
            first.setdefault(row["prompt"], step)
            last[row["prompt"]] = step
    assert all(last[id] <= first[id] + 1 for id in first if kind[id] == gone), "one version ahead it is not known yet"
    assert any(last[id] > first[id] + 1 for id in first if kind[id] != gone)


def test_what_a_filter_finds_is_marked_and_where_it_is_enforced_not_learned(tmp_path: Path) -> None:
    task = rated(tmp_path, lambda prompt, text: len(set(text)) / 6)
    found = {"type": "repetition", "window": 2, "prob_threshold": 0.7}
    go(make(tmp_path / "marked", task=task, filters=[found]))
    assert not [line for line in said if "filter" in line]
    go(make(tmp_path / "enforced", task=task, filters=[{**found, "enforce": True}, {"type": "gibberish"}]))
    assert said[-1] == "the filter gibberish has found nothing in this run"
    marked, enforced = rows_of(tmp_path / "marked"), rows_of(tmp_path / "enforced")
    flagged = [bool(row["flags"]) for row in marked]
    assert True in flagged and False in flagged
    for row, is_flagged in zip(marked, flagged, strict=True):
        runs = "".join("x" if math.exp(each) > 0.7 else " " for each in row["logprobs"])
        assert ("xx" in runs) == is_flagged and all(row["mask"])
    assert [not any(row["mask"]) for row in enforced] == flagged
    assert [row["advantage"] for row in enforced] == [row["advantage"] for row in marked], "in the mean they count"


def test_temperatures_follow_from_the_nominal_step(tmp_path: Path) -> None:
    server = Server()
    schedule = {"type": "linear", "start_temperature": 1.5, "end_temperature": 0.5}
    go(make(tmp_path / "run", server, sampling={"max_tokens": 6, "temp_scheduler": schedule}, num_steps=5))
    found = [[row["temperature"] for row in read_batch(tmp_path / "run", step)["rows"]] for step in range(5)]
    assert found == [[each] * 6 for each in (1.5, 1.25, 1.0, 0.75, 0.5)]
    assert Counter(each["temperature"] for each in server.asked) == dict.fromkeys((1.5, 1.25, 1.0, 0.75, 0.5), 6)


def test_several_tasks_have_their_shares_and_their_own_rewards(tmp_path: Path) -> None:
    args = {"num_prompts": 5, "num_heldout": 2}
    env = [{"id": "reverse-text", "args": args}, {"id": "reverse-text", "args": {**args, "max_length": 3}}]
    go(make(tmp_path / "run", env=env, buffer={"env_ratios": [1, 2]}))
    assert Counter(row["task"] for row in rows_of(tmp_path / "run")) == {0: 8, 1: 16}


def weighed(rewards: Sequence[float], lengths: Sequence[int], factor: float) -> list[float]:
    return [factor * reward + length for reward, length in zip(rewards, lengths, strict=True)]


def broken(rewards: Sequence[float], lengths: Sequence[int]) -> list[float]:
    return [0.0]


def test_advantages_by_length_and_of_a_function_of_ones_own(tmp_path: Path) -> None:
    task = rated(tmp_path, lambda prompt, text: float(len(set(text))))

    async def shorter(asked: dict[str, Any], attempt: int) -> Answer:
        return completion({**asked, "max_tokens": 1 + asked["seed"] % 6})

    def groups(name: str, **settings: Any) -> list[tuple[list[float], list[int], list[float]]]:
        go(make(tmp_path / name, Server(shorter), task=task, **settings))
        assert audit(tmp_path / name).is_right
        found = defaultdict[int, list[dict[str, Any]]](list)
        for row in rows_of(tmp_path / name):
            found[row["group"]].append(row)
        return [
            ([row["reward"] for row in own], [len(row["mask"]) for row in own], [row["advantage"] for row in own])
            for own in found.values()
        ]

    for rewards, lengths, advantages in groups("weighted", advantage={"length_weighted_mean": True}):
        mean = sum(map(float.__mul__, rewards, map(float, lengths))) / sum(lengths)
        assert advantages == pytest.approx([reward - mean for reward in rewards], abs=1e-9)
    own = {"type": "custom", "import_path": f"{__name__}.weighed", "kwargs": {"factor": 2.0}}
    for rewards, lengths, advantages in groups("own", advantage=own):
        assert advantages == weighed(rewards, lengths, 2.0)
    with pytest.raises(InvalidValueError, match=r"test_controls.broken for group 0 returned \[0.0\]"):
        groups("broken", advantage={"type": "custom", "import_path": f"{__name__}.broken"})


def test_without_verification_no_reward_function_is_asked(tmp_path: Path) -> None:
    def never(prompt: str, text: str) -> float:
        raise AssertionError

    go(make(tmp_path / "run", task=rated(tmp_path, never), buffer={"skip_verification": True}))
    assert {(row["reward"], row["advantage"]) for row in rows_of(tmp_path / "run")} == {(0.0, 0.0)}


def test_a_teacher_is_asked_for_all_tokens_of_a_sample_at_its_temperature(tmp_path: Path) -> None:
    def logprobs(tokens: Sequence[int], temperature: float) -> list[float]:
        return [-token / temperature for token in tokens[1:]]

    async def echoes(asked: dict[str, Any], attempt: int) -> Answer:
        assert asked["model"] == "base" and asked["echo"]
        return {"choices": [{"prompt_logprobs": logprobs(asked["prompt"], asked["temperature"])}]}

    async def served() -> None:
        teacher = Server(echoes)
        client = {"base_url": [await teacher.start()], "skip_model_check": True}
        await make(tmp_path / "served", teacher_model={"model": {"name": "m"}, "client": client}, **sampling)
        teacher.server.close()

    sampling: dict[str, Any] = {"sampling": {"max_tokens": 6, "temperature": 0.5}}
    go(make(tmp_path / "local", teacher_model={"model": {"name": "m"}}, teacher=logprobs, **sampling))
    go(served())
    assert batches(tmp_path / "local") == batches(tmp_path / "served")
    for row in rows_of(tmp_path / "local"):
        assert row["teacher"] == [-token / 0.5 for token in row["tokens"][row["num_prompt"] :]]


def test_versions_are_evaluated_with_keys_of_their_own_and_no_batch_moves(tmp_path: Path) -> None:
    server, plain = Server(), Server()
    section = {"env": SMALL["env"], "interval": 2, "rollouts_per_example": 3}
    go(make(tmp_path / "run", server, eval=section))
    lines = [line for line in said if line.startswith("version")]
    go(make(tmp_path / "plain", plain))
    assert batches(tmp_path / "run") == batches(tmp_path / "plain")
    assert steps(tmp_path / "run" / EVALUATIONS) == [0, 2, 4] and not steps(tmp_path / "plain" / EVALUATIONS)
    extra = [each for each in server.asked if each not in plain.asked]
    keys = defaultdict[str, set[int]](set)
    for each in extra:
        keys[each["model"]].add(each["seed"])
    assert len(extra) == 3 * 2 * 3 and keys["step_0"] == keys["step_2"] == keys["step_4"] and len(keys["step_0"]) == 6
    assert b'"reverse-text.0": ' in read(tmp_path / "run" / EVALUATIONS, 4, METRICS)
    assert [line[:10] for line in lines] == ["version 0:", "version 2:", "version 4:"]
    go(make(tmp_path / "late", eval={**section, "eval_base_model": False, "interval": 4}))
    assert steps(tmp_path / "late" / EVALUATIONS) == [4]


def test_a_version_is_evaluated_before_the_trainer_may_remove_it(tmp_path: Path) -> None:
    """Evaluation is slow, and the trainer removes what a batch says is not needed."""

    async def slow(asked: dict[str, Any], attempt: int) -> Answer:
        if asked["model"] == "step_2" and asked["seed"] not in known:
            await asyncio.sleep(0.2)
            assert 2 in steps(tmp_path / "run" / BROADCASTS), "it is gone"
        for step in steps(tmp_path / "run" / "batches"):
            retire(tmp_path / "run" / BROADCASTS, read_batch(tmp_path / "run", step)["needs_from"])
        return completion(asked)

    server = Server()
    go(make(tmp_path / "plain", server, num_steps=6))
    known = {each["seed"] for each in server.asked}
    section = {"env": SMALL["env"], "interval": 2, "eval_base_model": False}
    go(make(tmp_path / "run", Server(slow), eval=section, num_steps=6))
    assert steps(tmp_path / "run" / EVALUATIONS) == [2, 4, 6]
    assert batches(tmp_path / "run") == batches(tmp_path / "plain")


CALLS = {"environment": {"arguments": {"tools": {"calc": "calculator"}}, "max_turns": 3, "max_answer_tokens": 8}}
"""Arguments of a task whose trajectories call a calculator, up to three times."""
WORDS = CharacterTokenizer(printable[:95] + "\n")


def spoken(asked: dict[str, Any]) -> dict[str, Any]:
    """A call of the calculator, or with one key in three a number; its tokens are those of no other text."""
    text = f"<calc>{asked['seed'] % 90}+1</calc>" if asked["seed"] % 3 else f"{asked['seed'] % 90}"
    tokens = WORDS.encode(text)
    return {
        **completion({**asked, "max_tokens": len(tokens)}),
        "choices": [
            {
                "token_ids": tokens,
                "logprobs": {"token_logprobs": [-0.5] * len(tokens)},
                "text": text,
                "stop_reason": "stop_string" if text.endswith(">") else "eos",
            }
        ],
    }


def test_turns_follow_from_the_policy_and_the_tool_and_never_from_who_was_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(seed: int) -> Any:
        rng = random.Random(seed)

        async def behave(asked: dict[str, Any], attempt: int) -> Answer:
            await asyncio.sleep(rng.random() * 0.02)
            return spoken(asked)

        return Server(behave)

    monkeypatch.setattr(test_orchestrator, "TOKENIZER", WORDS)
    env = [{"id": "products", "args": {"num_prompts": 5, "num_heldout": 2, **CALLS}}]
    settings: dict[str, Any] = {"env": env, "seq_len": 200, "sampling": {"max_tokens": 24}}
    server = slow(1)
    go(make(tmp_path / "run", server, **settings))
    calculator, rng = tools.TOOLS["calculator"], random.Random(2)

    def late_calculator(text: str, state: dict[str, Any]) -> object:
        time.sleep(rng.random() * 0.02)
        return calculator(text, state)

    monkeypatch.setattr(tools, "TOOLS", {**tools.TOOLS, "calculator": late_calculator})
    go(make(tmp_path / "late", slow(3), **settings))
    assert batches(tmp_path / "run") == batches(tmp_path / "late")
    rows = rows_of(tmp_path / "run")
    turns = Counter[int]()
    for row in rows:
        text = WORDS.decode(row["tokens"][row["num_prompt"] :])
        calls = [int(each) for each in re.findall(r"<calc>(\d+)\+1</calc>", text)]
        answers = [int(each) for each in re.findall(r"\n(\d+)\n", text)]
        assert answers == [each + 1 for each in calls]
        turns[len(calls)] += 1
        said = [token for token, mask in zip(row["tokens"][row["num_prompt"] :], row["mask"], strict=True) if mask]
        assert WORDS.decode(said) == re.sub(r"\n\d+\n", "", text), "answers of the tool are not learned"
    assert {*turns} == {0, 1, 2, 3}
    asked = {tuple(each["prompt"]) for each in server.asked}
    assert all(each["stop"] == ["</calc>"] for each in server.asked)
    for row in rows:  # token in, token out
        begins = [
            at
            for at in range(row["num_prompt"], len(row["tokens"]))
            if row["mask"][at - row["num_prompt"]]
            and (at == row["num_prompt"] or not row["mask"][at - row["num_prompt"] - 1])
        ]
        assert begins and all(tuple(row["tokens"][:at]) in asked for at in begins)


def test_a_run_ends_in_order_when_no_prompt_is_left(tmp_path: Path) -> None:
    task, pools = rated(tmp_path, lambda prompt, text: 1.0), {"buffer": {"easy_threshold": 1.0}, "num_steps": 9}
    go(make(tmp_path / "run", task=task, **pools))  # type: ignore[arg-type]
    num_steps = len(batches(tmp_path / "run"))
    assert 1 < num_steps < 9 and "every prompt of a task is too easy or too hard" in said[-1]
    last = read_batch(tmp_path / "run", num_steps - 1)
    assert last["is_last"] and last["is_over"] and not read_batch(tmp_path / "run", 0)["is_over"]
    go(make(tmp_path / "run", task=task, **pools))  # type: ignore[arg-type]
    assert len(batches(tmp_path / "run")) == num_steps


def test_an_answer_that_is_an_error_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_calculator(text: str, state: dict[str, Any]) -> object:
        raise ZeroDivisionError("no such number")

    monkeypatch.setattr(test_orchestrator, "TOKENIZER", WORDS)
    monkeypatch.setattr(tools, "TOOLS", {**tools.TOOLS, "calculator": broken_calculator})

    async def behave(asked: dict[str, Any], attempt: int) -> Answer:
        return spoken(asked)

    calls = {"environment": {**CALLS["environment"], "max_answer_tokens": 60}}
    env = [{"id": "products", "args": {"num_prompts": 5, "num_heldout": 2, **calls}}]
    go(make(tmp_path, Server(behave), env=env, seq_len=400, sampling={"max_tokens": 24}))
    lines = [line for line in said if "an answer of its environment is an error" in line]
    assert len(lines) == 1 and "error: ZeroDivisionError: no such number" in lines[0]
