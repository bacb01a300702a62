"""Trajectories of several turns: the environment answers a completion, and the policy continues after its answer.

    begin ─▶ next_request ─▶ SampleRequest ─sampler─▶ completion ─▶ advance ─▶ next_request ─▶ ... None ─▶ finish
               ▲  all tokens so far are the prompt        │ step(text), in a thread of its own
               └──────────── + tokens of the answer ◀─────┘

An episode is a value: a synchronous loop advances many together (`sample_episodes`), an asynchronous one awaits each
request alone. What is sampled is a function of the request and of the environment's answers, not of their latency or
order. Tokens are never tokenised again: those of a turn are a prefix of the next prompt, and an answer is encoded once.
"""

import contextlib
import copy
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from harness.bits.files import open_for_writing, parse_object, read_regular
from rlcore.config import EnvironmentSection
from rlcore.data.rewards import load_object, place_of
from rlcore.data.tools import ToolEnvironment, error_text
from rlcore.data.trajectory import NOT_SAMPLED, Outcome, Role, Trajectory, Turn, build_single_turn
from rlcore.errors import InvalidValueError, RewardError, RlcoreError
from rlcore.seeds import key
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason, Tokenizer

NUM_THREADS = 64
"""Environments that answer at the same time."""
CHARS_PER_TOKEN = 64
"""Characters of an answer that are encoded, by `max_answer_tokens`: 10 MB of text are cut before they are read."""


class Environment(Protocol):
    """An environment in Gymnasium's shape, whose observations and actions are texts.

    It is built for one trajectory. Others run beside it in other threads. `is_deterministic = False` says that answers
    do not follow from seed, options and texts; `stop_strings` are texts that must end a turn. Both may be left out.
    """

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Any]:
        """Return what the policy reads after the prompt, and a value that is ignored.

        Trajectories of one prompt have the same seed. `options` are the prompt's columns, and `prompt`, its text.
        """

    def step(self, text: str, /) -> tuple[str, float, bool, bool, Any]:
        """Return the answer to a turn, its reward, whether the episode has ended (terminated, truncated), and a value
        that is ignored."""


class Answer(NamedTuple):
    """Result of a step, as it is recorded."""

    text: str
    reward: float = 0.0
    is_terminated: bool = False
    is_truncated: bool = False


class Answers:
    """Answers by content, in a file of JSON lines to which one run at a time appends; without a path none is kept."""

    def __init__(self, path: str) -> None:
        self._path, self._lock, self._known = path, threading.Lock(), dict[str, Answer]()
        for line in read_regular(path, max_bytes=1 << 32).splitlines() if path and Path(path).exists() else []:
            with contextlib.suppress(
                ValueError, KeyError, TypeError
            ):  # a line that a kill has cut, and the empty one before the first
                found = parse_object(line)
                self._known.setdefault(found["key"], Answer(*found["answer"]))

    def recall(self, name: str, call: Callable[[], Answer]) -> tuple[Answer, bool]:
        """Return the recorded answer of a name, else that of a call, which is then recorded; and whether it called."""
        if name in self._known:
            return self._known[name], False
        made = call()
        if self._path:
            with self._lock, open_for_writing(self._path, appends=True) as file:
                file.write(b"\n" + json.dumps({"key": name, "answer": made}).encode())
        return made, True


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of a run: how one is built, and what bounds it."""

    section: EnvironmentSection
    tokenizer: Tokenizer
    context: int
    """Most tokens that the model reads."""
    answers: Answers
    stop_strings: tuple[str, ...] = ()
    """Texts that must end a turn."""


def build_environment(section: EnvironmentSection) -> Environment:
    """Build an environment of a configuration, for one trajectory. Raises InvalidValueError and RewardError."""
    kind = ToolEnvironment if section.name == "tools" else load_object(section.name, "environments")
    try:
        return kind(**copy.deepcopy(section.arguments))
    except RlcoreError:
        raise
    except Exception as error:  # whatever a user's class raises
        what = f"environment {section.name} raised {type(error).__name__}: {error}{place_of(error)}"
        raise InvalidValueError(what, remedy="correct it there, or task.environment.arguments") from error


def stop_strings_of(section: EnvironmentSection) -> tuple[str, ...]:
    """Return the texts that must end a turn of an environment. Raises as `build_environment`."""
    return tuple(getattr(build_environment(section), "stop_strings", ()))


def check_environment(section: EnvironmentSection, stop_strings: Sequence[str], level: str) -> None:
    """Check an environment before a run. Raises InvalidValueError and RewardError."""
    found = build_environment(section)
    if missing := [each for each in stop_strings_of(section) if each not in stop_strings]:
        what = f"sampling.stop_strings is {list(stop_strings)}, without {missing[0]!r}, which ends a call"
        raise InvalidValueError(what, legal=f"{missing} among them")
    if level != "off" and not section.answers and not getattr(found, "is_deterministic", True):
        what = f"environment {section.name} is not deterministic, and the level is {level}"
        raise InvalidValueError(what, legal="recorded answers, or level off", remedy="task.environment.answers: PATH")


@dataclass(frozen=True, slots=True)
class Episode:
    """A trajectory on its way."""

    shared: Environments
    request: SampleRequest
    environment: Environment
    tokens: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    drawn: tuple[Trajectory, ...] = ()
    """Completions so far, each of one turn after all tokens before it."""
    unseen: tuple[str | None, ...] = ()
    """Turns that recorded answers have followed, and that the environment has not been given; None is its reset."""
    reward: float = 0.0
    is_over: bool = False
    is_truncated: bool = False


def _followed(
    episode: Episode, role: Role, tokens: Sequence[int], text: str, stop: StopReason | None = None
) -> Episode:
    turn = Turn(role, len(episode.tokens), len(episode.tokens) + len(tokens), text, stop)
    return replace(episode, tokens=(*episode.tokens, *tokens), turns=(*episode.turns, *[turn][: len(tokens)]))


def begin(shared: Environments, request: SampleRequest) -> Episode:
    """Begin the trajectory of a request with a reset of its environment."""
    episode = Episode(shared, request, build_environment(shared.section))
    episode = _followed(episode, Role.PROMPT, request.prompt.tokens, request.prompt.text)
    return _answered(episode, None)


def next_request(episode: Episode) -> SampleRequest | None:
    """Return the request of the next turn, whose prompt is all tokens so far; None if the trajectory has ended.

    The request of turn 0 is the trajectory's own if the environment says nothing at first. Keys of later turns follow
    from its key and the turn.
    """
    if episode.is_over:
        return None
    prompt, turn = episode.request.prompt, len(episode.drawn)
    noise = key("turn", episode.request.key, turn) if turn else episode.request.key
    text = "".join(each.text for each in episode.turns)
    return replace(episode.request, prompt=Prompt(prompt.id, text, episode.tokens, prompt.columns), key=noise)


def advance(episode: Episode, completion: Trajectory) -> Episode:
    """Return the episode after the completion of `next_request` and the environment's answer to it.

    Blocks for at most `timeout_s`. Raises RewardError if a step returns something else than a step's result.
    """
    (turn,) = completion.assistant_turns
    if completion.tokens[: turn.begin] != episode.tokens:
        raise InvalidValueError(f"a turn of {episode.request.name} follows other tokens", legal="all tokens so far")
    episode = _followed(episode, Role.ASSISTANT, completion.tokens_of(turn), turn.text, turn.stop_reason)
    episode = replace(episode, drawn=(*episode.drawn, completion))
    if not episode.is_truncated:  # by a reset that failed
        episode = _answered(episode, turn.text)
    shared, room = episode.shared, episode.shared.context - len(episode.tokens)
    is_last = len(episode.drawn) == shared.section.max_turns or room < episode.request.params.max_tokens
    is_truncated = episode.is_truncated or (is_last and not episode.is_over)
    return replace(episode, is_over=episode.is_over or is_truncated, is_truncated=is_truncated)


def finish(episode: Episode) -> Trajectory:
    """Return the trajectory of an episode that has ended."""
    logprobs, versions = [0.0] * len(episode.tokens), [NOT_SAMPLED] * len(episode.tokens)
    for each in episode.drawn:
        begin = each.num_prompt_tokens
        logprobs[begin : len(each.tokens)], versions[begin : len(each.tokens)] = (
            each.logprobs[begin:],
            each.policy_versions[begin:],
        )
    return Trajectory(
        request=episode.request,
        tokens=episode.tokens,
        loss_mask=tuple(version != NOT_SAMPLED for version in versions),
        logprobs=tuple(logprobs),
        policy_versions=tuple(versions),
        turns=episode.turns,
        weights_digests=dict(item for each in episode.drawn for item in each.weights_digests.items()),
        outcome=Outcome(episode.reward, episode.is_truncated),
    )


def first_error(trajectory: Trajectory) -> str:
    """Return the first answer that reports an exception of a tool or an environment, or an empty text."""
    answers = (turn.text.strip() for turn in trajectory.turns if turn.role is Role.TOOL)
    return next((text for text in answers if text.startswith("error: ")), "")


def _answered(episode: Episode, said: str | None) -> Episode:
    """Give a turn to the environment, and append its answer; None resets it."""
    shared, section, prompt = episode.shared, episode.shared.section, episode.request.prompt
    options = {**prompt.columns, "prompt": prompt.text}

    def call() -> Any:
        found: Any = None
        for text in (*episode.unseen, said):
            if text is None:
                seed = key("environment", prompt.id) >> 33  # libraries take 31 bits
                observation, _ = episode.environment.reset(seed=seed, options=copy.deepcopy(options))
                found = observation, 0.0, False, False, {}
            else:
                found = episode.environment.step(text)
        return found

    name = f"{key('answer', episode.request.key, *episode.tokens):016x}"
    answer, is_called = shared.answers.recall(name, lambda: _checked(_bounded(call, section.timeout_s), section))
    # A tokenizer of single characters may lack some.
    text = "".join(each for each in answer.text if each in getattr(shared.tokenizer, "alphabet", each))
    room = shared.context - len(episode.tokens) - (episode.request.params.max_tokens if said is None else 0)
    tokens = shared.tokenizer.encode(text)[: max(0, min(room, section.max_answer_tokens))]
    return replace(
        _followed(episode, Role.TOOL, tokens, shared.tokenizer.decode(tokens)),
        unseen=() if is_called else (*episode.unseen, said),
        reward=episode.reward + answer.reward,
        is_over=answer.is_terminated,
        is_truncated=answer.is_truncated and not answer.is_terminated,
    )


def _bounded(call: Callable[[], Any], timeout_s: float) -> Any:
    """Return what a call returns or raises, a TimeoutError if it takes longer: its thread is then left alone."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except (Exception, SystemExit) as error:  # a user's environment may raise anything
            found.append(error)

    thread = threading.Thread(target=run, name="environment", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else TimeoutError(f"no answer within {timeout_s:g} s")


def _checked(found: Any, section: EnvironmentSection) -> Answer:
    """Return the answer of a step. An environment that raised or hung ends its trajectory with the error as answer."""
    if isinstance(found, BaseException):
        return Answer(error_text(found), is_truncated=True)
    try:
        text, reward, is_terminated, is_truncated, _ = found
        most = CHARS_PER_TOKEN * section.max_answer_tokens
        answer = Answer(text[:most], float(reward), bool(is_terminated), bool(is_truncated))
    except (TypeError, ValueError):
        answer = Answer("", math.nan)
    if type(answer.text) is not str or not math.isfinite(answer.reward):
        legal = "(observation, reward, terminated, truncated, info): a text, a finite number, and two bools"
        raise RewardError(f"environment {section.name} returned {found!r:.100}", legal=legal)
    return answer


# ------------------------------------------------------------------------------------------------------- loops of them


def sample_episodes(
    sample: Callable[[Sequence[SampleRequest]], Sequence[Trajectory]],
    shared: Environments,
    requests: Sequence[SampleRequest],
) -> list[Trajectory]:
    """Return the trajectory of each request, in their order: all turns 0 are sampled together, then all turns 1, ...

    Environments answer in threads, and their answers are taken in the order of the requests.
    """
    with ThreadPoolExecutor(NUM_THREADS, "episodes") as pool:
        episodes = list(pool.map(lambda request: begin(shared, request), requests))
        while wanted := {at: each for at, episode in enumerate(episodes) if (each := next_request(episode))}:
            drawn = sample(list(wanted.values()))
            for at, moved in zip(wanted, pool.map(advance, [episodes[at] for at in wanted], drawn), strict=True):
                episodes[at] = moved
    return [finish(episode) for episode in episodes]


def demonstrate(shared: Environments, prompt: Prompt, texts: Sequence[str]) -> Trajectory:
    """Return the trajectory of a policy that says these turns: what a warm start learns.

    The last turn ends with the end of sequence, the others as their stop strings have it.
    """
    episode = begin(shared, SampleRequest(prompt, 0, key("demonstration", prompt.id), SamplingParams(max_tokens=1)))
    for number, text in enumerate(texts, start=1):
        if (wanted := next_request(episode)) is None:
            break
        reason = StopReason.EOS if number == len(texts) else StopReason.STOP_STRING
        tokens = [*shared.tokenizer.encode(text), *[shared.tokenizer.eos_id] * (reason is StopReason.EOS)]
        given = wanted, tokens, [0.0] * len(tokens)
        said = build_single_turn(*given, text=text, stop_reason=reason, policy_version=0, weights_digest="")
        episode = advance(episode, said)
    return finish(episode)
