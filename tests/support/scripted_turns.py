"""A policy whose turns are written down, and environments of tests that it talks to."""

import errno
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlcore.config import EnvironmentSection
from rlcore.data.environments import Answers, Environments, sample_episodes
from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.seeds import completion_key
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason

TOKENIZER = CharacterTokenizer("0123456789+-*/=<>().,: \nabcdefghijklmnopqrstuvwxyzEZ")
PARAMS = SamplingParams(max_tokens=40)
CALLS: list[str] = []
"""What environments of this module were given, in any order."""


def request_of(text: str = "1+2=", sample_index: int = 0, **columns: Any) -> SampleRequest:
    """One trajectory of a text."""
    noise = completion_key(seed=1, step=0, prompt_id=text, sample_index=sample_index)
    prompt = Prompt(text, text, tuple(TOKENIZER.encode(text)), columns)
    return SampleRequest(prompt, sample_index, noise, PARAMS)


def environments(
    name: str = "tools", context: int = 500, arguments: Mapping[str, Any] | None = None, **settings: Any
) -> Environments:
    """An environment of tools, or one by its name in this module."""
    given = {"tools": {"calc": "calculator"}} if name == "tools" and arguments is None else dict(arguments or {})
    full = name if name == "tools" else f"{__name__}:{name}"
    section = EnvironmentSection(name=full, arguments=given, **settings)
    return Environments(section, TOKENIZER, context, Answers(section.answers))


def completion(request: SampleRequest, text: str, *, logprob: float = -1.0) -> Trajectory:
    """What a sampler returns; "$" at the end of a text is the end of sequence."""
    tokens = TOKENIZER.encode(text.removesuffix("$")) + [TOKENIZER.eos_id] * text.endswith("$")
    reason = StopReason.EOS if text.endswith("$") else StopReason.STOP_STRING
    return build_single_turn(
        request,
        tokens,
        [logprob] * len(tokens),
        text=text.removesuffix("$"),
        stop_reason=reason,
        policy_version=7,
        weights_digest="weights 7",
    )


def play(
    shared: Environments, say: Callable[[SampleRequest], str], requests: Sequence[SampleRequest]
) -> tuple[list[Trajectory], list[SampleRequest]]:
    """Sample episodes -> trajectories, and every request of a turn in its order."""
    asked: list[SampleRequest] = []

    def sample(wanted: Sequence[SampleRequest]) -> list[Trajectory]:
        asked.extend(wanted)
        return [completion(each, say(each)) for each in wanted]

    return sample_episodes(sample, shared, requests), asked


class Echo:
    """Repeats what it is given; `say` is an expression of `text` that it evaluates."""

    is_deterministic = True

    def __init__(
        self, say: str = "text", first: str = "''", delay_s: float = 0.0, num_steps: int = 99, reward: str = "0.5"
    ) -> None:
        self._say, self._first, self._delay_s, self._num_steps, self._reward = say, first, delay_s, num_steps, reward

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Begin."""
        self._seen: list[str] = []
        return eval(self._first, {"seed": seed, "options": options, "time": time}), {}

    def step(self, text: str) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Wait for a random time, and answer."""
        CALLS.append(text)
        self._seen.append(text)
        time.sleep(random.random() * self._delay_s)
        found = eval(self._say, {"text": text, "seen": self._seen, "time": time, "random": random})
        reward = eval(self._reward, {"text": text})
        return found, reward, len(self._seen) == self._num_steps, False, {}


class Dice(Echo):
    """Says what does not follow from its input."""

    is_deterministic = False

    def __init__(self) -> None:
        super().__init__("f'{len(seen)}:{random.random()}'")


class Wrong(Echo):
    """Returns no result of a step."""

    def step(self, text: str) -> Any:
        """Return a text alone."""
        return text


def broken(text: str, state: dict[str, Any]) -> str:
    """Raise, with the address of an object in the message."""
    raise RuntimeError(f"{object()} is broken")


def sleepy(text: str, state: dict[str, Any]) -> str:
    """Hang."""
    time.sleep(60)
    return ""


def full(text: str, state: dict[str, Any]) -> str:
    """Write to a disk that is full."""
    raise OSError(errno.ENOSPC, "No space left on device")


def long(text: str, state: dict[str, Any]) -> str:
    """Return 10 MB."""
    return "x" * 10_000_000
