"""rlcore's own sampler holds to the contract of samplers, at level invariant; and the suite finds one that does not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from rlcore.data.trajectory import Trajectory
from rlcore.models.config import FAMILIES
from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import SampleRequest
from tests.conformance.sampler_suite import LocalSamplerConformance, MakeSampler
from tests.support.samplers import TOKENIZER, decoder_of


class TestTorchSampler(LocalSamplerConformance):
    @pytest.fixture(params=[FAMILIES[-1], *(pytest.param(each, marks=pytest.mark.full) for each in FAMILIES[:-1])])
    def make(self, request: pytest.FixtureRequest) -> Iterator[MakeSampler]:
        decoder = decoder_of(request.param, spread=6.0)
        with following(STRATEGIES[0]):
            yield lambda concurrency: TorchSampler(decoder, TOKENIZER, concurrency=concurrency)


class ByArrival(TorchSampler):
    """Noise of the place in the batch, as samplers with one stream of random numbers have it."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        moved = [replace(request, key=number) for number, request in enumerate(requests)]
        drawn = super().sample(moved)
        return [replace(each, request=request) for each, request in zip(drawn, requests, strict=True)]


def test_the_suite_finds_noise_of_the_place() -> None:
    def make(concurrency: int) -> TorchSampler:
        return ByArrival(decoder_of(spread=6.0), TOKENIZER, concurrency=concurrency)

    with following(STRATEGIES[0]), pytest.raises(AssertionError):
        LocalSamplerConformance().test_completions_do_not_depend_on_order_or_company(make)
