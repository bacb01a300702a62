"""Beam search against references that enumerate, on tiny vocabularies with many ties."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.samplers.base import NextToken
from rlcore.samplers.two_stage import Beam, beam_search, best
from rlcore.types import BeamParams

Model = Callable[[int, tuple[int, ...]], Mapping[int, float]]
"""Log-probabilities after (context, tokens)."""
END = 0


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Distributions of few levels over 1 to 4 tokens, the same for a prefix each time: scores often tie."""
    num_tokens = draw(st.integers(1, 4))
    rows = draw(
        st.lists(
            st.lists(st.sampled_from([0, 1, 1, 2]), min_size=num_tokens, max_size=num_tokens), min_size=1, max_size=7
        )
    )

    def model(context: int, tokens: tuple[int, ...]) -> dict[int, float]:
        weights = rows[hash((context, tokens)) % len(rows)]
        total = sum(weights) or 1
        return {token: math.log(weight / total) for token, weight in enumerate(weights) if weight}

    return model


params_drawn = st.builds(BeamParams, num_beams=st.integers(1, 9), max_tokens=st.integers(1, 3))


def expander(model: Model, num_beams: int) -> Callable[[Sequence[tuple[int, Beam]]], list[list[NextToken]]]:
    """The top tokens, as a sampler answers."""

    def expand(running: Sequence[tuple[int, Beam]]) -> list[list[NextToken]]:
        answers = []
        for number, beam in running:
            ranked = sorted(model(number, beam.tokens).items(), key=lambda pair: (-pair[1], pair[0]))
            answers.append([NextToken(*pair) for pair in ranked[:num_beams]])
        return answers

    return expand


def level_by_level(model: Model, context: int, params: BeamParams) -> list[Beam]:
    """The textbook's search: all continuations of all beams, sorted whole."""
    beams = [Beam()]
    for _ in range(params.max_tokens):
        grown = [beam for beam in beams if beam.has_ended]
        for beam in beams:
            if not beam.has_ended:
                for token, logprob in model(context, beam.tokens).items():
                    grown.append(Beam((*beam.tokens, token), (*beam.logprobs, logprob), token == END))
        grown.sort(key=lambda beam: beam.tokens)
        grown.sort(key=lambda beam: beam.score, reverse=True)
        beams = grown[: params.num_beams]
    return beams


def all_sequences(model: Model, context: int, max_tokens: int) -> dict[tuple[int, ...], float]:
    """Every item that has an end, or its length, with its score."""
    found = {}
    for length in range(1, max_tokens + 1):
        for tokens in product(range(4), repeat=length):
            is_item = END not in tokens[:-1] and (tokens[-1] == END or length == max_tokens)
            steps = [model(context, tokens[:at]).get(token) for at, token in enumerate(tokens)] if is_item else [None]
            if None not in steps:
                found[tokens] = math.fsum(step for step in steps if step is not None)
    return found


@given(models(), params_drawn, st.integers(1, 3))
def test_it_is_the_search_that_sorts_all_continuations(model: Model, params: BeamParams, num_contexts: int) -> None:
    found = beam_search(num_contexts, params, {END}, expander(model, params.num_beams))
    assert found == [level_by_level(model, context, params) for context in range(num_contexts)]


@given(models(), st.integers(1, 3))
def test_with_room_for_all_sequences_it_finds_them_all_in_order(model: Model, max_tokens: int) -> None:
    (found,) = beam_search(1, BeamParams(4**3, max_tokens), {END}, expander(model, 4**3))
    every = all_sequences(model, 0, max_tokens)
    assert [beam.tokens for beam in found] == sorted(every, key=lambda tokens: (-every[tokens], tokens))
    assert [beam.score for beam in found] == [every[beam.tokens] for beam in found]


@given(models(), params_drawn, st.permutations(range(4)))
def test_contexts_do_not_affect_each_other(model: Model, params: BeamParams, order: Sequence[int]) -> None:
    together = beam_search(4, params, {END}, expander(model, params.num_beams))

    def alone(context: int) -> list[Beam]:
        moved: Model = lambda _, tokens: model(context, tokens)  # noqa: E731
        return beam_search(1, params, {END}, expander(moved, params.num_beams))[0]

    assert [together[context] for context in order] == [alone(context) for context in order]


@given(models(), params_drawn)
def test_beams_are_distinct_and_never_more_than_there_are(model: Model, params: BeamParams) -> None:
    (found,) = beam_search(1, params, {END}, expander(model, params.num_beams))
    tokens = [beam.tokens for beam in found]
    assert len(set(tokens)) == len(tokens) <= min(params.num_beams, len(all_sequences(model, 0, params.max_tokens)))
    assert all(beam.has_ended == (beam.tokens[-1] == END) for beam in found)
    assert all(beam.has_ended or len(beam.tokens) == params.max_tokens for beam in found)


def test_one_beam_is_the_most_probable_token_each_time() -> None:
    rows = {(): {1: -1.0, 2: -0.5}, (2,): {1: -9.0, 3: -8.0}}
    (found,) = beam_search(1, BeamParams(1, 2), {END}, expander(lambda _, tokens: rows[tokens], 1))
    assert [(beam.tokens, beam.score) for beam in found] == [((2, 3), -8.5)], "and not 1 first, whatever follows it"


def test_among_equal_scores_the_first_in_dictionary_order_is_kept() -> None:
    half = math.log(0.5)
    beams = [
        Beam((2, 1), (half, half)),
        Beam((1, 9), (half, half)),
        Beam((1, 2), (half, half)),
        Beam((1, 0), (2 * half,)),
    ]
    assert [beam.tokens for beam in best(beams, 3)] == [(1, 0), (1, 2), (1, 9)]


def test_a_beam_that_has_ended_is_not_expanded_and_keeps_its_place() -> None:
    asked: list[tuple[int, ...]] = []

    def expand(running: Sequence[tuple[int, Beam]]) -> list[list[NextToken]]:
        asked.extend(beam.tokens for _, beam in running)
        return [[NextToken(END, -1.0), NextToken(1, -1.0)] for _ in running]

    (found,) = beam_search(1, BeamParams(2, 3), {END}, expand)
    assert asked == [(), (1,)], "of the beams of length 2 only one that has ended is as good as (END,)"
    assert [beam.tokens for beam in found] == [(END,), (1, END)]


def test_scores_are_sums_without_rounding_between() -> None:
    beam = Beam((1, 2, 3), (-1e16, -1.0, 1e16))
    assert beam.score == -1.0


@pytest.mark.parametrize("answers", [[], [[]]])
def test_a_context_without_next_tokens_has_no_beam(answers: list[list[NextToken]]) -> None:
    found = beam_search(len(answers), BeamParams(3, 2), {END}, lambda running: answers[: len(running)])
    assert found == [[] for _ in answers]
