"""A sampler's weights are its own, it says which they are, and it draws with no others."""

import pytest
import torch

from rlcore.batching.rollout_batch import dense_batch
from rlcore.errors import WeightSyncError
from rlcore.rewards.score import Scores
from tests.support.samplers import decoder_of, request_of, requests_of, said, sampler_of


def test_weights_are_its_own() -> None:
    decoder = decoder_of()
    sampler = sampler_of(decoder)
    before = said(sampler.sample(requests_of(1)))
    with torch.no_grad():
        decoder.embedding.zero_()
    assert said(sampler.sample(requests_of(1))) == before


def test_completions_carry_the_weights_that_drew_them() -> None:
    sampler = sampler_of(decoder_of())
    (first,) = sampler.sample([request_of()])
    assert first.weights_digests == {0: sampler_of(decoder_of()).weights_digest}
    sampler.weight_target.begin(7)
    sampler.weight_target.commit("as the receipt says")
    (second,) = sampler.sample([request_of()])
    assert second.weights_digests == {7: "as the receipt says"}


def test_weights_written_outside_a_sync_are_refused() -> None:
    """Else completions would carry a digest of other weights."""
    sampler = sampler_of(decoder_of())
    with torch.no_grad():
        sampler._decoder.norm.mul_(2.0)
    done: list[int] = []
    with pytest.raises(WeightSyncError, match="written outside a sync"):
        sampler.sample([request_of()], progress=lambda count, _: done.append(count))
    assert not done, "before anything is drawn"
    sampler.weight_target.begin(1)
    sampler.weight_target.commit("known now")
    assert sampler.sample([request_of()])[0].weights_digests == {1: "known now"}


def test_weights_that_change_while_it_samples_are_refused() -> None:
    sampler = sampler_of(decoder_of(), concurrency=1)

    def meddle(num_done: int, num_total: int) -> None:
        with torch.inference_mode(False), torch.no_grad():
            sampler._decoder.norm.mul_(2.0)

    with pytest.raises(WeightSyncError, match="written outside a sync"):
        sampler.sample(requests_of(1), progress=meddle)


def test_loading_while_it_samples_is_refused() -> None:
    sampler = sampler_of(decoder_of(), concurrency=2)
    told: list[str] = []

    def load(num_done: int, num_total: int) -> None:
        with pytest.raises(WeightSyncError, match="fence") as refused:
            sampler.weight_target.begin(5)
        told.append(str(refused.value))

    assert all([*each.weights_digests] == [0] for each in sampler.sample(requests_of(1), progress=load))
    assert told and sampler.policy_version == 0
    sampler.weight_target.begin(5)
    sampler.weight_target.commit("afterwards")
    assert sampler.policy_version == 5


def test_the_fence_opens_after_a_failure() -> None:
    sampler = sampler_of(decoder_of())

    def fail(num_done: int, num_total: int) -> None:
        raise KeyError("a listener's fault")

    with pytest.raises(KeyError):
        sampler.sample([request_of()], progress=fail)
    assert sampler.sample([request_of()])


def test_what_is_drawn_can_be_part_of_a_loss() -> None:
    (completion,) = sampler_of(decoder_of()).sample([request_of()])
    weight = torch.ones(1, requires_grad=True)
    batch = dense_batch([completion], Scores([1.0], {}), pad_id=0)
    (weight * batch["rollout_logprobs"]).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
