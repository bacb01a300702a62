"""The cause of a mismatch, found after it was seen: weights, a layer, the way of decoding, or the trainer's batch.

    weights of the sampler, by digest ─▶ the trainer's pass of the sequence alone ─▶ the sampler's, token by token
          ─▶ the stream after each layer

The first of these that differs is the cause. Nothing is computed unless a mismatch was seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.bits.tensor_digests import tensor_digests
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.weights.canary import different_layer, policy_logprobs
from rlcore.weights.target import WeightTarget


@dataclass(frozen=True, slots=True)
class Cause:
    """What differs first, and what to do."""

    what: str
    remedy: str


def causes(
    policy: Decoder,
    target: WeightTarget,
    tokens: Sequence[int],
    positions: Sequence[int],
    logprobs: Tensor,
    *,
    t: float,
) -> Iterator[Cause]:
    """Yield what differs on one sequence, the deepest cause first; something is always yielded.

    `logprobs` are the trainer's at these positions, at temperature `t`; the policy and the target are as they were.
    """
    sequence = torch.tensor(tokens)
    wrong_weights = _weights(policy, target)
    if wrong_weights is not None:
        yield wrong_weights
        return
    found = [_trainer(policy, sequence, positions, logprobs, t), _pass(policy, target, sequence)]
    yield from [each for each in found if each is not None] or [DECODING]


DECODING = Cause(
    "weights are equal, and the sampler gives the trainer's log-probabilities if it reads the sequence again:"
    " decoding differs from reading",
    "check the sampler's cache, its preemption and its draws; --set sampler.name=torch decodes without vLLM",
)


def _weights(policy: Decoder, target: WeightTarget) -> Cause | None:
    source = {name: parameter.detach() for name, parameter in policy.named_parameters(remove_duplicate=False)}
    names = [name for name in target.describe().parameters if name in source]
    expected, found = tensor_digests({name: source[name] for name in names}), target.digests(names)
    wrong = [name for name in names if found.get(name) != expected[name]]
    if not wrong:
        return None
    return Cause(
        f"{wrong[0]} of the sampler is not the policy's ({len(wrong)} of {len(names)} parameters are not)",
        "repair the sync: its receipt finds this before anything is sampled",
    )


@torch.no_grad()
def _trainer(
    policy: Decoder, sequence: Tensor, positions: Sequence[int], logprobs: Tensor, temperature: float
) -> Cause | None:
    tokens = sequence.to(policy.embedding.device)
    logits = policy.logits(policy.hidden(tokens[None, :-1]))[0] / temperature
    alone = token_logprobs(logits, tokens[1:])[[position - 1 for position in positions]]
    if torch.equal(alone, logprobs):
        return None
    num_different = int((alone != logprobs).sum())
    return Cause(
        f"the trainer's own pass depends on its batch: {num_different} of {len(positions)} tokens differ if the"
        " sequence is read alone",
        "check this machine's operations: rlharness doctor --numerics",
    )


def _pass(policy: Decoder, target: WeightTarget, sequence: Tensor) -> Cause | None:
    expected, given = policy_logprobs(policy, sequence), target.canary(sequence)
    num_different = int((expected != given.cpu()).sum())
    if not num_different:
        return None
    return Cause(
        f"weights are equal, and {num_different} of {len(expected)} tokens differ if the sampler reads the sequence"
        f" again: {different_layer(policy, target, sequence)}",
        "compare this layer's operations in both: kernels, attention, order of additions, converted weights",
    )
