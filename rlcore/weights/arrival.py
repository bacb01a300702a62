"""Whether a sampler holds what it should: before a sync, after it, and after it was done twice."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.weights.coverage import check_written
from rlcore.weights.digests import tensor_digests
from rlcore.weights.receipts import Check, Receipt


def check_fence(version_held: int, policy_version: int, previous: Receipt | None) -> None:
    """Versions rise; only a first sync, or one after a failure, may say again what the sampler says.

    Raises WeightSyncError.
    """
    lowest = version_held + 1 if previous is not None else version_held
    if policy_version < lowest:
        raise WeightSyncError(
            f"version {policy_version} for a sampler that has version {version_held}",
            check=Check.FENCE,
            legal=f"{lowest} or more",
            remedy="count the policy's version up before each sync; a new run has a new sampler",
        )


def check_held(targets: Mapping[str, Tensor], version: int, digest: str, receipt: Receipt) -> None:
    """A sampler of these weights, version and digest is as the receipt left it; raises WeightSyncError."""
    if (version, digest) != (receipt.policy_version, receipt.weights_digest):
        raise WeightSyncError(
            f"the sampler says version {version}, {digest}",
            check=Check.HELD,
            legal=f"version {receipt.policy_version}, {receipt.weights_digest}, by its last receipt",
        )
    found = tensor_digests(targets)
    if changed := changed_names(found, receipt):
        raise WeightSyncError(
            f"of the sampler was changed since the sync of version {receipt.policy_version} "
            f"({len(changed)} of {len(found)} parameters were); what it has sampled since is of unknown weights",
            check=Check.HELD,
            parameter=changed[0],
            remedy="find who else writes the sampler's weights, or loses them; then sync with previous=None",
        )


def changed_names(digests: Mapping[str, str], receipt: Receipt) -> list[str]:
    """Parameters whose digest is not that of the receipt."""
    return [name for name in digests if digests[name] != receipt.parameters.get(name)]


def check_learned(digests: Mapping[str, str], previous: Receipt) -> None:
    """A policy that has learned is not, to the last bit, what it was at the last receipt; raises WeightSyncError."""
    if not changed_names(digests, previous):
        raise WeightSyncError(
            f"the policy has learned since version {previous.policy_version}, and no bit of it has changed",
            check=Check.LIVENESS,
            remedy="sync the model that the optimizer moves; where it is that one, steps are too small for its type",
        )


def check_arrived(
    source: Mapping[str, Tensor],
    expected: Mapping[str, str],
    targets: Mapping[str, Tensor],
    previous: Receipt | None,
    checks: frozenset[Check],
) -> None:
    """Each parameter has its expected digest; what differs is told apart by the first of three checks that finds it.

    Raises WeightSyncError: coverage where it was not written, liveness where it is what it was at the last receipt,
    read-back where it is anything else.
    """
    if not checks & {Check.COVERAGE, Check.LIVENESS, Check.READ_BACK}:
        return
    found = tensor_digests(targets)
    different = [name for name in found if found[name] != expected[name]]
    for name in different:
        if Check.COVERAGE in checks:
            check_written(name, source[name], targets[name])
        if Check.LIVENESS in checks and previous is not None and found[name] == previous.parameters.get(name):
            raise WeightSyncError(
                f"has changed in the policy since version {previous.policy_version}, and not in the sampler",
                check=Check.LIVENESS,
                parameter=name,
                remedy="let the transport send the policy it is given",
            )
        if Check.READ_BACK in checks:
            raise WeightSyncError(
                f"of the sampler: {differing(source[name], targets[name])} differ from the policy's "
                f"({len(different)} of {len(found)} parameters do)",
                check=Check.READ_BACK,
                parameter=name,
            )


def check_twice_is_once(
    source: Mapping[str, Tensor], expected: Mapping[str, str], targets: Mapping[str, Tensor]
) -> None:
    """The same weights, written a second time, are what they were; raises WeightSyncError."""
    found = tensor_digests(targets)
    for name in found:
        if found[name] != expected[name]:
            raise WeightSyncError(
                f"of the sampler, written twice: {differing(source[name], targets[name])} differ from the policy's",
                check=Check.IDEMPOTENCE,
                parameter=name,
                remedy="let a load begin from the layout that parameters have, not from what the last load made of it",
            )


def differing(a: Tensor, b: Tensor) -> str:
    """How many elements of two tensors have other bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return "type or shape"
    if not a.numel():
        return "0 of 0 elements"
    words = (tensor.detach().cpu().contiguous().reshape(-1, 1).view(torch.uint8) for tensor in (a, b))
    first, second = words
    return f"{int((first != second).any(dim=-1).sum())} of {a.numel()} elements"
