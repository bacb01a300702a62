"""Filters: what they flag, at the bound and beside it."""

import math

from rlcore.data.filters import is_gibberish, is_repetitive


def test_a_rare_token_far_below_chance_is_gibberish() -> None:
    least = -math.log(1000) - 2.0
    assert is_gibberish([5, 901], [-1.0, least - 0.01], 1000, token_id_threshold=900)
    assert not is_gibberish([5, 901], [-1.0, least], 1000, token_id_threshold=900), "the bound may be reached"
    assert not is_gibberish([900, 5], [-99.0, -99.0], 1000, token_id_threshold=900), "no rare token"
    assert not is_gibberish([901], [-99.0], 1000), "as many ids as it begins with by default there are not"


def test_near_certain_tokens_in_a_row_are_a_repetition() -> None:
    certain, other = -0.005, -0.02
    assert is_repetitive([other, *[certain] * 3], window=3)
    assert not is_repetitive([certain, certain, other, certain, certain], window=3), "not in a row"
    assert not is_repetitive([math.log(0.99)] * 9, window=3), "above the threshold, not at it"
    assert not is_repetitive([certain] * 2999)
    assert is_repetitive([certain] * 3000)
