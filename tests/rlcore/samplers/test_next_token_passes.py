"""Next tokens of rlcore's own decoder: against whole passes, and where there is nothing to choose from."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.errors import NonFiniteError, WeightSyncError
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import following
from rlcore.numerics.log_softmax import log_softmax
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers import batching, torch_sampler
from rlcore.samplers.base import NextTokenRequest
from tests.support.samplers import CONFIG, TOKENIZER, decoder_of, sampler_of

DECODER = decoder_of("qwen3", spread=6.0)
tokens_drawn = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=6).map(tuple)
requests_drawn = st.builds(
    NextTokenRequest,
    context=st.lists(st.integers(3, 8), min_size=1, max_size=9).map(tuple),
    tokens=tokens_drawn,
    num_tokens=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.3]),
)


@settings(max_examples=20)
@given(st.lists(requests_drawn, min_size=1, max_size=7), st.integers(1, 4))
def test_an_answer_is_the_top_of_the_trainers_own_pass(requests: list[NextTokenRequest], concurrency: int) -> None:
    """To the bit, at level invariant, with any requests in a pass, and any contexts that are read once."""
    with following(STRATEGIES[0]):
        answers = sampler_of(DECODER, concurrency=concurrency).next_tokens(requests)
        for request, answer in zip(requests, answers, strict=True):
            with torch.no_grad():
                logits = DECODER(torch.tensor([request.sequence]))[0, -1]
            logprobs = log_softmax(logits / (request.temperature or 1.0)).tolist()
            ranked = sorted(enumerate(logprobs), key=lambda pair: (-pair[1], pair[0]))
            assert [tuple(each) for each in answer] == ranked[: request.num_tokens]


def test_more_contexts_than_fit_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [NextTokenRequest((3, at), own, 4, 1.0) for at in range(3, 12) for own in ((), (5,))]
    with following(STRATEGIES[0]):
        whole = sampler_of(DECODER).next_tokens(requests)
        monkeypatch.setattr(batching, "PREFILL_TOKENS", 5)
        assert sampler_of(DECODER).next_tokens(requests) == whole


def test_ids_that_the_tokenizer_lacks_are_never_proposed_and_keep_their_share() -> None:
    """A padded embedding: the log-probabilities are of the whole vocabulary, as a trainer has them."""
    wide = Decoder(replace(CONFIG, vocab_size=TOKENIZER.vocab_size + 7)).initialise(5)
    with torch.no_grad():
        wide.embedding[-7:] *= 50.0
    (answer,) = sampler_of(wide).next_tokens([NextTokenRequest((3, 4), (5,), 99, 1.0)])
    assert sorted(each.token for each in answer) == list(range(TOKENIZER.vocab_size))
    with torch.no_grad():
        logprobs = log_softmax(wide(torch.tensor([[3, 4, 5]]))[0, -1])
    for each in answer:
        assert each.logprob == pytest.approx(float(logprobs[each.token]), rel=1e-5)
    assert sum(torch.tensor([each.logprob for each in answer]).exp().tolist()) < 0.99


def test_a_token_of_probability_0_is_no_candidate() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 1.0, float("-inf")]])
    (answer,) = torch_sampler._best(logits, [NextTokenRequest((3,), (), 4, 1.0)], 4)
    assert [each.token for each in answer] == [2, 0]


def test_equal_logprobs_are_in_the_order_of_tokens() -> None:
    (answer,) = torch_sampler._best(torch.zeros(1, 9), [NextTokenRequest((3,), (), 4, 1.0)], 9)
    assert [each.token for each in answer] == [0, 1, 2, 3]


def test_nan_is_an_error_that_names_the_sequence() -> None:
    broken = decoder_of()
    with torch.no_grad():
        broken.norm[0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"after \[3, 4\]"):
        sampler_of(broken).next_tokens([NextTokenRequest((3, 4), (), 2, 1.0)])


def test_nothing_is_searched_while_weights_are_written() -> None:
    sampler = sampler_of(decoder_of())
    sampler.weight_target.begin(1)
    with pytest.raises(WeightSyncError):
        sampler.next_tokens([NextTokenRequest((3,), (), 1, 1.0)])
