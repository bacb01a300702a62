"""The page of environments: its settings are read, and its programs are environments, tools and rewards."""

import re
from pathlib import Path
from typing import Any

import yaml

from rlcore.config import EnvironmentSection, read_config
from rlcore.data.environments import Answers, Environments, build_environment
from rlcore.data.rewards import load_reward
from rlcore.data.tools import load_tool
from rlcore.models.tokenizer import CharacterTokenizer
from tests.support.programs.verifiers_environment import FromVerifiers
from tests.support.scripted_turns import TOKENIZER, play, request_of

PAGE = (Path(__file__).parents[3] / "rlcore" / "ENVIRONMENTS.md").read_text("utf-8")
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
PROGRAM = "tests.support.programs.own_environment"


def test_the_settings_on_the_page_are_read() -> None:
    for block in BLOCKS:
        read_config({**block, "task": {"name": "products", **block["task"]}, "algorithm": {"name": "grpo"}})


def test_the_page_names_every_setting() -> None:
    table = PAGE.partition("| key | means |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(EnvironmentSection.model_fields)


def test_the_game_on_the_page_is_played() -> None:
    section = EnvironmentSection(name=f"{PROGRAM}:GuessTheNumber", arguments={"largest": 9}, max_turns=5)
    environment = build_environment(section)
    seen = {environment.reset(seed=seed, options={})[0] for seed in range(9)}
    assert seen == {"1 to 9?\n"}
    tokenizer = CharacterTokenizer({*TOKENIZER.alphabet, "?"})
    shared = Environments(section, tokenizer, 500, Answers(""))
    guesses = iter("13579")
    (found,), asked = play(shared, lambda request: next(guesses), [request_of()])
    assert asked[0].prompt.text == "1+2=1 to 9?\n"
    assert {turn.text for turn in found.turns[3::2]} <= {"\nmore\n", "\nless\n"}


def test_the_tool_and_the_reward_on_the_page_are_loaded() -> None:
    assert load_tool({"name": f"{PROGRAM}:fetch", "timeout_s": 1})[1] is False
    reward = load_reward(f"{PROGRAM}:is_short")
    assert reward.function(completions=["ab"], environment_reward=[1.0]) == [0.998]


VERIFIERS: Any = FromVerifiers


class Countdown:
    """An environment of verifiers' shape."""

    async def env_response(
        self, messages: list[dict[str, str]], state: dict[str, Any]
    ) -> tuple[list[dict[str, str]], dict[str, Any]]:
        left = state.get("left", 2) - 1
        return [{"role": "user", "content": f"{left} left after {messages[-1]['content']}"}], {**state, "left": left}

    def is_completed(self, messages: list[dict[str, str]], state: dict[str, Any]) -> bool:
        return state.get("left") == 0 or messages[-1]["content"] == "stop"


def test_an_environment_of_verifiers_answers() -> None:
    environment: Any = VERIFIERS(Countdown())
    environment.reset(seed=0, options={"prompt": "go", "answer": "a"})
    assert environment.step("x")[:4] == ("1 left after x", 0.0, False, False)
    assert environment.step("y")[:4] == ("0 left after y", 0.0, True, False)
    environment.reset(seed=0, options={"prompt": "go"})
    assert environment.step("stop")[:4] == ("", 0.0, True, False)
