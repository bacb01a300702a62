"""Completions follow from requests and weights alone, to the bit; and requests that cannot be sampled are refused."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.data.trajectory import Trajectory
from rlcore.determinism import at_level
from rlcore.errors import InvalidValueError, NonFiniteError
from rlcore.models.config import FAMILIES
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import Strategy, following
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.numerics.probe import STRATEGIES, num_threads
from rlcore.samplers import batching
from rlcore.samplers.base import RunningSequence
from rlcore.samplers.batching import ContinuousBatch
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import SampleRequest, SamplingParams, StopReason
from tests.support.samplers import (
    CONFIG,
    TOKENIZER,
    decoder_of,
    request_of,
    requests_of,
    said,
    sampler_of,
)

few = settings(max_examples=6)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 30),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.3]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    stop_ids=st.sampled_from([(), (5,), (7, 8, 9)]),
    stop_strings=st.sampled_from([(), ("ab", "q")]),
)


@pytest.fixture
def invariant() -> Iterator[Strategy]:
    with following(STRATEGIES[0]):
        yield STRATEGIES[0]


@dataclass(frozen=True)
class Company:
    """What completions must not depend on."""

    concurrency: int
    preempt_every: int
    num_threads: int


COMPANY = st.builds(Company, st.integers(1, 16), st.integers(0, 5), st.sampled_from([1, 2]))


def of_trainer(decoder: Decoder, completion: Trajectory) -> Tensor:
    """The log-probabilities of a completion's tokens in one pass over prompt and completion."""
    prompt = completion.request.prompt.tokens
    tokens = torch.tensor(completion.tokens)
    temperature = completion.request.params.temperature or 1.0
    with torch.no_grad():
        logits = decoder(tokens[None, :-1])[0, len(prompt) - 1 :]
        return token_logprobs(logits / temperature, tokens[len(prompt) :])


@pytest.mark.full
@few
@given(
    family=st.sampled_from(FAMILIES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    params=st.lists(PARAMS, min_size=1, max_size=3),
    company=COMPANY,
)
def test_logprobs_are_the_trainers_bits(
    invariant: Strategy, family: str, dtype: torch.dtype, params: list[SamplingParams], company: Company
) -> None:
    decoder = decoder_of(family, dtype)
    completions = drawn(decoder, mixed(params), company)
    with num_threads(1):
        for completion in completions:
            assert torch.equal(torch.tensor(completion.completion_logprobs), of_trainer(decoder, completion))


@pytest.mark.full
@few
@given(
    family=st.sampled_from(FAMILIES),
    params=st.lists(PARAMS, min_size=1, max_size=3),
    order=st.permutations(range(16)),
    company=COMPANY,
)
def test_completions_do_not_depend_on_company(
    invariant: Strategy, family: str, params: list[SamplingParams], order: list[int], company: Company
) -> None:
    decoder, requests = decoder_of(family), mixed(params)
    sampler = sampler_of(decoder)
    with num_threads(1):
        alone = [said(sampler.sample([request]))[0] for request in requests]
    found = said(drawn(decoder, [requests[number] for number in order], company))
    assert found == [alone[number] for number in order]


def mixed(params: list[SamplingParams]) -> list[SampleRequest]:
    """Requests that take turns with these."""
    return [replace(each, params=params[number % len(params)]) for number, each in enumerate(requests_of(2))]


def drawn(decoder: Decoder, requests: list[SampleRequest], company: Company) -> list[Trajectory]:
    """In this company."""
    with num_threads(company.num_threads):
        sampler = sampler_of(decoder, concurrency=company.concurrency, preempt_every=company.preempt_every)
        return sampler.sample(requests)


@pytest.mark.full
@pytest.mark.parametrize("strategy", STRATEGIES[1:], ids=lambda strategy: strategy.name)
def test_every_strategy_gives_the_trainers_bits(strategy: Strategy) -> None:
    decoder = decoder_of("qwen3")
    with following(strategy):
        for completion in sampler_of(decoder, concurrency=3, preempt_every=4).sample(requests_of(1)):
            assert torch.equal(torch.tensor(completion.completion_logprobs), of_trainer(decoder, completion))


@pytest.mark.full
def test_a_run_at_level_invariant_gives_the_trainers_bits() -> None:
    """As a run enters it: certified, with torch's deterministic algorithms."""
    decoder = decoder_of("qwen3", head_width=16)
    filtered = SamplingParams(max_tokens=20, temperature=0.8, top_k=9, top_p=0.9, min_p=0.01)
    requests = [*requests_of(1), *requests_of(1, filtered)]
    with at_level("invariant", decoder.config, length=64):
        for completion in sampler_of(decoder, concurrency=5, preempt_every=3).sample(requests):
            assert torch.equal(torch.tensor(completion.completion_logprobs), of_trainer(decoder, completion))


# -------------------------------------------------------------------------------------------------------------- drawing


def test_tokens_have_their_distribution() -> None:
    """The first token of 4,000 completions of one prompt: chi-square against the decoder's own probabilities."""
    decoder = decoder_of(spread=8.0)
    params = SamplingParams(max_tokens=1, temperature=1.5)
    requests = [request_of(sample_index=index, params=params) for index in range(4000)]
    tokens = torch.tensor([each.completion_tokens[0] for each in sampler_of(decoder, concurrency=512).sample(requests)])
    with torch.no_grad():
        expected = (decoder(torch.tensor([TOKENIZER.encode("hello")]))[0, -1] / 1.5).softmax(-1) * 4000
    counts = torch.bincount(tokens, minlength=len(expected))
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 56.9, "28 degrees of freedom: above it once in 1,000"


def test_temperature_0_takes_the_best_and_says_its_logprob_at_1(invariant: Strategy) -> None:
    decoder = decoder_of()
    params = SamplingParams(max_tokens=12, temperature=0.0)
    completions = sampler_of(decoder).sample([request_of(text, params=params) for text in ("a", "hello")])
    for completion in completions:
        prompt = completion.request.prompt.tokens
        with torch.no_grad():
            logits = decoder(torch.tensor([completion.tokens]))[0, len(prompt) - 1 : -1]
        best = torch.tensor(completion.completion_tokens)
        assert torch.equal(logits.argmax(-1), best)
        assert torch.equal(torch.tensor(completion.completion_logprobs), token_logprobs(logits, best))


def test_equal_logits_give_the_lowest_token() -> None:
    """A decoder of zeros."""
    decoder = Decoder(CONFIG)
    (completion,) = sampler_of(decoder).sample([request_of(params=SamplingParams(max_tokens=3, temperature=0.0))])
    assert completion.completion_tokens == (0, 0, 0)


def test_filters_hold_for_the_rows_that_have_them() -> None:
    decoder = decoder_of(spread=4.0)
    plain, first = SamplingParams(max_tokens=20), SamplingParams(max_tokens=20, top_k=1)
    greedy = SamplingParams(max_tokens=20, temperature=0.0)
    requests = [request_of(sample_index=index, params=(plain, first, greedy)[index % 3]) for index in range(9)]
    told = [completion.completion_tokens for completion in sampler_of(decoder).sample(requests)]
    assert len({*told[1::3], *told[2::3]}) == 1 and len({*told[::3]}) == 3


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_request_may_fill_the_decoder() -> None:
    """A decoder of zeros never draws the end."""
    params = SamplingParams(max_tokens=CONFIG.max_length - 5, temperature=0.0)
    (found,) = sampler_of(Decoder(CONFIG)).sample([request_of(params=params)])
    assert (found.stop_reason, len(found.tokens)) == (StopReason.LENGTH, CONFIG.max_length)


def test_a_tokenizer_of_too_many_tokens_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="a tokenizer of 29 tokens"):
        TorchSampler(Decoder(replace(CONFIG, vocab_size=20)), TOKENIZER)


def test_logits_that_are_nan_are_told() -> None:
    sampler = sampler_of(decoder_of())
    with torch.no_grad():
        sampler._decoder.norm[3] = torch.nan
    sampler.weight_target.begin(1)
    sampler.weight_target.commit("of NaN")
    with pytest.raises(NonFiniteError, match=r"token 5 of sample 2 of prompt hello has log-probability nan"):
        sampler.sample([request_of(sample_index=2)])
    with pytest.raises(NonFiniteError):
        sampler.sample([request_of(sample_index=2)])


# --------------------------------------------------------------------------------------------------------------- memory


def test_a_cache_that_grows_changes_nothing(invariant: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = requests_of(1, SamplingParams(max_tokens=60))
    roomy = said(sampler_of(decoder_of(spread=4.0)).sample(requests))
    monkeypatch.setattr(batching, "TOKENS_AHEAD", 1)
    monkeypatch.setattr(batching, "PREFILL_TOKENS", 20)
    assert said(sampler_of(decoder_of(spread=4.0)).sample(requests)) == roomy


# ------------------------------------------------------------------------------------------------------ put and step


MIXED = [
    SamplingParams(max_tokens=4),
    SamplingParams(max_tokens=25, temperature=0.7, stop_ids=(5,)),
    SamplingParams(max_tokens=12, temperature=0.0, stop_strings=("ab", "q")),
    SamplingParams(max_tokens=40, top_p=0.9, stop_ids=(7, 8, 9)),
]


@settings(max_examples=12)
@given(st.lists(st.integers(0, 30), min_size=8, max_size=8), st.integers(1, 5), st.integers(0, 6))
def test_the_time_of_admission_moves_no_bit(
    invariant: Strategy, arrivals: list[int], concurrency: int, every: int
) -> None:
    """Requests come between two tokens of others, of other lengths, with more stop tokens than any before."""
    decoder = decoder_of(spread=4.0)
    requests = [request_of("hello"[: 1 + at % 5], at, params=MIXED[at % 4]) for at in range(8)]
    alone = []
    with torch.inference_mode():
        for request in requests:
            alone += ContinuousBatch(decoder, TOKENIZER, concurrency=1).run([request])
        batch = ContinuousBatch(decoder, TOKENIZER, concurrency=concurrency, preempt_every=every)
        numbers, found, clock = dict[int, int](), dict[int, RunningSequence](), 0
        while len(found) < len(requests):
            for at, arrival in enumerate(arrivals):
                if arrival == clock:
                    numbers[batch.put(requests[at])] = at
            for each in batch.step():
                found[numbers[each.number]] = each
            clock += 1
        assert len(batch) == 0 and batch.step() == []
    for at, expected in enumerate(alone):
        assert found[at].request is requests[at] and found[at].is_by_text == expected.is_by_text
        assert (found[at].tokens, found[at].logprobs) == (expected.tokens, expected.logprobs)
