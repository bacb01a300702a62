"""The trainer's weights to a weight target, and the proof that they have arrived: a receipt, or an error.

    receipt = sync(policy, sampler.weight_target, policy_version, previous=receipt)

    describe ─▶ fence ─▶ names ─▶ ownership ─▶ held ─▶ begin ─▶ poison ─▶ transport ─▶ coverage, liveness, read-back
          ─▶ begin and transport again (first sync: idempotence) ─▶ canary ─▶ commit ─▶ Receipt

The trainer calls it between rollouts, in its own thread; nothing else may write a sampler's weights. A sync that fails
after `begin` leaves a sampler that refuses to sample, with NaN or worse in its weights, until a sync with
`previous=None` has passed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from harness.bits.tensor_digests import combined_digest
from rlcore.models.decoder import Decoder
from rlcore.weights.canary import canary_distance, canary_tokens, different_layer
from rlcore.weights.coverage import check_names, check_poisoned, check_reported
from rlcore.weights.overlap import at_once
from rlcore.weights.ownership import check_ownership, is_elsewhere, probe_ownership
from rlcore.weights.receipts import ALL_CHECKS, Check, Receipt
from rlcore.weights.source import LiveWeights, WeightSource
from rlcore.weights.target import TargetState, WeightTarget
from rlcore.weights.transports.base import Transport
from rlcore.weights.transports.in_process import InProcessTransport
from rlcore.weights.verify import (
    changed_names,
    check_arrived,
    check_fence,
    check_idempotent,
    check_policy_changed,
    check_unmodified,
)

IN_PROCESS = InProcessTransport()


@torch.no_grad()
def sync(
    policy: Decoder | WeightSource,
    target: WeightTarget,
    policy_version: int,
    previous: Receipt | None,
    *,
    transport: Transport = IN_PROCESS,
    has_learned: bool = False,
    checks: frozenset[Check] = ALL_CHECKS,
) -> Receipt:
    """Write the policy's parameters into the target, and check by its answers that they are there and used.

    `previous` is the receipt of the last sync of these two, None for the first or after a failure. `has_learned` means
    that the optimizer has moved the policy since: unchanged weights are then an error. Fewer `checks` are for
    measuring what they cost, and for showing what they find; the receipt names those that were made.
    Raises WeightSyncError with the check and the parameter that failed.
    """
    began = perf_counter()
    weights = LiveWeights(policy) if isinstance(policy, Decoder) else policy
    source, specs = weights.tensors, weights.specs()
    state, tied = target.describe(), weights.tied
    if Check.FENCE in checks:
        check_fence(state, policy_version, previous)
    if Check.COVERAGE in checks:
        check_names(specs, state.parameters, tied)
    if Check.OWNERSHIP in checks:
        check_ownership(specs, state.parameters, tied)
    elsewhere = is_elsewhere(state.parameters)
    if Check.HELD in checks and previous is not None:
        held, expected = at_once(
            partial(target.digests, tuple(state.parameters)), weights.digests, is_elsewhere=elsewhere
        )
        check_unmodified(state, held, previous)
    else:
        expected = weights.digests()
    if Check.LIVENESS in checks and has_learned and previous is not None:
        check_policy_changed(expected, previous)
    load = _Load(source=source, expected=expected, target=target, state=state, transport=transport, checks=checks)
    load.run(policy_version, previous)
    logprobs, distance = _canary(weights, target, elsewhere) if Check.CANARY in checks else ((), 0.0)
    digest = combined_digest({name: expected[name] for name in weights.names})
    target.commit(digest)
    return Receipt(
        policy_version=policy_version,
        weights_digest=digest,
        parameters=expected,
        tied=tied,
        num_changed=None if previous is None else len(changed_names(expected, expected, previous)),
        canary=logprobs,
        canary_distance=distance,
        checks=tuple(sorted(check.value for check in checks)),
        num_bytes=sum(spec.num_bytes for spec in state.parameters.values()),
        duration_s=perf_counter() - began,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """The part of a sync between `begin` and the canary."""

    source: Mapping[str, Tensor]
    expected: Mapping[str, str]
    target: WeightTarget
    state: TargetState
    transport: Transport
    checks: frozenset[Check]

    def run(self, policy_version: int, previous: Receipt | None) -> None:
        """Poison, write and check; without a previous receipt, probe the memory and write twice."""
        names, is_first = tuple(self.state.parameters), previous is None
        self.target.begin(policy_version)
        if Check.OWNERSHIP in self.checks and is_first and is_elsewhere(self.state.parameters):
            probe_ownership(self.source, self.expected, self.target, names)
        if Check.COVERAGE in self.checks:
            self.target.poison(names)
            if is_first:
                check_poisoned(self.state.parameters, self.target.digests(names))
        reported = self._write()
        if Check.COVERAGE in self.checks:
            check_reported(reported, names)
        check_arrived(self.source, self.expected, self.target, names, previous=previous, checks=self.checks)
        if Check.IDEMPOTENCE in self.checks and is_first:
            self.target.begin(policy_version)
            self._write()
            check_idempotent(self.source, self.expected, self.target, names)

    def _write(self) -> list[str]:
        """Send every parameter that the target has; return the names that it reports."""
        weights = ((name, self.source[name]) for name in self.state.parameters)
        return list(self.transport(weights, self.target))


def _canary(weights: WeightSource, target: WeightTarget, elsewhere: bool) -> tuple[tuple[float, ...], float]:
    """Return the target's log-probabilities of the canary, and their distance to the policy's."""
    tokens = canary_tokens(weights.config)
    given, own = at_once(partial(target.canary, tokens), partial(weights.logprobs, tokens), is_elsewhere=elsewhere)
    distance = canary_distance(own, given, weights.dtype, lambda: different_layer(weights.decoder(), target, tokens))
    return tuple(given.tolist()), distance
