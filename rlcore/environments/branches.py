"""Completions that branch: one reasoning, and the items that were searched after it.

    reasoning   p p p | r r r r                          its loss mask: 0 0 0 | 1 1 1 1
    item 0      p p p | r r r r | f | i i i                             0 0 0 | 0 0 0 0 | 0 | 1 1 1
    item 1      p p p | r r r r | f | i i i                             0 0 0 | 0 0 0 0 | 0 | 1 1 1

Each is a trajectory of the same request, the reasoning first. Every token that the policy chose is under the loss mask
of exactly one of them, and its log-probability stands in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlcore.environments.trajectory import NOT_SAMPLED, Role, Trajectory, Turn
from rlcore.types import BeamParams, SampleRequest, SamplingParams, StopReason


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
