"""A sampler in another process holds to the same contract: nothing in the interface needs its memory."""

from collections.abc import Iterator

import pytest

from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers.base import Sampler
from rlcore.samplers.torch_sampler import TorchSampler
from tests.conformance.sampler_suite import MakeSampler, SamplerConformance, all_wanted, bits
from tests.support.remote_sampler import RemoteHost
from tests.support.samplers import TOKENIZER, decoder_of


@pytest.fixture(scope="module")
def host() -> Iterator[RemoteHost]:
    made = RemoteHost()
    yield made
    made.close()


class TestRemoteSampler(SamplerConformance):
    @pytest.fixture
    def make(self, host: RemoteHost) -> Iterator[MakeSampler]:
        decoder = decoder_of("qwen3", spread=6.0)

        def made(concurrency: int) -> Sampler:
            return host.sampler(decoder, TOKENIZER, concurrency=concurrency)

        with following(STRATEGIES[0]):
            yield made

    def test_its_bits_are_those_of_a_sampler_in_this_process(self, make: MakeSampler) -> None:
        local = TorchSampler(decoder_of("qwen3", spread=6.0), TOKENIZER, concurrency=4)
        assert bits(make(4).sample(all_wanted())) == bits(local.sample(all_wanted()))
