"""Requests, trajectories and batches are checked in every step: what is right passes, what is not is found."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from rlcore.batching.batch import Batch
from rlcore.checks.rollout_checks import check_batch, check_requests, check_trajectories
from rlcore.environments.trajectory import Trajectory
from rlcore.errors import StepError
from rlcore.types import SamplingParams, StopReason
from tests.rlcore.training.small_rollouts import (
    EOS,
    RECEIPT,
    SCORES,
    TOKENIZER,
    TRAJECTORIES,
    WANTED,
    batch_of,
    completion,
    drawn,
)

# ----------------------------------------------------------------------------------------------- requests, completions


def test_keys_are_all_different_and_not_those_of_the_step_before() -> None:
    assert check_requests(WANTED, frozenset({1, 2})) == {10, 11, 12, 13}
    with pytest.raises(StepError, match="sample 0 of prompt p and sample 0 of prompt q share a key"):
        check_requests([*WANTED[:2], replace(WANTED[2], key=10)], frozenset())
    with pytest.raises(StepError, match="rollout: sample 1 of prompt p has a key of the step before") as raised:
        check_requests(WANTED, frozenset({11}))
    assert raised.value.phases == ("rollout",)


def partly_of_version_2() -> Trajectory:
    """The second of three tokens is of older weights: a sync in the middle of a completion."""
    versions = (*TRAJECTORIES[0].policy_versions[:3], 2, 3)
    return replace(TRAJECTORIES[0], policy_versions=versions, weights_digests={2: "digest", 3: "digest"})


def test_each_request_has_its_own_completion_of_the_last_weights() -> None:
    check_trajectories(WANTED, TRAJECTORIES, RECEIPT, TOKENIZER)
    check_trajectories(WANTED, TRAJECTORIES, None, TOKENIZER)
    for wrong, said in (
        ([TRAJECTORIES[1], TRAJECTORIES[0], *TRAJECTORIES[2:]], "expected sample 0 of prompt p, got sample 1"),
        ([replace(TRAJECTORIES[0], weights_digests={3: "old"}), *TRAJECTORIES[1:]], "was drawn with weights old"),
        ([partly_of_version_2(), *TRAJECTORIES[1:]], "weights digest, version 2, from token 3 on"),
        ([completion(WANTED[0], 5), *TRAJECTORIES[1:]], "has 5 tokens"),
    ):
        with pytest.raises(StepError, match=said):
            check_trajectories(WANTED, wrong, RECEIPT, TOKENIZER)


def ended(tokens: Sequence[int], reason: StopReason, text: str | None = None) -> Trajectory:
    params = SamplingParams(max_tokens=4, stop_ids=(12,), stop_strings=("hi",))
    asked = replace(WANTED[0], params=params)
    said = TOKENIZER.decode(tokens) if text is None else text
    return drawn(asked, tokens, reason, said)


def ended_by(reason: StopReason) -> Trajectory:
    prompt, turn = TRAJECTORIES[0].turns
    return replace(TRAJECTORIES[0], turns=(prompt, replace(turn, stop_reason=reason)))


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ((7, EOS), StopReason.EOS),
        ((7, 8, 9, EOS), StopReason.EOS),
        ((7, 12), StopReason.STOP_ID),
        ((10, 11), StopReason.STOP_STRING),
        ((7, 8, 9, 7), StopReason.LENGTH),
    ],
)
def test_completions_that_end_as_they_say_pass(tokens: Sequence[int], reason: StopReason) -> None:
    check_trajectories(WANTED[:1], [ended(tokens, reason)], RECEIPT, TOKENIZER)


@pytest.mark.parametrize(
    ("completion", "said"),
    [
        (ended((7, EOS, 8), StopReason.LENGTH), "continues after token 1, which ends it"),
        (ended((12, 7, 8, 9), StopReason.LENGTH), "continues after token 0, which ends it"),
        (ended((7, 8, 9), StopReason.LENGTH), "has 3 tokens of at most 4, the last 9, and ended by length"),
        (ended((7, 8, 9, EOS), StopReason.LENGTH), "the last 2, and ended by length"),
        (ended((7, 8), StopReason.EOS), "the last 8, and ended by eos"),
        (ended((7, EOS), StopReason.STOP_ID), "the last 2, and ended by stop_id"),
        (ended_by(StopReason.STOP_STRING), "the last 2, and ended by stop_string"),
        (ended((7, 10, 11), StopReason.STOP_STRING, text="e"), "says 'e'\n.*'ehi', the text of its tokens"),
    ],
)
def test_completions_that_end_otherwise_or_say_something_else_do_not(completion: Trajectory, said: str) -> None:
    with pytest.raises(StepError) as raised:
        check_trajectories(WANTED[:1], [completion], RECEIPT, TOKENIZER)
    assert re.search(said, str(raised.value))
    assert raised.value.phases == ("rollout",)


# --------------------------------------------------------------------------------------------------------------- batch


def mask_without_the_end(batch: Batch) -> None:
    """As if the end of sequence, which is the pad too, were padding: no token is left of the shortest."""
    batch["loss_mask"].logical_and_(batch["tokens"] != EOS)


def other_tokens(batch: Batch) -> None:
    batch["tokens"][1, 2] = 9


def one_group(batch: Batch) -> None:
    batch["groups"].zero_()


def a_group_each(batch: Batch) -> None:
    batch["groups"].copy_(torch.arange(len(batch["groups"])))


def groups_by_place(batch: Batch) -> None:
    batch["groups"].copy_(torch.tensor([0, 1, 0, 1]))


def moved_rewards(batch: Batch) -> None:
    batch["rewards"].copy_(batch["rewards"].roll(1))


def judged_by_nobody(batch: Batch) -> None:
    batch["included"].fill_(True)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (mask_without_the_end, "2 tokens of sample 0 are learned, and 3 were drawn"),
        (other_tokens, "tokens of sample 1 are not those that were drawn"),
        (one_group, "1 groups of 2 prompts"),
        (a_group_each, "4 groups of 2 prompts"),
        (groups_by_place, "2 groups of 2 prompts"),
        (moved_rewards, "sample 0 has reward 0.25 in the batch, and was given 1.0"),
        (judged_by_nobody, "sample 2 has reward 0.0 in the batch, and was given None"),
    ],
)
def test_a_batch_holds_what_was_drawn_and_judged(break_it: Callable[[Batch], None], said: str) -> None:
    batch = batch_of()
    check_batch(batch, TRAJECTORIES, SCORES)
    break_it(batch)
    with pytest.raises(StepError, match=said):
        check_batch(batch, TRAJECTORIES, SCORES)
