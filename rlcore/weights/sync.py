"""The trainer's weights to the sampler, and the proof that they have arrived: a receipt, or an error.

    receipt = sync(policy, sampler, policy_version, previous=receipt)

    fence ─▶ names ─▶ ownership ─▶ held ─▶ poison ─▶ transport ─▶ coverage, liveness, read-back
          ─▶ transport again (first sync: idempotence) ─▶ sampler.loaded ─▶ canary ─▶ Receipt

The trainer calls it between rollouts, in its own thread; nothing else may write a sampler's weights. What failed after
the poison leaves NaN or worse in the sampler: do not sample before a sync has passed, with `previous=None`.
"""

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from rlcore.models.decoder import Decoder
from rlcore.weights.arrival import (
    changed_names,
    check_arrived,
    check_fence,
    check_held,
    check_learned,
    check_twice_is_once,
)
from rlcore.weights.canary import canary_distance, canary_tokens, policy_logprobs
from rlcore.weights.coverage import check_live, check_names, check_reported, poison, tied_names
from rlcore.weights.digests import combined_digest, tensor_digests
from rlcore.weights.ownership import check_ownership
from rlcore.weights.receipts import ALL_CHECKS, Check, Receipt

Transport = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Iterable[str]]
"""(source, targets) -> the names it has written; in place, each target once, with the source of its name."""


class Holder(Protocol):
    """What a sync needs of a `rlcore.samplers.base.Sampler`."""

    @property
    def policy_version(self) -> int:
        """Of the weights it holds."""

    @property
    def weights_digest(self) -> str:
        """The same, by their bits."""

    def parameters(self) -> Mapping[str, Tensor]:
        """Its own weights, live, named as the decoder's named_parameters()."""

    def loaded(self, policy_version: int, weights_digest: str) -> None:
        """Weights have been written: what was made of older ones is void. Refused while it samples."""

    def canary(self, tokens: Tensor) -> Tensor:
        """[length] -> log-probabilities [length - 1] of a fixed sequence, by the way it samples."""


@torch.no_grad()
def copy_into(source: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> list[str]:
    """The transport within a process: one copy a parameter."""
    for name, target in targets.items():
        target.copy_(source[name])
    return list(targets)


def sync(
    policy: Decoder,
    sampler: Holder,
    policy_version: int,
    previous: Receipt | None,
    *,
    transport: Transport = copy_into,
    has_learned: bool = False,
    checks: frozenset[Check] = ALL_CHECKS,
) -> Receipt:
    """Write the policy's parameters into the sampler, and check that they are there and used.

    `previous` is the receipt of the last sync of these two, None for the first or after a failure. `has_learned` says
    that the optimizer has moved the policy since: weights that are those of before are then an error. Fewer `checks`
    are for measuring what they cost, and for showing what they find; the receipt names those that were made.
    Raises WeightSyncError with the check and the parameter that failed.
    """
    began = perf_counter()
    source = {name: parameter.detach() for name, parameter in policy.named_parameters(remove_duplicate=False)}
    targets, tied = sampler.parameters(), tied_names(policy)
    if Check.FENCE in checks:
        check_fence(sampler.policy_version, policy_version, previous)
        # Says nothing new, and is refused while it samples: here, and not when the weights are half written.
        sampler.loaded(sampler.policy_version, sampler.weights_digest)
    if Check.COVERAGE in checks:
        check_names(source, targets, tied)
    if Check.OWNERSHIP in checks:
        check_ownership(source, targets, tied)
    if Check.HELD in checks and previous is not None:
        check_held(targets, sampler.policy_version, sampler.weights_digest, previous)
    expected = tensor_digests(source)
    if Check.LIVENESS in checks and has_learned and previous is not None:
        check_learned(expected, previous)
    _write(source, sampler, transport, checks)
    check_arrived(source, expected, sampler.parameters(), previous, checks)
    if Check.IDEMPOTENCE in checks and previous is None:
        transport(source, sampler.parameters())
        check_twice_is_once(source, expected, sampler.parameters())
    digest = combined_digest({name: expected[name] for name, _ in policy.named_parameters()})
    sampler.loaded(policy_version, digest)
    logprobs, distance = _canary(policy, sampler) if Check.CANARY in checks else ((), 0.0)
    return Receipt(
        policy_version=policy_version,
        weights_digest=digest,
        parameters=expected,
        tied=tied,
        num_changed=None if previous is None else len(changed_names(expected, previous)),
        canary=logprobs,
        canary_distance=distance,
        checks=tuple(sorted(check.value for check in checks)),
        num_bytes=sum(target.nbytes for target in targets.values()),
        duration_s=perf_counter() - began,
    )


def verify(policy: Decoder, sampler: Holder, receipt: Receipt) -> None:
    """The sampler still is as the receipt left it, and computes with what it holds: after a sleep, or before a rollout.

    `policy` is only asked for the shape of the canary. Raises WeightSyncError: held, or canary.
    """
    check_held(sampler.parameters(), sampler.policy_version, sampler.weights_digest, receipt)
    if receipt.canary:
        given = sampler.canary(canary_tokens(policy.config))
        canary_distance(torch.tensor(receipt.canary), given, policy.embedding.dtype)


def _write(source: Mapping[str, Tensor], sampler: Holder, transport: Transport, checks: frozenset[Check]) -> None:
    """Poison, then write; the poison is there to be missed where a parameter is not written."""
    targets = sampler.parameters()
    if Check.COVERAGE not in checks:
        transport(source, targets)
        return
    poison(targets)
    check_live(targets, sampler.parameters())
    check_reported(transport(source, targets), targets)


def _canary(policy: Decoder, sampler: Holder) -> tuple[tuple[float, ...], float]:
    """What the sampler gives the canary, and how far that is from the policy's."""
    tokens = canary_tokens(policy.config)
    given = sampler.canary(tokens)
    distance = canary_distance(policy_logprobs(policy, tokens), given, policy.embedding.dtype)
    return tuple(given.tolist()), distance
