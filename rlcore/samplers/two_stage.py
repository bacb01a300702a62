"""Two-stage rollouts on one page: a reasoning is drawn until a stop string, then items are searched after it.

    request ─sample─▶ reasoning ─┬─ ended by its stop string ─▶ + forced tokens ─beam search─▶ reasoning, items
                                 └─ by end of sequence, stop id or length ──────────────────▶ reasoning alone

Any sampler serves that answers `next_tokens` (`rlcore.samplers.base.NextTokenSampler`). `rlcore/TWO_STAGE.md` specifies
each corner case.

Beam search is pure, a function of the answers of `expand`, without random draws:

    beams of length 0 ─▶ expand those that have not ended ─▶ keep the best num_beams of each context ─▶ ... max_tokens

- The score of a beam is the sum of its tokens' log-probabilities, added without rounding between. It is not divided by
  a length: with the ids of a catalogue, all items have one.
- A beam that has ended keeps its score, and competes with those that are longer.
- Among equal scores the beam whose tokens come first in dictionary order is kept, and comes first.
- Beams are distinct. Where there are fewer than asked for, fewer are returned: none is repeated.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from rlcore.data.trajectory import Item, Trajectory, branch, item_params
from rlcore.errors import WeightSyncError
from rlcore.samplers.base import NextToken, NextTokenRequest, NextTokenSampler, Sampler
from rlcore.samplers.stopping import reason
from rlcore.types import BeamParams, SampleRequest, StopReason, Tokenizer


@dataclass(frozen=True, slots=True)
class Beam:
    """Tokens chosen so far after a context."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    has_ended: bool = False
    """Whether its last token ends it."""

    @property
    def score(self) -> float:
        """Log-probability of all its tokens."""
        return math.fsum(self.logprobs)

    def followed_by(self, next_token: NextToken, ends: Collection[int]) -> "Beam":
        """Return the beam with one token more."""
        token, logprob = next_token
        return Beam((*self.tokens, token), (*self.logprobs, logprob), token in ends)


Expand = Callable[[Sequence[tuple[int, Beam]]], Sequence[Sequence[NextToken]]]
"""Called with (number of the context, beam) for every beam that has not ended -> the best next tokens of each.

`num_beams` of them are enough: a beam that is kept is among the best `num_beams` of the beam that it continues.
"""


def beam_search(num_contexts: int, params: BeamParams, ends: Collection[int], expand: Expand) -> list[list[Beam]]:
    """Return up to `num_beams` beams for each context, the best first; `ends` are the tokens that end a beam."""
    found = [[Beam()] for _ in range(num_contexts)]
    for _ in range(params.max_tokens):
        running = [(number, beam) for number, beams in enumerate(found) for beam in beams if not beam.has_ended]
        if not running:
            break
        candidates = [[beam for beam in beams if beam.has_ended] for beams in found]
        for (number, beam), next_tokens in zip(running, expand(running), strict=True):
            candidates[number] += [beam.followed_by(each, ends) for each in next_tokens]
        found = [best(beams, params.num_beams) for beams in candidates]
    return [[beam for beam in beams if beam.tokens] for beams in found]


def best(beams: Sequence[Beam], num_beams: int) -> list[Beam]:
    """Return the beams of the largest scores, in that order; among equal ones by their tokens."""
    return sorted(beams, key=lambda beam: (-beam.score, beam.tokens))[:num_beams]


def sample_two_stage(
    sampler: NextTokenSampler, tokenizer: Tokenizer, requests: Sequence[SampleRequest]
) -> list[list[Trajectory]]:
    """Return for each request, in their order, its reasoning and the items found after it, the best first.

    All requests have the same `beams`. Raises
    InvalidValueError for a request that cannot be done, before anything is drawn, and WeightSyncError if the sampler's
    weights change between the stages.
    """
    beams = requests[0].beams
    assert beams is not None
    drawn = sampler.sample([replace(request, beams=None) for request in requests])
    reasonings = [replace(each, request=request) for each, request in zip(drawn, requests, strict=True)]
    numbers = [at for at, each in enumerate(reasonings) if each.stop_reason is StopReason.STOP_STRING]
    contexts = [(*reasonings[at].tokens, *beams.forced) for at in numbers]
    temperatures = [requests[at].params.temperature for at in numbers]

    def expand(running: Sequence[tuple[int, Beam]]) -> list[list[NextToken]]:
        asked = [
            NextTokenRequest(contexts[number], beam.tokens, beams.num_beams, temperatures[number])
            for number, beam in running
        ]
        return sampler.next_tokens(asked)

    found = beam_search(len(contexts), beams, {tokenizer.eos_id, *beams.stop_ids}, expand)
    check_same_weights(sampler, reasonings)
    forced_text = tokenizer.decode(beams.forced)
    rollouts = [[each] for each in reasonings]
    for at, own in zip(numbers, found, strict=True):
        items = [_item(beam, requests[at], tokenizer) for beam in own]
        rollouts[at] += [branch(reasonings[at], item, beams, forced_text=forced_text) for item in items]
    return rollouts


def check_same_weights(sampler: Sampler, reasonings: Sequence[Trajectory]) -> None:
    """Check that the items come from the weights that drew the reasonings. Raises WeightSyncError."""
    state = sampler.weight_target.describe()
    now = {state.policy_version: state.weights_digest}
    for each in reasonings:
        if each.weights_digests != now:
            raise WeightSyncError(
                f"{each.name} was reasoned with weights {each.weights_digests}, and items were searched with {now}",
                legal="one version of the weights for both stages",
                remedy="sync before or after a rollout; give an adapter (LoRA) to both stages",
            )


def _item(beam: Beam, request: SampleRequest, tokenizer: Tokenizer) -> Item:
    why = reason(beam.tokens, item_params(request), tokenizer.eos_id, by_text=False)
    return Item(beam.tokens, beam.logprobs, tokenizer.decode(beam.tokens), why)
