"""Trajectories of several turns: the environment answers a completion, and the policy continues after its answer.

    begin ─▶ next_request ─▶ SampleRequest ─sampler─▶ completion ─▶ advance ─▶ next_request ─▶ ... None ─▶ finish
               ▲  all tokens so far are the prompt        │ step(text), in a thread of its own
               └──────────── + tokens of the answer ◀─────┘

An episode is a value: a synchronous loop advances many together (`sample_episodes`), an asynchronous one awaits each
request alone. What is sampled is a function of the request and of the environment's answers, not of their latency or
order. Tokens are never tokenised again: those of a turn are a prefix of the next prompt, and an answer is encoded once.
"""

import asyncio
import copy
import fcntl
import inspect
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from harness.bits.files import open_for_writing, open_regular, parse_object
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
BUILT_IN = "tools"


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
    """Answers by content, in a file that several runs may share; without a path none is kept.

    The first answer that is written counts, also for a process that has computed another one meanwhile.
    """

    def __init__(self, path: str) -> None:
        self._path, self._known, self._end = Path(path) if path else None, dict[str, Answer](), 0
        self._lock = threading.Lock()
        if self._path and self._path.exists():
            self._read(self._path)

    def recall(self, name: str, call: Callable[[], Answer]) -> tuple[Answer, bool]:
        """Return the recorded answer of a name, else that of a call, which is then recorded; and whether it called."""
        if name in self._known or self._path is None:
            return (self._known[name], False) if name in self._known else (call(), True)
        made = call()
        with self._lock, open_for_writing(self._path, appends=True) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._read(self._path)
            if name not in self._known:
                torn = b"\n" if file.seek(0, 2) > self._end else b""  # of a process that was killed within a line
                file.write(torn + json.dumps({"key": name, "answer": made}).encode() + b"\n")
                self._known[name] = made
        return self._known[name], True

    def _read(self, path: Path) -> None:
        with open_regular(path) as file:
            file.seek(self._end)
            content = file.read()
        content = content[: content.rfind(b"\n") + 1]
        self._end += len(content)
        for line in content.splitlines():
            try:
                found = parse_object(line)
                self._known.setdefault(found["key"], Answer(*found["answer"]))
            except (ValueError, KeyError, TypeError):  # torn
                continue


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of a run: how one is built, and what bounds it."""

    section: EnvironmentSection
    tokenizer: Tokenizer
    context: int
    """Most tokens that the model reads."""
    answers: Answers


def build_environment(section: EnvironmentSection) -> Environment:
    """Build an environment of a configuration, for one trajectory. Raises InvalidValueError and RewardError."""
    kind = ToolEnvironment if section.name == BUILT_IN else load_object(section.name, "environments")
    try:
        return kind(**copy.deepcopy(section.arguments))
    except RlcoreError:
        raise
    except Exception as error:  # whatever a user's class raises
        what = f"environment {section.name} raised {type(error).__name__}: {error}{place_of(error)}"
        raise InvalidValueError(what, remedy="correct it there, or task.environment.arguments") from error


def check_environment(section: EnvironmentSection, stop_strings: Sequence[str], level: str) -> None:
    """Check an environment before a run. Raises InvalidValueError and RewardError."""
    if section.answers and not Path(section.answers).absolute().parent.is_dir():
        raise InvalidValueError(f"task.environment.answers {section.answers!r}", legal="a file in a directory")
    found = build_environment(section)
    if missing := [each for each in getattr(found, "stop_strings", ()) if each not in stop_strings]:
        what = f"sampling.stop_strings is {list(stop_strings)}, without {missing[0]!r}, which ends a call"
        raise InvalidValueError(what, legal=f"{missing} among them")
    if level != "off" and not section.answers and not getattr(found, "is_deterministic", True):
        raise InvalidValueError(
            f"environment {section.name} is not deterministic, and the level is {level}",
            legal="recorded answers, or level off",
            remedy="task.environment.answers: PATH",
        )


@dataclass(frozen=True, slots=True)
class Episode:
    """A trajectory on its way."""

    shared: Environments
    request: SampleRequest
    environment: Environment
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    turns: tuple[Turn, ...]
    weights_digests: Mapping[int, str]
    unseen: tuple[str | None, ...] = ()
    """Turns that recorded answers have followed, and that the environment has not been given; None is its reset."""
    reward: float = 0.0
    num_turns: int = 0
    """Completions so far."""
    is_over: bool = False
    is_truncated: bool = False

    @property
    def room(self) -> int:
        """Tokens that are left of the context."""
        return self.shared.context - len(self.tokens)

    def _followed_by(self, role: Role, tokens: Sequence[int], text: str, **rest: Any) -> "Episode":
        begin, num_tokens = len(self.tokens), len(tokens)
        turn = Turn(role, begin, begin + num_tokens, text, rest.pop("stop_reason", None))
        return replace(
            self,
            tokens=(*self.tokens, *tokens),
            logprobs=(*self.logprobs, *rest.pop("logprobs", (0.0,) * num_tokens)),
            policy_versions=(*self.policy_versions, *rest.pop("policy_versions", (NOT_SAMPLED,) * num_tokens)),
            turns=(*self.turns, turn) if tokens else self.turns,
            **rest,
        )


def begin(shared: Environments, request: SampleRequest) -> Episode:
    """Begin the trajectory of a request with a reset of its environment."""
    episode = Episode(shared, request, build_environment(shared.section), (), (), (), (), {})
    episode = episode._followed_by(Role.PROMPT, request.prompt.tokens, request.prompt.text)
    return _answered(episode, None, room=episode.room - request.params.max_tokens)


def next_request(episode: Episode) -> SampleRequest | None:
    """Return the request of the next turn, whose prompt is all tokens so far; None if the trajectory has ended.

    The request of turn 0 is the trajectory's own if the environment says nothing at first. Keys of later turns follow
    from its key and the turn.
    """
    if episode.is_over:
        return None
    prompt, turn = episode.request.prompt, episode.num_turns
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
    episode = episode._followed_by(
        Role.ASSISTANT,
        completion.tokens_of(turn),
        turn.text,
        stop_reason=turn.stop_reason,
        logprobs=completion.logprobs[turn.begin :],
        policy_versions=completion.policy_versions[turn.begin :],
        weights_digests={**episode.weights_digests, **completion.weights_digests},
        num_turns=episode.num_turns + 1,
    )
    if not episode.is_truncated:  # by a reset that failed
        episode = _answered(episode, turn.text, room=episode.room)
    is_last = episode.num_turns == episode.shared.section.max_turns or episode.room < episode.request.params.max_tokens
    is_truncated = episode.is_truncated or (is_last and not episode.is_over)
    return replace(episode, is_over=episode.is_over or is_truncated, is_truncated=is_truncated)


def finish(episode: Episode) -> Trajectory:
    """Return the trajectory of an episode that has ended."""
    return Trajectory(
        request=episode.request,
        tokens=episode.tokens,
        loss_mask=tuple(version != NOT_SAMPLED for version in episode.policy_versions),
        logprobs=episode.logprobs,
        policy_versions=episode.policy_versions,
        turns=episode.turns,
        weights_digests=episode.weights_digests,
        outcome=Outcome(episode.reward, episode.is_truncated),
    )


def _answered(episode: Episode, said: str | None, *, room: int) -> Episode:
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
    answer, is_called = shared.answers.recall(name, lambda: _checked(_bounded(call, section.timeout_s), section.name))
    tokens = _encoded(shared.tokenizer, answer.text[: CHARS_PER_TOKEN * section.max_answer_tokens])
    tokens = tokens[: max(0, min(room, section.max_answer_tokens))]
    return replace(
        episode._followed_by(Role.TOOL, tokens, shared.tokenizer.decode(tokens)),
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


def _checked(found: Any, name: str) -> Answer:
    """Return the answer of a step. An environment that raised or hung ends its trajectory with the error as answer."""
    if isinstance(found, BaseException):
        return Answer(error_text(found), is_truncated=True)
    try:
        text, reward, is_terminated, is_truncated, _ = found
        answer = Answer(text, float(reward), bool(is_terminated), bool(is_truncated))
    except (TypeError, ValueError):
        answer = Answer("", math.nan)
    if type(answer.text) is not str or not math.isfinite(answer.reward):
        legal = "(observation, reward, terminated, truncated, info): a text, a finite number, and two bools"
        raise RewardError(f"environment {name} returned {found!r:.100}", legal=legal)
    return answer


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode an answer once, without the characters that the tokenizer lacks."""
    try:
        return tokenizer.encode(text)
    except InvalidValueError:
        return [token for character in text for token in _encoded_character(tokenizer, character)]


def _encoded_character(tokenizer: Tokenizer, character: str) -> list[int]:
    try:
        return tokenizer.encode(character)
    except InvalidValueError:
        return []


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
        while wanted := [(at, each) for at, episode in enumerate(episodes) if (each := next_request(episode))]:
            drawn = sample([request for _, request in wanted])
            moved = pool.map(
                lambda pair: advance(*pair), [(episodes[at], each) for (at, _), each in zip(wanted, drawn, strict=True)]
            )
            for (at, _), episode in zip(wanted, moved, strict=True):
                episodes[at] = episode
    return [finish(episode) for episode in episodes]


def demonstrate(shared: Environments, prompt: Prompt, texts: Sequence[str]) -> Trajectory:
    """Return the trajectory of a policy that says these turns: what a warm start learns.

    The last turn ends with the end of sequence, the others as their stop strings have it.
    """
    room = max(len(shared.tokenizer.encode(text)) for text in texts) + 1
    request = SampleRequest(prompt, 0, key("demonstration", prompt.id), SamplingParams(room))
    episode = begin(shared, request)
    for number, text in enumerate(texts, start=1):
        if (wanted := next_request(episode)) is None:
            break
        is_last = number == len(texts)
        tokens = [*shared.tokenizer.encode(text), *[shared.tokenizer.eos_id] * is_last]
        reason = StopReason.EOS if is_last else StopReason.STOP_STRING
        given = wanted, tokens, [0.0] * len(tokens)
        said = build_single_turn(*given, text=text, stop_reason=reason, policy_version=0, weights_digest="")
        episode = advance(episode, said)
    return finish(episode)


class FromVerifiers:
    """An environment of verifiers 0.x: `env_response(messages, state)` and `is_completed(messages, state)`.

    Its rubric is not asked: name reward functions in `task.rewards`.
    """

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, Any]:
        """Begin with the prompt as the user's message."""
        self._messages = [{"role": "user", "content": options["prompt"]}]
        self._state: Any = {"turn": 0, "responses": [], "info": {}, "answer": "", **options}
        if hasattr(self._environment, "setup_state"):
            self._state = _awaited(self._environment.setup_state(self._state))
        return "", {}

    def step(self, text: str, /) -> tuple[str, float, bool, bool, Any]:
        """Add a turn; answer it unless that completes the conversation."""
        begin = len(self._messages) + 1
        self._messages.append({"role": "assistant", "content": text})
        self._state["turn"] += 1
        if not self._is_completed():
            found = _awaited(self._environment.env_response(self._messages, self._state))
            added, self._state = found if isinstance(found, tuple) else (found, self._state)
            self._messages += [{"role": "user", "content": added}] if isinstance(added, str) else added
        answer = "\n".join(each["content"] for each in self._messages[begin:])
        return answer, 0.0, self._is_completed(), False, {}

    def _is_completed(self) -> bool:
        return bool(_awaited(self._environment.is_completed(self._messages, self._state)))


def _awaited(found: Any) -> Any:
    return asyncio.run(found) if inspect.iscoroutine(found) else found
