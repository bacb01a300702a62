"""The trainer's weights to a weight target, and the proof that they have arrived: a receipt, or an error.

    receipt = sync(policy, sampler.weight_target, policy_version, previous=receipt)

    fence ─▶ names ─▶ memory ─▶ held ─▶ begin ─▶ probe (first sync) ─▶ write ─▶ read back ─▶ canary ─▶ commit

The trainer calls it between rollouts, in its own thread; nothing else may write a sampler's weights. A sync that fails
after `begin` leaves a sampler that refuses to sample, until a sync with `previous=None` has passed.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import TypeVar

import torch

from harness.bits.tensor_digests import combined_digest, tensor_digest
from rlcore.errors import WeightSyncError
from rlcore.models.decoder import Decoder
from rlcore.weights.canary import canary_distance, canary_tokens, different_layer
from rlcore.weights.receipts import Check, Receipt, changed_names
from rlcore.weights.source import LiveWeights, WeightSource
from rlcore.weights.target import ParameterSpec, TargetState, WeightTarget, address_space

Digests = Mapping[str, str]
There = TypeVar("There")
Here = TypeVar("Here")


@torch.no_grad()
def sync(
    policy: Decoder | WeightSource,
    target: WeightTarget,
    policy_version: int,
    previous: Receipt | None,
    *,
    has_learned: bool = False,
) -> Receipt:
    """Write the policy's parameters into the target, and check by its answers that they are there and used.

    The frozen base of adapters is not written, but checked as all else: the target has had its own copy from the start.
    `previous` is the receipt of the last sync of these two, None for the first or after a failure. `has_learned` means
    that the optimizer has moved the policy since: unchanged weights are then an error.
    Raises WeightSyncError with the check and the parameter that failed.
    """
    began = perf_counter()
    weights = LiveWeights(policy) if isinstance(policy, Decoder) else policy
    source, about, state = weights.tensors, weights.describe(), target.describe()
    names = tuple(state.parameters)

    check_fence(state, policy_version, previous)
    check_names(about.specs, state.parameters, about.tied)
    check_memory(about.specs, state.parameters)
    if previous is None:
        expected = weights.digests()
    else:
        held, expected = _at_once(state, partial(target.digests, names), weights.digests)
        check_held(state, held, previous)
        if has_learned:
            check_policy_changed(expected, previous)
    target.begin(policy_version)
    sent = tuple(name for name in names if name not in about.frozen)
    if previous is None:
        probe(weights, target, expected, sent)
    target.write((name, source[name]) for name in sent)
    check_digests({name: expected[name] for name in names}, target.digests(names), previous)
    tokens = canary_tokens(about.config)
    given, own = _at_once(state, partial(target.canary, tokens), partial(weights.logprobs, tokens))
    distance = canary_distance(own, given, about.dtype, lambda: different_layer(weights.decoder(), target, tokens))
    digest = combined_digest({name: expected[name] for name in about.names})
    target.commit(digest)

    return Receipt(
        policy_version=policy_version,
        weights_digest=digest,
        parameters=expected,
        tied=about.tied,
        num_changed=None if previous is None else len(changed_names(expected, previous)),
        canary=tuple(given.tolist()),
        canary_distance=distance,
        duration_s=perf_counter() - began,
    )


def _at_once(state: TargetState, there: Callable[[], There], here: Callable[[], Here]) -> tuple[There, Here]:
    """Return both; where the target is in another process, a thread at the caller's level asks it meanwhile."""
    regions = (spec.region for spec in state.parameters.values())
    if not any(region is not None and region.space[0] != address_space() for region in regions):
        return there(), here()
    with ThreadPoolExecutor(1) as executor:
        answer = executor.submit(copy_context().run, there)
        own = here()
    return answer.result(), own


def check_fence(state: TargetState, policy_version: int, previous: Receipt | None) -> None:
    """Check that versions rise; only a first sync, or one after a failure, may repeat the sampler's version."""
    lowest = state.policy_version + (previous is not None)
    if policy_version < lowest:
        raise WeightSyncError(
            f"version {policy_version} for a sampler that has version {state.policy_version}",
            check=Check.FENCE,
            legal=f"{lowest} or more",
            remedy="count the policy's version up before each sync; a new run has a new sampler",
        )


def check_names(
    source: Mapping[str, ParameterSpec], parameters: Mapping[str, ParameterSpec], tied: tuple[tuple[str, ...], ...]
) -> None:
    """Check that each parameter of the policy, or one tied to it, is in the sampler, and none besides."""
    partners = {name: group for group in tied for name in group}
    for name in source:
        if not parameters.keys() & {name, *partners.get(name, ())}:
            raise WeightSyncError(
                "is missing in the sampler",
                check=Check.COVERAGE,
                parameter=name,
                remedy="build the sampler from the policy's own model",
            )
    for name, found in parameters.items():
        if name not in source:
            raise WeightSyncError(
                "of the sampler is not a parameter of the policy", check=Check.COVERAGE, parameter=name
            )
        if found[:2] != source[name][:2]:
            raise WeightSyncError(
                f"is {found} in the sampler",
                check=Check.COVERAGE,
                parameter=name,
                legal=f"{source[name]}, as the policy has it",
            )


def check_memory(source: Mapping[str, ParameterSpec], parameters: Mapping[str, ParameterSpec]) -> None:
    """Check that no parameter of the sampler overlaps the policy; `probe` is for memory that processes share."""
    spans = [(spec.region, "", name) for name, spec in parameters.items() if spec.region is not None]
    spans += [(spec.region, "of the policy", name) for name, spec in source.items() if spec.region is not None]
    ends: dict[tuple[tuple[str, str], str], int] = {}
    for region, owner, name in sorted(spans):
        other = "" if owner else "of the policy"
        if ends.get((region.space, other), 0) > region.begin:
            raise _shared(name, "overlaps the other's memory")
        ends[region.space, owner] = max(region.end, ends.get((region.space, owner), 0))


def _shared(name: str, how: str) -> WeightSyncError:
    return WeightSyncError(
        f"of policy and sampler: one {how}",
        check=Check.OWNERSHIP,
        parameter=name,
        remedy="give the sampler a deep copy: training would change the weights it samples with",
    )


def check_held(state: TargetState, found: Digests, previous: Receipt) -> None:
    """Check that a sampler is as its last receipt says, by its version and digests."""
    if (state.policy_version, state.weights_digest) != (previous.policy_version, previous.weights_digest):
        raise WeightSyncError(
            f"the sampler reports version {state.policy_version}, {state.weights_digest}",
            check=Check.HELD,
            legal=f"version {previous.policy_version}, {previous.weights_digest}, by its last receipt",
        )
    if changed := changed_names(found, previous):
        raise WeightSyncError(
            f"of the sampler was changed since the sync of version {previous.policy_version} ({len(changed)} of "
            f"{len(found)} parameters were); its samples since then have unknown weights",
            check=Check.HELD,
            parameter=changed[0],
            remedy="find who else writes the sampler's weights, or loses them; then sync with previous=None",
        )


def check_policy_changed(expected: Digests, previous: Receipt) -> None:
    """Check that a policy that has learned differs from the last receipt in some bit."""
    if not changed_names(expected, previous):
        raise WeightSyncError(
            f"the policy has learned since version {previous.policy_version}, and no bit of it has changed",
            check=Check.LIVENESS,
            remedy="sync the model that the optimizer moves; where it is that one, steps are too small for its type",
        )


def probe(weights: WeightSource, target: WeightTarget, expected: Digests, names: tuple[str, ...]) -> None:
    """Write NaN, as a first load: the weights have to come after it, and the policy must not change.

    So a write without effect is found, a load that works only once, and memory that two processes share. A parameter
    of the policy that NaN has reached is restored.
    """
    source = weights.tensors
    for name in names:
        kept = source[name].clone()
        target.write([(name, torch.full_like(kept, float("nan")))])
        if tensor_digest(source[name]) != expected[name]:
            source[name].copy_(kept)
            raise _shared(name, "is written with the other")


def check_digests(expected: Digests, found: Digests, previous: Receipt | None) -> None:
    """Check that each parameter of a sampler has the expected digest. Raises WeightSyncError.

    Its check is coverage if the parameter is missing, liveness if it is as it was at the last receipt, or read-back.
    """
    different = [name for name in expected if found.get(name) != expected[name]]
    if not different:
        return
    name, extent = different[0], f"({len(different)} of {len(expected)} parameters differ)"
    if name not in found:
        raise WeightSyncError(
            f"is missing in the sampler {extent}",
            check=Check.COVERAGE,
            parameter=name,
            remedy="send the sampler's own names: those of its checkpoint",
        )
    if previous is not None and found[name] == previous.parameters.get(name):
        raise WeightSyncError(
            f"has changed in the policy since version {previous.policy_version}, and not in the sampler {extent}",
            check=Check.LIVENESS,
            parameter=name,
            remedy="look for what skips it: adapters that are not merged, a sync to a sleeping engine, a frozen base",
        )
    raise WeightSyncError(
        f"of the sampler has other bits than the policy's {extent}",
        check=Check.READ_BACK,
        parameter=name,
        remedy="write the policy's bits: a conversion on the way, of type, order or scale, changes every digest",
    )
