"""Filters find what a loop over tokens finds, and look at nothing outside the mask; the penalty is DAPO's."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.errors import EmptyMaskError, InvalidValueError, ShapeError
from rlcore.rewards.filters import OverlongPenalty, gibberish, overlong_penalty, repetition
from rlcore.rewards.reward import Reward
from rlcore.rewards.score import score
from tests.rlcore.batches import POISONS
from tests.rlcore.rewards.completions import completions

VOCAB_SIZE, RARE, SURE = 8, 5, 0.5
BOUND = -math.log(VOCAB_SIZE) - 2.0
few = settings(max_examples=60)


@st.composite
def sampled(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, log-probabilities about both thresholds and on them, and a mask; [samples, positions]."""
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    tokens = torch.randint(VOCAB_SIZE, shape, generator=generator)
    choices = torch.tensor([BOUND - 0.1, BOUND, -1.0, math.log(SURE), math.log(SURE) + 0.1, -0.01], dtype=torch.float64)
    logprobs = choices[torch.randint(len(choices), shape, generator=generator)]
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[:, 0] |= ~mask.any(dim=-1)
    return tokens, logprobs, mask


def found_gibberish(tokens: list[int], logprobs: list[float]) -> bool:
    return any(token > RARE and logprob < BOUND for token, logprob in zip(tokens, logprobs, strict=True))


def found_repetition(logprobs: list[float], window: int) -> bool:
    in_a_row = longest = 0
    for logprob in logprobs:
        in_a_row = in_a_row + 1 if logprob > math.log(SURE) else 0
        longest = max(longest, in_a_row)
    return longest >= window


@few
@given(sampled(), st.integers(1, 4), POISONS)
def test_filters_find_what_a_loop_finds(batch: tuple[Tensor, Tensor, Tensor], window: int, poison: float) -> None:
    tokens, logprobs, mask = batch
    tokens, logprobs = torch.where(mask, tokens, VOCAB_SIZE), torch.where(mask, logprobs, poison)
    rare = gibberish(tokens, logprobs, mask, vocab_size=VOCAB_SIZE, token_id_threshold=RARE)
    looped = repetition(logprobs, mask, window=window, prob_threshold=SURE)
    assert rare.shape == looped.shape == mask.shape[:1]
    for row in range(len(mask)):
        own_tokens, own_logprobs = tokens[row][mask[row]].tolist(), logprobs[row][mask[row]].tolist()
        assert rare[row].item() == found_gibberish(own_tokens, own_logprobs)
        assert looped[row].item() == found_repetition(own_logprobs, window)


def test_bounds_are_strict_and_defaults_those_of_the_papers() -> None:
    mask = torch.ones(1, 3000, dtype=torch.bool)
    sure = torch.full((1, 3000), math.log(0.991))
    assert repetition(sure, mask).item()
    assert not repetition(sure, torch.cat([mask[:, 1:], ~mask[:, :1]], dim=1)).item()
    assert not repetition(torch.full((1, 3000), math.log(0.99), dtype=torch.float64), mask).item()
    tokens, unlikely = torch.full((1, 3000), 100_001), torch.full((1, 3000), -math.log(1000) - 2.01)
    assert gibberish(tokens, unlikely, mask, vocab_size=1000).item()
    assert not gibberish(tokens - 1, unlikely, mask, vocab_size=1000).item()
    assert not gibberish(tokens, unlikely + 0.02, mask, vocab_size=1000).item()


def test_what_does_not_fit_is_refused() -> None:
    mask, logprobs, tokens = torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ShapeError, match="tokens is"):
        gibberish(tokens[:, :2], logprobs, mask, vocab_size=9)
    with pytest.raises(ShapeError, match="tokens is"):
        gibberish(logprobs, logprobs, mask, vocab_size=9)
    with pytest.raises(ShapeError, match="logprobs is"):
        repetition(logprobs[:1], mask)
    with pytest.raises(EmptyMaskError):
        repetition(logprobs, ~mask)
    with pytest.raises(InvalidValueError, match="vocab_size"):
        gibberish(tokens, logprobs, mask, vocab_size=0)
    with pytest.raises(InvalidValueError, match="window"):
        repetition(logprobs, mask, window=0)
    for threshold in (0.0, 1.1, math.nan):
        with pytest.raises(InvalidValueError, match="prob_threshold"):
            repetition(logprobs, mask, prob_threshold=threshold)


@pytest.mark.parametrize(
    ("num_tokens", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (130, -1.0)]
)
def test_the_penalty_is_that_of_dapo(num_tokens: int, penalty: float) -> None:
    assert overlong_penalty(num_tokens, max_tokens=100, num_soft=20) == penalty


@pytest.mark.parametrize("num_soft", [0, -1, 101])
def test_a_penalty_has_room(num_soft: int) -> None:
    with pytest.raises(InvalidValueError, match="num_soft"):
        overlong_penalty(1, max_tokens=100, num_soft=num_soft)


def test_a_penalty_is_a_reward_function() -> None:
    scores = score([Reward("overlong", OverlongPenalty(4, 2))], completions(["a", "aa", "aaa"]), step=0)
    assert scores.rewards == [0.0, -0.5, -1.0]
