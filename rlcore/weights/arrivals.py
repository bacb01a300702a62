"""Receipts for other trainers: after their own sync, whether the sampler holds what the trainer has.

    receipt = receipt_for(model.named_parameters(), VllmWorkers(llm.collective_rpc), version, previous=receipt)

The trainer keeps its way of sending. What is compared are digests, and log-probabilities where both sides give them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from harness.bits.tensor_digests import combined_digest, digests_of
from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.weights.canary import canary_distance
from rlcore.weights.proven_sync import check_digests, check_policy_changed
from rlcore.weights.receipts import Check, Receipt, changed_names


class SamplerAnswers(Protocol):
    """What a sampler says of its weights: plain values, from whatever process."""

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the digest of each parameter (`harness.bits.tensor_digests`); unknown ones are absent."""


@dataclass(frozen=True, slots=True)
class Canary:
    """Log-probabilities of one sequence, by the trainer and by the sampler."""

    expected: Tensor
    """By the trainer, fp32 [tokens]."""
    given: Tensor
    """By the sampler, fp32 [tokens], after the sync."""
    dtype: torch.dtype = torch.float32
    """Type in which the sampler computes: it decides how much they may differ."""


def receipt_for(
    tensors: Iterable[tuple[str, Tensor]],
    sampler: SamplerAnswers,
    policy_version: int,
    *,
    previous: Receipt | None = None,
    has_learned: bool = False,
    canary: Canary | None = None,
) -> Receipt:
    """Compare a sampler with the trainer's tensors after a sync, and return the receipt.

    Tensors have the sampler's names, and are hashed one at a time. `previous` is the last receipt, and `has_learned`
    means that the optimizer has moved the policy since. Raises WeightSyncError with the check and the parameter:
    coverage (missing), liveness (as it was before), read-back (different), canary (it computes with others).
    """
    began = perf_counter()
    expected = digests_of(tensors)
    if previous is not None and has_learned:
        check_policy_changed(expected, previous)
    check_digests(expected, sampler.digests(tuple(expected)), previous)
    return Receipt(
        policy_version=policy_version,
        weights_digest=combined_digest(expected),
        parameters=expected,
        tied=(),
        num_changed=None if previous is None else len(changed_names(expected, previous)),
        canary=() if canary is None else tuple(canary.given.tolist()),
        canary_distance=0.0 if canary is None else canary_distance(canary.expected, canary.given, canary.dtype),
        duration_s=perf_counter() - began,
    )


@dataclass(frozen=True, slots=True)
class VllmWorkers:
    """Answers of vLLM's workers, which have `rlcore.weights.vllm_extension.WeightAnswers` mixed in.

    `call` is `LLM.collective_rpc`, or `CompletionsServer.collective_rpc` for a server.
    """

    call: Callable[..., Sequence[Any]]

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        """As `SamplerAnswers.digests`; WeightSyncError if workers differ, InvalidValueError if they have no digests."""
        answers = self.call("weight_digests", args=(list(names),))
        for answer in answers:
            if "refused" in answer:
                raise InvalidValueError(answer["refused"], legal=answer["legal"], remedy=answer["remedy"])
        first: dict[str, str] = answers[0]["digests"]
        for number, answer in enumerate(answers):
            for name in names:
                if answer["digests"].get(name) != first.get(name):
                    raise WeightSyncError(
                        f"differs between workers 0 and {number}",
                        check=Check.READ_BACK,
                        parameter=name,
                        remedy="send the weights to every replica",
                    )
        return first
