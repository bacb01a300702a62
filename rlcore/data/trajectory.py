"""Trajectory: the one structure that samplers produce, and that rewards, batches and checks read.

    tokens    p p p | a a a          p: prompt, a: a completion, which is learned
    logprobs  0 0 0 | x x x

    tokens    p p p | r r | f | i i  r: reasoning, f: forced, i: item, which is learned; a branch of the reasoning
    logprobs  0 0 0 | x x | 0 | x x

Turns tile the tokens after the prompt, and the last one is learned. Values are plain Python, so that a trajectory can
be sent to another process and written nowhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlcore.errors import NonFiniteError
from rlcore.types import BeamParams, SampleRequest, SamplingParams, StopReason


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive tokens that a policy sampled, or that the sampler forced."""

    begin: int
    """Position of its first token in the trajectory."""
    end: int
    """Position after its last token; a turn has at least one."""
    text: str
    """Text of its tokens, without special tokens."""
    stop_reason: StopReason | None
    """Reason for which a sampled turn ended; None for a forced one."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A prompt and everything that followed it, token by token.

    Raises NonFiniteError for a log-probability of a learned token that is not a finite number.
    """

    request: SampleRequest
    tokens: tuple[int, ...]
    """Token ids of the prompt and all turns, as the model reads them."""
    logprobs: tuple[float, ...]
    """[tokens]: log-probability of the token when it was sampled, at the request's temperature: an fp32 number. Those
    of prompts and forced tokens are never read."""
    turns: tuple[Turn, ...]
    """Turns in order: a completion, or a reasoning, what was forced after it and an item."""
    policy_version: int
    """Version of the weights that sampled it."""
    weights_digest: str
    """Their digest."""

    def __post_init__(self) -> None:
        for position in range(self.first_learned, len(self.tokens)):
            if not math.isfinite(self.logprobs[position]):
                what = f"token {position} of {self.name} has log-probability {self.logprobs[position]!r}"
                raise NonFiniteError(what, remedy="check the weights of the sampler for NaN", phases=("rollout",))

    @property
    def name(self) -> str:
        """Name of its request, for messages."""
        return f"sample {self.request.sample_index} of prompt {self.request.prompt.id}"

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return len(self.request.prompt.tokens)

    @property
    def first_learned(self) -> int:
        """Position of the first token that training learns; it learns all tokens from there on."""
        return self.turns[-1].begin

    @property
    def sampled_turns(self) -> tuple[Turn, ...]:
        """Turns that a policy sampled, in order; at least one."""
        return tuple(turn for turn in self.turns if turn.stop_reason is not None)

    @property
    def stop_reason(self) -> StopReason:
        """Stop reason of the last turn."""
        reason = self.turns[-1].stop_reason
        assert reason is not None
        return reason

    @property
    def loss_tokens(self) -> tuple[int, ...]:
        """Token ids that training learns."""
        return self.tokens[self.first_learned :]

    @property
    def is_branch(self) -> bool:
        """Whether it is an item after a reasoning, which another trajectory learns."""
        return len(self.turns) > 1

    @property
    def group(self) -> tuple[str, ...] | tuple[str, int]:
        """Key of the trajectories whose rewards it is compared with: those of its prompt, or branches of its request.

        All of a group had the same tokens before the first token that they learn.
        """
        prompt_id = self.request.prompt.id
        return (prompt_id, self.request.sample_index) if self.is_branch else (prompt_id,)

    @property
    def is_truncated(self) -> bool:
        """Whether max_tokens cut it; the items of a beam search may all have that length, and are not counted."""
        return self.stop_reason is StopReason.LENGTH and not self.is_branch

    @property
    def completion_tokens(self) -> tuple[int, ...]:
        """Token ids after the prompt, forced ones included."""
        return self.tokens[self.num_prompt_tokens :]

    @property
    def completion_logprobs(self) -> tuple[float, ...]:
        """Log-probabilities of `completion_tokens`."""
        return self.logprobs[self.num_prompt_tokens :]

    @property
    def completion_text(self) -> str:
        """Text after the prompt, turn by turn."""
        return "".join(turn.text for turn in self.turns)

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

    `tokens`, `logprobs` and `text` are the completion's. Raises NonFiniteError.
    """
    prompt = request.prompt.tokens
    return Trajectory(
        request=request,
        tokens=(*prompt, *tokens),
        logprobs=(*(0.0,) * len(prompt), *logprobs),
        turns=(Turn(len(prompt), len(prompt) + len(tokens), text, stop_reason),),
        policy_version=policy_version,
        weights_digest=weights_digest,
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
    """Build the trajectory of an item after its reasoning; it learns the item alone. Raises NonFiniteError."""
    begin = len(reasoning.tokens)
    at_item = begin + len(beams.forced)
    forced_turns = (Turn(begin, at_item, forced_text, None),) if beams.forced else ()
    item_turn = Turn(at_item, at_item + len(item.tokens), item.text, item.stop_reason)
    return replace(
        reasoning,
        tokens=(*reasoning.tokens, *beams.forced, *item.tokens),
        logprobs=(*reasoning.logprobs, *(0.0,) * len(beams.forced), *item.logprobs),
        turns=(*reasoning.turns, *forced_turns, item_turn),
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
