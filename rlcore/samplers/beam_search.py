"""Beam search on one page. Pure: a function of the answers of `expand`, without random draws.

    beams of length 0 ─▶ expand those that have not ended ─▶ keep the best num_beams of each context ─▶ ... max_tokens

- The score of a beam is the sum of its tokens' log-probabilities, added without rounding between. It is not divided by
  a length: with the ids of a catalogue, all items have one.
- A beam that has ended keeps its score, and competes with those that are longer.
- Among equal scores the beam whose tokens come first in dictionary order is kept, and comes first.
- Beams are distinct. Where there are fewer than asked for, fewer are returned: none is repeated.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rlcore.samplers.next_tokens import NextToken
from rlcore.types import BeamParams


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
