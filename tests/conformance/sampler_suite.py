"""What any sampler has to hold to, whatever draws: subclass it, and say how one is made.

    class TestOurs(SamplerConformance):
        @pytest.fixture
        def make(self) -> MakeSampler: ...

`make(concurrency)` gives a sampler with fresh, equal weights each time, at the level at which it promises bits. Prompts
are of tokens 3 to 20, which its vocabulary has to have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.bits.tensor_digests import tensor_digest
from rlcore.data.trajectory import Trajectory
from rlcore.errors import InvalidValueError, RlcoreError, WeightSyncError
from rlcore.samplers.base import Sampler
from rlcore.seeds import completion_key
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason
from rlcore.weights.target import WeightTarget
from tests.support.samplers import TOKENIZER, whenever_decoded

MakeSampler = Callable[[int], Sampler]
PROMPTS = tuple(
    Prompt(f"prompt-{length}", "", tuple(3 + (7 * at) % 17 for at in range(length))) for length in (1, 4, 9)
)
MANY = 1 << 20


def wanted(
    prompt: Prompt = PROMPTS[1], sample_index: int = 0, params: SamplingParams | None = None, step: int = 0
) -> SampleRequest:
    """One completion."""
    key = completion_key(seed=3, step=step, prompt_id=prompt.id, sample_index=sample_index)
    return SampleRequest(prompt, sample_index, key, params or SamplingParams(max_tokens=12))


def all_wanted(params: SamplingParams | None = None) -> list[SampleRequest]:
    """Four completions of each prompt."""
    return [wanted(prompt, index, params) for prompt in PROMPTS for index in range(4)]


def bits(completions: Sequence[Trajectory]) -> list[tuple[object, ...]]:
    """What has to be the same."""
    return [
        (each.tokens, each.completion_text, each.stop_reason, *map(float.hex, each.logprobs)) for each in completions
    ]


def weights_of(sampler: Sampler) -> dict[str, Tensor]:
    """Drawn weights for all its parameters, the same each time; distributions of them are far from uniform."""
    generator = torch.Generator().manual_seed(11)
    return {
        name: torch.randn(spec.shape, generator=generator).to(spec.dtype)
        for name, spec in sampler.weight_target.describe().parameters.items()
    }


def load(target: WeightTarget, version: int, digest: str, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write weights, or none, and commit them."""
    target.begin(version)
    target.write((weights or {}).items())
    target.commit(digest)


class SamplerConformance:
    """The contract of `rlcore.samplers.base.Sampler`."""

    @pytest.fixture
    def make(self) -> MakeSampler:
        raise AssertionError("a subclass says how a sampler is made")

    # ------------------------------------------------------------------------------------------------------ completions

    def test_nothing_is_drawn_for_no_request(self, make: MakeSampler) -> None:
        assert make(4).sample([]) == []

    def test_completions_come_in_the_order_of_their_requests(self, make: MakeSampler) -> None:
        requests = all_wanted()
        for order in (requests, requests[::-1]):
            assert [each.request for each in make(3).sample(order)] == order

    def test_a_completion_is_whole(self, make: MakeSampler) -> None:
        for each in make(4).sample(all_wanted()):
            tokens, logprobs = each.completion_tokens, each.completion_logprobs
            assert 1 <= len(tokens) <= each.request.params.max_tokens
            assert each.loss_tokens == tokens, "every token that was drawn is learned"
            assert torch.tensor(logprobs, dtype=torch.float32).tolist() == [*logprobs], "fp32 numbers"
            assert max(logprobs) <= 0.0, "log-probabilities"
            assert (each.stop_reason == StopReason.LENGTH) <= (len(tokens) == each.request.params.max_tokens)

    def test_completions_do_not_depend_on_order_or_company(self, make: MakeSampler) -> None:
        requests = all_wanted()
        together = bits(make(16).sample(requests))
        assert bits(make(16).sample(requests[::-1]))[::-1] == together
        assert bits(make(3).sample(requests)) == together
        sampler = make(1)
        assert [bits(sampler.sample([request]))[0] for request in requests] == together

    def test_the_same_request_is_drawn_the_same_again(self, make: MakeSampler) -> None:
        sampler = make(4)
        assert bits(sampler.sample([wanted(), wanted()])) == bits(sampler.sample([wanted()])) * 2

    def test_samples_and_steps_draw_their_own(self, make: MakeSampler) -> None:
        requests = [wanted(sample_index=index, step=step) for index in range(4) for step in range(4)]
        drawn = [each.tokens for each in make(4).sample([replace(each, params=_hot()) for each in requests])]
        assert len(set(drawn)) == len(drawn)

    def test_temperature_0_needs_no_noise(self, make: MakeSampler) -> None:
        params = SamplingParams(max_tokens=8, temperature=0.0)
        one, *others = bits(make(4).sample([wanted(sample_index=index, params=params) for index in range(4)]))
        assert all(other == one for other in others)

    def test_one_token_left_is_drawn(self, make: MakeSampler) -> None:
        greedy = SamplingParams(max_tokens=8, temperature=0.0)
        for filtered in (SamplingParams(8, top_k=1), SamplingParams(8, top_p=1e-6), SamplingParams(8, min_p=0.999999)):
            first, best = make(4).sample([wanted(params=filtered), wanted(params=greedy)])
            assert first.tokens == best.tokens

    # ------------------------------------------------------------------------------------------------------------- ends

    def test_a_stop_id_ends_and_belongs_to_the_completion(self, make: MakeSampler) -> None:
        (whole,) = make(4).sample([wanted()])
        tokens = whole.completion_tokens
        stop = tokens[len(tokens) // 2]
        params = SamplingParams(max_tokens=12, stop_ids=(stop, MANY))
        (ended,) = make(4).sample([wanted(params=params)])
        assert ended.completion_tokens == tokens[: tokens.index(stop) + 1]
        assert ended.stop_reason in (StopReason.STOP_ID, StopReason.EOS)

    def test_a_stop_string_ends_with_the_token_that_completes_it(self, make: MakeSampler) -> None:
        whole = next(each for each in make(4).sample(all_wanted(_hot())) if len(each.completion_text) >= 4)
        stop = whole.completion_text[1:3]
        params = replace(_hot(), stop_strings=(stop,))
        (ended,) = make(4).sample([replace(whole.request, params=params)])
        assert stop in ended.completion_text and ended.stop_reason == StopReason.STOP_STRING
        assert ended.tokens == whole.tokens[: len(ended.tokens)]

    def test_the_length_ends(self, make: MakeSampler) -> None:
        (whole,) = make(4).sample([wanted()])
        (ended,) = make(4).sample([wanted(params=SamplingParams(max_tokens=1))])
        assert ended.completion_tokens == whole.completion_tokens[:1]
        assert ended.stop_reason in (StopReason.LENGTH, StopReason.EOS)

    # --------------------------------------------------------------------------------------------------------- refusals

    @pytest.mark.parametrize(
        "prompt", [Prompt("nothing", "", ()), Prompt("unknown", "", (MANY,))], ids=["no tokens", "an unknown token"]
    )
    def test_a_request_that_cannot_be_done_is_named(self, make: MakeSampler, prompt: Prompt) -> None:
        with pytest.raises(InvalidValueError, match=prompt.id):
            make(4).sample([wanted(), wanted(prompt)])

    def test_a_request_that_is_too_long_is_named(self, make: MakeSampler) -> None:
        with pytest.raises(InvalidValueError, match="prompt-9"):
            make(4).sample([wanted(), wanted(PROMPTS[2], params=SamplingParams(max_tokens=MANY))])

    # ---------------------------------------------------------------------------------------------------------- weights

    def test_completions_carry_the_weights_that_drew_them(self, make: MakeSampler) -> None:
        sampler = make(4)
        (before,) = sampler.sample([wanted()])
        assert before.weights_digests == {sampler.policy_version: sampler.weights_digest}
        load(sampler.weight_target, 9, "ninth")
        (after,) = sampler.sample([wanted()])
        assert after.weights_digests == {9: "ninth"}
        assert (sampler.policy_version, sampler.weights_digest) == (9, "ninth")
        state = sampler.weight_target.describe()
        assert (state.policy_version, state.weights_digest) == (9, "ninth")

    def test_what_is_written_is_sampled_with(self, make: MakeSampler) -> None:
        sampler, other = make(4), make(4)
        tokens = torch.tensor(PROMPTS[2].tokens)
        before, canary = bits(sampler.sample(all_wanted())), sampler.weight_target.canary(tokens)
        load(sampler.weight_target, 1, "written", weights_of(other))
        after = bits(sampler.sample(all_wanted()))
        assert after != before
        assert not torch.equal(sampler.weight_target.canary(tokens), canary)
        load(other.weight_target, 1, "written", weights_of(sampler))
        assert bits(other.sample(all_wanted())) == after

    def test_the_digests_are_those_of_what_is_written(self, make: MakeSampler) -> None:
        sampler = make(4)
        target, weights = sampler.weight_target, weights_of(sampler)
        names = list(weights)
        target.begin(1)
        target.write(weights.items())
        assert dict(target.digests(names)) == {name: tensor_digest(tensor) for name, tensor in weights.items()}

    def test_what_is_written_is_a_copy(self, make: MakeSampler) -> None:
        sampler = make(4)
        weights = weights_of(sampler)
        load(sampler.weight_target, 1, "written", weights)
        before = dict(sampler.weight_target.digests(list(weights)))
        for tensor in weights.values():
            tensor.zero_()
        assert dict(sampler.weight_target.digests(list(weights))) == before

    def test_nothing_is_sampled_between_begin_and_commit(self, make: MakeSampler) -> None:
        sampler = make(2)
        sampler.weight_target.begin(1)
        with pytest.raises(WeightSyncError):
            sampler.sample([wanted()])
        sampler.weight_target.begin(1)
        sampler.weight_target.commit("first")
        assert sampler.sample([wanted()])[0].weights_digests == {1: "first"}

    def test_nothing_is_written_before_begin(self, make: MakeSampler) -> None:
        target = make(2).weight_target
        weights = weights_of(make(2))
        with pytest.raises(WeightSyncError):
            target.write(weights.items())
        with pytest.raises(WeightSyncError):
            target.commit("")

    def test_the_canary_is_of_each_token_but_the_first(self, make: MakeSampler) -> None:
        canary = make(4).weight_target.canary(torch.tensor(PROMPTS[2].tokens))
        assert canary.shape == (8,) and canary.dtype == torch.float32 and bool((canary < 0).all())


class LocalSamplerConformance(SamplerConformance):
    """And what can be seen amid a call: of samplers that make texts in this process, by the tests' TOKENIZER."""

    def test_loading_while_it_samples_is_refused(self, make: MakeSampler) -> None:
        sampler = make(2)
        refused: list[RlcoreError] = []

        def begin() -> None:
            try:
                sampler.weight_target.begin(1)
            except RlcoreError as error:
                refused.append(error)

        with whenever_decoded(TOKENIZER, begin):
            completions = sampler.sample(all_wanted())
        assert refused and all([*each.weights_digests] == [sampler.policy_version] for each in completions)

    def test_after_an_interruption_it_takes_the_next_call(self, make: MakeSampler) -> None:
        sampler = make(2)

        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), whenever_decoded(TOKENIZER, interrupt):
            sampler.sample(all_wanted())
        assert bits(sampler.sample(all_wanted())) == bits(make(2).sample(all_wanted()))


def _hot() -> SamplingParams:
    return SamplingParams(max_tokens=16, temperature=3.0)
