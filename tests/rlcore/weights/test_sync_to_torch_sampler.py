"""Syncs to the engine's own sampler: completions carry what the receipt says; it is not written while it works."""

import pytest
import torch

from harness.bits.tensor_digests import weights_digest
from rlcore.data.trajectory import Trajectory
from rlcore.errors import WeightSyncError
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.numerics.level import Strategy, following
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import Prompt, SampleRequest, SamplingParams
from rlcore.weights.proven_sync import sync
from rlcore.weights.receipts import Check
from tests.rlcore.weights.targets import learn
from tests.support.samplers import whenever_decoded

TOKENIZER = CharacterTokenizer("abcdefgh")
REQUESTS = [
    SampleRequest(Prompt("p", "abc", tuple(TOKENIZER.encode("abc"))), index, index, SamplingParams(max_tokens=4))
    for index in range(3)
]


def made() -> tuple[Decoder, TorchSampler]:
    config = DecoderConfig("qwen3", TOKENIZER.vocab_size, 32, 2, 4, 2, 8, 48, max_length=64)
    decoder = Decoder(config).initialise(1)
    return decoder, TorchSampler(decoder, TOKENIZER, concurrency=2)


def drawn(completions: list[Trajectory]) -> list[tuple[object, ...]]:
    return [(each.tokens, each.logprobs) for each in completions]


def test_completions_carry_version_and_digest_of_the_receipt() -> None:
    with following(Strategy()):
        decoder, sampler = made()
        first = sync(decoder, sampler.weight_target, 1, None)
        before = sampler.sample(REQUESTS)
        learn(decoder, size=0.5)
        second = sync(decoder, sampler.weight_target, 2, first, has_learned=True)
        after = sampler.sample(REQUESTS)
        fresh = TorchSampler(decoder, TOKENIZER).sample(REQUESTS)
    for receipt, completions in ((first, before), (second, after)):
        expected = {receipt.policy_version: receipt.weights_digest}
        assert all(each.weights_digests == expected for each in completions)
    assert second.weights_digest == weights_digest(dict(decoder.named_parameters()))
    assert second.canary_distance == 0.0
    assert drawn(after) == drawn(fresh) != drawn(before)


def test_a_sync_amid_sampling_is_refused_before_anything_is_written() -> None:
    decoder, sampler = made()
    first = sync(decoder, sampler.weight_target, 1, None)
    learn(decoder)
    refusals = []

    def interfere() -> None:
        with pytest.raises(WeightSyncError) as caught:
            sync(decoder, sampler.weight_target, 2, first)
        refusals.append(caught.value.check)

    undisturbed = drawn(sampler.sample(REQUESTS))
    with whenever_decoded(TOKENIZER, interfere):
        assert drawn(sampler.sample(REQUESTS)) == undisturbed
    assert refusals and set(refusals) == {Check.FENCE}
    assert sync(decoder, sampler.weight_target, 2, first).policy_version == 2


def test_weights_written_outside_a_sync_are_found() -> None:
    decoder, sampler = made()
    sync(decoder, sampler.weight_target, 1, None)

    def interfere() -> None:
        with torch.inference_mode(False), torch.no_grad():
            sampler._decoder.norm.mul_(2.0)

    with pytest.raises(WeightSyncError, match="written outside a sync"), whenever_decoded(TOKENIZER, interfere):
        sampler.sample(REQUESTS)
