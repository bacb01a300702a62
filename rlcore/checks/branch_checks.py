"""Invariants of two-stage rollouts: items branch off their own reasoning, and each chosen token is learned once."""

from collections.abc import Sequence

from rlcore.data.trajectory import Role, Trajectory, Turn, by_request, item_params
from rlcore.errors import StepError
from rlcore.types import SampleRequest, SamplingParams


def check_branches(trajectories: Sequence[Trajectory]) -> None:
    """Check that the items of a reasoning are distinct, and hold its tokens and log-probabilities as they were drawn.

    Raises StepError naming the sample.
    """
    for reasoning, *items in by_request(trajectories):
        if reasoning.is_branch:
            raise StepError(
                f"{reasoning.name} has an item, and no reasoning before it",
                legal="a trajectory that learns the reasoning, then those that learn an item",
                phases=("rollout",),
            )
        for item in items:
            if wrong := _wrong_with(item, reasoning):
                raise StepError(f"an item of {item.name} {wrong}", phases=("rollout",))
        limit = reasoning.request.beams.num_beams if reasoning.request.beams else 0
        if len({item.tokens for item in items}) < len(items) or len(items) > limit:
            raise StepError(
                f"{reasoning.name} has {len(items)} items, {len({item.tokens for item in items})} of them different",
                legal=f"up to {limit}, all different: a repeated one would count twice in its group",
                phases=("rollout",),
            )


def params_of(trajectory: Trajectory, turn: Turn, request: SampleRequest | None = None) -> SamplingParams:
    """Return the sampling parameters of an assistant turn, or the limits of an item, as the request has them.

    The request is the trajectory's own unless another one is given.
    """
    asked = request or trajectory.request
    is_item = trajectory.is_branch and turn is trajectory.turns[-1]
    return item_params(asked) if is_item else asked.params


def _wrong_with(item: Trajectory, reasoning: Trajectory) -> str:
    """Describe how an item contradicts its reasoning; empty if it does not."""
    num_shared = len(reasoning.tokens)
    if item.request.key != reasoning.request.key:
        return f"follows {reasoning.name}"
    for name, value in (("tokens", item.tokens), ("log-probabilities", item.logprobs)):
        if value[:num_shared] != (reasoning.tokens if name == "tokens" else reasoning.logprobs):
            return f"has other {name} than its reasoning"
    beams = item.request.beams
    forced = [item.tokens_of(turn) for turn in item.turns if turn.role is Role.FORCED]
    if beams is None or forced != ([beams.forced] if beams.forced else []):
        return f"has forced tokens {forced}"
    return ""
