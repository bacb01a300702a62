"""Conditions of a two-stage rollout: its requests before anything is drawn, the sampler's answers, its weights."""

from collections.abc import Sequence
from itertools import pairwise

from rlcore.data.trajectory import Trajectory
from rlcore.errors import InvalidValueError, StepError, WeightSyncError
from rlcore.samplers.base import Sampler
from rlcore.samplers.next_tokens import NextToken, NextTokenRequest, NextTokenSampler
from rlcore.samplers.requests import named
from rlcore.types import BeamParams, SampleRequest, Tokenizer


def check_can_search(sampler: Sampler) -> NextTokenSampler:
    """Return the sampler if beams can be searched with it. Raises InvalidValueError."""
    if isinstance(sampler, NextTokenSampler):
        return sampler
    raise InvalidValueError(
        f"sampling.two_stage with the sampler {type(sampler).__name__}, which does not answer next_tokens",
        legal="a sampler that meets rlcore.samplers.next_tokens.NextTokenSampler, such as the local one",
        remedy="leave sampling.two_stage out, or choose another sampler",
    )


def check_beam_requests(
    sampler: NextTokenSampler, tokenizer: Tokenizer, requests: Sequence[SampleRequest]
) -> BeamParams:
    """Return the beam parameters that all requests have. Raises InvalidValueError naming the request at fault."""
    beams = requests[0].beams
    for request in requests:
        if request.beams is None or request.beams != beams:
            raise InvalidValueError(
                f"{named(request)} asks for {request.beams}, and {named(requests[0])} for {beams}",
                legal="the same beam parameters for all requests of a call",
                remedy="make a call for each",
            )
        if not request.params.stop_strings:
            raise InvalidValueError(
                f"{named(request)} has no stop string, so that no reasoning would lead to an item",
                legal="one or more",
                remedy="name the text that ends a reasoning in sampling.stop_strings",
            )
        parts = (len(request.prompt.tokens), request.params.max_tokens, len(beams.forced), beams.max_tokens)
        if sum(parts) > sampler.max_length:
            raise InvalidValueError(
                f"{named(request)} may have {sum(parts)} tokens: {parts[0]} of its prompt, {parts[1]} of a reasoning,"
                f" {parts[2]} forced, {parts[3]} of an item",
                legal=f"up to {sampler.max_length}, the sampler's max_length",
                remedy="a smaller sampling.max_tokens or sampling.two_stage.max_item_tokens, or shorter prompts",
            )
    assert beams is not None
    wrong = [token for token in (*beams.forced, *beams.stop_ids) if not 0 <= token < tokenizer.vocab_size]
    if wrong:
        raise InvalidValueError(
            f"token {wrong[0]} is forced between reasoning and item, or ends an item",
            legal=f"0 to {tokenizer.vocab_size - 1}, the tokenizer's vocabulary",
            remedy="encode the forced text with the tokenizer of this model",
        )
    return beams


def check_answers(asked: Sequence[NextTokenRequest], answers: Sequence[Sequence[NextToken]], vocab_size: int) -> None:
    """Check that a sampler's next tokens are what its contract says. Raises StepError naming the sequence."""
    if len(answers) != len(asked):
        raise StepError(f"{len(answers)} answers to {len(asked)} sequences", phases=("rollout",))
    for request, answer in zip(asked, answers, strict=True):
        if wrong := _wrong_with(request, answer, vocab_size):
            raise StepError(
                f"next tokens after {list(request.sequence)[-8:]}: {wrong}",
                legal=f"up to {request.num_tokens} different tokens below {vocab_size}, in the order of their"
                " log-probabilities, among equal ones in their own",
                remedy="correct next_tokens of the sampler; no token is dropped here",
                phases=("rollout",),
            )


def _wrong_with(request: NextTokenRequest, answer: Sequence[NextToken], vocab_size: int) -> str:
    """Describe how an answer breaks the contract; empty if it does not."""
    if len(answer) > request.num_tokens:
        return f"{len(answer)} of them"
    for token, logprob in answer:
        if not 0 <= token < vocab_size:
            return f"token {token}"
        if not float("-inf") < logprob <= 0.0:
            return f"token {token} with log-probability {logprob}"
    if len({token for token, _ in answer}) < len(answer):
        return f"tokens {[token for token, _ in answer]}, of which some are the same"
    if any((-a.logprob, a.token) > (-b.logprob, b.token) for a, b in pairwise(answer)):
        return f"{[(each.token, each.logprob) for each in answer]}"
    return ""


def check_same_weights(sampler: Sampler, reasonings: Sequence[Trajectory]) -> None:
    """Check that the items come from the weights that drew the reasonings. Raises WeightSyncError."""
    now = {sampler.policy_version: sampler.weights_digest}
    for each in reasonings:
        if each.weights_digests != now:
            raise WeightSyncError(
                f"{each.name} was reasoned with weights {each.weights_digests}, and items were searched with {now}",
                legal="one version of the weights for both stages",
                remedy="sync before or after a rollout; give an adapter (LoRA) to both stages",
            )
