"""The sampler of vLLM holds to the contract of samplers at level invariant, with the bits of the local sampler."""

from collections.abc import Iterator

import pytest

from rlcore.models.config import FAMILIES
from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers.replicas import ReplicaSampler
from rlcore.samplers.torch_sampler import TorchSampler
from tests.conformance.next_tokens_suite import MakeNextTokens, NextTokensConformance, asked
from tests.conformance.next_tokens_suite import bits as bits_of_answers
from tests.conformance.sampler_suite import LocalSamplerConformance, MakeSampler, all_wanted, bits
from tests.support.samplers import TOKENIZER, decoder_of
from tests.support.vllm_engines import CONCURRENCY, lending, need_vllm

need_vllm()


class TestVllmSampler(LocalSamplerConformance):
    @pytest.fixture(params=FAMILIES)
    def make(self, request: pytest.FixtureRequest) -> Iterator[MakeSampler]:
        decoder = decoder_of(request.param, spread=6.0)
        with following(STRATEGIES[0]), lending(decoder) as lend:
            yield lambda concurrency: lend(TOKENIZER, concurrency)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_its_bits_are_those_of_the_local_sampler(self, family: str) -> None:
        decoder = decoder_of(family, spread=6.0)
        with following(STRATEGIES[0]), lending(decoder) as lend:
            local = TorchSampler(decoder, TOKENIZER, concurrency=4)
            assert bits(lend(TOKENIZER, 5).sample(all_wanted())) == bits(local.sample(all_wanted()))


class TestVllmReplicas(LocalSamplerConformance):
    """Two engines, in a thread each."""

    @pytest.fixture
    def make(self) -> Iterator[MakeSampler]:
        decoder = decoder_of("qwen3", spread=6.0)
        with following(STRATEGIES[0]), lending(decoder) as lend:
            yield lambda concurrency: ReplicaSampler([lend(TOKENIZER, concurrency) for _ in range(2)])


class TestNextTokens(NextTokensConformance):
    @pytest.fixture(params=FAMILIES)
    def make(self, request: pytest.FixtureRequest) -> Iterator[MakeNextTokens]:
        decoder = decoder_of(request.param, spread=6.0)
        with following(STRATEGIES[0]), lending(decoder) as lend:
            yield lambda concurrency: lend(TOKENIZER, min(concurrency, CONCURRENCY))

    @pytest.mark.parametrize("family", FAMILIES)
    def test_its_bits_are_those_of_the_local_sampler(self, family: str) -> None:
        decoder = decoder_of(family, spread=6.0)
        with following(STRATEGIES[0]), lending(decoder) as lend:
            for num_tokens, temperature in ((1, 1.0), (7, 0.0), (7, 0.6)):
                requests = asked(num_tokens, temperature)
                local = TorchSampler(decoder, TOKENIZER, concurrency=4).next_tokens(requests)
                assert bits_of_answers(lend(TOKENIZER, 5).next_tokens(requests)) == bits_of_answers(local)
