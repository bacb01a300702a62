"""What any sampler has to hold to that beams are searched with: subclass it, and say how one is made.

    class TestOurs(NextTokensConformance):
        @pytest.fixture
        def make(self) -> MakeNextTokens: ...

`make(concurrency)` gives a sampler with fresh, equal weights each time, at the level at which it promises bits. Its
tokenizer has `VOCAB_SIZE` tokens or more.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch

from rlcore.samplers.base import NextToken, NextTokenRequest, NextTokenSampler
from rlcore.types import SamplingParams
from tests.conformance.sampler_suite import PROMPTS, wanted

MakeNextTokens = Callable[[int], NextTokenSampler]
VOCAB_SIZE = 20
CONTEXTS = tuple(prompt.tokens for prompt in PROMPTS)
OWN = ((), (5,), (5, 9), (9, 5), (3, 4, 5))


def asked(num_tokens: int = 4, temperature: float = 1.0) -> list[NextTokenRequest]:
    """Some sequences, in two parts each."""
    return [NextTokenRequest(context, own, num_tokens, temperature) for context in CONTEXTS for own in OWN]


def bits(answers: Sequence[Sequence[NextToken]]) -> list[list[tuple[int, str]]]:
    """What has to be the same."""
    return [[(each.token, each.logprob.hex()) for each in answer] for answer in answers]


class NextTokensConformance:
    """The contract of `rlcore.samplers.base.NextTokenSampler`."""

    @pytest.fixture
    def make(self) -> MakeNextTokens:
        raise AssertionError("a subclass says how a sampler is made")

    def test_answers_are_ordered_distinct_fp32_logprobs(self, make: MakeNextTokens) -> None:
        for answer in make(4).next_tokens(asked()):
            assert len({each.token for each in answer}) == len(answer) == 4
            assert all((-a.logprob, a.token) < (-b.logprob, b.token) for a, b in pairwise(answer))
            logprobs = [each.logprob for each in answer]
            assert torch.tensor(logprobs, dtype=torch.float32).tolist() == logprobs and max(logprobs) <= 0.0

    def test_fewer_tokens_are_the_first_of_more(self, make: MakeNextTokens) -> None:
        sampler = make(4)
        few, many = bits(sampler.next_tokens(asked(2))), bits(sampler.next_tokens(asked(9)))
        assert few == [answer[:2] for answer in many]

    def test_all_tokens_have_a_probability_of_1_together(self, make: MakeNextTokens) -> None:
        for answer in make(4).next_tokens(asked(1 << 20)):
            total = torch.tensor([each.logprob for each in answer], dtype=torch.float64).exp().sum()
            assert float(total) == pytest.approx(1.0, abs=1e-5)

    def test_answers_do_not_depend_on_order_or_company(self, make: MakeNextTokens) -> None:
        together = bits(make(64).next_tokens(asked()))
        assert bits(make(64).next_tokens(asked()[::-1]))[::-1] == together
        assert bits(make(3).next_tokens(asked())) == together
        sampler = make(1)
        assert [bits(sampler.next_tokens([each]))[0] for each in asked()] == together

    def test_it_does_not_matter_where_a_sequence_is_divided(self, make: MakeNextTokens) -> None:
        sampler = make(64)
        for sequence in (context + own for context in CONTEXTS for own in OWN):
            parts = [NextTokenRequest(sequence[:at], sequence[at:], 4, 1.0) for at in range(1, len(sequence) + 1)]
            first, *others = bits(sampler.next_tokens(parts))
            assert all(other == first for other in others)

    def test_the_best_token_is_what_is_sampled_at_temperature_0_with_its_logprob(self, make: MakeNextTokens) -> None:
        requests = [wanted(prompt, params=SamplingParams(1, temperature=0.0)) for prompt in PROMPTS]
        drawn = make(4).sample(requests)
        best = make(4).next_tokens([NextTokenRequest(prompt.tokens, (), 1, 0.0) for prompt in PROMPTS])
        assert [(each.completion_tokens[0], each.completion_logprobs[0]) for each in drawn] == [
            tuple(only) for (only,) in best
        ]

    def test_logprobs_are_those_of_the_temperature(self, make: MakeNextTokens) -> None:
        """What is sampled at it has the log-probability that the answer gives it, to the bit."""
        drawn = make(4).sample([wanted(prompt, params=SamplingParams(1, temperature=0.7)) for prompt in PROMPTS])
        answers = make(4).next_tokens([NextTokenRequest(prompt.tokens, (), 1 << 20, 0.7) for prompt in PROMPTS])
        for each, answer in zip(drawn, answers, strict=True):
            assert dict(answer)[each.completion_tokens[0]] == each.completion_logprobs[0]
