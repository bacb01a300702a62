"""Two-stage rollouts: each corner case as rlcore/TWO_STAGE.md specifies it, with a sampler whose words are given."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.checks import check_completions
from rlcore.data.trajectory import NOT_SAMPLED, Role, Trajectory, by_request
from rlcore.errors import WeightSyncError
from rlcore.samplers.base import NextToken, NextTokenRequest
from rlcore.samplers.two_stage import sample_two_stage
from rlcore.types import SampleRequest, StopReason
from tests.support.scripted_reasoning import (
    BEAMS,
    DIGEST,
    EOS,
    TOKENIZER,
    ScriptedSampler,
    alphabetical,
    ids,
    request_of,
)


def rollouts(sampler: ScriptedSampler, *requests: SampleRequest) -> list[list[Trajectory]]:
    """Sample, and see that the checks of every step find nothing."""
    found = sample_two_stage(sampler, TOKENIZER, requests)
    check_completions(requests, [each for own in found for each in own], None, TOKENIZER)
    for request, (reasoning, *own) in zip(requests, found, strict=True):
        assert request.beams is not None and len({item.tokens for item in own}) == len(own) <= request.beams.num_beams
        for item in own:
            shared = len(reasoning.tokens)
            assert item.request == reasoning.request == request and item.is_branch
            assert (item.tokens[:shared], item.logprobs[:shared]) == (reasoning.tokens, reasoning.logprobs)
        sums = [math.fsum(item.logprobs[item.turns[-1].begin :]) for item in own]
        assert sums == sorted(sums, reverse=True), "not divided by a length"
    return found


def items(found: Sequence[Trajectory]) -> list[str]:
    """The items of one rollout."""
    return [each.turns[-1].text for each in found[1:]]


# ------------------------------------------------------------------------------------------------------- the two stages


def test_a_reasoning_and_each_of_its_items_are_trajectories() -> None:
    sampler = ScriptedSampler({"ab": ["cd;"]}, alphabetical("ef"))
    ((reasoning, first, *others),) = rollouts(sampler, request_of())
    assert reasoning.tokens == ids("abcd;") and reasoning.stop_reason is StopReason.STOP_STRING
    assert reasoning.loss_mask == (False,) * 2 + (True,) * 3
    assert first.tokens == ids("abcd;:ee") and first.completion_text == "cd;:ee"
    assert [turn.role for turn in first.turns] == [Role.PROMPT, Role.ASSISTANT, Role.FORCED, Role.ASSISTANT]
    assert first.loss_mask == (False,) * 6 + (True,) * 2, "neither the reasoning nor what was forced"
    assert first.logprobs == (0.0, 0.0, -0.125, -0.25, -0.375, 0.0, -1.0, -1.0), "of everything the policy chose"
    assert first.policy_versions == (NOT_SAMPLED,) * 2 + (7,) * 3 + (NOT_SAMPLED,) + (7,) * 2
    assert first.weights_digests == {7: DIGEST} and first.stop_reason is StopReason.LENGTH
    assert items([reasoning, first, *others]) == ["ee", "ef", "fe"], "ef and fe tie: dictionary order"


def test_every_chosen_token_is_learned_exactly_once() -> None:
    sampler = ScriptedSampler({"ab": ["cd;", "c;"]}, alphabetical("efg"))
    for found in rollouts(sampler, request_of(), request_of(sample_index=1)):
        reasoning = found[0]
        learned = [
            (each.tokens[: at + 1], at) for each in found for at in range(len(each.tokens)) if each.loss_mask[at]
        ]
        assert len(learned) == len(reasoning.loss_tokens) + sum(len(each.loss_tokens) for each in found[1:])
        begin = reasoning.num_prompt_tokens
        assert [at for _, at in learned].count(begin) == 1


def test_branches_are_compared_with_those_of_their_reasoning_and_reasonings_with_those_of_their_prompt() -> None:
    sampler = ScriptedSampler({"ab": ["cd;", "cd;"], "c": ["e;"]}, alphabetical("ef"))
    wanted = (request_of(), request_of(sample_index=1), request_of("c"))
    groups = [[each.group for each in found] for found in rollouts(sampler, *wanted)]
    assert groups == [
        [("ab",), *[("ab", 0)] * 3],
        [("ab",), *[("ab", 1)] * 3],
        [("c",), *[("c", 0)] * 3],
    ], "two reasonings that say the same were drawn twice"


# --------------------------------------------------------------------------------------------------------- corner cases


@pytest.mark.parametrize(("text", "reason"), [("cdcd", StopReason.LENGTH), ("c$", StopReason.EOS)])
def test_a_reasoning_that_does_not_end_with_its_stop_string_has_no_item(text: str, reason: StopReason) -> None:
    sampler = ScriptedSampler({"ab": [text, "c;"]}, alphabetical("ef"))
    (alone,), (_, *found) = rollouts(sampler, request_of(), request_of(sample_index=1))
    assert alone.stop_reason is reason and alone.tokens == ids("ab" + text)
    assert alone.loss_tokens == ids(text), "all of it is learned, its end too"
    assert len(found) == 3, "its neighbour has items"
    assert {each.context for each in sampler.asked} == {ids("abc;:")}, "nothing is forced into it"


def test_ids_that_the_tokenizer_lacks_stay_in_a_reasoning_as_they_were_drawn() -> None:
    """A decoder may have more embeddings than its tokenizer has tokens; dropping one would move all after it."""

    class Unknown(ScriptedSampler):
        def sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
            (each,) = super().sample(requests)
            return [replace(each, tokens=(*each.tokens[:2], TOKENIZER.vocab_size + 3, *each.tokens[3:]),
                            turns=(each.turns[0], replace(each.turns[1], text=";")))]  # fmt: skip

    sampler = Unknown({"ab": ["c;"]}, alphabetical("ef"))
    (found,) = rollouts(sampler, request_of())
    unknown = TOKENIZER.vocab_size + 3
    assert found[0].loss_tokens == (unknown, *ids(";")) and found[0].logprobs[2:] == (-0.125, -0.25)
    assert {each.tokens[:5] for each in found[1:]} == {(*ids("ab"), unknown, *ids(";:"))}
    assert {each.context for each in sampler.asked} == {found[1].tokens[:5]}


def test_too_few_beams_are_fewer_trajectories_and_none_is_repeated() -> None:
    sampler = ScriptedSampler({"ab": ["c;"]}, alphabetical("e"))
    (found,) = rollouts(sampler, request_of(beams=replace(BEAMS, num_beams=4)))
    assert items(found) == ["ee"]


def test_an_item_may_end_before_its_length() -> None:
    def next_of(request: NextTokenRequest) -> list[NextToken]:
        return [NextToken(EOS, -0.5), NextToken(ids("e")[0], -1.0)]

    sampler = ScriptedSampler({"ab": ["c;"]}, next_of)
    (found,) = rollouts(sampler, request_of())
    assert [(each.tokens[-1], each.stop_reason) for each in found[1:]] == [
        (EOS, StopReason.EOS),
        (EOS, StopReason.EOS),
        (ids("e")[0], StopReason.LENGTH),
    ]
    assert [len(each.loss_tokens) for each in found[1:]] == [1, 2, 2]
    beams = replace(BEAMS, stop_ids=ids("e"))
    (found,) = rollouts(ScriptedSampler({"ab": ["c;"]}, next_of), request_of(beams=beams))
    assert [each.stop_reason for each in found[1:]] == [StopReason.EOS, StopReason.STOP_ID]


def test_weights_that_change_between_the_stages_are_an_error() -> None:
    """A sync in between, or an adapter (LoRA) that only one of the stages has."""
    changes: list[dict[str, object]] = [{"policy_version": 8}, {"weights_digest": "weights 7 without the adapter"}]
    for change in changes:
        sampler = ScriptedSampler({"ab": ["c;"]})

        def next_of(
            _: NextTokenRequest, sampler: ScriptedSampler = sampler, change: dict[str, object] = change
        ) -> list[NextToken]:
            for name, value in change.items():
                setattr(sampler, name, value)
            return [NextToken(4, -1.0)]

        sampler.next_of = next_of
        with pytest.raises(WeightSyncError, match="items were searched with"):
            sample_two_stage(sampler, TOKENIZER, [request_of()])


# ----------------------------------------------------------------------------------------------------------- invariance


@given(st.permutations(range(6)), st.integers(0, 5))
def test_a_rollout_depends_on_its_request_alone(order: Sequence[int], alone: int) -> None:
    def next_of(request: NextTokenRequest) -> list[NextToken]:
        letters = "abcdefgh"[sum(request.sequence) % 5 :]
        return alphabetical(letters)(request)

    words = {"ab": ["cd;", "c;", "dddd"], "c": ["c$", "e;", "eee;"]}
    wanted = [request_of(text, index) for text in words for index in range(3)]
    together = rollouts(ScriptedSampler(words, next_of), *wanted)
    moved = rollouts(ScriptedSampler(words, next_of), *[wanted[at] for at in order])
    assert moved == [together[at] for at in order]
    assert rollouts(ScriptedSampler(words, next_of), wanted[alone]) == [together[alone]]
    flat = [each for found in together for each in found]
    assert by_request(flat) == together
