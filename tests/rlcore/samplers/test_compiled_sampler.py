"""Completions of a sampler with compiled kernels follow from requests and weights alone, to the bit."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.determinism import at_level
from rlcore.environments.trajectory import Trajectory
from rlcore.models.config import FAMILIES, DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.compiled import layers
from rlcore.numerics.level import computing, following
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.numerics.probe import STRATEGIES, num_threads
from rlcore.samplers import batching
from rlcore.types import SampleRequest, SamplingParams
from tests.support.samplers import TOKENIZER, requests_of, said, sampler_of

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

CONFIG = DecoderConfig("llama", TOKENIZER.vocab_size, 32, 2, 4, 2, 16, 44, max_length=96)
few = settings(max_examples=8)


@pytest.fixture
def invariant() -> Iterator[None]:
    with following(STRATEGIES[0]), computing("compiled"):
        yield


def decoder_of(family: str, spread: float = 2.0) -> Decoder:
    decoder = Decoder(replace(CONFIG, family=family)).initialise(5)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 2:
                parameter.mul_(spread)
    return decoder


def requests(max_tokens: int = 24) -> list[SampleRequest]:
    """Two completions of each text, every other one filtered."""
    filtered = SamplingParams(max_tokens=max_tokens, temperature=0.8, top_k=9, top_p=0.9)
    plain = requests_of(2, SamplingParams(max_tokens=max_tokens))
    return [replace(each, params=filtered) if number % 2 else each for number, each in enumerate(plain)]


def assert_of_trainer(decoder: Decoder, completions: list[Trajectory]) -> None:
    """The log-probabilities are the bits of one pass over prompt and completion."""
    with num_threads(1), torch.no_grad():
        for each in completions:
            prompt = each.request.prompt.tokens
            tokens = torch.tensor([*prompt, *each.completion_tokens])
            logits = decoder(tokens[None, :-1])[0, len(prompt) - 1 :] / each.request.params.temperature
            assert torch.equal(torch.tensor(each.completion_logprobs), token_logprobs(logits, tokens[len(prompt) :]))


@few
@given(
    family=st.sampled_from(FAMILIES),
    order=st.permutations(range(16)),
    company=st.tuples(st.integers(1, 16), st.integers(0, 5)),
    count=st.sampled_from([1, 2]),
)
def test_completions_do_not_depend_on_company(
    invariant: None, family: str, order: list[int], company: tuple[int, int], count: int
) -> None:
    """However many at once, and sent back after however many tokens, whatever the order they come in."""
    decoder, given_ = decoder_of(family), requests()
    with num_threads(1):
        alone = said(sampler_of(decoder, concurrency=1).sample(given_))
    with num_threads(count):
        sampler = sampler_of(decoder, concurrency=company[0], preempt_every=company[1])
        found = sampler.sample([given_[number] for number in order])
    assert said(found) == [alone[number] for number in order]
    assert_of_trainer(decoder, found)


def test_a_run_at_level_invariant_gives_the_trainers_bits() -> None:
    """As a run enters it: certified, with torch's deterministic algorithms."""
    decoder = decoder_of("qwen3")
    with at_level("invariant", decoder.config, length=64, kernels="compiled"):
        assert_of_trainer(decoder, sampler_of(decoder, concurrency=5, preempt_every=3).sample(requests()))


def test_a_cache_that_grows_changes_nothing(invariant: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = requests(max_tokens=60)
    roomy = said(sampler_of(decoder_of("qwen3", 1.0)).sample(given_))
    assert max(len(each.tokens) for each in roomy) > 32
    monkeypatch.setattr(batching, "TOKENS_AHEAD", 1)
    monkeypatch.setattr(batching, "PREFILL_TOKENS", 20)
    assert said(sampler_of(decoder_of("qwen3", 1.0)).sample(given_)) == roomy


def test_a_kernel_that_depends_on_the_batch_is_seen(invariant: None, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, given_, compute = decoder_of("llama"), requests(), layers.layer_cached
    alone = said(sampler_of(decoder, concurrency=1).sample(given_))

    def broken(x: torch.Tensor, *others: torch.Tensor, **named: object) -> torch.Tensor:
        return compute(x, *others, **named) * (1 + len(x) * 1e-6)  # type: ignore[arg-type]

    monkeypatch.setattr(layers, "layer_cached", broken)
    assert said(sampler_of(decoder, concurrency=16).sample(given_)) != alone
