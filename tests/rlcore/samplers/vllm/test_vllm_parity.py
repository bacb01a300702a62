"""vLLM's log-probabilities, the local sampler's, and the trainer's in one pass are the same fp32 bits.

With hits in the prefix cache, prompts read in chunks, preemption for lack of memory, and another order and concurrency.
"""

import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.determinism import at_level
from rlcore.keys import completion_key
from rlcore.models.config import FAMILIES
from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import Prompt, SampleRequest, SamplingParams
from tests.conformance.sampler_suite import bits
from tests.support.parity import FEW_BLOCKS, check_nan_leaves_nothing, num_different, requests_of
from tests.support.samplers import TOKENIZER, decoder_of
from tests.support.vllm_engines import Engines, need_vllm

need_vllm()
ENGINES = Engines()


@pytest.fixture
def following_it() -> Iterator[None]:
    with following(STRATEGIES[0]), torch.no_grad():
        yield


SETTINGS = {
    "as it comes": {},
    "large blocks": {"block_size": 32},
    "little memory": {"num_blocks": FEW_BLOCKS},
    "short passes": {"max_batched_tokens": 24},
    "little memory, short passes, one slot a block": {"block_size": 1, "num_blocks": 160, "max_batched_tokens": 17},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.usefixtures("following_it")
def test_nothing_that_vllm_does_moves_a_bit(name: str) -> None:
    decoder, requests = decoder_of("qwen3", spread=6.0), requests_of()
    local = TorchSampler(decoder, TOKENIZER, concurrency=7).sample(requests)
    with ENGINES.lending(decoder) as lend:
        for order, concurrency, preempt_every in ((0, 16, 0), (1, 5, 0), (2, 3, 4)):
            sampler = lend(TOKENIZER, concurrency, preempt_every=preempt_every, **SETTINGS[name])
            places = list(range(len(requests)))
            random.Random(order).shuffle(places)
            drawn = sampler.sample([requests[place] for place in places])
            found = [each for _, each in sorted(zip(places, drawn, strict=True), key=lambda pair: pair[0])]
            assert bits(found) == bits(local)
            assert num_different(decoder, found) == 0


def test_at_level_off_some_bits_differ() -> None:
    decoder, requests = decoder_of("qwen3", spread=6.0), requests_of()
    with ENGINES.lending(decoder) as lend, torch.no_grad():
        assert num_different(decoder, lend(TOKENIZER).sample(requests)) > 0


@pytest.mark.usefixtures("following_it")
def test_the_engine_does_what_the_test_above_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes are found in the cache, prompts read in chunks, and requests preempted."""
    from vllm.v1.core.sched.scheduler import Scheduler

    num_preemptions, preempt = 0, Scheduler._preempt_request

    def count(scheduler: Scheduler, *given: object, **named: object) -> object:
        nonlocal num_preemptions
        num_preemptions += 1
        return preempt(scheduler, *given, **named)

    monkeypatch.setattr(Scheduler, "_preempt_request", count)
    decoder, requests = decoder_of("qwen3", spread=6.0), requests_of()
    engine = ENGINES.take(decoder, num_blocks=FEW_BLOCKS, max_batched_tokens=24)
    ids = [
        engine.add(each.prompt.tokens, max_tokens=20, stop_ids=(), key=each.key, params=each.params)
        for each in requests
    ]
    num_cached, num_passes, num_firsts = dict.fromkeys(ids, 0), 0, 0
    seen: dict[str, int] = dict.fromkeys(ids, 0)
    while min(seen.values()) < 20:
        num_passes += 1
        for drawn in engine.step():
            num_firsts += not seen[drawn.request_id]
            seen[drawn.request_id] += len(drawn.tokens)
            num_cached[drawn.request_id] = max(num_cached[drawn.request_id], drawn.num_cached)
    ENGINES.give_back(engine)
    assert sum(cached >= 40 for cached in num_cached.values()) > len(requests) // 2
    assert num_passes > 20 + len(requests[0].prompt.tokens) // 24, "chunks and preemption take more passes"
    assert num_preemptions > 0


sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    stop_ids=st.sampled_from([(), (7,), (5, 9, 1 << 20)]),
    stop_strings=st.sampled_from([(), ("ab",), ("e", "xyz")]),
)


@pytest.mark.usefixtures("following_it")
@settings(max_examples=25, deadline=None)
@given(
    several=st.lists(st.tuples(sampling, st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=10),
    family=st.sampled_from(FAMILIES),
    concurrency=st.integers(1, 16),
    preempt_every=st.sampled_from([0, 1, 3]),
)
def test_whatever_is_asked_for_is_drawn_as_the_local_sampler_draws_it(
    several: list[tuple[SamplingParams, int, int]], family: str, concurrency: int, preempt_every: int
) -> None:
    decoder = decoder_of(family, spread=6.0)
    requests = [
        SampleRequest(
            Prompt(f"p{length}", "", tuple(3 + (7 * at) % 17 for at in range(length))),
            index,
            completion_key(seed=1, step=0, prompt_id=f"p{length}", sample_index=index),
            params,
        )
        for params, length, index in several
    ]
    local = TorchSampler(decoder, TOKENIZER, concurrency=4).sample(requests)
    with ENGINES.lending(decoder) as lend:
        found = lend(TOKENIZER, concurrency, preempt_every=preempt_every).sample(requests)
    assert bits(found) == bits(local)
    assert num_different(decoder, found) == 0


def test_bf16_has_the_local_samplers_bits() -> None:
    decoder = decoder_of("qwen3", torch.bfloat16, spread=6.0)
    requests = requests_of(2, SamplingParams(max_tokens=8, temperature=0.7))
    config = decoder.config
    with at_level("invariant", config, dtype=torch.bfloat16, length=96), ENGINES.lending(decoder) as lend:
        assert bits(lend(TOKENIZER).sample(requests)) == bits(TorchSampler(decoder, TOKENIZER).sample(requests))


@pytest.mark.usefixtures("following_it")
def test_nan_is_named_and_no_page_keeps_it() -> None:
    decoder = decoder_of("qwen3", spread=6.0)
    with ENGINES.lending(decoder) as lend:
        check_nan_leaves_nothing(lend(TOKENIZER, 8), decoder)
