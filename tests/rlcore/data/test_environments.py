"""Trajectories of several turns: tokens, keys and limits of each turn, answers by content, and adversarial tools."""

import json
import threading
import time
from pathlib import Path

import pytest

from harness.bits.errors import ExhaustedError
from rlcore.config import EnvironmentSection
from rlcore.data.environments import (
    Answer,
    Answers,
    advance,
    begin,
    check_environment,
    demonstrate,
    finish,
    next_request,
)
from rlcore.data.rewards import ENVIRONMENT_REWARD, Reward, environment_reward
from rlcore.data.scoring import score
from rlcore.data.trajectory import NOT_SAMPLED, Role, Trajectory
from rlcore.errors import InvalidValueError, RewardError
from rlcore.types import SampleRequest
from tests.support.scripted_turns import CALLS, TOKENIZER, completion, environments, play, request_of

THREE = {0: "<calc>1+2</calc>", 1: "<calc>3*5</calc>", 2: "15$"}


def turn_of(request: SampleRequest) -> int:
    """Turns before this one, by the answers in its prompt."""
    return request.prompt.text.count("\n") // 2


def three(request: SampleRequest) -> str:
    return THREE[turn_of(request)]


def test_each_turn_begins_with_the_tokens_of_all_before_it() -> None:
    wanted = request_of(answer="15")
    (found,), asked = play(environments(), three, [wanted])
    assert asked[0] == wanted, "the first turn is asked for as without an environment"
    assert [turn.role.value for turn in found.turns] == [
        "prompt",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [turn.text for turn in found.turns if turn.role is Role.TOOL] == ["\n3\n", "\n15\n"]
    for request, turn in zip(asked, found.assistant_turns, strict=True):
        assert request.prompt.tokens == found.tokens[: turn.begin]
        assert request.prompt.id == wanted.prompt.id
    assert len({request.key for request in asked}) == 3
    assert asked[1].key == play(environments(), three, [wanted])[1][1].key
    learned = [turn.role is Role.ASSISTANT for turn in found.turns for _ in range(turn.begin, turn.end)]
    assert list(found.loss_mask) == learned == [version != NOT_SAMPLED for version in found.policy_versions]
    assert found.outcome is not None and found.outcome.reward == 1.0 and not found.is_truncated
    assert found.completion_text == "<calc>1+2</calc>\n3\n<calc>3*5</calc>\n15\n15"
    scores = score([Reward(ENVIRONMENT_REWARD, environment_reward)], [found], step=0)
    assert scores.rewards == [1.0]


def test_answers_are_taken_in_order_whatever_their_latency() -> None:
    shared = environments("Echo", arguments={"delay_s": 0.05}, max_turns=3)
    wanted = [request_of(f"{at}=", at) for at in range(24)]
    CALLS.clear()
    found, asked = play(shared, lambda request: request.prompt.text[:1] + "a", wanted)
    naive = list(CALLS)
    again, asked_again = play(shared, lambda request: request.prompt.text[:1] + "a", wanted)
    assert (found, asked) == (again, asked_again)
    assert [each.request for each in found] == wanted
    assert naive != [request.prompt.text[:1] + "a" for request in asked], "they were not answered in that order"


def test_environments_answer_at_the_same_time() -> None:
    shared = environments("Echo", arguments={"say": "time.sleep(0.2) or text"}, max_turns=1)
    began = time.monotonic()
    play(shared, lambda request: "a", [request_of(f"{at}=", at) for at in range(20)])
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("broken", "error: RuntimeError: <object object at 0x> is broken"),
        ("long", "x" * 62),
    ],
)
def test_a_tool_that_fails_is_an_answer(tool: str, answer: str) -> None:
    arguments = {"tools": {"t": f"tests.support.scripted_turns:{tool}"}}
    texts = ["<t>a</t>", "b$"]
    (found,), _ = play(
        environments(arguments=arguments),
        lambda request: texts[turn_of(request) > 0 or len(request.prompt.text) > 60],
        [request_of()],
    )
    assert found.turns[2].text.strip() in (
        TOKENIZER.decode(TOKENIZER.encode("".join(c for c in answer if c in TOKENIZER.alphabet))),
        "x" * 63,
    )
    assert len(found.assistant_turns) == 2 and not found.is_truncated


def test_a_tool_that_hangs_ends_its_trajectory_and_no_other() -> None:
    arguments = {"tools": {"t": "tests.support.scripted_turns:sleepy"}}
    shared = environments(arguments=arguments, timeout_s=0.3)
    first, second = play(
        shared, lambda request: "<t>a</t>" if request.sample_index else "b$", [request_of(), request_of(sample_index=1)]
    )[0]
    assert not first.is_truncated and second.is_truncated
    assert second.turns[-1].role is Role.TOOL and "no answer within 0.3 s" in second.turns[-1].text


@pytest.mark.parametrize("first", ["1 / 0", "time.sleep(60)"])
def test_an_environment_that_cannot_begin_ends_after_one_turn(first: str) -> None:
    shared = environments("Echo", arguments={"first": first}, timeout_s=0.3)
    (found,), _ = play(shared, lambda request: "a", [request_of()])
    assert found.is_truncated and [turn.role.value for turn in found.turns] == ["prompt", "tool", "assistant"]
    assert "error" in found.turns[1].text


def test_a_first_observation_follows_the_prompt_and_is_the_same_for_a_prompt() -> None:
    shared = environments("Echo", arguments={"first": "f'{seed} {options[\"prompt\"]}'", "num_steps": 1})
    found, asked = play(shared, lambda request: "a", [request_of(), request_of(sample_index=1), request_of("2=")])
    one, two, other = (each.turns[1].text for each in found)
    assert one == two != other and one.endswith("1+2=")
    assert [request.key for request in asked] == [each.request.key for each in found]


def test_limits_truncate() -> None:
    long = play(environments("Echo", max_turns=2), lambda request: "ab", [request_of()])[0][0]
    assert long.is_truncated and len(long.assistant_turns) == 2 and long.turns[-1].role is Role.TOOL
    assert long.outcome is not None and long.outcome.reward == 1.0
    short = play(environments("Echo", context=60, max_turns=9), lambda request: "a" * 15, [request_of()])[0][0]
    assert short.is_truncated and len(short.assistant_turns) == 1 and len(short.tokens) == 4 + 15 + 15
    cut = play(environments("Echo", context=45, max_turns=9), lambda request: "a" * 40, [request_of()])[0][0]
    assert len(cut.tokens) == 45
    few = play(environments("Echo", max_answer_tokens=3, max_turns=2), lambda request: "abcdef", [request_of()])[0][0]
    assert [turn.text for turn in few.turns[1:]] == ["abcdef", "abc", "abcdef", "abc"]


def test_what_is_no_result_of_a_step_names_the_environment() -> None:
    with pytest.raises(RewardError, match=r"environment tests.support.scripted_turns:Wrong returned 'a'"):
        play(environments("Wrong"), lambda request: "a", [request_of()])
    with pytest.raises(RewardError, match="returned"):
        play(environments("Echo", arguments={"say": "5"}), lambda request: "a", [request_of()])
    with pytest.raises(InvalidValueError, match="unexpected keyword argument 'nope'"):
        begin(environments("Echo", arguments={"nope": 1}), request_of())
    with pytest.raises(InvalidValueError, match="has no 'Ecco'"):
        begin(environments("Ecco"), request_of())
    with pytest.raises(InvalidValueError, match="tool 'clac'") as refused:
        begin(environments(arguments={"tools": {"calc": "clac"}}), request_of())
    assert refused.value.legal == "calculator, store, python, module:function"


@pytest.mark.parametrize("where", ["a tool", "an environment"])
def test_a_machine_that_lacks_something_ends_the_run(where: str) -> None:
    arguments = {"tools": {"t": "tests.support.scripted_turns:full"}}
    full = "(_ for _ in ()).throw(OSError(28, 'No space left on device'))"
    shared = (
        environments("Echo", arguments={"say": full})
        if where == "an environment"
        else environments(arguments=arguments)
    )
    with pytest.raises(ExhaustedError, match=r"(?i)space|disk"):
        play(shared, lambda request: "<t>a</t>", [request_of()])


def test_a_completion_of_other_tokens_is_refused() -> None:
    episode = begin(environments(), request_of())
    with pytest.raises(InvalidValueError, match="follows other tokens"):
        advance(episode, completion(request_of("2="), "a"))


# -------------------------------------------------------------------------------------------------------------- answers


def dice(path: Path) -> list[Trajectory]:
    shared = environments("Dice", answers=str(path), max_turns=2)
    return play(shared, lambda request: "ab", [request_of(), request_of(sample_index=1)])[0]


def test_recorded_answers_are_fed_back_and_nothing_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = dice(path)
    assert first != dice(tmp_path / "others.jsonl"), "without the file they differ"
    num_calls, content = len(CALLS), path.read_bytes()
    assert dice(path) == first
    assert (len(CALLS), path.read_bytes()) == (num_calls, content)


def test_an_environment_catches_up_with_answers_that_it_has_not_given(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = dice(path)
    lines = path.read_text().splitlines()
    kept = [line for line in lines if line and json.loads(line)["answer"][0][:2] != "2:"]
    path.write_text("\n".join(kept) + "\n" + lines[-1][:20])  # torn by a kill
    second = dice(path)
    assert second != first
    assert [each.turns[2] for each in second] == [each.turns[2] for each in first]
    assert all(each.turns[4].text.startswith("2:") for each in second), "it has seen the first turn"
    assert dice(path) == second


def test_threads_that_answer_at_once_lose_nothing(tmp_path: Path) -> None:
    answers = Answers(str(tmp_path / "answers.jsonl"))
    threads = [
        threading.Thread(target=answers.recall, args=(str(at), lambda at=at: Answer(str(at)))) for at in range(50)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    again = Answers(str(tmp_path / "answers.jsonl"))
    assert [again.recall(str(at), lambda: Answer("none")) for at in range(50)] == [
        (Answer(str(at)), False) for at in range(50)
    ]


def test_what_does_not_repeat_is_recorded_or_refused() -> None:
    section = EnvironmentSection(name="tests.support.scripted_turns:Dice")
    check_environment(section, (), "off")
    with pytest.raises(InvalidValueError, match="is not deterministic, and the level is invariant"):
        check_environment(section, (), "invariant")
    check_environment(EnvironmentSection(name="tests.support.scripted_turns:Dice", answers="a.jsonl"), (), "invariant")
    with pytest.raises(InvalidValueError, match="without '</calc>'"):
        check_environment(EnvironmentSection(arguments={"tools": {"calc": "calculator"}}), (), "off")


# -------------------------------------------------------------------------------------------- demonstrations, adapters


def test_a_demonstration_has_the_tokens_of_a_rollout() -> None:
    shared = environments()
    prompt = request_of(answer="15").prompt
    shown = demonstrate(shared, prompt, ["<calc>1+2</calc>", "<calc>3*5</calc>", "15"])
    (drawn,), _ = play(shared, three, [request_of(answer="15")])
    assert (shown.tokens, shown.loss_mask, shown.turns) == (drawn.tokens, drawn.loss_mask, drawn.turns)


def test_an_episode_is_a_value_that_is_advanced_one_by_one() -> None:
    shared = environments()
    episode = begin(shared, request_of(answer="15"))
    while (wanted := next_request(episode)) is not None:
        episode = advance(episode, completion(wanted, three(wanted)))
    assert finish(episode) == play(shared, three, [request_of(answer="15")])[0][0]
