"""Trajectory: the one structure that samplers produce, and that rewards, batches and checks read.

    tokens           p p p | a a a | t t | a a        p: prompt, a: assistant, t: tool or forced
    loss_mask        0 0 0 | 1 1 1 | 0 0 | 1 1        one bit per token
    logprobs         0 0 0 | x x x | 0 0 | x x        of the policy that sampled
    policy_versions  - - - | 4 4 4 | - - | 5 5        of the weights that sampled; NOT_SAMPLED elsewhere

Turns tile the tokens: each begins where the one before ends. A single completion is the trajectory of a prompt and one
assistant turn. Values are plain Python, so that a trajectory can be sent to another process and written nowhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress

from rlcore.errors import InvalidValueError, NonFiniteError, ShapeError
from rlcore.types import BeamParams, SampleRequest, SamplingParams, StopReason

NOT_SAMPLED = -1
"""Policy version of a token that no policy sampled: of a prompt, of a tool's answer, or forced."""


class Role(StrEnum):
    """Author of a turn."""

    PROMPT = "prompt"
    ASSISTANT = "assistant"
    TOOL = "tool"
    FORCED = "forced"
    """The sampler: tokens within a completion that no policy chose."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive tokens of one author."""

    role: Role
    begin: int
    """Position of its first token in the trajectory."""
    end: int
    """Position after its last token; a turn has at least one."""
    text: str
    """Text of its tokens, without special tokens."""
    stop_reason: StopReason | None = None
    """Reason for which an assistant turn ended; None for the others."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an environment says of a trajectory."""

    reward: float
    """Sum over its steps."""
    is_truncated: bool
    """Whether a limit or an error ended it, and not the environment."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A prompt and everything that followed it, token by token.

    Raises ShapeError, InvalidValueError and NonFiniteError for parts that do not belong together.
    """

    request: SampleRequest
    tokens: tuple[int, ...]
    """Token ids of prompt, assistant and tools, as the model reads them."""
    loss_mask: tuple[bool, ...]
    """[tokens]: whether training learns the token."""
    logprobs: tuple[float, ...]
    """[tokens]: log-probability of the token when it was sampled, at the request's temperature: an fp32 number. A value
    outside the loss mask is never read."""
    policy_versions: tuple[int, ...]
    """[tokens]: version of the weights that sampled the token, or NOT_SAMPLED."""
    turns: tuple[Turn, ...]
    """Turns in order, which tile the tokens; the first is the prompt."""
    weights_digests: Mapping[int, str]
    """Digest of the weights by policy version, for each version that sampled a token."""
    outcome: Outcome | None = None
    """Of the environment that it is a trajectory of; None without one."""

    def __post_init__(self) -> None:
        for name in ("loss_mask", "logprobs", "policy_versions"):
            if len(values := getattr(self, name)) != len(self.tokens):
                raise ShapeError(f"{name} of {self.name} has {len(values)} values for {len(self.tokens)} tokens")
        roles = [turn.role for turn in self.turns]
        if Role.ASSISTANT not in roles or roles[0] is not Role.PROMPT or Role.PROMPT in roles[1:]:
            legal = "a prompt first, then assistant and tool turns, of them at least one of the assistant"
            raise InvalidValueError(f"{self.name} has turns {[role.value for role in roles]}", legal=legal)
        begins = [0, *(turn.end for turn in self.turns)]
        if [turn.begin for turn in self.turns] != begins[:-1] or begins[-1] != len(self.tokens):
            spans = [(turn.begin, turn.end) for turn in self.turns]
            legal = f"spans that tile tokens 0 to {len(self.tokens)}: each begins where the one before ends"
            raise InvalidValueError(f"{self.name} has turns of tokens {spans}", legal=legal)
        prompt = self.request.prompt.tokens
        if (begin := self.tokens[: self.num_prompt_tokens]) != prompt:
            what = f"{self.name} begins with tokens {list(begin)[:8]}"
            raise InvalidValueError(what, legal=f"those of its prompt, {list(prompt)[:8]}; nothing is tokenised again")
        self._check_tokens()

    def _check_tokens(self) -> None:
        others = [turn for turn in self.turns if turn.role is not Role.ASSISTANT]
        for turn in others:
            if True in self.loss_mask[turn.begin : turn.end]:
                where = f"the {turn.role.value} turn of tokens {turn.begin} to {turn.end}"
                raise InvalidValueError(f"the loss mask of {self.name} is set in {where}, which no policy sampled")
        if not all(map(math.isfinite, compress(self.logprobs, self.loss_mask))):
            learned = compress(range(len(self.tokens)), self.loss_mask)
            position = next(at for at in learned if not math.isfinite(self.logprobs[at]))
            what = f"token {position} of {self.name} has log-probability {self.logprobs[position]!r}"
            raise NonFiniteError(what, remedy="check the weights that the sampler received", phases=("rollout",))
        versions = self.policy_versions
        if (
            set(versions) != {NOT_SAMPLED, *self.weights_digests}
            or any(set(versions[turn.begin : turn.end]) != {NOT_SAMPLED} for turn in others)
            or NOT_SAMPLED in compress(versions, self.loss_mask)
        ):
            raise InvalidValueError(
                f"{self.name} has policy versions {sorted(set(versions))}, and digests of"
                f" {sorted(self.weights_digests)}",
                legal=f"a version with a digest for each token under the loss mask, {NOT_SAMPLED} in prompt and tool"
                " turns, and no digest of another version",
            )

    @property
    def name(self) -> str:
        """Name of its request, for messages."""
        return self.request.name

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return self.turns[0].end

    @property
    def assistant_turns(self) -> tuple[Turn, ...]:
        """Turns that a policy sampled, in order; at least one."""
        return tuple(turn for turn in self.turns if turn.role is Role.ASSISTANT)

    @property
    def stop_reason(self) -> StopReason:
        """Stop reason of the last assistant turn."""
        reason = self.assistant_turns[-1].stop_reason
        assert reason is not None
        return reason

    @property
    def loss_tokens(self) -> tuple[int, ...]:
        """Token ids under the loss mask, in order."""
        return tuple(compress(self.tokens, self.loss_mask))

    @property
    def is_branch(self) -> bool:
        """Whether it shares its first assistant turn with another trajectory, which learns that turn."""
        first = self.assistant_turns[0]
        return not any(self.loss_mask[first.begin : first.end])

    @property
    def group(self) -> tuple[str, ...] | tuple[str, int]:
        """Key of the trajectories whose rewards it is compared with: those of its prompt, or branches of its request.

        All of a group had the same tokens before the first token that they learn.
        """
        prompt_id = self.request.prompt.id
        return (prompt_id, self.request.sample_index) if self.is_branch else (prompt_id,)

    @property
    def is_truncated(self) -> bool:
        """Whether max_tokens cut it, or a limit of its environment; the items of a beam search may all have that
        length, and are not counted."""
        is_by_environment = self.outcome is not None and self.outcome.is_truncated
        return is_by_environment or (self.stop_reason is StopReason.LENGTH and not self.is_branch)

    @property
    def completion_tokens(self) -> tuple[int, ...]:
        """Token ids after the prompt: those of all turns, of tools and forced ones too."""
        return self.tokens[self.num_prompt_tokens :]

    @property
    def completion_logprobs(self) -> tuple[float, ...]:
        """Log-probabilities of `completion_tokens`."""
        return self.logprobs[self.num_prompt_tokens :]

    @property
    def completion_text(self) -> str:
        """Text of all turns after the prompt, of tools and forced ones too."""
        return "".join(turn.text for turn in self.turns[1:])

    def tokens_of(self, turn: Turn) -> tuple[int, ...]:
        """Return the token ids of a turn."""
        return self.tokens[turn.begin : turn.end]


def build_single_turn(
    request: SampleRequest,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    *,
    text: str,
    stop_reason: StopReason,
    policy_version: int,
    weights_digest: str,
) -> Trajectory:
    """Build the trajectory of a prompt and one completion, all of whose tokens are learned.

    `tokens`, `logprobs` and `text` are the completion's. Raises ShapeError, InvalidValueError and NonFiniteError.
    """
    prompt = request.prompt
    begin, num_drawn = len(prompt.tokens), len(tokens)
    return Trajectory(
        request=request,
        tokens=(*prompt.tokens, *tokens),
        loss_mask=(False,) * begin + (True,) * num_drawn,
        logprobs=(*(0.0,) * begin, *logprobs),
        policy_versions=(NOT_SAMPLED,) * begin + (policy_version,) * num_drawn,
        turns=(
            Turn(Role.PROMPT, 0, begin, prompt.text),
            Turn(Role.ASSISTANT, begin, begin + num_drawn, text, stop_reason),
        ),
        weights_digests={policy_version: weights_digest},
    )


@dataclass(frozen=True, slots=True)
class Item:
    """An item that was found after a reasoning."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[tokens], each of the whole vocabulary at the request's temperature."""
    text: str
    stop_reason: StopReason


def branch(reasoning: Trajectory, item: Item, beams: BeamParams, *, forced_text: str) -> Trajectory:
    """Build the trajectory of an item after its reasoning; it learns the item alone.

    The reasoning is one of a single turn. Raises as `Trajectory` does.
    """
    begin = len(reasoning.tokens)
    at_item = begin + len(beams.forced)
    end = at_item + len(item.tokens)
    (version,) = reasoning.weights_digests
    forced_turns = (Turn(Role.FORCED, begin, at_item, forced_text),) if beams.forced else ()
    num_forced, num_chosen = len(beams.forced), len(item.tokens)
    return Trajectory(
        request=reasoning.request,
        tokens=(*reasoning.tokens, *beams.forced, *item.tokens),
        loss_mask=(False,) * at_item + (True,) * num_chosen,
        logprobs=(*reasoning.logprobs, *(0.0,) * num_forced, *item.logprobs),
        policy_versions=(*reasoning.policy_versions, *(NOT_SAMPLED,) * num_forced, *(version,) * num_chosen),
        turns=(*reasoning.turns, *forced_turns, Turn(Role.ASSISTANT, at_item, end, item.text, item.stop_reason)),
        weights_digests=reasoning.weights_digests,
    )


def item_params(request: SampleRequest) -> SamplingParams:
    """Return the limits of an item as sampling parameters: no filter and no stop string apply to it."""
    assert request.beams is not None
    return SamplingParams(
        max_tokens=request.beams.max_tokens,
        temperature=request.params.temperature,
        stop_ids=request.beams.stop_ids,
    )


def by_request(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Divide trajectories in canonical order by their requests: a reasoning first, then its items, the best first."""
    found: list[list[Trajectory]] = []
    for each in trajectories:
        if found and each.is_branch:
            found[-1].append(each)
        else:
            found.append([each])
    return found


def completions_of(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return whole completions: those that end with an item, and those after which there is no item."""
    return [each for found in by_request(trajectories) for each in (found[1:] or found)]


def best_completions(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return one completion per request: that with the item of the largest score, or one without items."""
    return [(found[1:] or found)[0] for found in by_request(trajectories)]
