"""Filters of completions that have gone astray: functions of token ids and their log-probabilities alone."""

import math
from collections.abc import Sequence


def is_gibberish(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    vocab_size: int,
    *,
    token_id_threshold: int = 100_000,
    logprob_offset: float = 2.0,
) -> bool:
    """Whether a rare token was drawn far below chance: an id above the threshold, its log-probability `logprob_offset`
    below that of a uniform draw. Late ids of a vocabulary of byte pairs are its rarest.
    """
    least = -math.log(vocab_size) - logprob_offset
    return any(token > token_id_threshold and logprob < least for token, logprob in zip(tokens, logprobs, strict=True))


def is_repetitive(logprobs: Sequence[float], *, window: int = 3000, prob_threshold: float = 0.99) -> bool:
    """Whether `window` tokens in a row were near certain, each with a probability above the threshold."""
    run = 0
    for logprob in logprobs:
        run = run + 1 if math.exp(logprob) > prob_threshold else 0
        if run >= window:
            return True
    return False
