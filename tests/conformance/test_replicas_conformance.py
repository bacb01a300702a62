"""Replicas hold to the contract of samplers, together and in turn, with the bits of one sampler."""

from collections.abc import Iterator

import pytest

from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers.replicas import ReplicaSampler
from rlcore.samplers.torch_sampler import TorchSampler
from tests.conformance.next_tokens_suite import MakeNextTokens, NextTokensConformance
from tests.conformance.sampler_suite import LocalSamplerConformance, MakeSampler, all_wanted, bits
from tests.support.samplers import TOKENIZER, decoder_of


class TestReplicas(LocalSamplerConformance):
    @pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.full)])
    def make(self, request: pytest.FixtureRequest) -> Iterator[MakeSampler]:
        decoder = decoder_of("qwen3", spread=6.0)
        with following(STRATEGIES[0]):
            yield lambda concurrency: ReplicaSampler(
                [TorchSampler(decoder, TOKENIZER, concurrency=concurrency) for _ in range(request.param)]
            )

    def test_their_bits_are_those_of_one_sampler(self, make: MakeSampler) -> None:
        one = TorchSampler(decoder_of("qwen3", spread=6.0), TOKENIZER, concurrency=4)
        assert bits(make(2).sample(all_wanted())) == bits(one.sample(all_wanted()))


class TestSearchingReplicas(NextTokensConformance):
    @pytest.fixture
    def make(self) -> Iterator[MakeNextTokens]:
        decoder = decoder_of("qwen3", spread=6.0)
        with following(STRATEGIES[0]):
            yield lambda concurrency: ReplicaSampler(
                [TorchSampler(decoder, TOKENIZER, concurrency=concurrency) for _ in range(2)]
            )
