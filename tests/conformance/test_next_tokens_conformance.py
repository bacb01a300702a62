"""rlcore's own sampler answers as beam searches need it, at level invariant; and the suite finds one that does not."""

from collections.abc import Iterator, Sequence

import pytest

from rlcore.models.config import FAMILIES
from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers.base import NextToken, NextTokenRequest
from rlcore.samplers.torch_sampler import TorchSampler
from tests.conformance.next_tokens_suite import MakeNextTokens, NextTokensConformance
from tests.support.samplers import TOKENIZER, decoder_of


class TestTorchSampler(NextTokensConformance):
    @pytest.fixture(params=FAMILIES)
    def make(self, request: pytest.FixtureRequest) -> Iterator[MakeNextTokens]:
        decoder = decoder_of(request.param, spread=6.0)
        with following(STRATEGIES[0]):
            yield lambda concurrency: TorchSampler(decoder, TOKENIZER, concurrency=concurrency)


class WithoutContext(TorchSampler):
    """Forgets the context of sequences that have tokens of their own, as a stale prefix cache would."""

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        return super().next_tokens(
            [NextTokenRequest(each.tokens or each.context, (), each.num_tokens, each.temperature) for each in requests]
        )


class ByArrival(TorchSampler):
    """Ties and bits by the place in the call."""

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        answers = super().next_tokens(requests)
        return [
            [NextToken(token, logprob - number * 1e-6) for token, logprob in answer]
            for number, answer in enumerate(answers)
        ]


def test_the_suite_finds_answers_of_the_place_and_of_other_sequences() -> None:
    decoder = decoder_of(spread=6.0)
    suite = NextTokensConformance()
    with following(STRATEGIES[0]):
        with pytest.raises(AssertionError):
            suite.test_answers_do_not_depend_on_order_or_company(lambda _: ByArrival(decoder, TOKENIZER))
        with pytest.raises(AssertionError):
            suite.test_it_does_not_matter_where_a_sequence_is_divided(lambda _: WithoutContext(decoder, TOKENIZER))
